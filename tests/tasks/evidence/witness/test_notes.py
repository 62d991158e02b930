"""Signed notes, checkpoints and countersignatures in the formats of other tools."""

from __future__ import annotations

import base64
import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from tasks.evidence.ledger.signing import SigningKey
from tasks.evidence.witness.notes import (
    COSIGNATURE,
    SIGNATURE,
    Checkpoint,
    Nonce,
    Note,
    Verifier,
    countersignature,
    signed_note,
)

# The example of Go's golang.org/x/mod/sumdb/note, where the form comes from.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
SAID = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
# The example of c2sp.org/tlog-checkpoint and c2sp.org/tlog-cosignature.
SOFA = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "— witness.example.com/w1 "
    "jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)
HEAD = Checkpoint("neorl/plant", 3, hashlib.sha256(b"root").digest(), "2026-11-20T10:00:00.000000Z")


@pytest.fixture
def key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"a key").digest()))


def test_a_published_note_is_read_and_its_signature_holds() -> None:
    neumann, note = Verifier.parse(NEUMANN), Note.parse(SAID)
    assert str(note) == SAID
    assert note.is_signed_by(neumann)
    assert not Note(note.text.replace("answer", "reply"), note.lines).is_signed_by(neumann)
    assert not Note.parse(SOFA).is_signed_by(neumann)


def test_a_published_checkpoint_is_read() -> None:
    note = Note.parse(SOFA)
    found = Checkpoint.parse(note.text)
    assert (found.origin, found.size, found.time) == ("example.com/behind-the-sofa", 20852163, "")
    assert found.root == base64.b64decode("CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=")
    # The time of the published countersignature: 8 bytes behind the key's id.
    assert int.from_bytes(base64.b64decode(note.lines[1].split(" ")[2])[4:12]) == 1679315147


def test_a_countersignature_follows_the_specification(key: SigningKey) -> None:
    """By hand: key id, time and signed message."""
    line = countersignature(HEAD.text, "witness.example/w1", key, 1679315147)
    dash, name, encoded = line.split(" ")
    raw, public = base64.b64decode(encoded), key.public.public_bytes_raw()
    assert (dash, name) == ("—", "witness.example/w1")
    assert raw[:4] == hashlib.sha256(b"witness.example/w1\n\x04" + public).digest()[:4]
    assert raw[4:12] == (1679315147).to_bytes(8, "big")
    root = base64.b64encode(HEAD.root)
    message = b"cosignature/v1\ntime 1679315147\nneorl/plant\n3\n" + root + b"\ntime 2026-11-20T10:00:00.000000Z\n"
    key.public.verify(raw[12:], message)
    note = signed_note(HEAD.text, "neorl/plant", key).with_lines([line])
    assert note.countersigned_by(Verifier.of("witness.example/w1", COSIGNATURE, key)) == 1679315147
    assert note.countersigned_by(Verifier.of("witness.example/w2", COSIGNATURE, key)) is None
    assert note.is_signed_by(Verifier.of("neorl/plant", SIGNATURE, key))
    spoiled = Note(note.text.replace("\n3\n", "\n4\n"), note.lines)
    assert spoiled.countersigned_by(Verifier.of("witness.example/w1", COSIGNATURE, key)) is None


def test_a_nonce_is_deterministic_and_verifiable(key: SigningKey) -> None:
    asked, verifier = Nonce("neorl/plant", 7, bytes(32)), Verifier.of("w", COSIGNATURE, key)
    nonce = asked.sign(key)
    assert asked.sign(key) == nonce
    zeros = base64.b64encode(bytes(32))
    key.public.verify(nonce, b"neorl-nonce/v1\nneorl/plant\n7\n" + zeros + b"\n")
    assert asked.is_from(verifier, nonce)
    for other in (asked._replace(position=8), asked._replace(origin="x"), asked._replace(leaf=b"\1" * 32)):
        assert not other.is_from(verifier, nonce)


@pytest.mark.parametrize(
    "text", ["", "a\n", "a\n\n", "a\n\n— b", "a\n\nb c d\n", "a\n\n— b+c AAAA\n", "a\x00\n\n— b AAAA\n"]
)
def test_invalid_notes_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not a signed note"):
        Note.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "a\n", "a\n1\n", f"a\n01\n{'A' * 43}=\n", f"a\n-1\n{'A' * 43}=\n", "a\n1\nAAAA\n", f"a\n1\n{'A' * 43}=",
     f"a\n1\n{'A' * 43}=\nmore\n", f"\n1\n{'A' * 43}=\n", f"a\n{2**63}\n{'A' * 43}=\n"],
)  # fmt: skip
def test_invalid_checkpoints_are_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not a checkpoint"):
        Checkpoint.parse(text)


@pytest.mark.parametrize("text", ["", "a", "a+b+c", NEUMANN.replace("c74f", "c74e"), NEUMANN.replace("ARpc", "Axpc")])
def test_invalid_keys_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="must have the form NAME"):
        Verifier.parse(text)
    assert str(Verifier.parse(NEUMANN)) == NEUMANN
