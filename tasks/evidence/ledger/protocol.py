"""What may be asked of the signer, and its answers: typed requests, never bytes to sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from tasks.evidence.claims import Counts, Materials

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of the largest request; a candidate's list of files is the largest that occurs."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]


class Artefact(NamedTuple):
    """A file that an entry vouches for."""

    name: str
    path: str
    """Relative to the home."""
    sha256: str


class Message(BaseModel):
    """Frozen, of exactly these fields, and nothing is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Hello(Message):
    """Make key and table on first use, and tell the public key."""

    ask: Literal["hello"] = "hello"
    ledger: Sha256
    """Digest of the ledger's URL, so that client and signer cannot mean two ledgers."""
    sources: Sha256
    """Digest of the sources that hold the rules; a signer of other sources answers `stale`."""


class Append(Message):
    """Append an entry of this kind and body, if the ledger's last entry is still the predecessor."""

    ask: Literal["append"] = "append"
    kind: Annotated[str, Field(max_length=32)]
    plant: Annotated[str, Field(max_length=64)]
    body: dict[str, JsonValue]
    artefacts: tuple[Artefact, ...]
    predecessor: Sha256


class Head(Message):
    """Sign the ledger's head as it is now."""

    ask: Literal["head"] = "head"


class Countersign(Message):
    """Have the ledger's head countersigned by the witnesses that answer."""

    ask: Literal["countersign"] = "countersign"


class Nonces(Message):
    """Get the nonces that the witnesses give for an attempt's commitment, once they countersigned it."""

    ask: Literal["nonces"] = "nonces"
    attempt: Sha256


class Certify(Message):
    """Sign the certificate of an attempt, whose claim, number, composite and seed the signer looks up."""

    ask: Literal["certificate"] = "certificate"
    attempt: Sha256
    counts: Counts
    materials: Materials


class Seal(Message):
    """Sign that a stage of the flow had this result."""

    ask: Literal["seal"] = "seal"
    stage: Name
    key: Name
    sha256: Sha256


class Rotate(Message):
    """Make another key, log it by the one in force, and sign with it from then on."""

    ask: Literal["rotate"] = "rotate"
    by: Annotated[str, Field(min_length=1, max_length=256)]
    why: Annotated[str, Field(min_length=1, max_length=4096)]


class Stop(Message):
    """End the signer."""

    ask: Literal["stop"] = "stop"


Request = Hello | Append | Head | Countersign | Nonces | Certify | Seal | Rotate | Stop
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="ask")])


class Answer(Message):
    """What the signer found or made."""

    envelope: str = ""
    """Canonical bytes of the signed envelope, ASCII."""
    stale: bool = False
    """Whether another entry came first, so that the client has to look again."""
    witnesses: tuple[str, ...] = ()
    """Keys of the witnesses that countersigned, as many as are required."""
    public: str = ""
    """Base64 of the public key, in the answer to `Hello`."""
    pid: int = 0
    """The signer's process, in the answer to `Hello`."""
    refused: str = ""
    """Why a rule or check refuses the request."""
    bad_input: str = ""
    """Why it cannot be done with what there is."""


Ask = Callable[[Request], Answer]
"""Answers a request, or raises Refused, BadInput, or ConnectionError where it was lost on the way."""
