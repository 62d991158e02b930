"""Estimate unknown constants of a simulator from training episodes.

Each estimate becomes the constant's nominal value. The operating domain draws the constants from their posterior.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused, nearest
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.identify import (
    Episodes,
    Posterior,
    Unknown,
    drawing_plant,
    posterior_fields,
    stack_rows,
    step_test,
)
from neorl_core.identify import (
    identify as estimate,
)
from neorl_core.types import Plant
from tasks.data.store.reader import StoredDataset
from tasks.models.plants.known import KnownPlant, plant_of
from tasks.references import KNOWN, Dataset, Identification, IdentifiedConstant
from tasks.stages import cached

MOST_ROWS = 20_000
"""Largest number of logged steps used, including padding of short episodes, to limit time and memory."""
LEAST_EPISODES = 10
"""Smallest number of episodes to use if the logs have so many, because intervals are computed from episodes."""
KEYS = ("observations", "actions", "next_observations")
CONFIDENCE = 0.95


def unknowns_of(run: OpenedRun, plant: Plant) -> tuple[Unknown, ...]:
    """Return the constants that a run estimates, with their priors.

    Raises:
        BadInput: if the plant lacks a named constant or signal, or if a prior does not fit the constant's value.
    """
    if run.identify is None:
        return ()
    for key, names in (("starts", run.identify.starts), ("inputs", run.identify.inputs)):
        for name in names:
            if name not in plant.spec.observation.names:
                raise BadInput(
                    f"identify.{key} names '{name}', which is not a signal of {plant.spec.name}: "
                    f"{nearest(name, plant.spec.observation.names)}"
                )
    found = []
    for label, prior in run.identify.constants.items():
        name, _, rest = label.partition("[")
        entry = int(rest.removesuffix("]")) if rest else None
        centre = _nominal(plant, name, entry)
        if centre == 0 or (prior.law == "log-normal" and centre < 0):
            cure = f"change {label} in the plant's file" + (", or set law: normal" if centre < 0 else "")
            raise BadInput(f"{label} is {centre:g}, so a relative deviation under law {prior.law} is undefined: {cure}")
        scale = abs(centre) if prior.law == "normal" else 1.0
        found.append(Unknown(name, scale * prior.deviation, prior.law, entry=entry))
    return tuple(found)


def _nominal(plant: Plant, name: str, entry: int | None) -> float:
    """Return a constant's value in the plant's file."""
    fields = plant.params._fields
    if name not in fields:
        raise BadInput(
            f"identify.constants names '{name}', which is not a constant of {plant.spec.name}: {nearest(name, fields)}"
        )
    value = np.asarray(getattr(plant.params, name))
    known = entry is None if value.ndim == 0 else value.ndim == 1 and entry is not None and entry < len(value)
    if not known:
        cure = f"write {name}[0] to {name}[{len(value) - 1}]" if value.ndim == 1 else f"write {name} alone"
        label = name if entry is None else f"{name}[{entry}]"
        raise BadInput(f"identify.constants names {label}, which is not a single number of {name}: {cure}")
    return float(value if entry is None else value[entry])


def simulator_of(known: KnownPlant, identification: Identification) -> Plant:
    """Return the plant's simulator with an operating domain that draws estimated constants from their posterior."""
    plant = known.simulator()
    if not identification.constants:
        return plant
    drawn = [Unknown(found.name, found.deviation, found.law, entry=found.entry) for found in identification.constants]
    return drawing_plant(plant, drawn, identification.domain)


