"""Signatures: published vectors, canonical bytes, and pinned keys."""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.entry import read_entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, insert
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, home_pin, key_id, pae, trust_yaml
from tasks.evidence.ledger.table import connect
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import canonical_json
from tests.evidence import open_ledger

KIND = "application/vnd.test+json"
# RFC 8032, section 7.1, test 1: secret key and public key.
SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.fixture
def signer() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(SECRET))


@pytest.fixture
def trust(signer: SigningKey, tmp_path: Path) -> TrustRoot:
    path = tmp_path / "trust.yaml"
    path.write_bytes(trust_yaml(home_pin(signer.public, "RFC 8032")))
    return TrustRoot.read(path)


def test_published_vectors(signer: SigningKey) -> None:
    # DSSE v1.0.2, protocol.md, "Test vectors": type, body and their encoding.
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    # Lengths count bytes, not characters.
    assert pae("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "
    assert signer.public.public_bytes_raw().hex() == PUBLIC
    # sha256sum of the 32 bytes above.
    assert key_id(signer.public) == "21fe31dfa154a261"


def test_an_envelope_opens_to_its_payload(signer: SigningKey, trust: TrustRoot) -> None:
    payload = {"b": [1, 2.5, None, "ü"], "a": {"c": True}}
    envelope = signer.seal(KIND, payload)
    assert trust.unseal(KIND, envelope) == payload
    assert set(json.loads(envelope)) == {"payload", "payloadType", "signatures"}


def test_every_flipped_bit_is_refused(signer: SigningKey, trust: TrustRoot) -> None:
    envelope = signer.seal(KIND, {"x": 1})
    for at in range(len(envelope)):
        for bit in range(8):
            changed = envelope[:at] + bytes([envelope[at] ^ 1 << bit]) + envelope[at + 1 :]
            with pytest.raises(Refused):
                trust.unseal(KIND, changed)


def spoiled(envelope: bytes) -> dict[str, bytes]:
    """Return the same content in other bytes that a lenient reader would accept."""
    document = json.loads(envelope)
    payload = document["payload"]
    twice = envelope[:-1] + b',"payloadType":"' + KIND.encode() + b'"}'
    signature = document["signatures"][0]
    unpadded = {**document, "payload": payload.rstrip("=")}
    assert payload.endswith("=")
    # The last character before the padding carries bits that decode to nothing.
    loose = payload.rstrip("=")[:-1] + chr(ord(payload.rstrip("=")[-1]) + 1)
    assert base64.b64decode(loose + "=") == base64.b64decode(payload)
    return {
        "white space": json.dumps(document).encode(),
        "new line": envelope + b"\n",
        "key order": json.dumps(dict(reversed(document.items())), separators=(",", ":")).encode(),
        "duplicate key": twice,
        "extra field": canonical_json({**document, "note": "hello"}),
        "extra field of a signature": canonical_json({**document, "signatures": [{**signature, "note": ""}]}),
        "two signatures": canonical_json({**document, "signatures": [signature, signature]}),
        "no signature": canonical_json({**document, "signatures": []}),
        "no padding": canonical_json(unpadded),
        "foreign characters": canonical_json({**document, "payload": payload[:4] + "\n" + payload[4:]}),
        "trailing bits": canonical_json({**document, "payload": loose + "="}),
        "number as key id": canonical_json({**document, "signatures": [{**signature, "keyid": 7}]}),
        "number as payload": canonical_json({**document, "payload": 7}),
        "array": canonical_json([document]),
        "not JSON": b"{",
        "not UTF-8": b"\xff" + envelope,
        "deep": b"[" * 100_000,
    }


@pytest.mark.parametrize(
    "name", spoiled(SigningKey(Ed25519PrivateKey.from_private_bytes(SECRET)).seal(KIND, {"x": 12}))
)
def test_other_bytes_for_the_same_content_are_refused(signer: SigningKey, trust: TrustRoot, name: str) -> None:
    with pytest.raises(Refused):
        trust.unseal(KIND, spoiled(signer.seal(KIND, {"x": 12}))[name])


def test_signed_but_not_canonical_payloads_are_refused(signer: SigningKey, trust: TrustRoot) -> None:
    for body in (b'{"a":1,"a":1}', b'{"a": 1}', b'{"a":1.0e0}', b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":"\\u0041"}'):
        private = Ed25519PrivateKey.from_private_bytes(SECRET)
        signature = base64.b64encode(private.sign(pae(KIND, body))).decode()
        document = {
            "payload": base64.b64encode(body).decode(),
            "payloadType": KIND,
            "signatures": [{"keyid": key_id(signer.public), "sig": signature}],
        }
        with pytest.raises(Refused, match="invalid signed envelope"):
            trust.unseal(KIND, canonical_json(document))


def test_a_payload_of_another_kind_is_refused(signer: SigningKey, trust: TrustRoot) -> None:
    with pytest.raises(Refused, match="payload type"):
        trust.unseal("application/vnd.other+json", signer.seal(KIND, {}))


def test_a_signature_by_another_key_does_not_count(signer: SigningKey, trust: TrustRoot) -> None:
    other = SigningKey(Ed25519PrivateKey.generate())
    with pytest.raises(Refused, match=f"the signing key '{key_id(other.public)}' is not pinned in .*trust.yaml"):
        trust.unseal(KIND, other.seal(KIND, {}))
    posing = json.loads(other.seal(KIND, {}))
    posing["signatures"][0]["keyid"] = key_id(signer.public)
    with pytest.raises(Refused, match="is invalid"):
        trust.unseal(KIND, canonical_json(posing))


def test_the_private_key_does_not_show(signer: SigningKey) -> None:
    assert SECRET.hex() not in repr(signer)
    assert repr(SECRET)[2:-1] not in repr(signer)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys: []",
        "keys: [1]",
        "other: 1",
        "keys: [",
        "keys: &a [*a]",
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nkeys: [*b, *b, *b, *b]", id="bomb"),
        pytest.param("#" * 300_000, id="large"),
        "keys: [{id: a}]",
        "keys: [{id: a, public: AAAA}]",
        "keys: [{id: a, public: 5}]",
        f"keys: [{{id: a, public: {base64.b64encode(bytes.fromhex(PUBLIC)).decode()}}}]",
    ],
)
def test_a_malformed_trust_root_is_bad_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trust.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"trust\.yaml.*neorl keys show"):
        TrustRoot.read(path)


