"""Checks of a log-only plant's composite: bounds, support and fallback."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from configs.home import Home
from configs.run import OpenedRun
from neorl_core.control.fallbacks import FALLBACK, LinearLaw, explained_variance
from neorl_core.networks import Policy, policy_act
from neorl_core.safety.bounds import mean_interval
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.safety.shield import limit_action
from neorl_core.safety.support import SupportShield, inside_support
from neorl_core.types import PlantSpec, Process
from neorl_core.world_model import dynamics
from neorl_core.world_model.episodes import ModelEpisodes, model_episodes
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, halves, read_logs
from tasks.data.store.histories import composite_history
from tasks.log_only.learned_model import load_model
from tasks.log_only.protection import fallback_in_words
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.references import (
    BoundsCheck,
    Dataset,
    Evaluation,
    FallbackCheck,
    Interval,
    LearnedModel,
    ModelEstimate,
    Population,
    Protection,
    SupportCheck,
)
from tasks.stages import cached

INPUTS = 20_000
ODD = (0.0, -0.0, 1e-38, -1e-38, 1e30, -1e30, 3.4e38, np.inf, -np.inf, np.nan)
"""Invalid values that instruments and bad conversions produce."""
EPISODES = 128
"""Largest number of held-out starts for episodes in the learned model."""
HORIZON = 500
"""Largest number of steps per episode in the learned model, because errors accumulate."""


@cached()
def examine(home: Home, run: OpenedRun, dataset: Dataset, population: Population, evaluation: Evaluation) -> Protection:
    """Check fallback, bounds and support of the selected composite, on held-out rows and on invalid inputs.

    Args:
        dataset: dataset with the held-out rows. The check of the support leaves out the rows that calibrated it.
    """
    spec, bundle = plant_of(run).spec, population.members[evaluation.selected].bundle
    composite = load_bundle(bundle.folder, bundle.digest, run.source)[1]
    logs = held_out_logs(run, dataset)
    return Protection(
        fallback=_check_fallback(run, spec, composite, logs),
        bounds=_check_bounds(run, spec, composite, logs),
        support=_check_support(run, composite, halves(logs)[1]),
    )


@cached()
def estimate(
    home: Home, run: OpenedRun, dataset: Dataset, population: Population, evaluation: Evaluation, model: LearnedModel
) -> ModelEstimate:
    """Estimate the returns of composite and fallback by episodes in the learned model; this certifies nothing."""
    spec, logs, found = plant_of(run).spec, held_out_logs(run, dataset), load_model(model, plant_of(run).spec)
    bundle = population.members[evaluation.selected].bundle
    composite = load_bundle(bundle.folder, bundle.digest, run.source)[1]
    rows = logs.starts[:: -(-len(logs.starts) // EPISODES)]
    starts, applied = (jnp.asarray(x[rows]) for x in (logs.transitions.observation, logs.transitions.action))
    horizon = min(spec.horizon, HORIZON)

    def run_of(one: Composite) -> ModelEpisodes:
        episodes: ModelEpisodes = jax.device_get(
            model_episodes(
                found.model.members,
                dynamics.reach(found.model),
                found.normaliser,
                found.rewards,
                composite_controller(Process(spec)),
                one,
                starts,
                applied,
                _limits(spec),
                jax.random.key(run.seed + 4),
                horizon,
            )
        )
        return episodes

    ours, theirs = run_of(composite), run_of(composite._replace(policy=None))

    def returns(episodes: ModelEpisodes) -> Interval:
        # The models may share errors, so only episodes count as independent samples for the interval.
        return Interval(**mean_interval(np.asarray(episodes.ret).mean(axis=0), run.evaluate.confidence)._asdict())

    return ModelEstimate(
        returns=returns(ours),
        fallback_returns=returns(theirs),
        violated=float(np.mean(ours.violated)),
        fallback_violated=float(np.mean(theirs.violated)),
        handed_over=float(np.mean(ours.handed_over)),
        horizon=horizon,
        episodes=ours.ret.shape[1],
    )


def held_out_logs(run: OpenedRun, dataset: Dataset) -> Logs:
    """Return the held-out episodes of a dataset."""
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    return read_logs(store, store.split(run.data.held_out)[1])


def applied_before(logs: Logs) -> npt.NDArray[np.floating]:
    """Return the action before each row, (N, A): that of the previous step, or the row's own at an episode's start."""
    action = np.asarray(logs.transitions.action)
    before = np.roll(action, 1, axis=0)
    before[logs.starts] = action[logs.starts]
    return before


def trusted_rows(
    spec: PlantSpec, composite: Composite, logs: Logs
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_]]:
    """Return the policy's action at each row, (N, A), and whether the shield would allow the action, (N,)."""
    shield = composite.shield
    policy = composite.policy
    assert isinstance(shield, SupportShield)
    assert policy is not None

    @jax.jit
    @jax.vmap
    def one(x: jax.Array, seen: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        action = limit_action(shield, policy_act(policy, seen), before)
        return action, inside_support(shield, x, action, shield.radius)

    seen = composite_history(Process(spec), composite).stacked(logs).transitions.observation
    actions, trusted = one(*map(jnp.asarray, (logs.transitions.observation, seen, applied_before(logs))))
    return np.asarray(actions), np.asarray(trusted)


def _limits(spec: PlantSpec) -> tuple[jax.Array, jax.Array]:
    """Return the limits of observed signals; other limits cannot be estimated."""
    by_name = {limit.name: limit for limit in spec.constraints}
    low = [by_name[name].low if name in by_name else -np.inf for name in spec.observation.names]
    high = [by_name[name].high if name in by_name else np.inf for name in spec.observation.names]
    return jnp.asarray(low, float), jnp.asarray(high, float)


def _check_fallback(run: OpenedRun, spec: PlantSpec, composite: Composite, logs: Logs) -> FallbackCheck:
    params = composite.fallback

    @jax.jit
    @jax.vmap
    def answer(x: jax.Array, before: jax.Array) -> jax.Array:
        return FALLBACK.act(params, FALLBACK.init(params, x), x, before)[1]

    t = logs.transitions
    answers = np.asarray(answer(jnp.asarray(t.observation), jnp.asarray(applied_before(logs))), np.float64)
    low, high = np.asarray(spec.action.low), np.asarray(spec.action.high)
    slack = 1e-6 * (high - low)
    sound = np.isfinite(answers) & (answers >= low - slack) & (answers <= high + slack)
    cloned = isinstance(params, LinearLaw | Policy)
    explained = explained_variance(t.action, answers).tolist() if cloned else list[float]()
    assert run.fallback is not None
    return FallbackCheck(
        kind=run.fallback.kind,
        about=fallback_in_words(run.fallback, spec),
        explained={name: float(share) for name, share in zip(spec.action.names, explained, strict=False)},
        least_explained=run.fallback.least_explained if cloned else 0.0,
        rows=len(answers),
        unsound=int((~sound).any(axis=1).sum()),
    )


def _check_bounds(run: OpenedRun, spec: PlantSpec, composite: Composite, logs: Logs) -> BoundsCheck:
    """Run two steps on inputs near the logs, far from the logs and invalid; return the largest excesses."""
    draw = np.random.default_rng(run.seed)
    t, count = logs.transitions, INPUTS
    rows = draw.integers(len(t.reward), size=(2, count))
    spread = np.asarray(t.observation).std(axis=0) + 1e-6
    seen = np.asarray(t.observation)[rows] + draw.normal(size=(2, count, 1)) * spread * 10 ** draw.uniform(
        -2, 3, (2, count, 1)
    )
    applied = np.asarray(t.action)[rows[0]] + draw.normal(size=(count, spec.action.size)) * 10
    odd = draw.choice(np.asarray(ODD), size=seen.shape)
    seen = np.where(draw.random(seen.shape) < 0.1, odd, seen).astype(np.float32)
    applied = np.where(draw.random(applied.shape) < 0.1, draw.choice(np.asarray(ODD), size=applied.shape), applied)
    controller, shield = composite_controller(Process(spec)), composite.shield
    assert isinstance(shield, SupportShield)

    @jax.jit
    @jax.vmap
    def two(first: jax.Array, second: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
        begun = controller.init(composite, first)
        state, one = controller.act(composite, begun, first, before)
        # The last output replaces an applied action that is NaN; an applied action out of bounds is clipped.
        force = jnp.clip(jnp.where(jnp.isfinite(before), before, begun.action), shield.action_low, shield.action_high)
        _, other = controller.act(composite, state, second, one)
        return jnp.stack([one, other]), jnp.stack([force, one])

    actions, force = two(*(jnp.asarray(x, jnp.float32) for x in (*seen, applied)))
    found, before = np.asarray(actions, np.float64), np.asarray(force, np.float64)
    low, high = np.asarray(shield.action_low, np.float64), np.asarray(shield.action_high, np.float64)
    rounding = 4 * np.finfo(np.float32).eps * np.maximum(np.abs(low), np.abs(high))
    beyond = np.maximum(low - found, found - high) / (high - low)
    moved = (np.abs(found - before) - np.asarray(shield.rate_limit, np.float64) - rounding) / (high - low)
    # A NaN would pass a comparison, so it counts as the worst case.
    worst = (float(np.max(np.where(np.isnan(x), np.inf, x))) for x in (beyond, moved))
    return BoundsCheck(inputs=2 * count, **dict(zip(("beyond_bounds", "beyond_rates"), worst, strict=True)))


def _check_support(run: OpenedRun, composite: Composite, logs: Logs) -> SupportCheck:
    shield, t = composite.shield, logs.transitions
    assert isinstance(shield, SupportShield)
    inside = jax.jit(jax.vmap(inside_support, (None, 0, 0, None)))
    logged = np.asarray(inside(shield, jnp.asarray(t.observation), jnp.asarray(t.action), shield.radius))
    _, trusted = trusted_rows(plant_of(run).spec, composite, logs)
    return SupportCheck(
        quantile=run.support.quantile,
        radius=float(shield.radius),
        outside=float(1 - logged.mean()),
        handed_over=float(1 - trusted.mean()),
        most_handed_over=run.support.most_handed_over,
    )
