"""Messages between coordinator and sites: models of their JSON, and names of their arrays."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from pydantic import Field, ValidationError

from configs.errors import BadInput
from configs.federation import Terms
from configs.strict import Count, Strict
from neorl_core.training.parameters import Parameters
from neorl_core.training.preparation import Moments
from neorl_core.types import PlantSpec
from tasks.federation.transport.frames import Arrays
from tasks.federation.transport.network import Message

VECTORS = ("observation_mean", "observation_deviation", "action_low", "action_high")
"""Moments with one number per signal. Extreme observations are not sent, because they would reveal single rows."""
SCALARS = ("reward_mean", "reward_deviation")
SAME_VERSION = "run the same version of NeoRL everywhere"

Model = TypeVar("Model", bound=Strict)


class Question(Strict):
    kind: Literal["moments", "keys", "shares", "round", "unmask", "finish"]
    """With secure sums, `keys` and `shares` come before a round and `unmask` after it."""
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the federation's file without the network settings, which identifies the federation."""
    terms: Terms
    number: int = 0
    threshold: int = 0
    """Number of shares that recover a secret, for secure sums."""
    most_rows: int = 0
    """Rows of the largest site, for the weights of secure sums."""
    sites: tuple[str, ...] = Field(default=(), strict=False)
    """Sites that sent masked numbers, for `unmask`."""

    def message(self, arrays: Arrays | None = None) -> Message:
        return Message(self.model_dump_json(), arrays or {})


class RowSummary(Strict):
    """JSON part of a site's answer to the question `moments`. The moments are in the message's arrays."""

    rows: Count
    terminates: bool
    spec: str
    """Spec of the site's dataset (names, units, bounds) as canonical JSON."""


class RoundAnswer(Strict):
    """JSON part of a site's answer in a round. The weights are in the message's arrays."""

    number: int
    log_weight: float


def read_text(model: type[Model], message: Message) -> Model:
    """Read the JSON of a message.

    Raises:
        BadInput: if the JSON does not fit the model.
    """
    try:
        return model.model_validate_json(message.text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the text"
        raise BadInput(f"the message is not a {model.__name__} ({place}: {first['msg']}): {SAME_VERSION}") from error


def read_row_summary(message: Message) -> tuple[RowSummary, Moments]:
    """Read the summary of a site's rows.

    Raises:
        BadInput: if the summary is incomplete or invalid.
    """
    summary = read_text(RowSummary, message)
    return summary, read_moments(message.arrays, summary.rows, summary.terminates)


def moment_arrays(moments: Moments) -> dict[str, np.ndarray[Any, Any]]:
    """Return the moments that a site sends, as float64 arrays by name."""
    return {f"moments/{name}": np.asarray(getattr(moments, name), np.float64) for name in (*VECTORS, *SCALARS)}


def pooled_moment_arrays(moments: Moments) -> dict[str, np.ndarray[Any, Any]]:
    """Return the moments of all sites' rows as arrays, with row count and terminations."""
    return moment_arrays(moments) | {
        "moments/rows": np.asarray(moments.rows, np.int64),
        "moments/terminates": np.asarray(moments.terminates),
    }


def read_pooled_moments(arrays: Arrays) -> Moments:
    """Read arrays of `pooled_moment_arrays`.

    Raises:
        BadInput: if the moments are incomplete or invalid.
    """
    try:
        rows, terminates = (int(arrays[f"moments/{name}"]) for name in ("rows", "terminates"))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the moments of all sites cannot be read ({error}): {SAME_VERSION}") from error
    return read_moments(arrays, rows, bool(terminates))


def read_moments(arrays: Arrays, rows: int, terminates: bool) -> Moments:
    """Read moments from arrays. The means take the place of the extreme observations, which stay at the sites.

    Raises:
        BadInput: if a moment is missing or not finite.
    """
    try:
        values = {name: np.asarray(arrays[f"moments/{name}"], np.float64) for name in (*VECTORS, *SCALARS)}
        vectors = {name: values[name] for name in VECTORS}
        shapes = {name: value.shape for name, value in vectors.items()}
        valid = shapes["observation_mean"] == shapes["observation_deviation"] and len(shapes["observation_mean"]) == 1
        valid &= shapes["action_low"] == shapes["action_high"] and len(shapes["action_low"]) == 1
        valid &= all(np.all(np.isfinite(value)) for value in values.values())
        if not valid or np.any(values["observation_deviation"] < 0) or float(values["reward_deviation"]) < 0:
            raise ValueError(f"vectors must be finite and of equal size, got shapes {shapes}")
        return Moments(
            rows=rows,
            **vectors,
            observation_low=values["observation_mean"],
            observation_high=values["observation_mean"],
            reward_mean=float(values["reward_mean"]),
            reward_deviation=float(values["reward_deviation"]),
            terminates=terminates,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the means and deviations of a site's rows cannot be read ({error}): {SAME_VERSION}") from error


def check_moments(moments: Moments, spec: PlantSpec) -> Moments:
    """Return the moments if their sizes fit a plant.

    Raises:
        BadInput: if the sizes do not fit.
    """
    sizes = moments.observation_mean.shape[0], moments.action_low.shape[0]
    if sizes != (required := (spec.observation.size, spec.action.size)):
        raise BadInput(
            f"the numbers of observations and actions must be {required}, got {sizes}: use the same plant at all sites"
        )
    return moments


def named(prefix: str, weights: Parameters) -> dict[str, np.ndarray[Any, Any]]:
    """Return weights as arrays with a prefix before each name."""
    return {f"{prefix}/{name}": np.asarray(value) for name, value in weights.items()}


def read_weights(prefix: str, arrays: Arrays, like: Parameters) -> Parameters:
    """Read weights that must be finite and have the names, shapes and types of `like`.

    Raises:
        BadInput: if a weight does not match.
    """
    values = under(prefix, arrays)
    if values.keys() != like.keys():
        name = sorted(values.keys() ^ like.keys())[0]
        where = "sent, but not in" if name in values else "not sent, but in"
        raise BadInput(f"weight '{name[:80]}' is {where} the federation's networks: {SAME_VERSION}")
    for name, value in values.items():
        if (value.shape, value.dtype) != (like[name].shape, like[name].dtype):
            raise BadInput(
                f"weight '{name}' must have shape {like[name].shape} and type {like[name].dtype}, got {value.shape} "
                f"and {value.dtype}: {SAME_VERSION}"
            )
        if not np.all(np.isfinite(value)):
            raise BadInput(f"weight '{name}' has {np.sum(~np.isfinite(value))} NaN or infinite values: check the site")
    return {name: jnp.asarray(values[name]) for name in like}


def under(prefix: str, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Select the arrays with a prefix and remove the prefix."""
    return {name.removeprefix(f"{prefix}/"): a for name, a in arrays.items() if name.startswith(f"{prefix}/")}
