"""Networks as pure functions over plain dicts of arrays, and normalisation as data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.communication import AgentNetwork
from neorl_core.graph.policy import GraphNetwork, graph_actor_init, graph_apply, graph_critic_init, make_graph_network
from neorl_core.recurrent import Recurrence, gru_apply, gru_init, make_recurrence
from neorl_core.types import PlantSpec

Params = dict[str, Any]
"""Weights of one network, by layer: `{"Dense_0": {"kernel", "bias"}, "LayerNorm_0": {"scale", "bias"}, ...}`. A
recurrent network also has the entry `"gru"`; a graph network has only the entry `"graph"`."""

Ensemble = tuple[Params, ...]
"""Weights of several networks with equal shapes, not stacked because XLA's batched product is slow on a CPU."""

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of a Gaussian actor's log standard deviation before the tanh, from the code of An et al. 2021 (EDAC, arXiv
2110.01548); Haarnoja et al. 2018 use -20 as the lower bound."""
WITHIN = 1.0 - 1e-6
"""Largest absolute unit action in `log_prob`, because atanh is infinite at 1."""


@jax.custom_vjp
def product(x: Float[Array, "*n I"], kernel: Float[Array, "I F"]) -> Float[Array, "*n F"]:
    """Return `x @ kernel`, with a kernel gradient in the memory layout of the kernel.

    JAX's own gradient is transposed in memory. On a CPU, this slows down every later operation on the weights.
    """
    return x @ kernel


def _product_forward(
    x: Float[Array, "*n I"], kernel: Float[Array, "I F"]
) -> tuple[Float[Array, "*n F"], tuple[Float[Array, "*n I"], Float[Array, "I F"]]]:
    return product(x, kernel), (x, kernel)


def _product_backward(
    saved: tuple[Float[Array, "*n I"], Float[Array, "I F"]], g: Float[Array, "*n F"]
) -> tuple[Float[Array, "*n I"], Float[Array, "I F"]]:
    x, kernel = saved
    rows, cotangents = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    back = jax.lax.dot_general(g, kernel, (((g.ndim - 1,), (1,)), ((), ())))
    return back, jax.lax.dot_general(rows, cotangents, (((0,), (0,)), ((), ())))


product.defvjp(_product_forward, _product_backward)


def _dot_general(x: Array, kernel: Array, *_: Any, **__: Any) -> Array:
    return product(x, kernel)


class MLP(nn.Module):
    """Dense layers with ReLU between them and a linear last layer, in the precision of the input."""

    features: tuple[int, ...]
    layer_norm: bool = False
    """Normalise each hidden layer after its ReLU, as in the code of Tarasov et al. 2023 (ReBRAC, arXiv 2305.09836);
    Ball et al. 2023 (arXiv 2302.02948) normalise before it."""

    @nn.compact
    def __call__(self, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
        for width in self.features[:-1]:
            x = nn.relu(nn.Dense(width, param_dtype=x.dtype, dot_general=_dot_general)(x))
            if self.layer_norm:
                x = nn.LayerNorm(param_dtype=x.dtype)(x)
        return nn.Dense(self.features[-1], param_dtype=x.dtype, dot_general=_dot_general)(x)


def mlp_init(key: PRNGKeyArray, inputs: int, features: tuple[int, ...], layer_norm: bool = False) -> Params:
    """Return fresh weights of an MLP.

    Args:
        features: widths of the layers, including the output.
    """
    params: Params = MLP(features, layer_norm).init(key, jnp.zeros((inputs,)))["params"]
    return params


def mlp_apply(params: Params, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
    """Return the outputs (..., F) of a network for inputs (..., I); the weights determine the kind of network."""
    if "graph" in params:
        return graph_apply(params["graph"], x)
    if "gru" in params:
        x = gru_apply(params["gru"], x)
        params = {name: layer for name, layer in params.items() if name != "gru"}
    layers = _dense(params)
    features = tuple(params[f"Dense_{i}"]["bias"].shape[-1] for i in range(layers))
    output: Any = MLP(features, "LayerNorm_0" in params).apply({"params": params}, x)
    result: Float[Array, "*n F"] = output
    return result


def _dense(params: Params) -> int:
    return sum(name.startswith("Dense_") for name in params)


Body = Recurrence | GraphNetwork | AgentNetwork
"""Network part before the dense layers (GRU) or instead of them (graph network)."""


def make_body(spec: PlantSpec, hidden: tuple[int, ...], gru: int = 0, graph: int = 0) -> Body | None:
    """Return the GRU or graph network that the hyper-parameters of an actor define, or None for dense layers.

    Args:
        spec: spec of the plant, with history if the policy uses a history.
        gru: units of a GRU that reads the history; 0 for none.
        graph: rounds of message passing over the layout; 0 for none.

    Raises:
        ValueError: if both numbers are positive, a GRU has no history to read, or the plant has no layout for a graph.
    """
    if gru and graph:
        raise ValueError(f"gru and graph exclude each other, got gru {gru} and graph {graph}: set one to 0")
    return make_graph_network(spec, graph, hidden) if graph else make_recurrence(spec, gru)


def actor_init(
    key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...], body: Body | None = None
) -> Params:
    """Return fresh weights of a deterministic actor.

    Args:
        body: a GRU before the layers, or a graph network instead of them.
    """
    if body is None:
        return mlp_init(key, observations, (*hidden, actions))
    if isinstance(body, GraphNetwork | AgentNetwork):
        return graph_actor_init(key, body)
    gru_key, layers_key = jax.random.split(key)
    inputs = len(body.history.observation) + body.units
    return {"gru": gru_init(gru_key, body), **mlp_init(layers_key, inputs, (*hidden, actions))}


def actor_apply(params: Params, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return the unit action in (-1, 1): tanh of an MLP of the normalised observation."""
    return jnp.tanh(mlp_apply(params, observation))


