"""Fitted Q evaluation on reward and cost, with its fixed point in closed form and an episode bootstrap.

FQE (Le, Voloshin & Yue 2019, arXiv 1903.08738, algorithm 3) repeats a regression whose error shrinks by only the
discount per round. On features that are linear in the last layer the limit of those rounds is one linear solve
(Duan, Jia & Wang 2020, arXiv 2002.09516, section 3), and its derivative with respect to the weight of an episode is
known, so that thousands of resamples of episodes cost one matrix product.

The features are the last layer of a network that is trained on the logged controller's own returns at several
discounts (a plain regression, as in Fedus et al. 2019, arXiv 1902.06865), and the monomials of degree up to two.
A target policy enters as its actions on the logs, never as code.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

Layers = tuple[tuple[Float[Array, "..."], Float[Array, "..."]], ...]

HORIZON_DISCOUNTS = (0.0, 0.5, 0.8, 0.9, 0.95)
"""Discounts of the returns that shape the features."""
UNSEEN_TAIL = 0.1
"""A return counts as seen when less than this share of its weight lies beyond the end of the logged window."""
MOST_QUADRATIC = 24
"""Inputs beyond this number get no products of pairs, whose count grows with its square."""


class LoggedSteps(NamedTuple):
    """Logged episodes in order, one after the other; observations normalised, actions in [-1, 1]."""

    observation: Float[Array, "N O"]
    action: Float[Array, "N A"]
    reward: Float[Array, " N"]
    cost: Float[Array, " N"]
    next_observation: Float[Array, "N O"]
    terminated: Float[Array, " N"]
    followed: Bool[Array, " N"]
    """Whether the next row is the next step of the same episode."""
    episode: Int[Array, " N"]
    """Episode of each row, from 0 to E - 1."""
    starts: Int[Array, " E"]
    """First row of each episode."""


class Decisions(NamedTuple):
    """What a policy does on the logs, in [-1, 1]."""

    next_action: Float[Array, "*p N A"]
    """Actions at each next observation."""
    initial_action: Float[Array, "*p E A"]
    """Actions at the first observation of each episode."""


class FeatureState(NamedTuple):
    """The network whose last hidden layer gives features, in training."""

    layers: Layers
    optimiser: optax.OptState
    step: Int[Array, ""]


class Evaluation(NamedTuple):
    """A policy's discounted value from the initial states: index 0 is reward, 1 is cost."""

    value: Float[Array, "*p 2"]
    draws: Float[Array, "*p B 2"]
    """Bootstrap draws of `value`. Same key, same resamples: subtract two policies' draws to compare them in pairs."""
    spectral_radius: Float[Array, "*p"]
    """Growth per round of FQE on these features; at 1 or above the rounds diverge and `value` means nothing."""
    effective_rows: Float[Array, "*p"]
    """Kish's effective number of rows behind `value`: how much of the logs resembles where the policy goes."""
    supported: Bool[Array, "*p"]
    """Whether the rounds converge, to a value that the logged rewards and costs could add up to."""


def logged_decisions(logs: LoggedSteps) -> Decisions:
    """The logged controller's own actions, whose evaluation is the value to beat.

    Rows that are not followed repeat their own action; they are left out of every fit unless they terminate.
    """
    following = jnp.roll(logs.action, -1, axis=0)
    return Decisions(jnp.where(logs.followed[:, None], following, logs.action), logs.action[logs.starts])


def horizon_returns(
    signal: Float[Array, "N S"], logs: LoggedSteps, discounts: Float[Array, " H"]
) -> tuple[Float[Array, "N S H"], Float[Array, "N H"]]:
    """Logged returns within each window, and whether enough of them was seen.

    G_t = x_t + discount G_{t+1}, up to the window's end.

    Args:
        signal: (N, S) what is summed.
        logs: the windows.
        discounts: (H,).

    Returns:
        Returns (N, S, H) and 1 where they count, else 0, (N, H).
    """

    def back(
        carry: tuple[Float[Array, "S H"], Float[Array, " H"]],
        row: tuple[Float[Array, " S"], Bool[Array, ""], Float[Array, ""]],
    ) -> tuple[tuple[Float[Array, "S H"], Float[Array, " H"]], tuple[Float[Array, "S H"], Float[Array, " H"]]]:
        following, unseen = carry
        x, followed, terminated = row
        returns = x[:, None] + jnp.where(followed, discounts * following, 0.0)
        unseen = discounts * jnp.where(followed, unseen, 1.0 - terminated)
        return (returns, unseen), (returns, unseen)

    zero = jnp.zeros((signal.shape[1], discounts.shape[0]), signal.dtype)
    rows = (signal, logs.followed, logs.terminated)
    _, (returns, unseen) = jax.lax.scan(back, (zero, jnp.zeros_like(zero[0])), rows, reverse=True)
    return returns, (unseen < UNSEEN_TAIL).astype(signal.dtype)


