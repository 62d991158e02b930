"""The witnesses that a home or a project asks for: `witnesses.yaml` beside the trust root."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from configs.errors import BadInput, NeoRLError
from configs.home import Home
from configs.strict import Strict
from configs.yaml_files import load_yaml
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.witness.notes import COSIGNATURE, Checkpoint, Note, Verifier
from tasks.files.canonical import FileState, file_state, write_atomic

FILE = "witnesses.yaml"


class PinnedWitness(Strict):
    """A witness: whose countersignatures count, and where it is asked for them."""

    key: Annotated[str, Field(max_length=300)]
    """`NAME+ID+BASE64`, as its owner's `neorl witness show` prints it."""
    url: Annotated[str, Field(pattern=r"^(https?://[^\s/]+(/\S*)?|unix:\S+)$")]
    """`http://HOST:PORT`, `https://...`, or `unix:PATH` of a socket, relative to the home."""

    @field_validator("url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        try:
            there = parts.scheme == "unix" or (parts.hostname and parts.hostname.encode("idna") and parts.port != 0)
        except ValueError as error:
            raise ValueError(f"an address with a host and a port ({error})") from error
        if not there:
            raise ValueError("an address with a host")
        return url

    @cached_property
    def verifier(self) -> Verifier:
        """Its key."""
        return Verifier.parse(self.key)


class PinnedTimestamps(Strict):
    """An RFC 3161 authority that stamps heads."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    certificate: str
    """File of its signing certificate (PEM), beside this one."""


class Witnesses(Strict):
    """Who must countersign a home's ledger."""

    origin: Annotated[str, Field(pattern=r"^[^\s+]{1,200}$")]
    """Name of the ledger, which stays when its key changes."""
    required: Annotated[int, Field(ge=1, le=9)] = 1
    """How many of the witnesses must take part."""
    witnesses: Annotated[list[PinnedWitness], Field(min_length=1, max_length=9)]
    heads: list[str] = Field(default_factory=list)
    """Folders with signed heads, reports or exports that the ledger must contain."""
    timestamps: PinnedTimestamps | None = None


def pinned_file(home: Home, trust: TrustRoot) -> Path:
    """Where the witnesses are pinned: beside the trust root, else in the home."""
    beside = trust.source.with_name(FILE)
    return beside if beside.exists() else home.root / FILE


def pinned(home: Home, trust: TrustRoot) -> Witnesses | None:
    """The witnesses in force; None where none are pinned.

    Raises:
        BadInput: see `load_witnesses`.
    """
    path = pinned_file(home, trust)
    return _unchanged(path, file_state(path)) if path.exists() else None


@lru_cache(maxsize=4)
def _unchanged(path: Path, state: FileState) -> Witnesses:
    """The file read once while it stays as it is: a signer looks at it several times for each attempt."""
    return load_witnesses(path)


def load_witnesses(path: Path) -> Witnesses:
    """Read the file that pins witnesses.

    Raises:
        BadInput: when it is malformed, names a key twice or fewer witnesses than it requires.
    """
    found = load_yaml(path, Witnesses)
    check_pinned_witnesses(found, path)
    return found


def check_pinned_witnesses(found: Witnesses, path: Path) -> None:
    """Refuse witnesses of one name, keys that are not for countersignatures, and more required than there are.

    Raises:
        BadInput: for those.
    """
    names = {witness.verifier.name for witness in found.witnesses}
    odd = next((w.key for w in found.witnesses if w.verifier.kind != COSIGNATURE), None)
    if odd or len(names) < len(found.witnesses) or found.required > len(names):
        raise BadInput(
            f"expected at least {found.required} witnesses of different names in {path}, each with its key for "
            f"countersignatures, got {odd or ', '.join(sorted(names))}: correct it."
        )


def pin(path: Path, witnesses: Witnesses) -> None:
    """Write the file that pins witnesses."""
    lines = [
        "# Witnesses of this ledger: see docs/explanation/threat-model.md.",
        f"origin: {json.dumps(witnesses.origin)}",
        f"required: {witnesses.required}",
        "witnesses:",
    ]
    for witness in witnesses.witnesses:
        lines += [f"  - key: {json.dumps(witness.key)}", f"    url: {json.dumps(witness.url)}"]
    if witnesses.heads:
        lines.append(f"heads: {json.dumps(witnesses.heads)}")
    if stamps := witnesses.timestamps:
        lines.append(f"timestamps: {json.dumps(stamps.model_dump())}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def strange_ledger(witnesses: Witnesses, head: str) -> str | None:
    """What is wrong with the ledger whose head was countersigned, or None: a second one would be a new beginning.

    Args:
        witnesses: as pinned.
        head: a countersigned checkpoint; empty where no witness took part.
    """
    try:
        origin = Checkpoint.parse(Note.parse(head).text).origin if head else witnesses.origin
    except NeoRLError as error:
        return str(error)
    return None if origin == witnesses.origin else f"expected a head of ledger {witnesses.origin}, got one of {origin}"


def lacking_witnesses(witnesses: Witnesses | None, keys: Sequence[str]) -> str | None:
    """What the witnesses of an attempt lack of those that are asked for, or None.

    Args:
        witnesses: as pinned.
        keys: that the attempt's commitment names.
    """
    known = {witness.key for witness in witnesses.witnesses} if witnesses else set()
    if strange := next((key for key in keys if key not in known), None):
        return f"expected witnesses that are pinned, got {strange.partition('+')[0]}"
    if witnesses and len(keys) < witnesses.required:
        return f"expected {witnesses.required} of the pinned witnesses, got {len(keys)}"
    return None
