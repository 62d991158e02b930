"""Policy files for research: one npz of plain arrays with weights, normaliser and a JSON description.

Arrays are named by path (`params/Dense_0/kernel`, `normaliser/mean`); `about` has the JSON as UTF-8 bytes.
Certification and plants use bundles instead (bundle.py)."""

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
"""Largest size of a policy file's arrays in bytes."""


class MadeBy(NamedTuple):
    """Description of the training that made a policy; unknown fields are None."""

    algorithm: str | None = None
    hyperparameters: Mapping[str, Setting] = {}
    """Hyper-parameters by name as JSON: all, or those that differ from the defaults."""
    seed: int | None = None
    seeds: int | None = None
    """Number of policies trained together, with seeds from 0."""
    updates: int | None = None
    batch_size: int | None = None
    data: str | None = None
    """SHA-256 of the log file."""
    ends_by_time: str | None = None
    """Source of truncation flags: "file", "unknown" or "every <steps>"."""
    code: str | None = None

    def record(self) -> object:
        return {name: value for name, value in self._asdict().items() if value is not None}


class PolicyFile(NamedTuple):
    policy: Policy
    spec: PlantSpec
    """Names and bounds of observations and actions."""
    made_by: MadeBy


def save_policy(path: Path, policy: Policy, spec: PlantSpec, made_by: MadeBy) -> str:
    """Write a policy; the same policy gives the same bytes.

    Returns:
        The digest of arrays and spec, without `made_by`.
    """
    scales = {name: value for name, value in policy.normaliser._asdict().items() if value is not None}
    arrays = _flat({"params": policy.params, "normaliser": scales})
    record = spec_record(spec)
    digest = _digest(arrays, record)
    about = {"schema": SCHEMA, "digest": digest, "spec": record, "made_by": made_by.record()}
    write_atomic(path, npz_bytes({**arrays, "about": np.frombuffer(canonical_json(about), np.uint8)}))
    return digest


def load_policy(path: Path) -> PolicyFile:
    """Read a policy after verifying its digest.

    Raises:
        BadInput: if the file is missing or no policy.
        Refused: if the file was altered.
    """
    if not path.is_file():
        raise BadInput(f"there is no policy file {path}: check the path")
    try:
        arrays = read_npz(path, MAX_BYTES)
        if "about" not in arrays:
            raise ValueError(f"arrays without 'about': {', '.join(arrays)[:80]}")
        about = parse_json(arrays.pop("about").tobytes())
        if not isinstance(about, dict) or set(about) != {"schema", "digest", "spec", "made_by"}:
            raise ValueError(f"a description with keys {str(sorted(about))[:80]}")
        if about["schema"] != SCHEMA:
            raise ValueError(f"the schema {str(about['schema'])[:40]}")
        spec, made_by = spec_of_record(about["spec"]), _made_by(about["made_by"])
        found, expected = _digest(arrays, about["spec"]), str(about["digest"])[:64]
    except (BadInput, ValueError) as error:
        raise _no_policy(path, str(error)) from error
    if found != expected:
        raise Refused(f"{path.name} was altered: its digest is {found}, must be {expected}; train the policy again")
    return PolicyFile(_policy(path, arrays, spec), spec, made_by)


def _no_policy(path: Path, got: str) -> BadInput:
    return BadInput(f"{path.name} is no policy file, got '{got[:300]}': train the policy again")


def _made_by(record: Any) -> MadeBy:
    texts = ("algorithm", "data", "ends_by_time", "code")
    kinds: dict[str, type] = dict.fromkeys(MadeBy._fields, int) | dict.fromkeys(texts, str) | {"hyperparameters": dict}
    if not isinstance(record, dict) or not all(isinstance(value, kinds.get(key, ())) for key, value in record.items()):
        raise ValueError(f"made_by with keys or types other than {', '.join(kinds)}")
    return MadeBy(**record)


def _policy(path: Path, arrays: Arrays, spec: PlantSpec) -> Policy:
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
        raise _no_policy(path, "a normaliser for different signals")
    if not is_network(params, observed, spec.acting, spec.history, spec.layout):
        raise _no_policy(path, "a network for different signals")
    return Policy(params, Normaliser(**normaliser))


def _flat(tree: Params, path: str = "") -> Arrays:
    found: Arrays = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{key}/")
        elif not isinstance(value, History | Layout):  # the spec has these
            found[path + key] = np.ascontiguousarray(value, np.asarray(value).dtype.newbyteorder("<"))
    return found


def _digest(arrays: Arrays, spec: object) -> str:
    leaves = [[k, x.dtype.str, list(x.shape), sha256_hex(x.tobytes())] for k, x in sorted(arrays.items())]
    return digest_json({"schema": SCHEMA, "spec": spec, "leaves": leaves})
