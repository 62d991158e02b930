"""Learned model of a log-only plant: fitted to bootstrapped training episodes, tested on held-out episodes.

The model and the naive predictors use the run's history of earlier values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import PRNGKeyArray

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.history import resting_action, stacked_spec
from neorl_core.networks import Normaliser, normalise, to_unit
from neorl_core.training.optimisers import Recipe
from neorl_core.training.preparation import make_scaling, moments
from neorl_core.types import History, PlantSpec, Transition
from neorl_core.world_model import bootstrap, dynamics
from neorl_core.world_model.dynamics import Model
from neorl_core.world_model.prediction import (
    HORIZONS,
    Windows,
    episode_errors,
    error_ratios,
    fit_autoregression,
    squared_errors,
    windows,
)
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, read_logs
from tasks.data.store.histories import RowHistory, observed_spec, resting_history
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import digest_json, file_sha256, sha256_hex, write_atomic
from tasks.references import NAIVE_PREDICTORS, Dataset, Interval, LearnedModel, PredictionErrors
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

Floats = npt.NDArray[np.floating]

MEMBERS = 5
HIDDEN = (32, 32)
STILL = 0.9
"""A signal counts as set by people if its value stays the same at this share of the steps."""
HISTORY = tuple(f"history/{name}" for name in History._fields)
"""Names of the arrays that store a model's history."""


class FittedModel(NamedTuple):
    """A stored learned model: ensemble, and scales of inputs and outputs."""

    model: Model
    normaliser: Normaliser
    rewards: tuple[float, float]
    weight: npt.NDArray[np.float64]
    """(O,) weights of squared one-step errors in `one_step_scores`; 0 for signals that people set."""
    rest: npt.NDArray[np.float32]
    """(A,) action that is assumed before an episode's first step."""

    @property
    def past(self) -> RowHistory:
        """History that the model uses."""
        return resting_history(self.model.history, self.rest)


@cached()
def fit_model(home: Home, run: OpenedRun, dataset: Dataset, progress: Report | None = None) -> LearnedModel:
    """Fit an ensemble to bootstrapped training episodes, and compare it with naive predictors on held-out episodes."""
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    training, held_out = (read_logs(store, episodes) for episodes in store.split(run.data.held_out))
    found = _fitted(run, training, progress)
    known, unseen = _prepared(training, found), _prepared(held_out, found)
    linear = fit_autoregression(*_steps(known, found))
    longest = min(max(HORIZONS), int(np.bincount(held_out.episode).max()))
    horizons = tuple(h for h in HORIZONS if h <= longest)
    starts = windows(*_steps(unseen, found), held_out.episode, longest)
    errors = np.asarray(squared_errors(found.model.members, dynamics.reach(found.model), linear, starts))
    people = set_by_people(held_out.transitions)
    spread = np.asarray(unseen.observation)[:, : len(people)].std(axis=0) * ~people
    prediction = _compared(run, errors, starts, spread, horizons)
    mean = np.maximum(np.nanmean(errors[0, :, 0], axis=0, dtype=np.float64), 1e-12)
    found = found._replace(weight=(spread > 0) / mean / max(int(np.sum(spread > 0)), 1))
    return keep_model(home, run.plant, found, held_out, prediction)


def keep_model(
    home: Home, plant: str, found: FittedModel, held_out: Logs, prediction: PredictionErrors
) -> LearnedModel:
    """Write a model and its one-step errors into a folder named by their digest.

    Args:
        held_out: episodes for the one-step errors, the reference of drift detection.
    """
    scores = {"scores": one_step_scores(found, held_out), "episode": held_out.episode}
    files = {"model.npz": npz_bytes(_as_arrays(found)), "residuals.npz": npz_bytes(scores)}
    digest = digest_json([sha256_hex(data) for data in files.values()])
    folder = home.folder("runs", plant, "models", digest[:24])
    weights, residuals = (write_atomic(folder / name, data) for name, data in files.items())
    return LearnedModel(digest=digest, weights=weights, residuals=residuals, prediction=prediction)


