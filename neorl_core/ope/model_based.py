"""Model-based evaluation: replay logged episodes under another policy, in learned models of two families.

Models are fitted to held-out episodes only, because a policy exploits the errors of the model that it was trained in
(optimiser's curse). Half of the members are networks; half are ridge regressions, which no policy is trained in. Each
member gets a bootstrap resample of the episodes.

In a replay, the model predicts the step for the policy's action, and the model's error at the logged step is added. So
the replay repeats the logged disturbances and set points, and a policy that acts as logged gets exactly the logged
return, even in a wrong model. This is Pearl's abduction, action and prediction (2009, Causality, section 7.1) with
additive noise; the logged return acts as the control variate of a doubly robust estimator. If a policy survives the
termination of a logged episode, its replay continues with the steps of another episode.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.special import ndtri, stdtrit

from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import ridge as regression
from neorl_core.ope.logged import window_counts
from neorl_core.ope.ranges import INSIDE, Ranges, ranges, weighted_quantile
from neorl_core.ope.ridge import Ridge
from neorl_core.training.optimisers import Recipe
from neorl_core.types import History, Params, Transition, varies
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model, Reach

MEMBERS = 5
"""Members per family."""
HIDDEN = (48, 48)
"""Hidden widths, different from those of the models that policies are trained in."""


class LearnedModel(NamedTuple):
    """Networks and regressions in normalised units, and the scale of their rewards."""

    model: Model
    ridge: Ridge
    ranges: Ranges
    """A replay beyond these ranges counts as outside the logs from then on."""
    radius: Float[Array, ""]
    """Leverage that a share `INSIDE` of the discounted, held-out logged steps does not exceed."""
    reward_mean: Float[Array, ""]
    reward_scale: Float[Array, ""]
    ends: Bool[Array, ""]
    """Whether any logged step terminated; otherwise no replay terminates."""


class Windows(NamedTuple):
    """Logged episodes of at most H steps, stacked and normalised; rewards in their own unit."""

    observation: Float[Array, "W H S"]
    action: Float[Array, "W H A"]
    reward: Float[Array, "W H"]
    next_observation: Float[Array, "W H O"]
    terminated: Float[Array, "W H"]
    logged: Bool[Array, "W H"]
    """False beyond the window's end."""
    known: Bool[Array, "W H"]
    """True for logged steps, and for steps of another window that fill the rest of a terminated window."""
    counts: Float[Array, " W"] | None = None
    """Weight of each window in a mean, 1 on average; None if all weights are 1."""


class ModelValue(NamedTuple):
    """Discounted return of a policy over held-out windows by each family, and how far the policy leaves the logs."""

    value: Float[Array, "*p 2"]
    """By the networks and by the regressions."""
    outside: Float[Array, "*p"]
    """Discounted share of the steps that lie outside the support, or come after the replay has left `ranges`, in the
    networks."""
    below: Float[Array, "*p"]
    """Decrease of the value if steps outside the support pay the worst logged rewards."""
    above: Float[Array, "*p"]
    """Increase of the value if steps outside the support pay the best logged rewards."""
    disagreement: Float[Array, "*p"]
    """Standard deviation of the members' values relative to that of the logged returns."""


