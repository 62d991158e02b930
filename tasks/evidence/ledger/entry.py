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
    """Base class of the bodies of ledger entries."""


AnyBody = TypeVar("AnyBody", bound=BaseModel)


@dataclass(frozen=True)
class Entry:
    """One entry of the ledger, with the content of its signed envelope."""

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
    """Version of the rules that judged this entry and of the texts in this entry (`tasks.versions`)."""
    void: str = ""
    """Reason why the entry is void; empty if it is valid. Never part of the signed payload."""
    root: bytes = field(default=b"", repr=False, compare=False)
    """Merkle root (RFC 6962) over the envelopes up to this entry, computed when the ledger is read."""

    @cached_property
    def signer(self) -> str:
        """Id of the signing key."""
        return keyid_of(self.envelope) if self.envelope else ""

    def read(self, model: type[AnyBody]) -> AnyBody:
        """Return the validated body as an instance of `model`."""
        return model.model_validate_json(json.dumps(self.body))


def read_entry(payload: Any, envelope: bytes = b"") -> Entry:
    """Return the entry that an envelope's decoded payload describes.

    Raises:
        KeyError, TypeError, ValueError: if a field is missing, unknown or of another type.
    """
    if not isinstance(payload["body"], dict):
        raise TypeError(f"the body must be an object, got {payload['body']!r}: restore the row")
    # Entries of version 1 have no field `rules`; an explicit 1 would encode the same entry in a second way.
    rules = payload["rules"] if "rules" in payload else 1  # noqa: SIM401, a payload may be a list
    if "rules" in payload and (type(rules) is not int or rules < 2):
        raise ValueError(f"rules must be a whole number of at least 2, got {rules!r}: restore the row")
    # Reject unknown versions first, because their entries may have other fields.
    version_of(rules)
    fields = {**payload, "artefacts": tuple(Artefact(**file) for file in payload["artefacts"]), "rules": rules}
    return Entry(**fields, digest=sha256_hex(envelope), envelope=envelope, void="", root=b"")


def root_of(entries: Sequence[Entry], size: int) -> bytes:
    """Return the Merkle root of the first `size` entries, which must exist."""
    return entries[size - 1].root if size else merkle_root([])
