"""Requests to the signer and its answers. Clients state what they want; they never send bytes to sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, JsonValue, TypeAdapter

from tasks.evidence.claims import Counts, Materials, Stated

MAX_BYTES = 8 * 1024 * 1024
"""Largest size of a request; the largest requests contain the list of a candidate's files."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]


class Artefact(NamedTuple):
    """A file that a ledger entry names."""

    name: str
    path: str
    """Relative to the home."""
    sha256: str


class Hello(Stated):
    """Request: create key and table on first use, and return the public key."""

    ask: Literal["hello"] = "hello"
    ledger: Sha256
    """Digest of the ledger's URL, so that client and signer use the same ledger."""
    sources: Sha256
    """Digest of the client's source code; a signer that runs other source code answers `stale`."""


class Append(Stated):
    """Request: append an entry if `predecessor` is still the digest of the ledger's last entry."""

    ask: Literal["append"] = "append"
    kind: Annotated[str, Field(max_length=32)]
    plant: Annotated[str, Field(max_length=64)]
    body: dict[str, JsonValue]
    artefacts: tuple[Artefact, ...]
    predecessor: Sha256


class Head(Stated):
    ask: Literal["head"] = "head"


class Countersign(Stated):
    """Request: have the witnesses countersign the current head."""

    ask: Literal["countersign"] = "countersign"


class Nonces(Stated):
    """Request: have the witnesses countersign an attempt's seed entry, and return their nonces."""

    ask: Literal["nonces"] = "nonces"
    attempt: Sha256


class Certify(Stated):
    """Request: sign an attempt's certificate. The signer reads claim, number, composite and seed itself."""

    ask: Literal["certificate"] = "certificate"
    attempt: Sha256
    counts: Counts
    materials: Materials


class Seal(Stated):
    """Request: sign the digest of a cached result."""

    ask: Literal["seal"] = "seal"
    stage: Name
    key: Name
    sha256: Sha256


class SignBundle(Stated):
    """Request: sign a bundle of the home in OpenSSF's format. The signer compares the bundle with its digest first."""

    ask: Literal["bundle"] = "bundle"
    plant: Name
    composite: Sha256


class Rotate(Stated):
    """Request: replace the home's key by a new key."""

    ask: Literal["rotate"] = "rotate"
    by: Annotated[str, Field(min_length=1, max_length=256)]
    why: Annotated[str, Field(min_length=1, max_length=4096)]


class Stop(Stated):
    ask: Literal["stop"] = "stop"


Request = Hello | Append | Head | Countersign | Nonces | Certify | Seal | SignBundle | Rotate | Stop
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="ask")])


class Answer(Stated):
    """Answer of the signer; each kind of request uses some of the fields."""

    envelope: str = ""
    """Canonical bytes of the signed envelope (ASCII); after `SignBundle` the content of `model.sig`."""
    stale: bool = False
    """After `Append`: another entry was written first. After `Hello`: the signer runs other source code."""
    witnesses: tuple[str, ...] = ()
    """Keys of witnesses that countersigned, as many as required."""
    public: str = ""
    """Base64 of the public key, after `Hello`; PEM of the key for bundles, after `SignBundle`."""
    model_key: str = ""
    """SHA-256 of the PEM of the public key for bundles, after `Hello`."""
    pid: int = 0
    """Process id of the signer, after `Hello`."""
    refused: str = ""
    """Reason why a rule or check refused the request; empty if none did."""
    bad_input: str = ""
    """Reason why the input or the environment made the request impossible; empty if neither did."""


Ask = Callable[[Request], Answer]
"""Function that sends a request. It raises Refused, BadInput, or ConnectionError if the answer was lost."""
