"""A trained policy as one npz of plain arrays: weights, normaliser, and a JSON text that says what they are.

Arrays are named by their place (`params/Dense_0/kernel`, `normaliser/mean`); `about` holds the JSON as UTF-8 bytes.
What is certified and shipped to a plant is a bundle (bundle.py); this file is for research.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.graph.layout import Layout
from neorl_core.networks import Normaliser, Policy
from neorl_core.types import History, Params, PlantSpec
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import canonical_json, digest_json, parse_json, sha256_hex, write_atomic
from tasks.files.spec import spec_of_record, spec_record
from tasks.models.bundles.structure import Arrays, is_network

if TYPE_CHECKING:
    from configs.run import Setting

SCHEMA = "neorl/policy/1"
MAX_BYTES = 2**28
"""Size that a policy file's arrays may have; a policy of 256 x 256 weights takes a thousandth of it."""


class MadeBy(NamedTuple):
    """How a policy was trained; what is not known is None."""

    algorithm: str | None = None
    """Its name."""
    hyperparameters: Mapping[str, Setting] = {}
    """By name, as JSON: all of the algorithm's, or those that differ from its defaults."""
    seed: int | None = None
    seeds: int | None = None
    """Policies that were trained together, with the seeds from 0."""
    updates: int | None = None
    """Gradient steps."""
    batch_size: int | None = None
    """Transitions per gradient step."""
    data: str | None = None
    """SHA-256 of the file of logs."""
    ends_by_time: str | None = None
    """How it was known which episodes ended by time: "file", "unknown" or "every <steps>"."""
    code: str | None = None
    """Digest of the sources that took part."""

    def record(self) -> object:
        """As JSON, without what is not known."""
        return {name: value for name, value in self._asdict().items() if value is not None}


class PolicyFile(NamedTuple):
    """What a policy file holds."""

    policy: Policy
    spec: PlantSpec
    """Names and bounds of what it observes and does."""
    made_by: MadeBy


def save_policy(path: Path, policy: Policy, spec: PlantSpec, made_by: MadeBy) -> str:
    """Write a policy; the same policy gives the same bytes.

    Args:
        path: the .npz file.
        policy: weights and normaliser.
        spec: names and bounds of what it observes and does.
        made_by: how it was trained.

    Returns:
        The policy's digest: of its arrays and spec, not of `made_by`.
    """
    scales = {name: value for name, value in policy.normaliser._asdict().items() if value is not None}
    arrays = _flat({"params": policy.params, "normaliser": scales})
    record = spec_record(spec)
    digest = _digest(arrays, record)
    about = {"schema": SCHEMA, "digest": digest, "spec": record, "made_by": made_by.record()}
    write_atomic(path, npz_bytes({**arrays, "about": np.frombuffer(canonical_json(about), np.uint8)}))
    return digest


def load_policy(path: Path) -> PolicyFile:
    """Read a policy back, after its digest has been checked; nothing is unpickled.

    Raises:
        BadInput: when there is no such file or it is no policy.
        Refused: when it was altered.
    """
    if not path.is_file():
        raise BadInput(f"expected a policy file at {path}, got none: check the path.")
    try:
        arrays = read_npz(path, MAX_BYTES)
        if "about" not in arrays:
            raise ValueError("no array 'about'")
        about = parse_json(arrays.pop("about").tobytes())
        if not isinstance(about, dict) or set(about) != {"schema", "digest", "spec", "made_by"}:
            raise ValueError("another text than of schema, digest, spec and made_by")
        if about["schema"] != SCHEMA:
            raise ValueError(f"the schema {str(about['schema'])[:40]}")
        spec, made_by = spec_of_record(about["spec"]), _made_by(about["made_by"])
        found, expected = _digest(arrays, about["spec"]), str(about["digest"])[:64]
    except (BadInput, ValueError) as error:
        raise _no_policy(path, str(error)) from error
    if found != expected:
        raise Refused(f"expected the policy {expected} in {path.name}, got {found}: it was altered, train it again.")
    return PolicyFile(_policy(path, arrays, spec), spec, made_by)


def _no_policy(path: Path, got: str) -> BadInput:
    return BadInput(f"expected a policy in {path.name}, got '{got[:300]}': train it again.")


def _made_by(record: Any) -> MadeBy:
    texts = ("algorithm", "data", "ends_by_time", "code")
    kinds: dict[str, type] = dict.fromkeys(MadeBy._fields, int) | dict.fromkeys(texts, str) | {"hyperparameters": dict}
    if not isinstance(record, dict) or not all(isinstance(value, kinds.get(key, ())) for key, value in record.items()):
        raise ValueError(f"made_by of other keys or types than {', '.join(kinds)}")
    return MadeBy(**record)


def _policy(path: Path, arrays: Arrays, spec: PlantSpec) -> Policy:
    """The policy that arrays by name are, once their names and shapes are those of one for this spec."""
    import jax.numpy as jnp

    params: dict[str, dict[str, Any]] = {}
    normaliser: dict[str, Any] = {}
    for name, array in arrays.items():
        match name.split("/"):
            case ["params", layer, leaf]:
                params.setdefault(layer, {})[leaf] = jnp.asarray(array)
            case ["params", "gru" as unit, part, leaf]:
                params.setdefault(unit, {"history": spec.history}).setdefault(part, {})[leaf] = jnp.asarray(array)
            case ["params", "graph" as network, *inner, leaf] if 0 < len(inner) <= 4 and "layout" not in name:
                place: Any = params.setdefault(network, {"layout": spec.layout})
                for part in inner:
                    place = place.setdefault(part, {}) if isinstance(place, dict) else None
                if not isinstance(place, dict):
                    raise _no_policy(path, f"an array '{name[:80]}'")
                place[leaf] = jnp.asarray(array)
            case ["normaliser", leaf]:
                normaliser[leaf] = jnp.asarray(array)
            case _:
                raise _no_policy(path, f"an array '{name[:80]}'")
    observed, acting = spec.observation.size, spec.action.size
    sizes = {"mean": observed, "scale": observed, "action_centre": acting, "action_half_range": acting}
    sizes |= {"choices": spec.acting} if spec.choices else {}
    if {name: array.shape for name, array in normaliser.items()} != {name: (size,) for name, size in sizes.items()}:
        raise _no_policy(path, "a normaliser of other signals")
    if not is_network(params, observed, spec.acting, spec.history, spec.layout):
        raise _no_policy(path, "a network of other signals")
    return Policy(params, Normaliser(**normaliser))


def _flat(tree: Params, path: str = "") -> Arrays:
    found: Arrays = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{key}/")
        elif not isinstance(value, History | Layout):  # what a recurrent unit or a graph reads, which the spec says
            found[path + key] = np.ascontiguousarray(value, np.asarray(value).dtype.newbyteorder("<"))
    return found


def _digest(arrays: Arrays, spec: object) -> str:
    leaves = [[k, x.dtype.str, list(x.shape), sha256_hex(x.tobytes())] for k, x in sorted(arrays.items())]
    return digest_json({"schema": SCHEMA, "spec": spec, "leaves": leaves})