def _altered(ledger: Ledger, *statements: str) -> None:
    """Change rows with access to the database file."""
    with closing(sqlite3.connect(ledger.home.ledger)) as database:
        for name in ("no_update", "next_only"):
            database.execute(f"DROP TRIGGER ledger_{name}")
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_signatures_are_cached_and_all_else_is_checked_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(Home(home))
    for text in "abc":
        ledger.append("note", NoteBody(text=text))
    unsealed = []
    unseal = TrustRoot.unseal

    def counted(self: TrustRoot, payload_type: str, envelope: bytes) -> Any:
        unsealed.append(payload_type)
        return unseal(self, payload_type, envelope)

    monkeypatch.setattr(TrustRoot, "unseal", counted)
    assert Ledger.open(ledger.home, write=False).entries() == ledger.entries()
    assert unsealed == []
    # What was altered since is checked anew.
    _altered(ledger, "UPDATE ledger SET envelope = replace(envelope, 'sig', 'gis') WHERE sequence = 2")
    with pytest.raises(Refused, match="ledger entry 2: "):
        Ledger.open(ledger.home, write=False).entries()
    assert unsealed == [ENTRY_TYPE]


def test_a_signature_counts_under_the_keys_pinned_now(home: Path, tmp_path: Path) -> None:
    ledger = open_ledger(Home(home))
    ledger.append("note", NoteBody(text="a"))
    assert len(Ledger.open(ledger.home, write=False).entries()) == 1
    other = tmp_path / "trust.yaml"
    other.write_bytes(trust_yaml(home_pin(SigningKey(Ed25519PrivateKey.generate()).public, "another")))
    with pytest.raises(Refused, match=r"ledger entry 1: the signing key .* is not pinned"):
        Ledger.open(ledger.home, trust=other, write=False).entries()


def test_reordered_rows_are_refused_even_if_cached(home: Path) -> None:
    ledger = open_ledger(Home(home))
    for text in "ab":
        ledger.append("note", NoteBody(text=text))
    assert Ledger.open(ledger.home, write=False).verify().size == 2
    _altered(
        ledger, *(f"UPDATE ledger SET sequence = {to} WHERE sequence = {of}" for of, to in ((1, 3), (2, 1), (3, 2)))
    )
    with pytest.raises(Refused, match="ledger entry 1: sequence must be 1, got 1 in the table and 2"):
        Ledger.open(ledger.home, write=False).entries()


@pytest.mark.parametrize("kind", ["note", "rotation", "revocation"])
def test_an_entry_with_a_non_object_body_is_refused(home: Path, kind: str) -> None:
    ledger = open_ledger(Home(home))
    ledger.append("note", NoteBody(text="a"))
    (first,) = ledger.entries()
    payload = {
        "artefacts": [],
        "kind": kind,
        "plant": "",
        "predecessor": first.digest,
        "rules": first.rules,
        "sequence": 2,
        "timestamp": first.timestamp,
    }
    envelope = open_keys(ledger.home, first_use=False)[0].seal(ENTRY_TYPE, {**payload, "body": [1]})
    insert(connect(ledger.home.ledger_url), read_entry({**payload, "body": {}}, envelope))
    with pytest.raises(Refused, match=r"^ledger entry 2: the body must be an object, got \[1\]: restore"):
        ledger.entries()
