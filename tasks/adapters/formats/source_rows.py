"""What becomes of a source's rows before the row checks: costs by a plant's limits, or a spec made of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.plants.base import LoggedSignals
from neorl_core.types import Constraint, PlantSpec, Transition
from tasks.adapters.formats.hdf5.sources import Blocks, Source
from tasks.adapters.formats.recordings import spec_of
from tasks.adapters.store.scoring import with_costs


def for_plant(source: Source, spec: PlantSpec, logged: LoggedSignals) -> Callable[[], Blocks]:
    """A source's blocks as rows of a known plant: costs by its limits, where the source has none of its own.

    Raises:
        BadInput: when its vectors are not as wide as the plant's.
    """
    for what, got, space in (
        ("observations", source.observations, spec.observation),
        ("actions", source.actions, spec.action),
    ):
        if got != space.size:
            raise BadInput(
                f"expected {space.size} {what} of {spec.name} in {source.path.name}, got {got}: "
                "check that the file belongs to this plant."
            )

    def blocks() -> Blocks:
        for rows in source.blocks():
            if "constraint_costs" in source.carries:
                if rows["constraint_costs"].shape[1:] != (len(spec.constraints),):
                    raise BadInput(
                        f"expected costs of {len(spec.constraints)} limits of {spec.name} in {source.path.name}, got "
                        f"{rows['constraint_costs'].shape[1:]}: check that the file belongs to this plant."
                    )
                yield rows
            else:
                own = {"costs": rows["costs"]} if "costs" in source.carries else {}
                yield with_costs(rows, logged) | own

    return blocks


def survey(source: Source, name: str) -> PlantSpec:
    """A spec for a file of which nothing else is known, made in one pass over it.

    Raises:
        BadInput: when no row can be used.
    """
    bounds: dict[str, list[npt.NDArray[Any]]] = {}
    longest = age = 0
    limits = 0
    for rows in source.blocks():
        sound = np.ones(len(rows["rewards"]), bool)
        for key in ("observations", "actions", "next_observations", "rewards"):
            sound &= np.isfinite(rows[key]).reshape(len(sound), -1).all(axis=1)
        sound &= rows["rejected"] == "" if "rejected" in rows else True
        for key in ("observations", "actions", "next_observations"):
            if sound.any():
                edges = [rows[key][sound].min(axis=0), rows[key][sound].max(axis=0)]
                bounds[key] = (
                    [np.minimum(bounds[key][0], edges[0]), np.maximum(bounds[key][1], edges[1])]
                    if key in bounds
                    else edges
                )
        ends = np.flatnonzero((rows["terminals"] != 0) | (rows["timeouts"] != 0))
        lengths = np.diff(np.concatenate([[-1 - age], ends, [len(sound) - 1]]))
        longest, age = max(longest, int(lengths.max())), int(lengths[-1])
        limits = rows["constraint_costs"].shape[1] if "constraint_costs" in source.carries else 0
    if not bounds:
        raise BadInput(f"expected a sound row in {source.path.name}, got none: mend the export.")
    box = {key: np.stack(edges) for key, edges in bounds.items()}
    extremes = Transition(
        observation=box["observations"],
        action=box["actions"],
        reward=np.zeros(2, np.float32),
        cost=np.zeros(2, np.float32),
        next_observation=box["next_observations"],
        terminated=np.zeros(2, np.float32),
    )
    spec = spec_of(name, extremes, longest)
    unknown = tuple(Constraint(f"limit_{i}", "", -np.inf, np.inf) for i in range(limits))
    return spec._replace(constraints=unknown)
