"""Model-based evaluation: what a policy would have made of each logged episode, by models of two families.

A model is fitted to held-out episodes, never to those that a policy was trained on: a policy goes where its own model
errs to its favour (optimiser's curse). Half of the members are networks, half are ridge regressions of the dynamics,
which no policy is trained in; each is given a resample of episodes.

An episode is replayed: at each step the policy's action moves the model, and what the logged step was beside the
model's prediction of it is added. So disturbances and set points come as they were logged, and a policy that acts as
was logged gets exactly the logged return, however wrong the model is. It is Pearl's abduction, action and prediction
(2009, Causality, section 7.1) with additive noise, and the difference to the logged return has a model's errors in it
only as far as the policy differs: the logged return is the control variate that a doubly robust estimator has.
Where logged episodes terminated, a policy may survive them: its replay goes on with the steps of another episode.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from scipy.special import ndtri, stdtrit

from neorl_core.history import History
from neorl_core.networks import Normaliser, Policy, policy_act, to_unit
from neorl_core.ope import ridge as regression
from neorl_core.ope.logged import window_counts
from neorl_core.ope.ridge import Ridge
from neorl_core.ope.support import INSIDE, Ranges, ranges, weighted_quantile
from neorl_core.training.optimisers import Recipe
from neorl_core.types import Params, Transition, moves
from neorl_core.world_model import dynamics
from neorl_core.world_model.dynamics import Model, Reach

MEMBERS = 5
"""Members of each family."""
HIDDEN = (48, 48)
"""Not the widths of the models that policies are trained in."""


class LearnedModel(NamedTuple):
    """Networks and regressions in normalised units, and what turns their rewards back into the plant's."""

    model: Model
    ridge: Ridge
    ranges: Ranges
    """A replay that leaves them has left the logs."""
    radius: Float[Array, ""]
    """Leverage that `INSIDE` of the logged steps, discounted, do not exceed beside the logs of other episodes."""
    reward_mean: Float[Array, ""]
    reward_scale: Float[Array, ""]
    ends: Bool[Array, ""]
    """Whether any logged step terminated: where none did, none does in a replay."""


class Windows(NamedTuple):
    """Logged episodes of at most H steps side by side, normalised; rewards in their own unit."""

    observation: Float[Array, "W H S"]
    action: Float[Array, "W H A"]
    reward: Float[Array, "W H"]
    next_observation: Float[Array, "W H O"]
    terminated: Float[Array, "W H"]
    logged: Bool[Array, "W H"]
    """False beyond a window's end."""
    known: Bool[Array, "W H"]
    """Beyond a window that terminated there are steps of other windows, as long as one reaches as far."""
    counts: Float[Array, " W"] | None = None
    """What each counts for in a mean, 1 on average; without them each is one."""


class ModelValue(NamedTuple):
    """A policy's discounted return over held-out windows, by each family, and how far it leaves the logs."""

    value: Float[Array, "*p 2"]
    """Of the networks and of the regressions."""
    outside: Float[Array, "*p"]
    """Discounted share of the steps visited in the networks that lie outside the data's support, and of all
    from the one on that leaves the range of the logs: what hardly counts for the value need hardly be known."""
    below: Float[Array, "*p"]
    """How much less the value is if steps outside the support pay as the worst logged ones do."""
    above: Float[Array, "*p"]
    """How much more it is if they pay as the best ones do."""
    disagreement: Float[Array, "*p"]
    """Deviation of the members' values about their mean, as a share of that of the windows' logged returns."""


def init(
    key: PRNGKeyArray, data: Transition, updates: int, history: History | None = None
) -> tuple[Model, Transition, tuple[Float[Array, ""], Float[Array, ""]]]:
    """Networks before their training, the data as `bootstrap.train` takes them, and mean and scale of rewards.

    Args:
        key: randomness of the initial weights.
        data: (N, ...), observations and actions normalised, rewards in their own unit.
        updates: gradient steps that will be made, over which the learning rate falls.
        history: which earlier values stand behind the observations.
    """
    mean, scale = jnp.mean(data.reward), jnp.std(data.reward)
    scale = jnp.where(moves(mean, scale), scale, jnp.ones_like(scale))
    sizes = data.observation.shape[-1], data.action.shape[-1]
    model = dynamics.init(key, *sizes, HIDDEN, MEMBERS, Recipe(schedule="cosine", steps=updates), history)
    return model, data._replace(reward=(data.reward - mean) / scale), (mean, scale)