class FeatureTargets(NamedTuple):
    """What the features are trained to predict."""

    returns: Float[Array, "N T"]
    """Reward and cost returns at each of `HORIZON_DISCOUNTS`, scaled to unit deviation."""
    weight: Float[Array, "N T"]


@jax.jit
def feature_targets(logs: LoggedSteps) -> FeatureTargets:
    """Prepare the targets once, before training."""
    signal = jnp.stack([logs.reward, logs.cost], axis=-1)
    returns, seen = horizon_returns(signal, logs, jnp.asarray(HORIZON_DISCOUNTS, signal.dtype))
    weight = jnp.broadcast_to(seen[:, None, :], returns.shape)
    total = jnp.maximum(weight.sum(axis=0), 1.0)
    mean = (weight * returns).sum(axis=0) / total
    deviation = jnp.sqrt((weight * (returns - mean) ** 2).sum(axis=0) / total)
    scaled = (returns - mean) / jnp.where(deviation > 1e-6, deviation, 1.0)
    rows = signal.shape[0]
    return FeatureTargets(scaled.reshape(rows, -1), weight.reshape(rows, -1))


def init_features(key: PRNGKeyArray, logs: LoggedSteps, width: int = 64) -> FeatureState:
    """A fresh network of two hidden layers with He initialisation.

    Args:
        key: its randomness.
        logs: sizes and precision.
        width: units per layer, which is the number of learned features.
    """
    dtype = logs.observation.dtype
    inputs = logs.observation.shape[1] + logs.action.shape[1]
    sizes = (inputs, width, width, 2 * len(HORIZON_DISCOUNTS))
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(
        (jax.random.normal(k, (a, b), dtype) * jnp.sqrt(2.0 / a).astype(dtype), jnp.zeros((b,), dtype))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    )
    return FeatureState(layers, optax.scale_by_adam().init(layers), jnp.int32(0))


def _hidden(layers: Layers, x: Float[Array, "*n I"]) -> Float[Array, "*n W"]:
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x


@partial(jax.jit, static_argnames=("updates", "of", "batch_size"))
def train_features(
    state: FeatureState,
    key: PRNGKeyArray,
    logs: LoggedSteps,
    targets: FeatureTargets,
    updates: int,
    of: int,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
) -> tuple[FeatureState, Float[Array, ""]]:
    """Some of the updates of the features; chunks of any size make the same result.

    Args:
        state: where training stands.
        key: the same in every chunk.
        logs: the rows.
        targets: what the features are trained to predict, from `feature_targets`.
        updates: gradient steps of this chunk.
        of: gradient steps of all chunks, over which the learning rate falls as a cosine.
        batch_size: rows per step.
        learning_rate: step length of Adam at the start.

    Returns:
        The new state and the chunk's mean loss.
    """
    x = jnp.concatenate([logs.observation, logs.action], axis=-1)

    def one(state: FeatureState, _: None) -> tuple[FeatureState, Float[Array, ""]]:
        drawn = jax.random.randint(jax.random.fold_in(key, state.step), (batch_size,), 0, x.shape[0])

        def loss(layers: Layers) -> Float[Array, ""]:
            weight, bias = layers[-1]
            error = _hidden(layers, x[drawn]) @ weight + bias - targets.returns[drawn]
            return jnp.mean(jnp.sum(targets.weight[drawn] * error**2, axis=-1))

        value, gradient = jax.value_and_grad(loss)(state.layers)
        direction, optimiser = optax.scale_by_adam().update(gradient, state.optimiser)
        rate = learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * state.step / of)).astype(x.dtype)
        layers = jax.tree.map(lambda p, d: p - rate * d, state.layers, direction)
        return FeatureState(layers, optimiser, state.step + 1), value

    state, losses = jax.lax.scan(one, state, length=updates)
    return state, jnp.mean(losses)


