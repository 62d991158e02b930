"""Proximal policy optimisation (PPO) in a simulator, for plants without useful gradients or with discrete actions.

Schulman et al. 2017 (arXiv 1707.06347), with generalised advantages (Schulman et al. 2016, arXiv 1506.02438). The
network's output is sampled, and the composite turns the output into an action, so shield and plant's controller are
part of the environment. For a discrete action, the loss rates the preferred choice, even if shield or dwell time
execute another choice. The critic observes the simulator's true state (asymmetric actor-critic of Pinto et al. 2018,
arXiv 1710.06542).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from neorl_core.networks import Normaliser, mlp_apply, normalise, to_unit, value_init
from neorl_core.online.copies import Copy, known, move, points, start
from neorl_core.online.learner import Learner, Setting, first_actor, without_plant
from neorl_core.safety.shield import ShieldParams
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.population import Algorithm, Hyperparameters, Metrics, hyperparameters
from neorl_core.types import Params, varies

FARTHEST = 10.0
"""Largest absolute normalised input of the critic."""


class Config(NamedTuple):
    """Hyper-parameters. Float fields may differ between members."""

    hidden: tuple[int, ...] = (64, 64)
    warm_up_updates: int = 100
    """Updates at the start that run the policy without the shield; the later updates run the composite."""
    copies: int = 64
    """Copies of the plant that run in parallel."""
    steps: int = 256
    """Steps of each copy in one update. Shorter pieces of episodes learn worse where rare violations cost much."""
    epochs: int = 4
    """Passes over the steps of an update."""
    parts: int = 8
    """Gradient steps of a pass."""
    lr: float = 1e-3
    """Learning rate of both networks."""
    recipe: Recipe = Recipe(clip=0.5, schedule="linear", steps=120)
    """Optimiser of both networks. `warmup` and `steps` count updates."""
    discount: float = 0.99
    decay: float = 0.95
    """Decay λ of the generalised advantages."""
    clip: float = 0.2
    """Largest change of a probability ratio that the loss rewards."""
    deviation: float = 0.1
    """First standard deviation of the output before the tanh, which is learned; not used for discrete actions."""
    bonus: int = 2
    """Preference of the choice of the plant's controller; not used for continuous actions."""
    margin: float = 1.2
    """Margin below which a step is penalised, as a multiple of the shield's buffer."""
    margin_weight: float = 10.0
    """Points of score that an episode loses for a step on a limit; the loss grows with the square of the lack."""


class Weights(NamedTuple):
    """Weights of both networks."""

    actor: Params
    log_deviation: Float[Array, " U"]
    """Logarithm of the standard deviation of the output; not used for discrete actions."""
    critic: Params


class Scales(NamedTuple):
    """Scales of the critic, from first episodes."""

    mean: Float[Array, " V"]
    deviation: Float[Array, " V"]
    value_mean: Float[Array, ""]
    value_deviation: Float[Array, ""]
    """Mean and standard deviation of the discounted returns, in points of score."""


class State(NamedTuple):
    """Training state."""

    weights: Weights
    optimiser: Optimiser
    copies: Copy
    """All copies; leaves have a leading axis."""
    scales: Scales
    hyper: Hyperparameters
    shield: ShieldParams
    """Never changes. Shield and normaliser are in the state, so that programs do not depend on their numbers."""
    normaliser: Normaliser


class Rows(NamedTuple):
    """Steps of the copies; leaves (steps, copies, ...) or (rows, ...)."""

    inputs: Float[Array, "*n I"]
    taken: Array
    """Sampled output (..., A) of the network, or number (...,) of the preferred choice."""
    log_density: Float[Array, "*n"]
    """Logarithm of the density or probability of `taken`, without constants."""
    score: Float[Array, "*n"]
    """Points of score."""
    reward: Float[Array, "*n"]
    """Points of score, less the penalty."""
    known: Float[Array, "*n V"]
    """Inputs of the critic."""
    after: Float[Array, "*n V"]
    """Inputs of the critic after the step, before a new start."""
    taken_over: Bool[Array, "*n"]
    violated: Bool[Array, "*n"]
    ended: Bool[Array, "*n"]


