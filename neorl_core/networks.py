"""Networks as pure functions over plain dicts of arrays, and normalisation as data."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Params = dict[str, Any]
"""Weights of one network: `{"Dense_0": {"kernel", "bias"}, ...}`."""

Ensemble = tuple[Params, ...]
"""Weights of separate networks of one shape. Apart, not stacked: XLA's batched product is slower on a CPU."""


class MLP(nn.Module):
    """Dense layers with ReLU between them; the last is linear. Weights follow the precision of the input."""

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
        for width in self.features[:-1]:
            x = nn.relu(nn.Dense(width, param_dtype=x.dtype)(x))
        return nn.Dense(self.features[-1], param_dtype=x.dtype)(x)


def mlp_init(key: PRNGKeyArray, inputs: int, features: tuple[int, ...]) -> Params:
    """Fresh weights of an MLP from `inputs` numbers to `features[-1]`."""
    params: Params = MLP(features).init(key, jnp.zeros((inputs,)))["params"]
    return params


def mlp_apply(params: Params, x: Float[Array, "*n I"]) -> Float[Array, "*n F"]:
    """Apply an MLP; its widths are read off the weights, so that arrays are all that a policy needs."""
    features = tuple(params[f"Dense_{i}"]["bias"].shape[-1] for i in range(len(params)))
    output: Any = MLP(features).apply({"params": params}, x)
    result: Float[Array, "*n F"] = output
    return result


def actor_init(key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...]) -> Params:
    """Fresh weights of a deterministic actor."""
    return mlp_init(key, observations, (*hidden, actions))


def actor_apply(params: Params, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """Unit action in (-1, 1): tanh of an MLP of the normalised observation."""
    return jnp.tanh(mlp_apply(params, observation))


def critics_init(key: PRNGKeyArray, observations: int, actions: int, hidden: tuple[int, ...], count: int) -> Ensemble:
    """Fresh weights of `count` separate critics."""
    return tuple(mlp_init(k, observations + actions, (*hidden, 1)) for k in jax.random.split(key, count))


def critics_apply(
    ensemble: Ensemble, observation: Float[Array, "*n O"], action: Float[Array, "*n A"]
) -> Float[Array, "C ..."]:
    """Q of each critic at normalised observations and unit actions."""
    x = jnp.concatenate([observation, action], axis=-1)
    return jnp.stack([mlp_apply(params, x)[..., 0] for params in ensemble])


class Normaliser(NamedTuple):
    """How physical observations and actions become the numbers that networks see; ships with the policy."""

    mean: Float[Array, " O"]
    scale: Float[Array, " O"]
    action_centre: Float[Array, " A"]
    action_half_range: Float[Array, " A"]


def _along(x: Float[Array, "*n D"], vector: Float[Array, " D"]) -> Float[Array, "*n D"]:
    return jnp.broadcast_to(vector, x.shape)


def normalise(n: Normaliser, observation: Float[Array, "*n O"]) -> Float[Array, "*n O"]:
    """`(observation - mean) / scale`."""
    return (observation - _along(observation, n.mean)) / _along(observation, n.scale)


def to_physical(n: Normaliser, unit_action: Float[Array, "*n A"]) -> Float[Array, "*n A"]:
    """Action in the plant's units; -1 and 1 are the bounds of the action space."""
    return _along(unit_action, n.action_centre) + _along(unit_action, n.action_half_range) * unit_action


def to_unit(n: Normaliser, action: Float[Array, "*n A"]) -> Float[Array, "*n A"]:
    """Unit action; the inverse of `to_physical`."""
    return (action - _along(action, n.action_centre)) / _along(action, n.action_half_range)


class Policy(NamedTuple):
    """What ships: an actor's weights and the normaliser that it was trained with."""

    params: Params
    normaliser: Normaliser


def policy_act(policy: Policy, observation: Float[Array, "*n O"]) -> Float[Array, "*n A"]:
    """The policy's action for physical observations.

    Args:
        policy: weights and normaliser.
        observation: (..., O), in the plant's units.

    Returns:
        (..., A), in the plant's units, within the bounds of the action space.
    """
    return to_physical(policy.normaliser, actor_apply(policy.params, normalise(policy.normaliser, observation)))
