"""Statements that persons sign with their own keys. Digests in a statement identify everything that it is about."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from configs.errors import Refused
from tasks.evidence.ledger.entry import AnyBody, Body
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id, public_key
from tasks.files.canonical import format_time

STATEMENT_TYPE = "application/vnd.neorl.statement+json"
Act = Literal["approval", "rejection", "withdrawal", "rollback", "extension", "policy", "key", "rotation", "revocation"]
Meaning = Literal["", "reviewed", "approved for closed loop", "approved for shadow", "rejected", "withdrawn"]
"""Declared meaning of a signature; empty if the kind of act (`Act`) states the meaning already."""


class Content(NamedTuple):
    """Content that a statement must have, derived from the ledger."""

    act: Act
    plant: str
    about: Mapping[str, str | None]
    """Digests and names that the statement is about; for an approval candidate, composite, certificate, policy,
    version and champion."""
    meaning: Meaning = ""
    role: str = ""
    note: str = ""


class Statement(Body):
    act: Act
    plant: str
    about: dict[str, str | None]
    meaning: Meaning
    role: str
    note: str
    person: str
    signed: str
    """Time of signing by the clock of the signing machine (UTC)."""


class Signatory(NamedTuple):
    """A person who can sign: with an unlocked key, or with a statement that was signed on another machine."""

    person: str
    sign: Callable[[Content], str]
    """Function that signs a content and returns the envelope."""


def with_key(person: str, key: SigningKey, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Signatory:
    """Return a person who signs with an unlocked key; `clock` gives the time of signing."""

    def sign(content: Content) -> str:
        now = format_time(clock())
        statement = Statement(**{**content._asdict(), "about": dict(content.about)}, person=person, signed=now)
        return key.seal(STATEMENT_TYPE, statement.model_dump(mode="json")).decode()

    return Signatory(person, sign)


def signed_elsewhere(envelope: str) -> Signatory:
    """Return a signatory for a statement that was signed on another machine; the rules check its content later."""
    return Signatory(read_payload(envelope)["person"], lambda content: envelope)


def with_signature(body: AnyBody, signatory: Signatory | None, content: Content) -> AnyBody:
    """Return the body with the person's signed statement, and with the time of signing if the body has that field."""
    if signatory is None:
        return body
    envelope = signatory.sign(content)
    signed = {"signed": read_payload(envelope)["signed"]} if "signed" in type(body).model_fields else {}
    return body.model_copy(update={"signature": envelope, **signed})


def read_statement(envelope: str, public: str) -> Statement:
    """Verify the signature of a statement and read it."""
    found = public_key(public)
    payload = TrustRoot({key_id(found): found}, Path("the ledger")).unseal(STATEMENT_TYPE, envelope.encode())
    try:
        return Statement.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Refused(f"field {'.'.join(map(str, first['loc']))} of a statement: {first['msg']}; sign again") from error


def read_payload(envelope: str) -> Mapping[str, str]:
    """Return the content of a signed envelope without verifying the signature."""
    payload: Mapping[str, str] = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    return payload


def content_fault(statement: Statement, person: str, content: Content) -> str | None:
    """Return the first difference between a statement and the required content, or None."""
    wanted = {**content._asdict(), "about": dict(content.about), "person": person}
    for name, right in wanted.items():
        found = getattr(statement, name)
        if found == right:
            continue
        if name == "about":
            about: dict[str, str | None] = {**dict.fromkeys(statement.about), **content.about}
            name = next((key for key in about if statement.about.get(key) != content.about.get(key)), name)
            found, right = statement.about.get(name), content.about.get(name)
        return f"the statement's {name} is {_short(found)}, the ledger requires {_short(right)}"
    return None


def _short(value: object) -> str:
    return repr(value[:24]) if isinstance(value, str) else "none"
