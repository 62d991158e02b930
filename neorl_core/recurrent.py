"""A gated recurrent unit that reads the history of an observation from its oldest step to the newest.

A policy with a history sees a stacked observation (`neorl_core.history`). Dense layers weigh each of its numbers by
itself; a recurrent unit uses the same weights at every step, and so has the fewer of them the longer the history is.
It begins anew at each decision, from the history alone: no hidden state is carried, saved or lost, and a logged row
tells a learner all that the policy would have known there.

Cho et al. 2014, Learning phrase representations using RNN encoder-decoder (arXiv 1406.1078), with the reset gate after
the recurrent product, as in cuDNN.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.types import PlantSpec

if TYPE_CHECKING:
    from neorl_core.history import History

GATES = 3
"""Reset, update, and the new state's candidate, side by side in every kernel."""


class Recurrence(NamedTuple):
    """What a recurrent unit reads, and how much it remembers of it."""

    history: History
    units: int


def recurrence_of(spec: PlantSpec, units: int) -> Recurrence | None:
    """The recurrence of a policy that sees a plant with its history; None of one without units.

    Args:
        spec: as the policy sees the plant, from `stacked_spec`.
        units: numbers of the hidden state.

    Raises:
        ValueError: when there is no history to read.
    """
    if not units:
        return None
    if spec.history is None:
        raise ValueError(
            f"expected a history for a recurrent policy of {units} units, got none: name earlier values in 'history', "
            "or leave out 'gru'."
        )
    return Recurrence(spec.history, units)


@cache
def _sequence(history: History) -> npt.NDArray[np.int64]:
    """(T, F) where in the stacked observation each step's numbers are, the oldest step first.

    A step has the signals with a history and the actions that led there; what is no longer kept stays what it was last.
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
    """Fresh weights: LeCun's normal ones for what is read, orthogonal ones for the state.

    Args:
        key: their randomness.
        recurrence: what is read, and the units.
    """
    units, read = recurrence.units, _sequence(recurrence.history).shape[1]
    of_input, of_state = jax.random.split(key)
    orthogonal = jax.nn.initializers.orthogonal()
    square = [orthogonal(each, (units, units)) for each in jax.random.split(of_state, GATES)]
    return {
        "history": recurrence.history,
        "input": {
            "kernel": jax.nn.initializers.lecun_normal()(of_input, (read, GATES * units)),
            "bias": jnp.zeros((GATES * units,)),
        },
        "state": {"kernel": jnp.concatenate(square, axis=1), "bias": jnp.zeros((units,))},
    }


def gru_apply(params: dict[str, Any], x: Float[Array, "*n S"]) -> Float[Array, "*n OH"]:
    """The plain observation, and beside it the state after the last step of its history.

    `r, z = sigmoid(W x + b + U h)`, `c = tanh(W x + b + r (U h + d))`, `h' = (1 - z) c + z h`, from `h = 0`.

    Args:
        params: weights, and the history that they are for.
        x: (..., S) stacked observations.
    """
    history: History = params["history"]
    read, state = params["input"], params["state"]
    rows = jnp.moveaxis(x[..., _sequence(history)], -2, 0)
    # What is read does not wait for the state: all steps are one product.
    given = rows @ read["kernel"] + read["bias"]

    def step(h: Float[Array, "*n H"], given: Float[Array, "*n G"]) -> tuple[Float[Array, "*n H"], None]:
        reset, update, candidate = jnp.split(given, GATES, axis=-1)
        of_reset, of_update, of_candidate = jnp.split(h @ state["kernel"], GATES, axis=-1)
        gate = jax.nn.sigmoid(update + of_update)
        new = jnp.tanh(candidate + jax.nn.sigmoid(reset + of_reset) * (of_candidate + state["bias"]))
        return (1.0 - gate) * new + gate * h, None

    begin = jnp.zeros((*x.shape[:-1], state["bias"].shape[0]), x.dtype)
    return jnp.concatenate([x[..., : len(history.observation)], jax.lax.scan(step, begin, given)[0]], axis=-1)
