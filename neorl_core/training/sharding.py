"""Training over several devices: members on separate devices, or each batch divided among devices.

All devices run the same program (`jax.sharding`); with `jax.distributed` they may belong to several processes that make
the same calls. Sums are taken in another order than on one device, so results agree to float tolerance; the same
devices give the same bits.
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
    """Return a mesh with axes for members and for parts of a batch, as many devices as possible for members.

    Args:
        members: number of members of the population.
        batch_size: transitions per gradient step.
        devices: devices to use; all by default.

    Raises:
        ValueError: if neither divides evenly among the devices.
    """
    devices = list(devices or jax.devices())
    across = int(np.gcd(members, len(devices)))
    if batch_size % (len(devices) // across):
        raise ValueError(
            f"members or batch_size must divide among {len(devices)} devices, got {members} member(s) and batches of "
            f"{batch_size}: make one of them a multiple"
        )
    return Mesh(np.array(devices).reshape(across, -1), ("member", "batch"), axis_types=(AxisType.Auto,) * 2)


def shard_members(mesh: Mesh, population: TrainState) -> TrainState:
    """Distribute the members of a population over the mesh."""
    spread: TrainState = _put(population, _sharding(mesh, "member"))
    return spread


def replicate(mesh: Mesh, data: Transition) -> Transition:
    """Copy the data to every device."""
    everywhere: Transition = _put(data, _sharding(mesh))
    return everywhere


@lru_cache(maxsize=16)
def shard_batches(algorithm: Algorithm, mesh: Mesh) -> Algorithm:
    """Return the algorithm with every batch divided among the devices of a member and gradients summed over them."""
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
    # Every process has the same host values and fills its own devices.
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), sharding), tree)
