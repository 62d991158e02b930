"""What a bundle says of itself and of its files, which is read without JAX and without any plant's code."""

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
"""Bytes of a bundle's arrays; a policy of 256 x 256 weights takes a thousandth of it."""


class Manifest(NamedTuple):
    """A bundle's `composite.json`, whose digests have been compared with the files beside it."""

    spec: PlantSpec
    """The plant's names, bounds and limits when the bundle was made."""
    code: str
    """Digest of the plant's code, where it is not ours; else empty. Where that is, a bundle never says."""
    digest: str
    """Digest of the composite."""
    structure: Any
    """What `flatten` made of the composite: JSON that names arrays."""
    files: Mapping[str, str]
    """SHA-256 of the two archives, by name."""
    meta: Mapping[str, str]
    """Digests and names that were worth carrying along."""
    site: Mapping[str, Any] | None = None
    """Of a site of a fleet: the plant of which there are several, its code's digest, and what the site differs in."""

    @property
    def own_code(self) -> str:
        """Digest of the code of a user's own that the plant is built by; empty where there is none."""
        return self.code if self.site is None else str(self.site.get("code", ""))


def digest_of(spec: PlantSpec, structure: Any, arrays: Mapping[str, npt.NDArray[Any]], code: str = "") -> str:
    """The name of a composite that is given by its parts."""
    leaves = [
        {"path": name, "dtype": array.dtype.str, "shape": list(array.shape), "sha256": sha256_hex(array.tobytes())}
        for name, array in sorted(arrays.items())
    ]
    # Learners alone read the clock: a composite is the same whatever it was learned by.
    plant = spec_record(spec._replace(clock=None))
    named = {"schema": SCHEMA, "plant": plant, "structure": structure, "leaves": leaves}
    return digest_json(named | ({"code": code} if code else {}))


def stored_digest(folder: Path) -> str:
    """The digest of the composite that a bundle's files are, computed from them; no code of its plant is needed.

    Raises:
        BadInput: when there is no bundle, or its arrays are no plain arrays.
        Refused: when a file was altered.
    """
    manifest = read_manifest(folder)
    arrays = read_npz(folder / ARRAYS, MAX_ARRAY_BYTES)
    return digest_of(manifest.spec, manifest.structure, arrays, manifest.code)


def read_manifest(folder: Path) -> Manifest:
    """A bundle's `composite.json`, checked against its own digest, its canonical form and the files it names.

    Raises:
        BadInput: when there is no bundle.
        Refused: when a byte of any file is not what was written, or a key is missing or unknown; names the file.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BadInput(f"expected a bundle (a folder with {MANIFEST}) at {folder}, got none: check the path.")
    _check_size(path, MAX_MANIFEST_BYTES)
    data = path.read_bytes()
    try:
        value = json.loads(data)
        intact = isinstance(value, dict) and canonical_json(value) == data
        intact = intact and value.pop("sha256", None) == digest_json(value)
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise Refused(f"expected {path} as it was written, got altered bytes: take the bundle from the registry again.")
    if (schema := str(value.get("schema"))) not in READERS:
        raise Refused(f"{path} has format {schema[:60]!r}, this NeoRL reads {', '.join(READERS)}: upgrade NeoRL.")
    try:
        manifest = READERS[schema](value)
    except ValueError as error:
        raise Refused(
            f"expected {path} as this version of neorl_core writes it, got '{str(error)[:300]}': take the bundle from "
            "the registry again."
        ) from error
    for name, expected in manifest.files.items():
        file = folder / name
        if file.is_file():
            _check_size(file, MAX_ARRAY_BYTES)
        sha256 = file_sha256(file) if file.is_file() else "no file"
        if sha256 != expected:
            raise Refused(
                f"expected SHA-256 {expected} of {file}, got {sha256}: take the bundle from the registry again."
            )
    return manifest


def _manifest(value: dict[str, Any]) -> Manifest:
    """The typed form of `composite.json`, without its own digest.

    Raises:
        ValueError: when a key is missing, unknown or of another type.
    """
    keys = {"schema", "plant", "digest", "structure", "files", "meta"}
    if set(value) - {"code", "site"} != keys:
        raise ValueError(f"other keys than those of {SCHEMA}: {', '.join(sorted(value))}")
    if not (isinstance(value["digest"], str) and isinstance(value.get("code", ""), str)):
        raise ValueError("a digest that is no text")
    for name in ("files", "meta"):
        if not isinstance(value[name], dict) or not all(isinstance(text, str) for text in value[name].values()):
            raise ValueError(f"{name} that are no names and texts")
    if set(value["files"]) != {ARRAYS, EXAMPLES}:
        raise ValueError(f"other files than {ARRAYS} and {EXAMPLES}")
    site = value.get("site")
    if site is not None and not (isinstance(site, dict) and digest_json(site) == value.get("code")):
        raise ValueError("a site that its digest does not name")
    return Manifest(
        spec=spec_of_record(value["plant"]),
        code=value.get("code", ""),
        digest=value["digest"],
        structure=value["structure"],
        files=value["files"],
        meta=value["meta"],
        site=site,
    )


READERS = {SCHEMA: _manifest}
"""Readers of `composite.json` by its format. A new format is added; earlier ones stay."""


def _check_size(path: Path, limit: int) -> None:
    size = path.stat().st_size
    if size > limit:
        raise Refused(f"expected at most {limit} bytes in {path}, got {size}: take the bundle from the registry again.")


def has_policy(structure: Any) -> bool:
    """Whether a structure is more than the plant's own controller."""
    match structure:
        case {"fields": {"policy": {"constant": None}}}:
            return False
    return True