def init(key: PRNGKeyArray, setting: Setting) -> State:
    """Return the initial training state: an actor that hardly moves the plant's controller."""
    actor_key, critic_key, copies_key, run_key = jax.random.split(key, 4)
    _, shield, normaliser, config = setting
    actor = first_actor(actor_key, normaliser, config.hidden)
    copies = jax.vmap(partial(start, setting))(jax.random.split(copies_key, config.copies))
    last = actor[f"Dense_{len(config.hidden)}"]["bias"]
    weights = Weights(actor, jnp.full_like(last, jnp.log(config.deviation)), {})
    scales = _scales(setting, _run(setting, weights, copies, run_key, setting.plant.spec.horizon, False)[1])
    weights = weights._replace(critic=value_init(critic_key, len(scales.mean), config.hidden))
    each, recipe = config.epochs * config.parts, config.recipe
    recipe = recipe._replace(steps=each * recipe.steps, warmup=each * recipe.warmup)
    memory = optimisers.init(recipe, weights)
    return State(weights, memory, copies, scales, hyperparameters(config), shield, normaliser)


def _scales(setting: Setting, rows: Rows) -> Scales:
    """Return mean and standard deviation of the critic's inputs and of the discounted returns."""

    def back(following: Float[Array, " N"], now: Any) -> Any:
        reward, ended = now
        found = reward + setting.config.discount * jnp.where(ended, 0.0, following)
        return found, found

    returns = jax.lax.scan(back, jnp.zeros_like(rows.reward[0]), (rows.reward, rows.ended), reverse=True)[1]
    both = [(jnp.mean(x, axis=(0, 1)), jnp.std(x, axis=(0, 1))) for x in (rows.known, returns)]
    (mean, deviation), (value_mean, value_deviation) = (
        (mean, jnp.where(varies(mean, deviation), deviation, 1.0)) for mean, deviation in both
    )
    return Scales(mean, deviation, value_mean, value_deviation)


def advantages(
    rows: Rows, value: Float[Array, "T N"], after: Float[Array, "T N"], config: Config
) -> Float[Array, "T N"]:
    """Return the generalised advantages, in points of score.

    δ(t) = r(t) + γ (1 − ended(t)) V(t+1) − V(t);  A(t) = δ(t) + γ λ (1 − ended(t)) A(t+1)

    The time limit ends an episode like a termination, because the score counts one episode and the critic observes the
    time.

    Args:
        value: V before each step.
        after: V after each step, before a new start.
    """
    delta = rows.reward + config.discount * jnp.where(rows.ended, 0.0, after) - value

    def back(following: Float[Array, " N"], now: Any) -> Any:
        delta, ended = now
        found = delta + config.discount * config.decay * jnp.where(ended, 0.0, following)
        return found, found

    found: Float[Array, "T N"] = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, rows.ended), reverse=True)[1]
    return found


def surrogate(ratio: Float[Array, "*n"], advantage: Float[Array, "*n"], clip: float | Array) -> Float[Array, "*n"]:
    """Return min(ratio A, clip(ratio, 1 − ε, 1 + ε) A), equation 7 of Schulman et al. 2017."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def update(state: State, setting: Setting, key: PRNGKeyArray, protected: bool) -> tuple[State, Metrics]:
    """Run the copies for `config.steps` steps, and improve both networks by these steps."""
    plant, _, _, config = setting
    run_key, order_key = jax.random.split(key)
    copies, rows = _run(setting, state.weights, state.copies, run_key, config.steps, protected)
    value, after = (_value(state.scales, state.weights.critic, x) for x in (rows.known, rows.after))
    advantage = advantages(rows, value, after, config)
    scaled = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, scaled, advantage + value))
    count = config.steps * config.copies

    def improve(carry: tuple[Weights, Optimiser], part: Int[Array, " B"]) -> Any:
        weights, optimiser = carry
        chosen = jax.tree.map(lambda x: x[part], flat)
        gradient, metrics = jax.grad(_loss, has_aux=True)(weights, setting, state.scales, *chosen)
        return optimisers.step(weights, gradient, optimiser, jnp.asarray(config.lr)), metrics

    # Rows that do not fill a part are left out; each pass leaves out others.
    passes = jax.vmap(partial(jax.random.permutation, x=count))(jax.random.split(order_key, config.epochs))
    orders = passes[:, : count // config.parts * config.parts].reshape(config.epochs * config.parts, -1)
    (weights, optimiser), metrics = jax.lax.scan(improve, (state.weights, state.optimiser), orders)
    horizon, lowest = plant.spec.horizon, points(plant, jnp.asarray(plant.spec.score_range[0]))
    found = jax.tree.map(jnp.mean, metrics) | {
        "score": jnp.mean(rows.score) * horizon - lowest,
        "penalty": jnp.mean(rows.score - rows.reward) * horizon,
        "violated": jnp.mean(rows.violated) * horizon,
        "taken_over": jnp.mean(rows.taken_over),
    }
    return state._replace(weights=weights, optimiser=optimiser, copies=copies), found


def _run(
    setting: Setting, weights: Weights, copies: Copy, key: PRNGKeyArray, steps: int, protected: bool
) -> tuple[Copy, Rows]:
    """Run all copies for some steps."""
    plant, _, normaliser, config = setting

    def one(copy: Copy, key: PRNGKeyArray) -> tuple[Copy, Rows]:
        act_key, move_key = jax.random.split(key)
        output = _output(setting, weights.actor, copy.inputs)
        if normaliser.choices is None:
            sampled = output + jnp.exp(weights.log_deviation) * jax.random.normal(act_key, output.shape)
            taken = sampled
        else:
            # The largest sum of a preference and Gumbel noise is a sample of the softmax.
            sampled = output + jax.random.gumbel(act_key, output.shape)
            taken = jnp.argmax(sampled + _bonus(setting, copy.inputs))
        moved = move(setting, copy, sampled, move_key, protected)
        return moved.copy, Rows(
            inputs=copy.inputs,
            taken=taken,
            log_density=log_density(setting, weights, copy.inputs, taken),
            score=moved.score,
            reward=moved.score - config.margin_weight * moved.penalty,
            known=known(plant, copy),
            after=known(plant, moved.after),
            taken_over=moved.after.memory.handed_over,
            violated=moved.violated,
            ended=moved.ended,
        )

    def every(copies: Copy, key: PRNGKeyArray) -> tuple[Copy, Rows]:
        return jax.vmap(one)(copies, jax.random.split(key, config.copies))

    found: tuple[Copy, Rows] = jax.lax.scan(every, copies, jax.random.split(key, steps))
    return found


def _output(setting: Setting, actor: Params, inputs: Float[Array, "*n I"]) -> Float[Array, "*n U"]:
    """Return the output of the network, without tanh and bonus."""
    return mlp_apply(actor, normalise(setting.normaliser, inputs))


def _bonus(setting: Setting, inputs: Float[Array, "*n I"]) -> Float[Array, "*n C"]:
    """Return the additional preference of the controller's choice, which is the last input."""
    bonus: Float[Array, "*n C"] = setting.config.bonus * to_unit(setting.normaliser, inputs[..., -1:])
    return bonus


