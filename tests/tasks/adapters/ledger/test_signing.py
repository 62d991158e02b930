"""Signatures: published vectors, bytes that must be canonical, keys that must be pinned, secrets that must stay so."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.adapters.files.canonical import canonical_json
from tasks.adapters.ledger.signing import (
    Signer,
    TrustRoot,
    key_id,
    open_keys,
    pae,
    read_secret,
    trust_yaml,
    write_secret,
)

KIND = "application/vnd.test+json"
# RFC 8032, section 7.1, test 1: secret key and public key.
SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.fixture
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(SECRET))


@pytest.fixture
def trust(signer: Signer, tmp_path: Path) -> TrustRoot:
    path = tmp_path / "trust.yaml"
    path.write_bytes(trust_yaml(signer.public, "RFC 8032"))
    return TrustRoot.read(path)


def test_published_vectors(signer: Signer) -> None:
    # DSSE v1.0.2, protocol.md, "Test vectors": type, body and their encoding.
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    # Lengths count bytes, not characters.
    assert pae("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "
    assert signer.public.public_bytes_raw().hex() == PUBLIC
    # sha256sum of the 32 bytes above.
    assert key_id(signer.public) == "21fe31dfa154a261"


def test_an_envelope_opens_to_its_payload(signer: Signer, trust: TrustRoot) -> None:
    payload = {"b": [1, 2.5, None, "ü"], "a": {"c": True}}
    envelope = signer.seal(KIND, payload)
    assert trust.unseal(KIND, envelope) == payload
    assert set(json.loads(envelope)) == {"payload", "payloadType", "signatures"}


def test_every_flipped_bit_is_refused(signer: Signer, trust: TrustRoot) -> None:
    envelope = signer.seal(KIND, {"x": 1})
    for at in range(len(envelope)):
        for bit in range(8):
            changed = envelope[:at] + bytes([envelope[at] ^ 1 << bit]) + envelope[at + 1 :]
            with pytest.raises(Refused):
                trust.unseal(KIND, changed)


def spoiled(envelope: bytes) -> dict[str, bytes]:
    """The same content in other bytes, which a lenient reader would accept."""
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


@pytest.mark.parametrize("name", spoiled(Signer(Ed25519PrivateKey.from_private_bytes(SECRET)).seal(KIND, {"x": 12})))
def test_other_bytes_for_the_same_content_are_refused(signer: Signer, trust: TrustRoot, name: str) -> None:
    with pytest.raises(Refused):
        trust.unseal(KIND, spoiled(signer.seal(KIND, {"x": 12}))[name])


def test_signed_but_not_canonical_payloads_are_refused(signer: Signer, trust: TrustRoot) -> None:
    for body in (b'{"a":1,"a":1}', b'{"a": 1}', b'{"a":1.0e0}', b'{"a":NaN}', b'{"a":"\\ud800"}', b'{"a":"\\u0041"}'):
        private = Ed25519PrivateKey.from_private_bytes(SECRET)
        signature = base64.b64encode(private.sign(pae(KIND, body))).decode()
        document = {
            "payload": base64.b64encode(body).decode(),
            "payloadType": KIND,
            "signatures": [{"keyid": key_id(signer.public), "sig": signature}],
        }
        with pytest.raises(Refused, match="canonical"):
            trust.unseal(KIND, canonical_json(document))


def test_a_payload_of_another_kind_is_refused(signer: Signer, trust: TrustRoot) -> None:
    with pytest.raises(Refused, match="payload type"):
        trust.unseal("application/vnd.other+json", signer.seal(KIND, {}))


def test_a_signature_by_another_key_does_not_count(signer: Signer, trust: TrustRoot) -> None:
    other = Signer(Ed25519PrivateKey.generate())
    with pytest.raises(Refused, match=f"pinned in .*trust.yaml, got one by key '{key_id(other.public)}'"):
        trust.unseal(KIND, other.seal(KIND, {}))
    posing = json.loads(other.seal(KIND, {}))
    posing["signatures"][0]["keyid"] = key_id(signer.public)
    with pytest.raises(Refused, match="does not fit"):
        trust.unseal(KIND, canonical_json(posing))


def test_keys_are_made_and_pinned_on_first_use_only(home: Path) -> None:
    place = Home(home)
    signer, root = open_keys(place, first_use=True)
    again, _ = open_keys(place, first_use=False)
    assert key_id(again.public) == key_id(signer.public)
    assert list(root.keys) == [key_id(signer.public)]
    assert root.source == place.trust
    key = home / "keys" / "signing.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    assert serialization.load_pem_private_key(key.read_bytes(), None).public_key() == signer.public

    key.unlink()
    with pytest.raises(Refused, match="private key that signed"):
        open_keys(place, first_use=False)
    # A new key for a home whose trust root pins the old one signs nothing.
    with pytest.raises(Refused, match="among those pinned"):
        open_keys(place, first_use=True)


def test_a_lost_trust_root_is_not_replaced(home: Path) -> None:
    open_keys(Home(home), first_use=True)
    Home(home).trust.unlink()
    with pytest.raises(BadInput, match="pinned public keys"):
        open_keys(Home(home), first_use=False)


def test_the_project_s_pins_come_before_the_home_s(home: Path, trust: TrustRoot) -> None:
    with pytest.raises(Refused, match="pin it there"):
        open_keys(Home(home), first_use=True, project=trust.source)
    assert not Home(home).trust.exists()
    given = home / "given.yaml"
    given.write_bytes(trust.source.read_bytes())
    assert TrustRoot.locate(Home(home), project=trust.source).source == trust.source
    assert TrustRoot.locate(Home(home), given, project=trust.source).source == given


def test_secrets_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "keys" / "seed", b"hunter2")
    assert read_secret(path) == b"hunter2"
    path.chmod(0o640)
    with pytest.raises(Refused, match="mode 0640") as refusal:
        read_secret(path)
    assert "hunter2" not in str(refusal.value)


def test_foreign_keys_are_bad_input_and_are_not_quoted(home: Path) -> None:
    path = home / "keys" / "signing.pem"
    pem = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (pem, b"-----BEGIN PRIVATE KEY-----\nhello\n-----END PRIVATE KEY-----\n"):
        write_secret(path, content)
        with pytest.raises(BadInput, match="Ed25519") as refusal:
            open_keys(Home(home), first_use=True)
        assert "hello" not in str(refusal.value)


def test_the_private_key_does_not_show(signer: Signer) -> None:
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


def test_processes_that_start_together_agree_on_one_key(home: Path) -> None:
    code = (
        "from configs.home import Home\n"
        "from tasks.adapters.ledger.signing import key_id, open_keys\n"
        "print(key_id(open_keys(Home.locate(), first_use=True)[0].public))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) for _ in range(3)
    ]
    names = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len(set(names)) == 1
