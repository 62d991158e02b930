"""Requests to the signer and answers: typed requests, never bytes to sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, JsonValue, TypeAdapter

from tasks.evidence.claims import Counts, Materials, Stated

MAX_BYTES = 8 * 1024 * 1024
"""Largest request; a candidate's list of files is the largest that occurs."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]


class Artefact(NamedTuple):
    """File that an entry names."""

    name: str
    path: str
    """Relative to the home."""
    sha256: str


class Hello(Stated):
    """Create key and table on first use; return the public key."""

    ask: Literal["hello"] = "hello"
    ledger: Sha256
    """Digest of the ledger's URL, so that client and signer use the same ledger."""
    sources: Sha256
    """Digest of the sources with the rules; a signer with other sources answers `stale`."""


class Append(Stated):
    """Append an entry if the ledger's last entry is still the predecessor."""

    ask: Literal["append"] = "append"
    kind: Annotated[str, Field(max_length=32)]
    plant: Annotated[str, Field(max_length=64)]
    body: dict[str, JsonValue]
    artefacts: tuple[Artefact, ...]
    predecessor: Sha256


class Head(Stated):
    """Sign the current head."""

    ask: Literal["head"] = "head"


class Countersign(Stated):
    """Have the current head countersigned by the witnesses."""

    ask: Literal["countersign"] = "countersign"


class Nonces(Stated):
    """Have an attempt's commitment countersigned, and get the witnesses' nonces for it."""

    ask: Literal["nonces"] = "nonces"
    attempt: Sha256


class Certify(Stated):
    """Sign an attempt's certificate; the signer looks up claim, number, composite and seed."""

    ask: Literal["certificate"] = "certificate"
    attempt: Sha256
    counts: Counts
    materials: Materials


class Seal(Stated):
    """Sign the digest of a cached result."""

    ask: Literal["seal"] = "seal"
    stage: Name
    key: Name
    sha256: Sha256


class Rotate(Stated):
    """Rotate the home's key."""

    ask: Literal["rotate"] = "rotate"
    by: Annotated[str, Field(min_length=1, max_length=256)]
    why: Annotated[str, Field(min_length=1, max_length=4096)]


class Stop(Stated):
    """Stop the signer."""

    ask: Literal["stop"] = "stop"


Request = Hello | Append | Head | Countersign | Nonces | Certify | Seal | Rotate | Stop
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="ask")])


class Answer(Stated):
    """Answer of the signer."""

    envelope: str = ""
    """Canonical bytes of the signed envelope (ASCII)."""
    stale: bool = False
    """Whether another entry was written first, so that the client must read again."""
    witnesses: tuple[str, ...] = ()
    """Keys of witnesses that countersigned, as many as required."""
    public: str = ""
    """Base64 of the public key, after `Hello`."""
    pid: int = 0
    """Process id of the signer, after `Hello`."""
    refused: str = ""
    """Reason for a refusal by a rule or check."""
    bad_input: str = ""
    """Reason for a failure with the given input or environment."""


Ask = Callable[[Request], Answer]
"""Sends a request. Raises Refused, BadInput, or ConnectionError if the answer was lost."""