def features(layers: Layers, observation: Float[Array, "n O"], action: Float[Array, "n A"]) -> Float[Array, "n D"]:
    """1, the inputs, their products in pairs (of at most `MOST_QUADRATIC` inputs), and the learned features.

    Args:
        layers: weights of the learned features.
        observation: (n, O), normalised.
        action: (n, A), between -1 and 1.
    """
    x = jnp.concatenate([observation, action], axis=-1)
    parts = [jnp.ones_like(x[:, :1]), x]
    if x.shape[1] <= MOST_QUADRATIC:
        i, j = jnp.triu_indices(x.shape[1])
        parts.append(x[:, i] * x[:, j])
    return jnp.concatenate([*parts, _hidden(layers, x)], axis=-1)


def _whitening(phi: Float[Array, "N D"], weight: Float[Array, " N"]) -> Float[Array, "D D"]:
    """A map after which features are uncorrelated with unit power; directions without power become zero."""
    power = jnp.sqrt((weight @ phi**2) / weight.sum())
    scale = jnp.where(power > 0, 1.0 / jnp.where(power > 0, power, 1.0), 0.0)
    scaled = phi * scale
    gram = (scaled * weight[:, None]).T @ scaled / weight.sum()
    eigenvalue, vector = jnp.linalg.eigh(gram)
    enough = eigenvalue > 64 * np.finfo(phi.dtype).eps * eigenvalue[-1]
    shrink = jnp.where(enough, jax.lax.rsqrt(jnp.where(enough, eigenvalue, 1.0)), 0.0)
    whitening: Float[Array, "D D"] = scale[:, None] * vector * shrink
    return whitening


def _spectral_radius(matrix: Float[Array, "D D"], squarings: int = 12) -> Float[Array, ""]:
    """Gelfand's formula, ||M^k||^(1/k) with k = 2^squarings; needs no eigenvalues of a general matrix."""

    def square(
        carry: tuple[Float[Array, "D D"], Float[Array, ""]], _: None
    ) -> tuple[tuple[Float[Array, "D D"], Float[Array, ""]], None]:
        power, log = carry
        size = jnp.maximum(jnp.linalg.norm(power), np.finfo(power.dtype).tiny)
        power = power / size
        return (power @ power, 2.0 * (log + jnp.log(size))), None

    (power, log), _ = jax.lax.scan(square, (matrix, jnp.zeros((), matrix.dtype)), length=squarings)
    size = jnp.maximum(jnp.linalg.norm(power), np.finfo(power.dtype).tiny)
    return jnp.exp((log + jnp.log(size)) / 2**squarings)


def resample_weights(key: PRNGKeyArray, episodes: int) -> Float[Array, " E"]:
    """How often each episode occurs in one resample with replacement; sums to E."""
    drawn = jax.random.randint(key, (episodes,), 0, episodes)
    return jnp.zeros(episodes).at[drawn].add(1.0)