def init(
    key: PRNGKeyArray, data: Transition, updates: int, history: History | None = None
) -> tuple[Model, Transition, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Return untrained networks, the data for `bootstrap.train`, and mean and scale of the rewards.

    Args:
        data: (N, ...) with normalised observations and actions, rewards in their own unit.
        updates: number of gradient steps, over which the learning rate decays.
        history: earlier values in the stacked observation.
    """
    mean, scale = jnp.mean(data.reward), jnp.std(data.reward)
    scale = jnp.where(varies(mean, scale), scale, jnp.ones_like(scale))
    sizes = data.observation.shape[-1], data.action.shape[-1]
    model = dynamics.init(key, *sizes, HIDDEN, MEMBERS, Recipe(schedule="cosine", steps=updates), history)
    return model, data._replace(reward=(data.reward - mean) / scale), (mean, scale)


@jax.jit
def fit_regressions(
    key: PRNGKeyArray,
    model: Model,
    data: Transition,
    rewards: tuple[Float[Array, ""], Float[Array, ""]],
    episode: Int[Array, " N"],
    starts: Int[Array, " E"],
    discount: float,
) -> LearnedModel:
    """Add ridge regressions and a support to trained networks.

    The radius is a quantile over discounted logged steps, because early steps count most in a discounted return.

    Args:
        data: (N, ...) with normalised observations and actions.
        rewards: mean and scale of the rewards, from `init`.
        starts: (E,) first row of each episode.
    """
    x = jnp.concatenate([data.observation, data.action], axis=-1)
    plain = model.low.shape[0]
    change = data.next_observation[:, :plain] - data.observation[:, :plain]
    episodes = starts.shape[0]
    known = ~dynamics.no_successor(data.observation, data.next_observation[:, :plain], data.terminated)
    fitted = regression.fit(key, x, change, known, episode, episodes, MEMBERS)
    weight = jnp.asarray(discount, x.dtype) ** (jnp.arange(x.shape[0]) - starts[episode])
    radius = weighted_quantile(regression.held_out_leverage(fitted, x, episode, episodes), weight, INSIDE)
    reached = ranges(data.observation[:, :plain], data.next_observation[:, :plain], episode, episodes, weight)
    return LearnedModel(model, fitted, reached, radius, *rewards, jnp.any(data.terminated > 0))


def stack_windows(data: Transition, starts: npt.NDArray[np.int64], plain: int, horizon: int) -> Windows:
    """Stack rows as windows; a terminated window is filled with the rows of the next window that is long enough.

    Args:
        data: (N, ...) normalised, rewards in their own unit.
        starts: (W,) first row of each window, ascending.
        plain: size O of an observation without history.
        horizon: largest length H of a window.
    """
    lengths = np.minimum(np.diff(np.append(starts, len(data.reward))), horizon)
    longest, terminated = int(lengths.max()), np.asarray(data.terminated) > 0
    ended = terminated[starts + lengths - 1]
    source = np.broadcast_to(np.arange(len(starts))[:, None], (len(starts), longest)).copy()
    known = np.arange(longest) < lengths[:, None]
    for step in range(int(lengths.min()), longest):
        reaching = np.flatnonzero(lengths > step)
        before = source[:, step - 1]
        # Change the source of the rows as rarely as possible.
        following = reaching[np.searchsorted(reaching, before + 1) % len(reaching)]
        source[:, step] = np.where(lengths[before] > step, before, following)
        known[:, step] |= ended
    at = starts[source] + np.arange(longest)
    logged = np.arange(longest) < lengths[:, None]
    o, a, r, n, t = (
        np.asarray(x)[at] for x in (data.observation, data.action, data.reward, data.next_observation, data.terminated)
    )
    return Windows(*(jnp.asarray(x) for x in (o, a, r, n[..., :plain], t, logged, known)))


def complete_windows(windows: Windows, horizon: int) -> Windows:
    """Keep the windows that last the horizon or terminated, weighted by `window_counts`; keep all if none is
    complete."""
    ended = jnp.any(windows.terminated * windows.logged > 0, axis=1)
    counts = window_counts(jnp.sum(windows.logged, axis=1), ended, horizon)
    kept = np.flatnonzero(np.asarray(counts) > 0)
    complete: Windows = jax.tree.map(lambda x: x[kept], windows._replace(counts=counts / jnp.mean(counts[kept])))
    return complete


def effective_windows(windows: Windows) -> float:
    """Return Kish's effective number of windows: `(sum c)^2 / sum c^2` (Kish 1965, Survey sampling)."""
    if windows.counts is None:
        return float(len(windows.reward))
    counts = np.asarray(windows.counts, np.float64)
    return float(counts.sum() ** 2 / (counts**2).sum())


def weighted(values: Float[Array, "*n W"], windows: Windows) -> Float[Array, "*n W"]:
    """Multiply values per window by the window weights."""
    return values if windows.counts is None else values * windows.counts.astype(values.dtype)


def logged_returns(windows: Windows, discount: float) -> Float[Array, " W"]:
    """Return the discounted return of each logged window."""
    weight = jnp.asarray(discount, windows.reward.dtype) ** jnp.arange(windows.reward.shape[1])
    return jnp.where(windows.logged, windows.reward, 0.0) @ weight


def termination(
    logit: Float[Array, ""], logged_logit: Float[Array, ""], terminated: Float[Array, ""]
) -> Float[Array, ""]:
    """Return the probability that a step terminates, given whether the logged step terminated.

    A uniform random number u decides both steps: the step terminates if u < p, the logged step if u < q. The result is
    `P(u < p | u < q)` if the logged step terminated, else `P(u < p | u >= q)`. So a policy that acts as logged
    terminates exactly when the log does. This is monotonicity (Pearl 2009, Causality, section 9.2), for two outcomes
    equal to the counterfactual stability of Oberst & Sontag 2019 (arXiv 1905.05824).

    Args:
        logit: logit of p, for the step in the model.
        logged_logit: logit of q, for the logged step.
        terminated: 1 if the logged step terminated, else 0.
    """
    p, q = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(logged_logit)
    survives = jnp.exp(jnp.minimum(jax.nn.log_sigmoid(-logit) - jax.nn.log_sigmoid(-logged_logit), 0.0))
    return jnp.where(terminated > 0, jnp.exp(jnp.minimum(p - q, 0.0)), 1.0 - survives)


class _Carried(NamedTuple):
    """State of a replay."""

    observation: Float[Array, " S"]
    left: Bool[Array, ""]
    """Whether the replay has left the `ranges` of the logs."""
    alive: Float[Array, ""]
    """Probability that the replay has not terminated."""
    weight: Float[Array, ""]
    """Discount of the next step."""


class _Step(NamedTuple):
    """Discounted terms of one step of a replay, to be summed over the steps of the window."""

    reward: Array
    counts: Array
    outside: Array
    below: Array
    above: Array


class _Replay(NamedTuple):
    """Result of one window under one member."""

    ret: Float[Array, "*n"]
    outside: Float[Array, "*n"]
    below: Float[Array, "*n"]
    above: Float[Array, "*n"]


class Member(NamedTuple):
    """A network and the regression with the same index."""

    network: Params
    coefficients: Array


def predict_next(learned: LearnedModel, member: Member, regressed: bool, s: Array, a: Array) -> Array:
    """Return the next observation predicted by a member of either family."""
    if regressed:
        phi = regression.features(learned.ridge, jnp.concatenate([s, a], axis=-1))
        return s[: learned.model.low.shape[0]] + phi @ member.coefficients
    return dynamics.transition(member.network, s, a)[0]


def predict_reward(learned: LearnedModel, member: Member, s: Array, a: Array, after: Array) -> tuple[Array, Array]:
    """Return the reward of a step in its own unit, and the logit of termination."""
    reward, logit = dynamics.reward_and_termination(member.network, s, a, after)
    return learned.reward_mean + learned.reward_scale * reward, logit


@jax.jit
def _replayed(
    learned: LearnedModel, normaliser: Normaliser, policy: Policy, windows: Windows, discount: float
) -> _Replay:
    """Replay every window under every member, networks first: (2, M, W)."""
    reach: Reach = dynamics.reach(learned.model)
    networks: Params = jax.tree.map(lambda *x: jnp.stack(x), *learned.model.members)
    low = jnp.min(jnp.where(windows.logged, windows.reward, jnp.inf))
    high = jnp.max(jnp.where(windows.logged, windows.reward, -jnp.inf))
    worst, best = jnp.nanquantile(jnp.where(windows.logged, windows.reward, jnp.nan), jnp.asarray([1 - INSIDE, INSIDE]))

    def one(member: Member, window: Windows, regressed: bool) -> _Replay:
        def step(carry: _Carried, row: Windows) -> tuple[_Carried, _Step]:
            x, left, alive, weight = carry
            predicted = predict_next(learned, member, regressed, row.observation, row.action)
            unseen = dynamics.no_successor(row.observation, row.next_observation, row.terminated)
            following = jnp.where(unseen, dynamics.clip(reach, predicted), row.next_observation)
            noise = following - predicted
            expected, logged_logit = predict_reward(learned, member, row.observation, row.action, following)
            u = to_unit(normaliser, policy_act(policy, x * normaliser.scale + normaliser.mean))
            free = predict_next(learned, member, regressed, x, u) + noise
            after = dynamics.clip(reach, free)
            reward, logit = predict_reward(learned, member, x, u, after)
            reward = jnp.clip(reward + row.reward - expected, low, high)
            # NaN counts as outside.
            beyond = ~(regression.leverage(learned.ridge, jnp.concatenate([x, u])) <= learned.radius)
            left = left | ~jnp.all((learned.ranges.low <= free) & (free <= learned.ranges.high))
            out = jnp.zeros_like(weight) if regressed else (beyond | left).astype(weight.dtype)
            here = jnp.where(row.known, alive, 0.0)
            ending = jnp.where(learned.ends, termination(logit, logged_logit, row.terminated), 0.0)
            counts, away = weight * here, weight * here * out
            terms = _Step(
                counts * reward,
                counts,
                away,
                away * jnp.maximum(reward - worst, 0),
                away * jnp.maximum(best - reward, 0),
            )
            stacked = dynamics.stack_outcome(reach, x, u, after)
            return _Carried(stacked, left, alive * (1.0 - ending), weight * discount), terms

        start = _Carried(window.observation[0], jnp.zeros((), bool), *jnp.ones((2,), low.dtype))
        rows = window._replace(counts=None)
        sums: _Step = jax.tree.map(jnp.sum, jax.lax.scan(step, start, rows)[1])
        return _Replay(
            sums.reward, sums.outside / jnp.maximum(sums.counts, np.finfo(low.dtype).tiny), sums.below, sums.above
        )

    def family(regressed: bool) -> _Replay:
        def of_member(member: Member) -> _Replay:
            replays: _Replay = jax.vmap(lambda window: one(member, window, regressed))(windows)
            return replays

        replays: _Replay = jax.lax.map(of_member, Member(networks, learned.ridge.coefficients))
        return replays

    families = [family(regressed) for regressed in (False, True)]
    both: _Replay = jax.tree.map(lambda *x: jnp.stack(x), *families)
    return both


def evaluate(
    learned: LearnedModel, normaliser: Normaliser, policy: Policy, windows: Windows, discount: float = 0.99
) -> ModelValue:
    """Estimate the value of a policy per family: `mean_{m,w} sum_t discount^t r_t` over members m and windows w.

    Args:
        learned: models fitted to episodes that the policy was not trained on.
        normaliser: scale of the models' observations and actions; the policy has its own.
        windows: W windows of logged steps.
    """
    replays = _replayed(learned, normaliser, policy, windows, discount)
    logged = jnp.maximum(jnp.std(logged_returns(windows, discount)), np.finfo(np.float32).tiny)
    replays = jax.tree.map(lambda x: weighted(x, windows), replays)
    apart = jnp.std(jnp.mean(replays.ret, axis=2)) / logged
    outside, below, above = (jnp.mean(x[0]) for x in (replays.outside, replays.below, replays.above))
    return ModelValue(jnp.mean(replays.ret, axis=(1, 2)), outside, below, above, apart)


def logged_value(windows: Windows, discount: float = 0.99) -> ModelValue:
    """Return the value of the logged controller: the mean logged return."""
    zero = jnp.zeros((), windows.reward.dtype)
    value = jnp.broadcast_to(jnp.mean(weighted(logged_returns(windows, discount), windows)), (2,))
    return ModelValue(value, zero, zero, zero, zero)


def spread(count: float, confidence: float = 0.95) -> float:
    """Return the factor that widens a bootstrap interval of few windows: `sqrt(n / (n - 1)) t / z`.

    t and z are Student's and the normal quantile (Hesterberg 2015, What teachers should know about the bootstrap,
    section 3.3). NaN for fewer than two windows.

    Args:
        count: effective number n of windows (`effective_windows`).
    """
    if count < 2:
        return np.nan
    level = (1.0 + confidence) / 2.0
    return float(np.sqrt(count / (count - 1)) * stdtrit(count - 1, level) / ndtri(level))
