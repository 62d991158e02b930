"""A gated recurrent unit (GRU) that reads the history of an observation from the oldest step to the newest.

At each decision, the GRU starts from a zero hidden state and reads the stacked observation (`neorl_core.history`). So
no hidden state is stored between decisions, and a logged row contains the complete input of the policy.

Cho et al. 2014, Learning phrase representations using RNN encoder-decoder (arXiv 1406.1078). As in cuDNN, the reset
gate acts after the recurrent product.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.types import History, PlantSpec

# The counts of a history determine array shapes, so JAX must treat them as static. `types` cannot register the class,
# because it does not import JAX.
jax.tree_util.register_static(History)

GATES = 3
"""Number of gates: reset, update and candidate. Every kernel contains their weights side by side."""


class Recurrence(NamedTuple):
    """Input history and hidden size of a GRU."""

    history: History
    units: int


def make_recurrence(spec: PlantSpec, units: int) -> Recurrence | None:
    """Return the settings of a policy's GRU, or None if `units` is 0.

    Args:
        spec: spec of the plant with history, from `stacked_spec`.

    Raises:
        ValueError: if the spec has no history.
    """
    if not units:
        return None
    if spec.history is None:
        raise ValueError(
            f"gru: {units} needs a history, but {spec.name} has no earlier values: set 'history', or leave out 'gru'"
        )
    return Recurrence(spec.history, units)


@cache
def _sequence(history: History) -> npt.NDArray[np.int64]:
    """Return (T, F) indices into the stacked observation for each step, oldest first.

    Each step has F values, signals with a history and the actions before the step. Short histories repeat their oldest
    value.
    """
    steps = max(max(history.observation) + 1, max(history.action))
    columns, place = list[list[int]](), len(history.observation)
    for now, count in enumerate(history.observation):
        if count:
            columns.append([now if k == 0 else place + min(k, count) - 1 for k in range(steps)])
        place += count
    for count in history.action:
        if count:
            columns.append([place + min(k, count - 1) for k in range(steps)])
        place += count
    return np.asarray(columns, np.int64).T[::-1].copy()


def gru_init(key: PRNGKeyArray, recurrence: Recurrence) -> dict[str, Any]:
    """Return fresh weights of a GRU: LeCun normal input kernels, orthogonal state kernels."""
    units, read = recurrence.units, _sequence(recurrence.history).shape[1]
    input_key, state_key = jax.random.split(key)
    orthogonal = jax.nn.initializers.orthogonal()
    square = [orthogonal(each, (units, units)) for each in jax.random.split(state_key, GATES)]
    return {
        "history": recurrence.history,
        "input": {
            "kernel": jax.nn.initializers.lecun_normal()(input_key, (read, GATES * units)),
            "bias": jnp.zeros((GATES * units,)),
        },
        "state": {"kernel": jnp.concatenate(square, axis=1), "bias": jnp.zeros((units,))},
    }


def gru_apply(params: dict[str, Any], x: Float[Array, "*n S"]) -> Float[Array, "*n OH"]:
    """Return (..., O + H): the plain observation, and the hidden state after the newest step of the history.

    `r, z = sigmoid(W x + b + U h)`, `c = tanh(W x + b + r (U h + d))`, `h' = (1 - z) c + z h`, from `h = 0`, with reset
    gate r, update gate z, candidate c, input x and hidden state h.

    Args:
        x: (..., S) stacked observations.
    """
    history: History = params["history"]
    read, state = params["input"], params["state"]
    rows = jnp.moveaxis(x[..., _sequence(history)], -2, 0)
    # The inputs do not depend on the state, so one matrix product serves all steps.
    inputs = rows @ read["kernel"] + read["bias"]

    def step(h: Float[Array, "*n H"], inputs: Float[Array, "*n G"]) -> tuple[Float[Array, "*n H"], None]:
        reset, update, candidate = jnp.split(inputs, GATES, axis=-1)
        state_reset, state_update, state_candidate = jnp.split(h @ state["kernel"], GATES, axis=-1)
        gate = jax.nn.sigmoid(update + state_update)
        new = jnp.tanh(candidate + jax.nn.sigmoid(reset + state_reset) * (state_candidate + state["bias"]))
        return (1.0 - gate) * new + gate * h, None

    initial = jnp.zeros((*x.shape[:-1], state["bias"].shape[0]), x.dtype)
    return jnp.concatenate([x[..., : len(history.observation)], jax.lax.scan(step, initial, inputs)[0]], axis=-1)