class Gaussian(NamedTuple):
    """Normal distribution with independent components."""

    mean: Float[Array, "*n A"]
    log_std: Float[Array, "*n A"]


def gaussian_init(key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...]) -> Params:
    """Return fresh weights of a tanh-Gaussian actor: an MLP with A means and A log standard deviations as outputs."""
    return mlp_init(key, observations, (*hidden, 2 * actions))


def gaussian_apply(params: Params, observation: Float[Array, "*n O"]) -> Gaussian:
    """Return the distribution before the tanh at normalised observations (..., O); `LOG_STD_RANGE` limits `log_std`."""
    mean, log_std = jnp.split(mlp_apply(params, observation), 2, axis=-1)
    return Gaussian(mean, jnp.clip(log_std, *LOG_STD_RANGE))


def mean_actor(params: Params) -> Params:
    """Convert a tanh-Gaussian actor to the deterministic actor `tanh(mean)`, which is shipped."""
    last = f"Dense_{_dense(params) - 1}"
    actions = params[last]["bias"].shape[-1] // 2
    return {**params, last: jax.tree.map(lambda x: x[..., :actions], params[last])}


def squash(distribution: Gaussian, noise: Float[Array, "*n A"]) -> tuple[Float[Array, "*n A"], Float[Array, "*n"]]:
    """Return unit actions (..., A) sampled with standard normal `noise` (..., A), and their log densities (...,).

    `u = mean + std noise`, `a = tanh(u)`, `log pi(a) = sum log N(u) - log(1 - tanh(u)^2)`. The last logarithm is
    computed as `2 (log 2 - u - softplus(-2 u))`, which does not underflow.

    Reference: Haarnoja et al. 2018 (arXiv 1812.05905), appendix C, equation 26.
    """
    raw = distribution.mean + jnp.exp(distribution.log_std) * noise
    return jnp.tanh(raw), _log_density(distribution, noise, raw)


def log_prob(distribution: Gaussian, action: Float[Array, "*n A"]) -> Float[Array, "*n"]:
    """Return the log densities (...,) of unit actions (..., A) under a tanh-Gaussian, after clipping to `WITHIN`."""
    raw = jnp.arctanh(jnp.clip(action, -WITHIN, WITHIN))
    return _log_density(distribution, (raw - distribution.mean) * jnp.exp(-distribution.log_std), raw)


def _log_density(distribution: Gaussian, noise: Float[Array, "*n A"], raw: Float[Array, "*n A"]) -> Float[Array, "*n"]:
    normal = -0.5 * noise**2 - distribution.log_std - 0.5 * math.log(2 * math.pi)
    squashing = 2.0 * (math.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    total: Float[Array, "*n"] = jnp.sum(normal - squashing, axis=-1)
    return total


class NormalActor(NamedTuple):
    """Actor with normally distributed unit actions: the mean is `tanh(MLP)`, the deviation is the same in all states.

    As in the code of Kostrikov et al. 2021 (arXiv 2110.06169). Logged actions at the bounds have finite densities.
    """

    mean: Params
    """Weights of the mean, the deterministic actor that is shipped."""
    log_std: Float[Array, " A"]


def normal_init(
    key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...], body: Body | None = None
) -> NormalActor:
    """Return fresh weights with standard deviation 1; the arguments are those of `actor_init`."""
    return NormalActor(actor_init(key, observations, actions, hidden, body), jnp.zeros(actions))


def normal_apply(actor: NormalActor, observation: Float[Array, "*n O"]) -> Gaussian:
    """Return the distribution of unit actions at normalised observations (..., O)."""
    mean = actor_apply(actor.mean, observation)
    return Gaussian(mean, _along(mean, jnp.clip(actor.log_std, *LOG_STD_RANGE)))


def normal_sample(distribution: Gaussian, noise: Float[Array, "*n A"]) -> Float[Array, "*n A"]:
    """Return unit actions `clip(mean + std noise, -1, 1)` for standard normal noise (..., A)."""
    return jnp.clip(distribution.mean + jnp.exp(distribution.log_std) * noise, -1.0, 1.0)