@jax.jit
def completed(
    key: PRNGKeyArray,
    model: Model,
    data: Transition,
    rewards: tuple[Float[Array, ""], Float[Array, ""]],
    episode: Int[Array, " N"],
    starts: Int[Array, " E"],
    discount: float,
) -> LearnedModel:
    """Trained networks with the regressions beside them.

    How many of a policy's steps lie outside the data's support is asked of its discounted steps, and so the radius is a
    quantile of the logged steps as discounted: of long episodes the first steps are few, look like no others, and are
    most of what counts.

    Args:
        key: randomness of the regressions.
        model: the networks.
        data: (N, ...), observations and actions normalised.
        rewards: mean and scale of the rewards, from `init`.
        episode: (N,) from 0.
        starts: (E,) first row of each episode.
        discount: per step, by which a step counts for the value.
    """
    x = jnp.concatenate([data.observation, data.action], axis=-1)
    plain = model.low.shape[0]
    change = data.next_observation[:, :plain] - data.observation[:, :plain]
    episodes = starts.shape[0]
    known = ~dynamics.unseen(data.observation, data.next_observation[:, :plain], data.terminated)
    fitted = regression.fit(key, x, change, known, episode, episodes, MEMBERS)
    weight = jnp.asarray(discount, x.dtype) ** (jnp.arange(x.shape[0]) - starts[episode])
    radius = weighted_quantile(regression.held_out_leverage(fitted, x, episode, episodes), weight, INSIDE)
    reached = ranges(data.observation[:, :plain], data.next_observation[:, :plain], episode, episodes, weight)
    return LearnedModel(model, fitted, reached, radius, *rewards, jnp.any(data.terminated > 0))


def side_by_side(data: Transition, starts: npt.NDArray[np.int64], plain: int, horizon: int) -> Windows:
    """Rows as windows; one that terminated goes on with the rows of the windows after it that reach as far.

    Args:
        data: (N, ...), normalised, rewards in their own unit.
        starts: (W,) first row of each window, ascending.
        plain: numbers O of an observation without its history.
        horizon: the most steps H of a window.
    """
    lengths = np.minimum(np.diff(np.append(starts, len(data.reward))), horizon)
    longest, terminated = int(lengths.max()), np.asarray(data.terminated) > 0
    died = terminated[starts + lengths - 1]
    source = np.broadcast_to(np.arange(len(starts))[:, None], (len(starts), longest)).copy()
    known = np.arange(longest) < lengths[:, None]
    for step in range(int(lengths.min()), longest):
        reaching = np.flatnonzero(lengths > step)
        before = source[:, step - 1]
        # Who took another window's steps keeps to it as long as it goes on.
        following = reaching[np.searchsorted(reaching, before + 1) % len(reaching)]
        source[:, step] = np.where(lengths[before] > step, before, following)
        known[:, step] |= died
    at = starts[source] + np.arange(longest)
    logged = np.arange(longest) < lengths[:, None]
    o, a, r, n, t = (
        np.asarray(x)[at] for x in (data.observation, data.action, data.reward, data.next_observation, data.terminated)
    )
    return Windows(*(jnp.asarray(x) for x in (o, a, r, n[..., :plain], t, logged, known)))


def whole(found: Windows, horizon: int) -> Windows:
    """The windows that last the horizon or terminated, with what they count for (`window_counts`); all if none does.

    Args:
        found: windows.
        horizon: steps of an episode.
    """
    ended = jnp.any(found.terminated * found.logged > 0, axis=1)
    counts = window_counts(jnp.sum(found.logged, axis=1), ended, horizon)
    kept = np.flatnonzero(np.asarray(counts) > 0)
    every: Windows = jax.tree.map(lambda x: x[kept], found._replace(counts=counts / jnp.mean(counts[kept])))
    return every


def effective_windows(found: Windows) -> float:
    """How many windows that count alike tell as much: `(sum c)^2 / sum c^2` (Kish 1965, Survey sampling)."""
    if found.counts is None:
        return float(len(found.reward))
    counts = np.asarray(found.counts, np.float64)
    return float(counts.sum() ** 2 / (counts**2).sum())