def _value(scales: Scales, critic: Params, inputs: Float[Array, "*n V"]) -> Float[Array, "*n"]:
    """Return estimated discounted returns, in points of score."""
    scaled = jnp.clip((inputs - scales.mean) / scales.deviation, -FARTHEST, FARTHEST)
    return scales.value_mean + scales.value_deviation * mlp_apply(critic, scaled)[..., 0]


def log_density(setting: Setting, weights: Weights, inputs: Float[Array, "*n I"], taken: Array) -> Float[Array, "*n"]:
    """Return the logarithm of the density or probability of `taken`, without constants."""
    output = _output(setting, weights.actor, inputs)
    if setting.normaliser.choices is None:
        noise = (taken - output) * jnp.exp(-weights.log_deviation)
        total: Float[Array, "*n"] = -jnp.sum(0.5 * noise**2 + weights.log_deviation, axis=-1)
        return total
    each = jax.nn.log_softmax(output + _bonus(setting, inputs))
    chosen: Float[Array, "*n"] = jnp.take_along_axis(each, taken[..., None], axis=-1)[..., 0]
    return chosen


def _loss(
    weights: Weights,
    setting: Setting,
    scales: Scales,
    rows: Rows,
    advantage: Float[Array, " B"],
    target: Float[Array, " B"],
) -> tuple[Float[Array, ""], Metrics]:
    """Return the loss −E[surrogate] + ½ E[(V − target)²/scale²], and metrics."""
    clip = setting.config.clip
    ratio = jnp.exp(log_density(setting, weights, rows.inputs, rows.taken) - rows.log_density)
    error = jnp.mean((_value(scales, weights.critic, rows.known) - target) ** 2) / scales.value_deviation**2
    spread = jnp.mean(jnp.exp(weights.log_deviation))
    metrics = {"critic_loss": error, "deviation": spread, "clipped": jnp.mean(jnp.abs(ratio - 1.0) > clip)}
    return 0.5 * error - jnp.mean(surrogate(ratio, advantage, clip)), metrics


def check(config: Config) -> None:
    """Raise ValueError if an update has fewer rows than parts."""
    if config.parts > (count := config.steps * config.copies):
        raise ValueError(f"parts is {config.parts}, but an update has only {count} rows: reduce parts")


LEARNER = Learner(
    Algorithm(
        name="ppo",
        Config=Config,
        batches_per_update=1,
        init=without_plant,
        update=without_plant,
        act=without_plant,
        actor=lambda state: state.weights.actor,
        warm_up=without_plant,
        usual_updates=120,
        discrete=None,
    ),
    init,
    update,
    check,
)
