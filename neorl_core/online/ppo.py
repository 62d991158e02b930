"""Proximal policy optimisation (PPO) in a simulator, for plants without useful gradients.

Schulman et al. 2017 (arXiv 1707.06347), with generalised advantages (Schulman et al. 2016, arXiv 1506.02438).
`neorl_core.online.copies` lists the inputs and actions of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from neorl_core.networks import Policy, actor_apply, actor_init, mlp_apply, normalise, value_init
from neorl_core.online.analytic_gradient import FIRST
from neorl_core.online.copies import Copy, Scales, move, start
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Metrics
from neorl_core.types import Params, Plant


class Config(NamedTuple):
    """Hyper-parameters of a run."""

    hidden: tuple[int, ...] = (64, 64)
    updates: int = 200
    copies: int = 64
    """Copies of the plant that run in parallel."""
    steps: int = 64
    """Steps of each copy in one update."""
    epochs: int = 10
    """Passes over the steps of an update."""
    parts: int = 4
    """Gradient steps of a pass."""
    lr: float = 3e-4
    """Learning rate of both networks; falls to zero linearly."""
    discount: float = 0.99
    decay: float = 0.95
    """Decay λ of the generalised advantages."""
    clip: float = 0.2
    """Largest change of a probability ratio that the loss rewards."""
    deviation: float = 0.1
    """Standard deviation of a continuous correction, as a share of the largest correction."""
    margin: float = 0.15
    """Margin below which a step is penalised, as a share of the limit's width (in the limit's unit if one-sided)."""
    margin_weight: float = 10.0
    """Points of score that an episode loses for a step on a limit; the loss grows with the square of the lack."""


class Weights(NamedTuple):
    """Weights of both networks."""

    actor: Params
    critic: Params


class State(NamedTuple):
    """Training state."""

    weights: Weights
    optimiser: Optimiser
    copies: Copy
    """All copies; leaves have a leading axis."""
    key: UInt32[Array, " 2"]
    """Never changes; each update derives its key from this key and `step`."""
    step: Int[Array, ""]


class Setting(NamedTuple):
    """Everything that stays the same during a run."""

    plant: Plant
    scales: Scales
    config: Config


class Rows(NamedTuple):
    """Steps of the copies; leaves (steps, copies, ...) or (rows, ...)."""

    inputs: Float[Array, "*n I"]
    taken: Array
    """Correction (..., A) before clipping, as a share of the largest correction; number (...,) of a discrete choice."""
    log_density: Float[Array, "*n"]
    """Logarithm of the density or probability of `taken`, without constants."""
    score: Float[Array, "*n"]
    """Points of score."""
    reward: Float[Array, "*n"]
    """Points of score, less the penalty."""
    after: Float[Array, "*n I"]
    """Inputs after the step, before a new start."""
    terminated: Bool[Array, "*n"]
    ended: Bool[Array, "*n"]


def init(key: PRNGKeyArray, setting: Setting) -> State:
    """Return the initial training state: an actor that hardly corrects the controller, or chooses almost evenly."""
    actor_key, critic_key, copies_key, train_key = jax.random.split(key, 4)
    plant, config, inputs = setting.plant, setting.config, len(setting.scales.normaliser.mean)
    actor = actor_init(actor_key, inputs, plant.spec.acting, config.hidden)
    last = f"Dense_{len(config.hidden)}"
    actor = actor | {last: jax.tree.map(lambda x: FIRST * x, actor[last])}
    weights = Weights(actor, value_init(critic_key, inputs, config.hidden))
    recipe = Recipe(clip=0.5, schedule="linear", steps=config.updates * config.epochs * config.parts)
    copies = jax.jit(jax.vmap(partial(start, plant)))(jax.random.split(copies_key, config.copies))
    return State(weights, optimisers.init(recipe, weights), copies, jax.random.key_data(train_key), jnp.int32(0))


def policy_of(weights: Weights, setting: Setting) -> Policy:
    """Return the learned policy, which gives the mean correction or the most probable choice."""
    return Policy(weights.actor, setting.scales.normaliser)


def advantages(
    rows: Rows, value: Float[Array, "T N"], after: Float[Array, "T N"], config: Config
) -> Float[Array, "T N"]:
    """Return the generalised advantages, in points of score.

    δ(t) = r(t) + γ (1 − terminated(t)) V(t+1) − V(t);  A(t) = δ(t) + γ λ (1 − ended(t)) A(t+1)

    Args:
        value: V before each step.
        after: V after each step, before a new start.
    """
    delta = rows.reward + config.discount * jnp.where(rows.terminated, 0.0, after) - value

    def back(following: Float[Array, " N"], now: Any) -> Any:
        delta, ended = now
        found = delta + config.discount * config.decay * jnp.where(ended, 0.0, following)
        return found, found

    found: Float[Array, "T N"] = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, rows.ended), reverse=True)[1]
    return found


def surrogate(ratio: Float[Array, "*n"], advantage: Float[Array, "*n"], clip: float) -> Float[Array, "*n"]:
    """Return min(ratio A, clip(ratio, 1 − ε, 1 + ε) A), equation 7 of Schulman et al. 2017."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def update(state: State, setting: Setting) -> tuple[State, Metrics]:
    """Run the copies for `config.steps` steps, and improve both networks by these steps."""
    config, horizon = setting.config, setting.plant.spec.horizon
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key, impl="threefry2x32"), state.step)
    run_key, order_key = jax.random.split(key)
    copies, rows = _run(setting, state.weights.actor, state.copies, run_key)
    value, after = (_value(setting, state.weights.critic, x) for x in (rows.inputs, rows.after))
    advantage = advantages(rows, value, after, config)
    scaled = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, scaled, advantage + value))
    count = config.steps * config.copies

    def improve(carry: tuple[Weights, Optimiser], part: Int[Array, " B"]) -> Any:
        weights, optimiser = carry
        chosen = jax.tree.map(lambda x: x[part], flat)
        gradient, metrics = jax.grad(_loss, has_aux=True)(weights, setting, *chosen)
        return optimisers.step(weights, gradient, optimiser, jnp.asarray(config.lr)), metrics

    # Rows that do not fill a part are left out; each pass leaves out others.
    orders = [
        jax.random.permutation(key, count)[: count // config.parts * config.parts].reshape(config.parts, -1)
        for key in jax.random.split(order_key, config.epochs)
    ]
    improved, metrics = jax.lax.scan(improve, (state.weights, state.optimiser), jnp.concatenate(orders))
    found = jax.tree.map(jnp.mean, metrics) | {
        "score": jnp.mean(rows.score) * horizon,
        "penalty": jnp.mean(rows.score - rows.reward) * horizon,
        "ended": jnp.mean(rows.ended),
    }
    return State(*improved, copies, state.key, state.step + 1), found


def _run(setting: Setting, actor: Params, copies: Copy, key: PRNGKeyArray) -> tuple[Copy, Rows]:
    """Run all copies for `config.steps` steps."""
    plant, config = setting.plant, setting.config

    def one(copy: Copy, key: PRNGKeyArray) -> tuple[Copy, Rows]:
        act_key, move_key = jax.random.split(key)
        output = _output(setting, actor, copy.inputs)
        if plant.spec.choices is None:
            taken = output + config.deviation * jax.random.normal(act_key, output.shape)
            action = copy.command + setting.scales.normaliser.action_half_range * jnp.clip(taken, -1.0, 1.0)
        else:
            taken = jax.random.categorical(act_key, output)
            action = taken[None].astype(output.dtype)
        moved = move(plant, copy, action, move_key, config.margin)
        return moved.copy, Rows(
            inputs=copy.inputs,
            taken=taken,
            log_density=_log_density(setting, output, taken),
            score=moved.score,
            reward=moved.score - config.margin_weight * moved.penalty,
            after=moved.after,
            terminated=moved.terminated,
            ended=moved.ended,
        )

    def all_copies(copies: Copy, key: PRNGKeyArray) -> tuple[Copy, Rows]:
        return jax.vmap(one)(copies, jax.random.split(key, config.copies))

    found: tuple[Copy, Rows] = jax.lax.scan(all_copies, copies, jax.random.split(key, config.steps))
    return found


def _output(setting: Setting, actor: Params, inputs: Float[Array, "*n I"]) -> Float[Array, "*n U"]:
    """Return mean corrections in [-1, 1], or the logits of discrete choices."""
    apply = actor_apply if setting.plant.spec.choices is None else mlp_apply
    return apply(actor, normalise(setting.scales.normaliser, inputs))


def _value(setting: Setting, critic: Params, inputs: Float[Array, "*n I"]) -> Float[Array, "*n"]:
    """Return estimated discounted returns, in points of score."""
    normaliser, mean, scale = setting.scales
    return mean + scale * mlp_apply(critic, normalise(normaliser, inputs))[..., 0]


def _log_density(setting: Setting, output: Float[Array, "*n U"], taken: Array) -> Float[Array, "*n"]:
    """Return the logarithm of the density or probability of `taken`, without constants."""
    if setting.plant.spec.choices is None:
        total: Float[Array, "*n"] = -0.5 * jnp.sum(((taken - output) / setting.config.deviation) ** 2, axis=-1)
        return total
    return jnp.take_along_axis(jax.nn.log_softmax(output), taken[..., None], axis=-1)[..., 0]


def _loss(
    weights: Weights, setting: Setting, rows: Rows, advantage: Float[Array, " B"], target: Float[Array, " B"]
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss −E[surrogate] + ½ E[(V − target)²/scale²], and metrics."""
    clip = setting.config.clip
    output = _output(setting, weights.actor, rows.inputs)
    ratio = jnp.exp(_log_density(setting, output, rows.taken) - rows.log_density)
    error = jnp.mean((_value(setting, weights.critic, rows.inputs) - target) ** 2) / setting.scales.value_scale**2
    metrics = {"critic_loss": error, "clipped": jnp.mean(jnp.abs(ratio - 1.0) > clip)}
    return 0.5 * error - jnp.mean(surrogate(ratio, advantage, clip)), metrics


def make_chunk(setting: Setting, updates: int) -> Callable[[State], tuple[State, Metrics]]:
    """Return a function that takes `updates` updates and returns the last state and the means of the metrics.

    Settings of one plant share the compiled program.
    """
    return partial(_compiled(setting.plant, setting.config, updates), setting.scales)


@lru_cache(maxsize=16)
def _compiled(plant: Plant, config: Config, updates: int) -> Callable[[Scales, State], tuple[State, Metrics]]:
    @jax.jit
    def chunk(scales: Scales, state: State) -> tuple[State, Metrics]:
        setting = Setting(plant, scales, config)
        state, metrics = jax.lax.scan(lambda s, _: update(s, setting), state, length=updates)
        return state, jax.tree.map(jnp.mean, metrics)

    return chunk