@cached()
def identify(home: Home, run: OpenedRun, dataset: Dataset) -> Identification:
    """Estimate the plant's unknown constants from training episodes, or return `KNOWN` if the run estimates none.

    Raises:
        BadInput: if a constant or signal is unknown, or if the logs allow no estimate.
        Refused: if the estimate does not converge.
    """
    if run.identify is None:
        return KNOWN
    plant = plant_of(run).simulator()
    unknowns, settings = unknowns_of(run, plant), run.identify
    store = StoredDataset.open(dataset.store, dataset.digest)
    episodes = _episodes(store, store.split(run.data.held_out)[0])
    starts = {name: (start.mean, start.deviation) for name, start in settings.starts.items()}
    try:
        posterior = estimate(
            plant,
            unknowns,
            episodes,
            segment=settings.segment,
            starts=starts,
            inputs=settings.inputs,
            confidence=CONFIDENCE,
        )
        fields = settled_fields(unknowns, posterior)
    except ValueError as error:
        raise BadInput(f"in 'identify': {error}") from error
    return Identification(
        dataset=dataset.digest,
        episodes=len(episodes.actions),
        constants=tuple(_constant(plant, unknowns, posterior, i, episodes) for i in range(len(unknowns))),
        domain=fields,
    )


def settled_fields(unknowns: tuple[Unknown, ...], posterior: Posterior) -> dict[str, float]:
    """Return the domain fields of a posterior by `posterior_fields`, after a check that the estimate converged.

    Raises:
        Refused: if the estimate diverged.
        ValueError: if there are fewer than four episodes.
    """
    try:
        fields = posterior_fields(unknowns, posterior) if bool(posterior.converged) else {}
    except np.linalg.LinAlgError:
        fields = {}
    if not fields or not all(map(np.isfinite, fields.values())):
        raise Refused(
            f"the estimate of {', '.join(map(str, unknowns))} does not converge: estimate fewer constants under "
            "'identify', give them smaller deviations, or use other logs"
        )
    return fields


def _episodes(store: StoredDataset, candidates: npt.NDArray[np.int64]) -> Episodes:
    """Read the first steps of evenly spaced episodes, at most MOST_ROWS steps in all."""
    bounds = store.episodes
    chosen, most = _chosen(candidates, np.diff(bounds))
    lengths = np.minimum(np.diff(bounds)[chosen], most)
    parts = [
        store.read(start, start + length, KEYS) for start, length in zip(bounds[:-1][chosen], lengths, strict=True)
    ]
    observation, action, following = (np.concatenate([part[key] for part in parts]) for key in KEYS)
    return stack_rows(observation, action, following, lengths)


def _chosen(episodes: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Return the indices of evenly spaced episodes, and the number of steps after which each episode is cut.

    The number of episodes is MOST_ROWS divided by the mean length of an episode, but at least LEAST_EPISODES.
    """
    fitting = int(MOST_ROWS * len(episodes) / lengths[episodes].sum())
    count = min(len(episodes), max(LEAST_EPISODES, fitting))
    places = np.linspace(0, len(episodes) - 1, count).round().astype(int)
    return episodes[np.unique(places)], MOST_ROWS // count


def _constant(
    plant: Plant, unknowns: tuple[Unknown, ...], posterior: Posterior, i: int, episodes: Episodes
) -> IdentifiedConstant:
    unknown, identified = unknowns[i], bool(posterior.identified[i])
    centre = _nominal(plant, unknown.name, unknown.entry)
    test = ""
    if not identified:
        found = step_test(plant, unknowns, posterior, i, jnp.asarray(_at_rest(episodes)))
        test = str(found) if found is not None else "every tried step is predicted to violate a limit"
    return IdentifiedConstant(
        name=unknown.name,
        entry=unknown.entry,
        law=unknown.law,
        estimate=float(posterior.estimate[i]),
        lower=float(posterior.low[i]),
        upper=float(posterior.high[i]),
        prior=centre,
        deviation=unknown.spread / (abs(centre) if unknown.law == "normal" else 1.0),
        share=float(np.sqrt(np.asarray(posterior.covariance)[i, i])),
        identified=identified,
        test=test,
    )


def _at_rest(episodes: Episodes) -> npt.NDArray[np.floating]:
    """Return the logged observation that changes least in one step, relative to the signals' standard deviations."""
    seen = np.asarray(episodes.observations)
    spread = np.nanstd(seen.reshape(-1, seen.shape[-1]), axis=0)
    moved = np.abs(np.diff(seen, axis=1)) / np.where(spread > 0, spread, 1.0)
    at = np.unravel_index(np.nanargmin(moved.max(axis=-1)), moved.shape[:2])
    found: npt.NDArray[np.floating] = seen[at]
    return found