def counted(of_windows: Float[Array, "*n W"], found: Windows) -> Float[Array, "*n W"]:
    """Numbers of windows, each times what its window counts for, so that their mean is that by counts."""
    return of_windows if found.counts is None else of_windows * found.counts.astype(of_windows.dtype)


def logged_returns(found: Windows, discount: float) -> Float[Array, " W"]:
    """What each window's logged rewards add up to, discounted."""
    weight = jnp.asarray(discount, found.reward.dtype) ** jnp.arange(found.reward.shape[1])
    return jnp.where(found.logged, found.reward, 0.0) @ weight


def termination(logit: Float[Array, ""], of_logged: Float[Array, ""], terminated: Float[Array, ""]) -> Float[Array, ""]:
    """Probability that a step terminates, given whether the logged step did: `P(u < p | u < q)` or `P(u < p | u >= q)`.

    One uniform number u decides both, p and q being the model's probabilities: who acts as was logged ends where the
    log did. It is monotonicity (Pearl 2009, Causality, section 9.2), which for two outcomes is the counterfactual
    stability of Oberst & Sontag 2019 (arXiv 1905.05824).

    Args:
        logit: of p, of the step in the model.
        of_logged: of q, of the logged step.
        terminated: 1 where the logged step terminated, else 0.
    """
    p, q = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(of_logged)
    survives = jnp.exp(jnp.minimum(jax.nn.log_sigmoid(-logit) - jax.nn.log_sigmoid(-of_logged), 0.0))
    return jnp.where(terminated > 0, jnp.exp(jnp.minimum(p - q, 0.0)), 1.0 - survives)


class _Carried(NamedTuple):
    """Where a replay stands."""

    observation: Float[Array, " S"]
    left: Bool[Array, ""]
    """Whether it has left the `ranges` of the logs."""
    alive: Float[Array, ""]
    """Probability that it has not ended."""
    weight: Float[Array, ""]
    """Discount of its next step."""


class _Step(NamedTuple):
    """What one step of a replay adds, discounted; sums over its steps are a window's."""

    reward: Array
    counts: Array
    outside: Array
    below: Array
    above: Array


class _Replay(NamedTuple):
    """What came of one window under one member."""

    ret: Float[Array, "*n"]
    outside: Float[Array, "*n"]
    below: Float[Array, "*n"]
    above: Float[Array, "*n"]


class Member(NamedTuple):
    """A network, and the regression of the dynamics that has its number."""

    network: Params
    of_ridge: Array


def moved(learned: LearnedModel, member: Member, regressed: bool, s: Array, a: Array) -> Array:
    """The next observation that a member of either family expects."""
    if regressed:
        phi = regression.features(learned.ridge, jnp.concatenate([s, a], axis=-1))
        return s[: learned.model.low.shape[0]] + phi @ member.of_ridge
    return dynamics.transition(member.network, s, a)[0]


def paid(learned: LearnedModel, member: Member, s: Array, a: Array, after: Array) -> tuple[Array, Array]:
    """Reward of a step, in its own unit, and the logit of its termination."""
    reward, logit = dynamics.reward_and_termination(member.network, s, a, after)
    return learned.reward_mean + learned.reward_scale * reward, logit


