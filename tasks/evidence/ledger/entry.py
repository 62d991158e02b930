"""Entries of the ledger and the base class of their bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from tasks.evidence.claims import Stated
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.ledger.signing import keyid_of
from tasks.files.canonical import sha256_hex
from tasks.files.merkle import merkle_root
from tasks.versions.versions import version_of


class Body(Stated):
    """Base of entry bodies."""


AnyBody = TypeVar("AnyBody", bound=BaseModel)


@dataclass(frozen=True)
class Entry:
    """One row of the ledger."""

    sequence: int
    predecessor: str
    timestamp: str
    kind: str
    plant: str
    body: dict[str, Any]
    artefacts: tuple[Artefact, ...]
    """Files that the entry names by SHA-256."""
    digest: str
    """SHA-256 of the envelope; other entries refer to it."""
    envelope: bytes = field(repr=False)
    rules: int = 1
    """Version of the rules and texts by which it was judged and written (`tasks.versions`)."""
    void: str = ""
    """Reason the entry was voided; empty if valid. Never part of the signed payload."""
    root: bytes = field(default=b"", repr=False, compare=False)
    """Merkle root (RFC 6962) over this and all earlier envelopes, set on reading."""

    @cached_property
    def signer(self) -> str:
        """Id of the signing key."""
        return keyid_of(self.envelope) if self.envelope else ""

    def read(self, model: type[AnyBody]) -> AnyBody:
        """Return the body as a model."""
        return model.model_validate_json(json.dumps(self.body))


def read_entry(payload: Any, envelope: bytes = b"") -> Entry:
    """Return the entry of a payload.

    Raises:
        KeyError, TypeError, ValueError: if the payload has another shape.
    """
    if not isinstance(payload["body"], dict):
        raise TypeError(f"the body must be an object, got {payload['body']!r}: restore the row")
    # Entries of version 1 have no such field; a signed 1 would be a second encoding of the same entry.
    rules = payload["rules"] if "rules" in payload else 1  # noqa: SIM401, a payload may be a list
    if "rules" in payload and (type(rules) is not int or rules < 2):
        raise ValueError(f"rules must be a whole number of at least 2, got {rules!r}: restore the row")
    # First of all: entries of a later version may have other fields.
    version_of(rules)
    fields = {**payload, "artefacts": tuple(Artefact(**file) for file in payload["artefacts"]), "rules": rules}
    return Entry(**fields, digest=sha256_hex(envelope), envelope=envelope, void="", root=b"")


def root_of(entries: Sequence[Entry], size: int) -> bytes:
    """Return the Merkle root of the first `size` entries, which must exist."""
    return entries[size - 1].root if size else merkle_root([])
