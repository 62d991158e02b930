"""What a person signs with a key of their own: a statement that names all that it is about, in a DSSE envelope."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import Refused
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id, public_key
from tasks.files.times import format_time

STATEMENT_TYPE = "application/vnd.neorl.statement+json"
Act = Literal["approval", "rejection", "withdrawal", "rollback", "extension", "policy", "key", "rotation", "revocation"]
Meaning = Literal["", "reviewed", "approved for closed loop", "approved for shadow", "rejected", "withdrawn"]
"""What a signature means; without one it says no more than its act."""


class Said(NamedTuple):
    """What is to be signed, as it follows from the ledger."""

    act: Act
    plant: str
    about: Mapping[str, str | None]
    """Digests and names of all that the statement binds: an approval its candidate, composite, certificate, policy and
    champion."""
    meaning: Meaning = ""
    role: str = ""
    note: str = ""


class Statement(BaseModel):
    """What a person has signed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    act: Act
    plant: str
    about: dict[str, str | None]
    meaning: Meaning
    role: str
    note: str
    person: str
    signed: str
    """When, by the clock of the machine that it was signed on: UTC, as the ledger writes times."""


class Signatory(NamedTuple):
    """A person who can sign a statement: with an unlocked key, or one that they signed elsewhere."""

    person: str
    sign: Callable[[Said], str]
    """Gives the envelope of a statement: canonical DSSE."""


def with_key(person: str, key: SigningKey, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Signatory:
    """A person with their unlocked key.

    Args:
        person: whose key it is.
        key: unlocked.
        clock: tells the time in UTC.
    """

    def sign(said: Said) -> str:
        now = format_time(clock())
        statement = Statement(**{**said._asdict(), "about": dict(said.about)}, person=person, signed=now)
        return key.seal(STATEMENT_TYPE, statement.model_dump(mode="json")).decode()

    return Signatory(person, sign)


def signed_elsewhere(envelope: str) -> Signatory:
    """A person whose statement came from another machine; the rules see to it that it says what is to be said."""
    return Signatory(read_payload(envelope)["person"], lambda said: envelope)


def read_statement(envelope: str, public: str) -> Statement:
    """A statement, once its signature by a key holds.

    Args:
        envelope: canonical DSSE.
        public: the key, in base64.

    Raises:
        Refused: when the envelope, the signature or the statement is another.
    """
    found = public_key(public)
    payload = TrustRoot({key_id(found): found}, Path("the ledger")).unseal(STATEMENT_TYPE, envelope.encode())
    try:
        return Statement.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Refused(f"expected a statement, got {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error


def read_payload(envelope: str) -> Mapping[str, str]:
    """What an envelope says, unchecked: who uses it has the signature checked."""
    payload: Mapping[str, str] = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    return payload


def differs(statement: Statement, person: str, said: Said) -> str | None:
    """What a statement says otherwise than it should, in words, or None.

    Args:
        statement: whose signature holds.
        person: who should have made it.
        said: what it should say, by the ledger.
    """
    wanted = {**said._asdict(), "about": dict(said.about), "person": person}
    for name, right in wanted.items():
        found = getattr(statement, name)
        if found == right:
            continue
        if name == "about":
            about: dict[str, str | None] = {**dict.fromkeys(statement.about), **said.about}
            name = next((key for key in about if statement.about.get(key) != said.about.get(key)), name)
            found, right = statement.about.get(name), said.about.get(name)
        return f"expected a statement whose {name} is {_short(right)}, got {_short(found)}"
    return None


def _short(value: object) -> str:
    return repr(value[:24]) if isinstance(value, str) else "none"