@jax.jit
def _replayed(
    learned: LearnedModel, normaliser: Normaliser, policy: Policy, found: Windows, discount: float
) -> _Replay:
    """Every window under every member, the networks first: (2 M, W)."""
    reach: Reach = dynamics.reach(learned.model)
    stacked: Params = jax.tree.map(lambda *x: jnp.stack(x), *learned.model.members)
    low = jnp.min(jnp.where(found.logged, found.reward, jnp.inf))
    high = jnp.max(jnp.where(found.logged, found.reward, -jnp.inf))
    worst, best = jnp.nanquantile(jnp.where(found.logged, found.reward, jnp.nan), jnp.asarray([1 - INSIDE, INSIDE]))

    def one(member: Member, window: Windows, regressed: bool) -> _Replay:
        def step(carry: _Carried, row: Windows) -> tuple[_Carried, _Step]:
            x, left, alive, weight = carry
            of_model = moved(learned, member, regressed, row.observation, row.action)
            nowhere = dynamics.unseen(row.observation, row.next_observation, row.terminated)
            met = jnp.where(nowhere, dynamics.within(reach, of_model), row.next_observation)
            noise = met - of_model
            expected, of_logged = paid(learned, member, row.observation, row.action, met)
            u = to_unit(normaliser, policy_act(policy, x * normaliser.scale + normaliser.mean))
            free = moved(learned, member, regressed, x, u) + noise
            after = dynamics.within(reach, free)
            reward, logit = paid(learned, member, x, u, after)
            reward = jnp.clip(reward + row.reward - expected, low, high)
            # What is not a number is outside, too.
            beyond = ~(regression.leverage(learned.ridge, jnp.concatenate([x, u])) <= learned.radius)
            left = left | ~jnp.all((learned.ranges.low <= free) & (free <= learned.ranges.high))
            out = jnp.zeros_like(weight) if regressed else (beyond | left).astype(weight.dtype)
            here = jnp.where(row.known, alive, 0.0)
            ending = jnp.where(learned.ends, termination(logit, of_logged, row.terminated), 0.0)
            counts, away = weight * here, weight * here * out
            told = _Step(
                counts * reward,
                counts,
                away,
                away * jnp.maximum(reward - worst, 0),
                away * jnp.maximum(best - reward, 0),
            )
            following = dynamics.onward(reach, x, u, after)
            return _Carried(following, left, alive * (1.0 - ending), weight * discount), told

        begun = _Carried(window.observation[0], jnp.zeros((), bool), *jnp.ones((2,), low.dtype))
        rows = window._replace(counts=None)
        sums: _Step = jax.tree.map(jnp.sum, jax.lax.scan(step, begun, rows)[1])
        return _Replay(
            sums.reward, sums.outside / jnp.maximum(sums.counts, np.finfo(low.dtype).tiny), sums.below, sums.above
        )

    def family(regressed: bool) -> _Replay:
        def windows(member: Member) -> _Replay:
            came: _Replay = jax.vmap(lambda window: one(member, window, regressed))(found)
            return came

        every: _Replay = jax.lax.map(windows, Member(stacked, learned.ridge.coefficients))
        return every

    families = [family(regressed) for regressed in (False, True)]
    both: _Replay = jax.tree.map(lambda *x: jnp.stack(x), *families)
    return both


def evaluate(
    learned: LearnedModel, normaliser: Normaliser, policy: Policy, found: Windows, discount: float = 0.99
) -> ModelValue:
    """Value of one policy, of each family a mean over its members and all windows: `mean_{m,w} sum_t discount^t r_t`.

    Args:
        learned: fitted to episodes that the policy was not trained on.
        normaliser: scale of the models' observations and actions; the policy has its own.
        policy: whose value is asked for.
        found: W windows of logged steps.
        discount: discount factor per step.
    """
    came = _replayed(learned, normaliser, policy, found, discount)
    logged = jnp.maximum(jnp.std(logged_returns(found, discount)), np.finfo(np.float32).tiny)
    came = jax.tree.map(lambda x: counted(x, found), came)
    apart = jnp.std(jnp.mean(came.ret, axis=2)) / logged
    outside, below, above = (jnp.mean(x[0]) for x in (came.outside, came.below, came.above))
    return ModelValue(jnp.mean(came.ret, axis=(1, 2)), outside, below, above, apart)


def logged_value(found: Windows, discount: float = 0.99) -> ModelValue:
    """The logged controller's value: the mean logged return, all of whose steps lie inside the logs."""
    nothing = jnp.zeros((), found.reward.dtype)
    value = jnp.broadcast_to(jnp.mean(counted(logged_returns(found, discount), found)), (2,))
    return ModelValue(value, nothing, nothing, nothing, nothing)


def spread(count: float, confidence: float = 0.95) -> float:
    """How much wider than a bootstrap's an interval must be whose draws come from few.

    `sqrt(n / (n - 1)) t / z`, with Student's and the normal quantile (Hesterberg 2015, What teachers should know about
    the bootstrap, section 3.3).

    Args:
        count: n windows that are resampled (`effective_windows`).
        confidence: two-sided.

    Returns:
        The factor; NaN of fewer than two, which say nothing of others.
    """
    if count < 2:
        return np.nan
    level = (1.0 + confidence) / 2.0
    return float(np.sqrt(count / (count - 1)) * stdtrit(count - 1, level) / ndtri(level))