@partial(jax.jit, static_argnames=("bootstraps",))
def evaluate(
    layers: Layers,
    logs: LoggedSteps,
    decisions: Decisions,
    key: PRNGKeyArray,
    discount: float = 0.99,
    bootstraps: int = 1000,
    ridge: float = 1e-6,
) -> Evaluation:
    """Value of one policy from the initial states, with a bootstrap over episodes.

    With features whitened on the logs, theta solves `mean phi (r + discount (1 - terminated) phi'^T theta - phi^T
    theta) = ridge theta` and the value is `mean phi_0^T theta`. Windows cut by time bootstrap, so it is the value of
    going on for ever. A resample with episode counts w has, to first order, `V + sum_e (w_e - 1) psi_e` with `psi_e`
    the influence of an episode: its TD errors weighted by `nu^T phi`, `nu = A^-T phi_0`, and its own initial state.

    Args:
        layers: weights of the trained features.
        logs: (N, ...) rows in E episodes; a row without a successor counts only if it terminates, the same rows for
            every policy, so that differences are of policies and not of rows.
        decisions: the policy's actions on these logs.
        key: randomness of the resamples; use one for all policies that are compared.
        discount: discount factor per step.
        bootstraps: resamples B.
        ridge: on whitened features.

    Returns:
        Value of reward and cost, draws, and what tells whether the logs support them. The interval covers what
        another set of episodes would have given; it does not cover what the features cannot express.

    Source: Duan, Jia & Wang 2020 (arXiv 2002.09516); Hao et al. 2021, bootstrapping FQE (arXiv 2102.03607).
    """
    weight = (logs.followed | (logs.terminated > 0)).astype(logs.observation.dtype)
    rows = jnp.maximum(weight.sum(), 1.0)
    phi = features(layers, logs.observation, logs.action)
    white = _whitening(phi, weight)
    phi = phi @ white
    phi_next = features(layers, logs.next_observation, decisions.next_action) @ white
    phi_next = phi_next * (discount * (1.0 - logs.terminated))[:, None]
    phi_0 = features(layers, logs.observation[logs.starts], decisions.initial_action) @ white
    signal = jnp.stack([logs.reward, logs.cost], axis=-1)

    weighted = phi * (weight / rows)[:, None]
    gram, cross = weighted.T @ phi, weighted.T @ phi_next
    # Directions without power have a zero row in both; the identity there gives them a zero weight.
    matrix = gram - cross + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)
    matrix = matrix + jnp.diag(jnp.where(jnp.diag(gram) > 0, 0.0, 1.0)).astype(gram.dtype)
    theta = jnp.linalg.solve(matrix, weighted.T @ signal)
    nu = jnp.linalg.solve(matrix.T, phi_0.mean(axis=0))
    value = phi_0.mean(axis=0) @ theta

    episodes = logs.starts.shape[0]
    density = (phi @ nu) * weight
    error = signal + phi_next @ theta - phi @ theta
    influence = jax.ops.segment_sum((density / rows)[:, None] * error, logs.episode, episodes)
    influence = influence + (phi_0 @ theta - value) / episodes

    def draw(key: PRNGKeyArray) -> Float[Array, " 2"]:
        drawn: Float[Array, " 2"] = value + (resample_weights(key, episodes).astype(value.dtype) - 1.0) @ influence
        return drawn

    draws = jax.vmap(draw)(jax.random.split(key, bootstraps))
    radius = _spectral_radius(cross)
    effective = jnp.sum(density) ** 2 / jnp.maximum(jnp.sum(density**2), np.finfo(phi.dtype).tiny)
    return Evaluation(value, draws, radius, effective, (radius < 1.0) & _reachable(value, signal, weight, discount))


def _reachable(
    value: Float[Array, " 2"], signal: Float[Array, "N 2"], weight: Float[Array, " N"], discount: float
) -> Bool[Array, ""]:
    """Whether sums of logged rewards and costs, of any length, could reach the value (to a tenth of their range)."""
    seen = weight[:, None] > 0
    high = jnp.where(seen, signal, -jnp.inf).max(axis=0)
    low = jnp.where(seen, signal, jnp.inf).min(axis=0)
    most, least = jnp.maximum(high, 0.0) / (1.0 - discount), jnp.minimum(low, 0.0) / (1.0 - discount)
    slack = 0.1 * (most - least) + 1e-6
    reachable: Bool[Array, ""] = jnp.all(jnp.isfinite(value) & (value <= most + slack) & (value >= least - slack))
    return reachable


def interval(draws: Float[Array, "*b B"], confidence: float = 0.95) -> tuple[Float[Array, "*b"], Float[Array, "*b"]]:
    """Percentile interval of bootstrap draws: the quantiles that leave (1 - confidence)/2 on each side."""
    tail = (1.0 - confidence) / 2.0
    lower: Float[Array, "*b"] = jnp.quantile(draws, tail, axis=-1)
    upper: Float[Array, "*b"] = jnp.quantile(draws, 1.0 - tail, axis=-1)
    return lower, upper