def load_model(reference: LearnedModel, spec: PlantSpec) -> FittedModel:
    """Load a learned model after checking its digest.

    Raises:
        Refused: if files are missing, altered, or do not fit the plant.
    """
    missing = next((path for path in (reference.weights, reference.residuals) if not path.is_file()), None)
    if missing is not None:
        raise Refused(
            f"{missing.name} of the learned model {reference.digest[:12]} is missing in {missing.parent}: restore it "
            "from a backup, or retrain"
        )
    if digest_json([file_sha256(path) for path in (reference.weights, reference.residuals)]) != reference.digest:
        raise Refused(
            f"the learned model in {reference.weights.parent} does not have the digest {reference.digest[:12]}: retrain"
        )
    return _from_arrays(reference.weights, spec)


def one_step_scores(found: FittedModel, logs: Logs) -> npt.NDArray[np.float64]:
    """Return the squared one-step error at each row, averaged over signals and scaled to mean 1 on held-out rows.

    Args:
        logs: logged steps in physical units, without history.
    """
    scale = found.normaliser

    @jax.jit
    @jax.vmap
    def squares(observation: jax.Array, action: jax.Array, following: jax.Array) -> jax.Array:
        x, u = normalise(scale, observation), to_unit(scale, action)
        means = jnp.stack([dynamics.transition(member, x, u)[0] for member in found.model.members])
        return (normalise(scale, following)[: means.shape[1]] - jnp.mean(means, axis=0)) ** 2

    t = found.past.stacked(logs).transitions
    rows = (np.asarray(x, np.float32) for x in (t.observation, t.action, t.next_observation))
    scores: npt.NDArray[np.float64] = np.asarray(squares(*rows), np.float64) @ found.weight
    return scores


def set_by_people(t: Transition) -> npt.NDArray[np.bool_]:
    """Return which signals (O,) hardly ever change, such as set points, because no model can predict the changes."""
    still = np.mean(np.asarray(t.observation) == np.asarray(t.next_observation), axis=0)
    return np.asarray(still >= STILL)


def _fitted(run: OpenedRun, training: Logs, progress: Report | None) -> FittedModel:
    spec, t = observed_spec(run), training.transitions
    known = moments(t)
    how = make_scaling(known, spec)
    updates = run.evaluate.model_updates
    of_weights, of_resample, of_batches = jax.random.split(jax.random.key(run.seed + 3), 3)
    recipe = Recipe(schedule="cosine", steps=updates)
    model = _untrained(of_weights, spec, recipe)
    rest = resting_action(t.action, spec.action.low, spec.action.high).astype(np.float32)
    found = FittedModel(model, how.normaliser, (known.reward_mean, how.reward_scale), np.ones(len(model.low)), rest)
    data = _prepared(training, found)
    counts = bootstrap.resample(of_resample, jnp.asarray(training.episode, jnp.int32), len(training.starts), MEMBERS)
    report = None if progress is None else lambda done, of: progress(done, of, "updates of the learned model")
    return found._replace(model=bootstrap.train(model, of_batches, data, counts, updates, report))


def _prepared(logs: Logs, found: FittedModel) -> Transition:
    """Normalise logged steps with history for the ensemble."""
    t, (mean, deviation) = found.past.stacked(logs).transitions, found.rewards
    return Transition(
        observation=normalise(found.normaliser, jnp.asarray(t.observation)),
        action=to_unit(found.normaliser, jnp.asarray(t.action)),
        reward=(jnp.asarray(t.reward) - mean) / deviation,
        cost=jnp.asarray(t.cost),
        next_observation=normalise(found.normaliser, jnp.asarray(t.next_observation)),
        terminated=jnp.asarray(t.terminated),
    )