def normal_log_prob(distribution: Gaussian, action: Float[Array, "*n A"]) -> Float[Array, "*n"]:
    """Return the log densities (...,) of actions a: `-sum (((a - mean) / std)^2 / 2 + log std + log(2 pi) / 2)`."""
    noise = (action - distribution.mean) * jnp.exp(-distribution.log_std)
    total: Float[Array, "*n"] = jnp.sum(-0.5 * noise**2 - distribution.log_std - 0.5 * math.log(2 * math.pi), axis=-1)
    return total


def critics_init(
    key: PRNGKeyArray,
    observations: int,
    actions: int,
    hidden: tuple[int, ...],
    count: int,
    layer_norm: bool = False,
    body: Body | None = None,
) -> Ensemble:
    """Return fresh weights of `count` separate critics.

    Args:
        body: graph network of the critics; with any other body the critics are dense.
    """
    keys = jax.random.split(key, count)
    if isinstance(body, GraphNetwork):
        return tuple(graph_critic_init(k, body) for k in keys)
    return tuple(mlp_init(k, observations + actions, (*hidden, 1), layer_norm) for k in keys)


def value_init(key: PRNGKeyArray, observations: int, hidden: tuple[int, ...], body: Body | None = None) -> Params:
    """Return fresh weights of a state-value network, evaluated by `mlp_apply` (see `critics_init`)."""
    if isinstance(body, GraphNetwork):
        return graph_critic_init(key, body, acting=False)
    return mlp_init(key, observations, (*hidden, 1))


def critics_apply(
    ensemble: Ensemble, observation: Float[Array, "*n O"], action: Float[Array, "*n A"]
) -> Float[Array, "C ..."]:
    """Return Q by each critic (C, ...) at normalised observations (..., O) and unit actions (..., A)."""
    x = jnp.concatenate([observation, action], axis=-1)
    return jnp.stack([mlp_apply(params, x)[..., 0] for params in ensemble])


class Normaliser(NamedTuple):
    """Conversion between physical units and the normalised numbers of networks; part of every policy."""

    mean: Float[Array, " O"]
    scale: Float[Array, " O"]
    action_centre: Float[Array, " A"]
    action_half_range: Float[Array, " A"]
    choices: Float[Array, " C"] | None = None
    """Numbers of the C choices of a discrete action; None for continuous actions. A discrete unit action has one
    component per choice, and the greatest component determines the choice."""


def _along(x: Float[Array, "*n D"], vector: Float[Array, " D"]) -> Float[Array, "*n D"]:
    return jnp.broadcast_to(vector, x.shape)


def normalise(n: Normaliser, observation: Float[Array, "*n O"]) -> Float[Array, "*n O"]:
    """Return `(observation - mean) / scale`."""
    return (observation - _along(observation, n.mean)) / _along(observation, n.scale)


def to_physical(n: Normaliser, unit_action: Float[Array, "*n U"]) -> Float[Array, "*n A"]:
    """Return the actions (..., A) in physical units for unit actions (..., U).

    For discrete actions, return the number of the choice with the greatest component, or NaN if a component is not
    finite.
    """
    if n.choices is not None:
        chosen = n.choices[jnp.argmax(unit_action, axis=-1, keepdims=True)]
        return jnp.where(jnp.all(jnp.isfinite(unit_action), axis=-1, keepdims=True), chosen, jnp.nan)
    return _along(unit_action, n.action_centre) + _along(unit_action, n.action_half_range) * unit_action


def to_unit(n: Normaliser, action: Float[Array, "*n A"]) -> Float[Array, "*n U"]:
    """Return unit actions (U = A) or one-hot choices (U = C) for physical actions (..., A); keep NaN and infinity."""
    if n.choices is not None:
        each = jnp.broadcast_to(action, (*action.shape[:-1], n.choices.size))
        hot = (each == _along(each, n.choices.astype(each.dtype))).astype(n.choices.dtype)
        return jnp.where(jnp.isfinite(each), hot, each)
    return (action - _along(action, n.action_centre)) / _along(action, n.action_half_range)


class Policy(NamedTuple):
    """A deployable policy: the weights of an actor and the normaliser it was trained with."""

    params: Params
    normaliser: Normaliser


def preferences(policy: Policy, observation: Float[Array, "*n O"]) -> Float[Array, "*n U"]:
    """Return the policy's unit actions (..., U) at physical observations (..., O).

    For discrete actions, return one output per choice; the policy takes the choice with the greatest output.
    """
    apply = actor_apply if policy.normaliser.choices is None else mlp_apply
    return apply(policy.params, normalise(policy.normaliser, observation))


def policy_act(policy: Policy, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Return the policy's action at physical observations.

    Args:
        observation: (..., O) in the plant's units.

    Returns:
        (..., A) in the plant's units, within the action bounds.
    """
    return to_physical(policy.normaliser, preferences(policy, observation))
