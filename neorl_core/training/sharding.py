"""Train on several devices: place members on separate devices, or divide each batch among devices.

All devices run the same program (`jax.sharding`). With `jax.distributed`, the devices may belong to several processes.
The order of sums depends on the devices, so results on several devices and on one device differ by rounding errors.
Repeated runs on the same devices are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neorl_core.training.population import Algorithm, Metrics, TrainState, Update, wrap_updates
from neorl_core.types import Transition


def mesh_of(members: int, batch_size: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh with the axes `member` and `batch`. The axis `member` gets as many devices as possible.

    Args:
        devices: devices to use; all by default.

    Raises:
        ValueError: if members and batch cannot be divided evenly among the devices.
    """
    devices = list(devices or jax.devices())
    across = int(np.gcd(members, len(devices)))
    if batch_size % (len(devices) // across):
        raise ValueError(
            f"{members} member(s) and batches of {batch_size} cannot be divided evenly among {len(devices)} devices: "
            f"make the number of members or the batch size a multiple of {len(devices)}"
        )
    return Mesh(np.array(devices).reshape(across, -1), ("member", "batch"), axis_types=(AxisType.Auto,) * 2)


def shard_members(mesh: Mesh, population: TrainState) -> TrainState:
    """Return the population with its members placed on the devices of the mesh."""
    spread: TrainState = _put(population, _sharding(mesh, "member"))
    return spread


def replicate(mesh: Mesh, data: Transition) -> Transition:
    """Return the data, copied to every device of the mesh."""
    everywhere: Transition = _put(data, _sharding(mesh))
    return everywhere


@lru_cache(maxsize=16)
def shard_batches(algorithm: Algorithm, mesh: Mesh) -> Algorithm:
    """Return the algorithm with each batch divided among a member's devices. JAX adds up the devices' gradients."""
    rows = _sharding(mesh, None, "batch")

    def wrap(update: Update) -> Update:
        def divided(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            parts = jax.lax.with_sharding_constraint(batches, rows)  # type: ignore[no-untyped-call]
            return update(state, parts, key)

        return divided

    return wrap_updates(algorithm, wrap)


def _sharding(mesh: Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, P(*axes))  # type: ignore[no-untyped-call]


def _put(tree: Any, sharding: NamedSharding) -> Any:
    # Every process has all values in host memory, and copies values only to its own devices.
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), sharding), tree)