def _untrained(key: PRNGKeyArray, spec: PlantSpec, recipe: Recipe) -> Model:
    sizes = spec.observation.size, spec.action.size
    return dynamics.init(key, *sizes, HIDDEN, MEMBERS, recipe, spec.history)


def _steps(t: Transition, found: FittedModel) -> tuple[Floats, Floats, Floats]:
    """Return observations with history, actions, and next observations without history."""
    after = np.asarray(t.next_observation)[:, : len(found.model.low)]
    return np.asarray(t.observation), np.asarray(t.action), after


def _compared(
    run: OpenedRun, errors: npt.NDArray[np.floating], starts: Windows, spread: npt.ArrayLike, horizons: tuple[int, ...]
) -> PredictionErrors:
    sums, counts = episode_errors(errors, starts.episode, spread, horizons)
    if not sums.shape[2]:
        horizons, sums = (), sums[:, :0]
    roots = np.sqrt(sums.sum(axis=-1).mean(axis=-1) / np.maximum(counts.sum(axis=-1), 1)) if horizons else sums[:, :0]
    settings = (run.seed, run.evaluate.bootstraps, run.evaluate.confidence)
    ratios = error_ratios(sums, counts, *settings) if horizons else ()
    return PredictionErrors(
        horizons=horizons,
        errors={
            name: tuple(map(float, row)) for name, row in zip(("learned model", *NAIVE_PREDICTORS), roots, strict=True)
        },
        ratios={name: Interval(**ratio._asdict()) for name, ratio in zip(NAIVE_PREDICTORS, ratios, strict=False)},
        episodes=sums.shape[-1],
        confidence=run.evaluate.confidence,
    )


def _as_arrays(found: FittedModel) -> dict[str, npt.NDArray[np.generic]]:
    """Return the leaves of the ensemble by number, in JAX's order, and the scales by name."""
    arrays = {f"member/{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(found.model.members))}
    scales = {name: value for name, value in found.normaliser._asdict().items() if value is not None}
    arrays |= {f"normaliser/{name}": np.asarray(value) for name, value in scales.items()}
    ranges = {"low": np.asarray(found.model.low), "high": np.asarray(found.model.high), "weight": found.weight}
    arrays |= {name: np.asarray(counts) for name, counts in zip(HISTORY, found.model.history or (), strict=False)}
    return arrays | ranges | {"rewards": np.asarray(found.rewards), "rest": found.rest}


def _from_arrays(path: Path, spec: PlantSpec) -> FittedModel:
    arrays = read_npz(path)
    counts = [tuple(arrays[name].tolist()) for name in HISTORY if name in arrays]
    stacked = stacked_spec(spec, History(*counts) if counts else None)
    model = _untrained(jax.random.key(0), stacked, Recipe(schedule="cosine", steps=1))
    leaves, structure = jax.tree.flatten(model.members)
    try:
        read = [jnp.asarray(arrays[f"member/{i:04d}"]) for i in range(len(leaves))]
        fits = all(one.shape == other.shape for one, other in zip(read, leaves, strict=True))
        # Only a discrete action has choices.
        scales = [name for name in Normaliser._fields if name != "choices" or "normaliser/choices" in arrays]
        normaliser = Normaliser(**{name: jnp.asarray(arrays[f"normaliser/{name}"]) for name in scales})
        low, high = jnp.asarray(arrays["low"]), jnp.asarray(arrays["high"])
        rewards = float(arrays["rewards"][0]), float(arrays["rewards"][1])
        weight, rest = np.asarray(arrays["weight"], np.float64), np.asarray(arrays["rest"], np.float32)
    except KeyError as error_:
        raise Refused(f"the learned model {path} of {spec.name} lacks {error_}: retrain") from error_
    if not fits:
        raise Refused(f"the learned model {path} does not have the array shapes of {spec.name}: retrain")
    members = jax.tree.unflatten(structure, read)
    return FittedModel(model._replace(members=members, low=low, high=high), normaliser, rewards, weight, rest)
