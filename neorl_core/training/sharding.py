"""One run over several devices: members on devices of their own, or each batch divided among devices.

The same program runs on all of them (`jax.sharding`); with `jax.distributed` the devices may belong to several
processes, each of which makes the same calls. Sums are taken in another order than on one device, so that results agree
to float tolerance and not to the bit; the same devices give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from neorl_core.training.population import Algorithm, Metrics, TrainState, Update, wrapped
from neorl_core.types import Transition


def mesh_of(members: int, batch_size: int, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Devices in two directions, members and parts of a batch: as many as can be in the first.

    Args:
        members: how many members the population has.
        batch_size: transitions per gradient step.
        devices: all by default.

    Raises:
        ValueError: when neither divides evenly among the devices.
    """
    found = list(devices or jax.devices())
    across = int(np.gcd(members, len(found)))
    if batch_size % (len(found) // across):
        raise ValueError(
            f"expected members or batches that divide among {len(found)} devices, got {members} member(s) and batches "
            f"of {batch_size}: make one of them a multiple."
        )
    return Mesh(np.array(found).reshape(across, -1), ("member", "batch"), axis_types=(AxisType.Auto,) * 2)


def placed(mesh: Mesh, population: TrainState) -> TrainState:
    """A population with its members spread over the mesh."""
    spread: TrainState = _put(population, _sharding(mesh, "member"))
    return spread


def replicated(mesh: Mesh, data: Transition) -> Transition:
    """The data on every device."""
    everywhere: Transition = _put(data, _sharding(mesh))
    return everywhere


@lru_cache(maxsize=16)
def split(algorithm: Algorithm, mesh: Mesh) -> Algorithm:
    """The algorithm whose every batch is divided among the devices of a member; gradients are summed over them."""
    rows = _sharding(mesh, None, "batch")

    def wrap(update: Update) -> Update:
        def divided(state: Any, batches: Transition, key: jax.Array) -> tuple[Any, Metrics]:
            parts = jax.lax.with_sharding_constraint(batches, rows)  # type: ignore[no-untyped-call]
            return update(state, parts, key)

        return divided

    return wrapped(algorithm, wrap)


def _sharding(mesh: Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, P(*axes))  # type: ignore[no-untyped-call]


def _put(tree: Any, sharding: NamedSharding) -> Any:
    # The values come from the host: every process holds the same ones, and gives its devices their part.
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), sharding), tree)
