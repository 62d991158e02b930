"""What coordinator and sites tell each other: models of its JSON, and the names of its arrays."""

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
"""Of a site's moments, the vectors that scaling needs. The least and greatest observations are rows' own and stay."""
SCALARS = ("reward_mean", "reward_deviation")


Said = TypeVar("Said", bound=Strict)


class Question(Strict):
    """What the coordinator asks."""

    kind: Literal["moments", "keys", "shares", "round", "unmask", "finish"]
    """Where sums are secure, `keys` and `shares` come before a round, and `unmask` after it."""
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the federation's file without its network: answers to one count in no other."""
    terms: Terms
    number: int = 0
    """Of the round."""
    threshold: int = 0
    """Where sums are secure: shares that recover a secret."""
    most_rows: int = 0
    """Where sums are secure: rows of the largest site, of which each counts its share."""
    sites: tuple[str, ...] = Field(default=(), strict=False)
    """Of `unmask`: those whose masked numbers arrived."""

    def message(self, arrays: Arrays | None = None) -> Message:
        """As it is sent."""
        return Message(self.model_dump_json(), arrays or {})


class Told(Strict):
    """What a site says of its rows, beside their moments."""

    rows: Count
    terminates: bool
    spec: str
    """Its dataset's spec as canonical JSON: names, units and bounds."""


class Answered(Strict):
    """What a site says of a round, beside its change."""

    number: int
    log_weight: float


def question_of(message: Message) -> Question:
    """Read a question, which may come from anywhere.

    Raises:
        BadInput: when it is none.
    """
    return _read(Question, message.text)


def told_of(message: Message) -> tuple[Told, Moments]:
    """Read what a site says of its rows.

    Raises:
        BadInput: when it is incomplete, or of numbers that make no sense.
    """
    told = _read(Told, message.text)
    return told, moments_of(message.arrays, told.rows, told.terminates)


def answered_of(message: Message) -> Answered:
    """Read what a site says of a round.

    Raises:
        BadInput: when it is incomplete.
    """
    return _read(Answered, message.text)


def arrays_of_moments(known: Moments) -> dict[str, np.ndarray[Any, Any]]:
    """The moments that leave a site, in float64."""
    return {f"moments/{name}": np.asarray(getattr(known, name), np.float64) for name in (*VECTORS, *SCALARS)}


def moments_of(arrays: Arrays, rows: int, terminates: bool) -> Moments:
    """Moments of what was sent; the least and the greatest observations, which nobody sent, are the means.

    Raises:
        BadInput: when one is missing or not finite.
    """
    try:
        found = {name: np.asarray(arrays[f"moments/{name}"], np.float64) for name in (*VECTORS, *SCALARS)}
        vectors = {name: found[name] for name in VECTORS}
        sizes = {name: value.shape for name, value in vectors.items()}
        fits = sizes["observation_mean"] == sizes["observation_deviation"] and len(sizes["observation_mean"]) == 1
        fits &= sizes["action_low"] == sizes["action_high"] and len(sizes["action_low"]) == 1
        fits &= all(np.all(np.isfinite(value)) for value in found.values())
        if not fits or np.any(found["observation_deviation"] < 0) or float(found["reward_deviation"]) < 0:
            raise ValueError("moments that are no finite vectors of one size")
        return Moments(
            rows=rows,
            **vectors,
            observation_low=found["observation_mean"],
            observation_high=found["observation_mean"],
            reward_mean=float(found["reward_mean"]),
            reward_deviation=float(found["reward_deviation"]),
            terminates=terminates,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"expected the moments of a site's rows, got {error}: run the same version everywhere."
        ) from error


def check_sizes(known: Moments, spec: PlantSpec) -> Moments:
    """The moments themselves, where they are of a plant's signals.

    Raises:
        BadInput: when they are of others.
    """
    sizes = known.observation_mean.shape[0], known.action_low.shape[0]
    if sizes != (expected := (spec.observation.size, spec.action.size)):
        raise BadInput(f"expected moments of {expected} observations and actions, got {sizes}.")
    return known


def named(prefix: str, weights: Parameters) -> dict[str, np.ndarray[Any, Any]]:
    """Weights under their names, as arrays that are sent."""
    return {f"{prefix}/{name}": np.asarray(value) for name, value in weights.items()}


def weights_of(prefix: str, arrays: Arrays, like: Parameters) -> Parameters:
    """Weights that were sent, once their names, shapes and types are those of others and their numbers are finite.

    Raises:
        BadInput: saying which weight is wrong.
    """
    found = under(prefix, arrays)
    if found.keys() != like.keys():
        odd = sorted(found.keys() ^ like.keys())[0]
        raise BadInput(f"expected the weights of the federation's networks, got '{odd[:80]}' in one of both alone.")
    for name, value in found.items():
        if (value.shape, value.dtype) != (like[name].shape, like[name].dtype):
            raise BadInput(
                f"expected '{name}' of shape {like[name].shape} and type {like[name].dtype}, got {value.shape} and "
                f"{value.dtype}."
            )
        if not np.all(np.isfinite(value)):
            raise BadInput(f"expected finite numbers in '{name}', got others.")
    return {name: jnp.asarray(found[name]) for name in like}


def under(prefix: str, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays whose names begin so, without that."""
    return {name.removeprefix(f"{prefix}/"): a for name, a in arrays.items() if name.startswith(f"{prefix}/")}


def _read(model: type[Said], text: str) -> Said:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise BadInput(
            f"expected {model.__name__.lower()} as this version knows it, got '{place}': {first['msg']}: run the same "
            "version of NeoRL everywhere."
        ) from error
