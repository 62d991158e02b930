"""Manifests of bundles, read without JAX and without the plant's code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from configs.errors import BadInput, Refused
from neorl_core.types import PlantSpec
from tasks.files.arrays import read_npz
from tasks.files.canonical import canonical_json, digest_json, file_sha256, sha256_hex
from tasks.files.spec import spec_of_record, spec_record

ARRAYS, EXAMPLES, MANIFEST = "composite.npz", "examples.npz", "composite.json"
SCHEMA = "neorl/composite/1"
MAX_MANIFEST_BYTES = 2**22
MAX_ARRAY_BYTES = 2**28
"""Largest size of a bundle's arrays in bytes."""


class Manifest(NamedTuple):
    """A bundle's `composite.json`, with digests verified against the files."""

    spec: PlantSpec
    """The plant's names, bounds and limits at the time of writing."""
    code: str
    """Digest of the plant's user code; else empty. A bundle never names the location of code."""
    digest: str
    structure: Any
    """Structure of the composite from `flatten`: JSON that names arrays."""
    files: Mapping[str, str]
    """SHA-256 of the two archives, by name."""
    site: Mapping[str, Any] | None = None
    """For a fleet's site: the common plant, the digest of its code, and the site's differences."""

    @property
    def own_code(self) -> str:
        """Digest of the user code that builds the plant; empty without user code."""
        return self.code if self.site is None else str(self.site.get("code", ""))


def digest_of(spec: PlantSpec, structure: Any, arrays: Mapping[str, npt.NDArray[Any]], code: str = "") -> str:
    leaves = [
        {"path": name, "dtype": array.dtype.str, "shape": list(array.shape), "sha256": sha256_hex(array.tobytes())}
        for name, array in sorted(arrays.items())
    ]
    # Only learners read the clock, so it is not part of the digest.
    plant = spec_record(spec._replace(clock=None))
    named = {"schema": SCHEMA, "plant": plant, "structure": structure, "leaves": leaves}
    return digest_json(named | ({"code": code} if code else {}))


def stored_digest(folder: Path) -> str:
    """Compute the digest of a bundle's composite from its files, without the plant's code.

    Raises:
        BadInput: if there is no bundle, or it contains anything but plain arrays.
        Refused: if a file was altered.
    """
    manifest = read_manifest(folder)
    arrays = read_npz(folder / ARRAYS, MAX_ARRAY_BYTES)
    return digest_of(manifest.spec, manifest.structure, arrays, manifest.code)


def read_manifest(folder: Path) -> Manifest:
    """Read a bundle's `composite.json`, and verify its digest, canonical form and files.

    Raises:
        BadInput: if there is no bundle.
        Refused: if any file was changed, or a key is missing or unknown.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BadInput(f"{folder} has no {MANIFEST}, so it is not a bundle: check the path")
    _check_size(path, MAX_MANIFEST_BYTES)
    data = path.read_bytes()
    try:
        value = json.loads(data)
        intact = isinstance(value, dict) and canonical_json(value) == data
        intact = intact and value.pop("sha256", None) == digest_json(value)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise Refused(f"{path} was altered: take the bundle from the registry again")
    if (schema := str(value.get("schema"))) not in READERS:
        raise Refused(f"{path} has format {schema[:60]!r}, this NeoRL reads {', '.join(READERS)}: upgrade NeoRL.")
    try:
        manifest = READERS[schema](value)
    except ValueError as error:
        raise Refused(
            f"{path} is malformed, got '{str(error)[:300]}': take the bundle from the registry again"
        ) from error
    for name, expected in manifest.files.items():
        file = folder / name
        if file.is_file():
            _check_size(file, MAX_ARRAY_BYTES)
        sha256 = file_sha256(file) if file.is_file() else "no file"
        if sha256 != expected:
            raise Refused(f"{file} has SHA-256 {sha256}, must be {expected}: take the bundle from the registry again")
    return manifest


def _manifest(value: dict[str, Any]) -> Manifest:
    keys = {"schema", "plant", "digest", "structure", "files", "meta"}
    if set(value) - {"code", "site"} != keys:
        raise ValueError(f"unknown or missing keys for {SCHEMA}: {', '.join(sorted(value))}")
    if not (isinstance(value["digest"], str) and isinstance(value.get("code", ""), str)):
        raise ValueError(f"the digest {str(value.get('code'))[:40]!r}, which must be text")
    for name in ("files", "meta"):
        if not isinstance(value[name], dict) or not all(isinstance(text, str) for text in value[name].values()):
            raise ValueError(f"{name} with keys or values that are not text")
    if set(value["files"]) != {ARRAYS, EXAMPLES}:
        raise ValueError(f"files other than {ARRAYS} and {EXAMPLES}")
    site = value.get("site")
    if site is not None and not (isinstance(site, dict) and digest_json(site) == value.get("code")):
        raise ValueError(f"a site that does not have the digest {str(value['code'])[:12]}")
    return Manifest(
        spec=spec_of_record(value["plant"]),
        code=value.get("code", ""),
        digest=value["digest"],
        structure=value["structure"],
        files=value["files"],
        site=site,
    )


READERS = {SCHEMA: _manifest}
"""Functions that read `composite.json`, by its format. Functions for earlier formats must stay."""


def _check_size(path: Path, limit: int) -> None:
    size = path.stat().st_size
    if size > limit:
        raise Refused(f"{path} has {size} bytes, at most {limit} are read: take the bundle from the registry again")


def has_policy(structure: Any) -> bool:
    """Return whether a structure contains a policy, not only the tuned controller."""
    match structure:
        case {"fields": {"policy": {"constant": None}}}:
            return False
    return True
