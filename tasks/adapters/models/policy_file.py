"""A trained policy as one npz of plain arrays: weights, normaliser, and a JSON text that says what they are.

Arrays are named by their place (`params/Dense_0/kernel`, `normaliser/mean`); `about` holds the JSON as UTF-8 bytes.
What is certified and shipped to a plant is a bundle (bundle.py); this file is for research.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.networks import Normaliser, Policy
from neorl_core.types import PlantSpec
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import canonical_json, digest_json, sha256_hex, write_atomic
from tasks.adapters.files.spec import spec_of_record, spec_record

SCHEMA = "neorl/policy/1"


def save_policy(path: Path, policy: Policy, spec: PlantSpec, made_by: Mapping[str, Any]) -> str:
    """Write a policy; the same policy gives the same bytes.

    Args:
        path: the .npz file.
        policy: weights and normaliser.
        spec: names and bounds of what it observes and does.
        made_by: algorithm, seed and the like, as JSON.

    Returns:
        The policy's digest: of its arrays and spec, not of `made_by`.
    """
    arrays = _flat({"params": policy.params, "normaliser": policy.normaliser._asdict()})
    digest = _digest(arrays, spec_record(spec))
    about = {"schema": SCHEMA, "digest": digest, "spec": spec_record(spec), "made_by": dict(made_by)}
    write_atomic(path, npz_bytes({**arrays, "about": np.frombuffer(canonical_json(about), np.uint8)}))
    return digest


def load_policy(path: Path) -> tuple[Policy, PlantSpec, dict[str, Any]]:
    """Read a policy back, after its digest has been checked; nothing is unpickled.

    Returns:
        Policy, spec, and what `save_policy` was told of its making.

    Raises:
        BadInput: when there is no such file or it is no policy.
        Refused: when it was altered.
    """
    if not path.is_file():
        raise BadInput(f"expected a policy file at {path}, got none: check the path.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        about = json.loads(arrays.pop("about").tobytes())
        found, expected = _digest(arrays, about["spec"]), about["digest"]
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"expected a policy in {path.name}, got '{error}': train it again.") from error
    if about["schema"] != SCHEMA or found != expected:
        raise Refused(f"expected the policy {expected} in {path.name}, got {found}: it was altered, train it again.")
    tree = _nested(arrays)
    return Policy(tree["params"], Normaliser(**tree["normaliser"])), spec_of_record(about["spec"]), about["made_by"]


def _flat(tree: Mapping[str, Any], path: str = "") -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{path}{key}/")
        else:
            found[path + key] = np.ascontiguousarray(value, np.asarray(value).dtype.newbyteorder("<"))
    return found


def _nested(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import jax.numpy as jnp

    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, leaf = name.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = jnp.asarray(array)
    return tree


def _digest(arrays: Mapping[str, np.ndarray], spec: Mapping[str, Any]) -> str:
    leaves = [[k, x.dtype.str, list(x.shape), sha256_hex(x.tobytes())] for k, x in sorted(arrays.items())]
    return digest_json({"schema": SCHEMA, "spec": spec, "leaves": leaves})
