"""Witnesses pinned for a home or a project: `witnesses.yaml` beside the trust root."""

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
    """A witness's key and address."""

    key: Annotated[str, Field(max_length=300)]
    """`NAME+ID+BASE64`, as printed by `neorl witness show`."""
    url: Annotated[str, Field(pattern=r"^(https?://[^\s/]+(/\S*)?|unix:\S+)$")]
    """`http://HOST:PORT`, `https://...`, or `unix:PATH` of a socket relative to the home."""

    @field_validator("url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        try:
            there = parts.scheme == "unix" or (parts.hostname and parts.hostname.encode("idna") and parts.port != 0)
        except ValueError as error:
            raise ValueError(f"must be an address with host and port, got {url!r} ({error})") from error
        if not there:
            raise ValueError(f"must be an address with a host, got {url!r}")
        return url

    @cached_property
    def verifier(self) -> Verifier:
        return Verifier.parse(self.key)


class PinnedTimestamps(Strict):
    """An authority that signs the time of heads (time stamps, RFC 3161)."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")]
    certificate: str
    """File of the authority's signing certificate (PEM), relative to the folder of witnesses.yaml."""


class Witnesses(Strict):
    """Witnesses that must countersign a home's ledger."""

    origin: Annotated[str, Field(pattern=r"^[^\s+]{1,200}$")]
    """Name of the ledger; it stays the same when the home's key is replaced."""
    required: Annotated[int, Field(ge=1, le=9)] = 1
    """Number of witnesses that must countersign."""
    witnesses: Annotated[list[PinnedWitness], Field(min_length=1, max_length=9)]
    heads: list[str] = Field(default_factory=list)
    """Folders of reports or exports with signed heads; the ledger must contain these heads."""
    timestamps: PinnedTimestamps | None = None


def pinned_file(home: Home, trust: TrustRoot) -> Path:
    """Return the path of witnesses.yaml: beside the trust root if it exists there, else in the home."""
    beside = trust.source.with_name(FILE)
    return beside if beside.exists() else home.root / FILE


def pinned(home: Home, trust: TrustRoot) -> Witnesses | None:
    path = pinned_file(home, trust)
    return _unchanged(path, file_state(path)) if path.exists() else None


@lru_cache(maxsize=4)
def _unchanged(path: Path, state: FileState) -> Witnesses:
    # Cached, because a signer reads the file several times for each attempt.
    return load_witnesses(path)


def load_witnesses(path: Path) -> Witnesses:
    found = load_yaml(path, Witnesses)
    check_pinned_witnesses(found, path)
    return found


def check_pinned_witnesses(found: Witnesses, path: Path) -> None:
    """Check that there are enough witnesses, with different names and with keys for countersignatures."""
    names = {witness.verifier.name for witness in found.witnesses}
    odd = next((w.key for w in found.witnesses if w.verifier.kind != COSIGNATURE), None)
    if odd or len(names) < len(found.witnesses) or found.required > len(names):
        raise BadInput(
            f"{path} must list at least {found.required} witnesses with different names and countersignature keys, got "
            f"{odd or ', '.join(sorted(names))}: correct it"
        )


def pin(path: Path, witnesses: Witnesses) -> None:
    lines = [
        "# Witnesses of this ledger: see docs/how-to/witness.md.",
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


def ledger_fault(witnesses: Witnesses, head: str) -> str | None:
    """Return a message if a countersigned head belongs to another ledger, for example a restarted one; else None."""
    try:
        origin = Checkpoint.parse(Note.parse(head).text).origin if head else witnesses.origin
    except NeoRLError as error:
        return str(error)
    return None if origin == witnesses.origin else f"the head belongs to ledger {origin}, not to {witnesses.origin}"


def witness_fault(witnesses: Witnesses | None, keys: Sequence[str]) -> str | None:
    """Return a message if an attempt's witnesses are too few or not pinned; otherwise None."""
    known = {witness.key for witness in witnesses.witnesses} if witnesses else set()
    if strange := next((key for key in keys if key not in known), None):
        return f"the attempt names the witness {strange.partition('+')[0]}, which is not pinned"
    if witnesses and len(keys) < witnesses.required:
        return f"the attempt names {len(keys)} pinned witnesses, {witnesses.required} are required"
    return None
