"""Witnesses countersign a ledger only by its known key or a successor that the known key vouches for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ruamel.yaml import YAML

from benchmarks.redteam.witnessed import ORIGIN, direct, pin_witnesses, watched, witness_in
from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.attempts import draw_seed
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.ledger.keys import PASSPHRASE_FILE, open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Rotate
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, to_base64
from tasks.evidence.rules import NoteBody
from tasks.evidence.witness.notes import SIGNATURE, Checkpoint, Note, Verifier, signed_note
from tasks.evidence.witness.pinned import FILE, PinnedWitness
from tasks.evidence.witness.server import open_witness
from tasks.evidence.witness.transport import Reply
from tasks.evidence.witness.witness import Denied
from tasks.files.merkle import consistency_proof, merkle_root
from tests.evidence import attempt_for, certify

A, B = "a" * 64, "b" * 64


def test_the_next_key_of_a_home_is_announced_to_its_witness(home: Path, tmp_path: Path) -> None:
    """An external witness accepts the next key only if a known key vouches for it."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1", open_to_all=False)
    pin_witnesses(place, witness)
    ledger = watched(place, direct(witness))
    old, _ = open_keys(place, first_use=False)
    mine, strange = (Verifier.of(ORIGIN, SIGNATURE, key) for key in (old, SigningKey(Ed25519PrivateKey.generate())))
    with pytest.raises(Denied) as unknown:
        witness.accept_log(str(signed_note(f"{strange}\n", ORIGIN, old)))
    assert unknown.value.status == 404
    witness.add_log(mine)
    draw_seed(ledger, attempt_for(ledger, A))
    # Somebody else's word, a word about another key, and a key without a word.
    thief = SigningKey(Ed25519PrivateKey.generate())
    for text in (str(signed_note(f"{strange}\n", ORIGIN, thief)), f"{strange}\n"):
        with pytest.raises(Denied, match=r"no known key of|is unknown here"):
            witness.accept_log(text)
    ledger.request(Rotate(by="an administrator", why="yearly"))
    new, _ = open_keys(place, first_use=False)
    assert set(witness.logs()[0].keys) == {str(mine), str(Verifier.of(ORIGIN, SIGNATURE, new))}
    again = watched(place, direct(witness))
    draw_seed(again, attempt_for(again, B))
    # From the first head of the next key on, a copy of the old one speaks for this ledger no more.
    assert witness.logs()[0].keys == [str(Verifier.of(ORIGIN, SIGNATURE, new))]
    leaves = [*(entry.envelope for entry in again.entries()), b"rubbish"]
    known = Checkpoint.parse(Note.parse(witness.newest(ORIGIN)).text)
    head = signed_note(Checkpoint(ORIGIN, len(leaves), merkle_root(leaves), known.time).text, ORIGIN, old)
    proof = [to_base64(node) for node in consistency_proof(leaves, known.size)]
    with pytest.raises(Denied, match="is not signed by a known key"):
        witness.add_checkpoint("\n".join([f"old {known.size}", *proof, "", str(head)]))
    assert Note.parse(witness.newest(ORIGIN)).is_signed_by(Verifier.of(ORIGIN, SIGNATURE, new))
    assert audit(place).passed


def test_a_key_is_not_rotated_while_a_witness_is_silent(home: Path, tmp_path: Path) -> None:
    """Otherwise it would sign heads that the witness always refuses."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, witness)
    ledger = watched(place, direct(witness))
    draw_seed(ledger, attempt_for(ledger, A))
    old, _ = open_keys(place, first_use=False)
    silent = watched(place, direct(witness, silent=[witness.name]))
    with pytest.raises(Refused, match="a witness did not get the next key"):
        silent.request(Rotate(by="an administrator", why="yearly"))
    assert open_keys(place, first_use=False)[0].public == old.public
    assert not ledger.entries("rotation")


def test_a_certificate_of_another_ledger_is_detected(home: Path, tmp_path: Path) -> None:
    """Attack: a second ledger under a new name, with attempts counted from one again."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, witness)
    path = certify(watched(place, direct(witness)), A)
    other = Home(tmp_path / "other")
    shutil.copytree(place.root, other.root)
    yaml = YAML()
    asked = yaml.load(other.root / FILE)
    asked["origin"] = "neorl.example/plant-8"
    yaml.dump(asked, other.root / FILE)
    found = {check.name: check for check in verify_certificate(path, Ledger.open(other, write=False).trust)}
    assert found["witnesses"].passed is False
    assert found["witnesses"].detail == f"the head belongs to ledger {ORIGIN}, not to neorl.example/plant-8"
    said = next(check.detail for check in audit(other).failures if check.name == "witnesses")
    assert said.endswith(f"the head belongs to ledger {ORIGIN}, not to neorl.example/plant-8")


def test_a_certificate_by_an_ended_key_needs_the_ledger(home: Path, tmp_path: Path) -> None:
    """Attack: the thief of a key signs certificates with arbitrary dates."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, witness)
    ledger = watched(place, direct(witness))
    path = certify(ledger, A)
    (pin,) = ledger.trust.pins
    for change, verdict in (({"until": "2026-01-01T00:00:00Z"}, None), ({"revoked": "2026-01-01T00:00:00Z"}, False)):
        dated = TrustRoot(ledger.trust.keys, ledger.trust.source, (pin._replace(**change),))
        (said,) = [check for check in verify_certificate(path, dated) if check.name == "key"]
        assert said.passed is verdict
    assert not [check for check in verify_certificate(path, ledger.trust) if check.name == "key"]


def test_a_proxy_error_counts_as_a_silent_witness(home: Path, tmp_path: Path) -> None:
    """An error page says nothing about a head: other work continues, and the message names the status."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, witness)
    attempt = attempt_for(watched(place, direct(witness)), A)
    ledger = watched(place, lambda *_: Reply(502, "<html>Bad Gateway</html>"))
    ledger.append("note", NoteBody(text="goes on"))
    with pytest.raises(Refused, match=r"0 of 1 .* \(witness.example/w1 at .*: status 502\)"):
        draw_seed(ledger, attempt)


def test_a_witness_that_timed_out_is_not_asked_again_soon(home: Path, tmp_path: Path) -> None:
    place, asked = Home(home), list[str]()
    silent, other = (witness_in(tmp_path / name, f"witness.example/{name}") for name in ("w1", "w2"))
    pin_witnesses(place, silent, other)

    def transport(pinned: PinnedWitness, path: str, body: str | None) -> Reply:
        if pinned.key == str(silent.verifier):
            asked.append(path)
            raise TimeoutError("timed out")
        return direct(other)(pinned, path, body)

    ledger = watched(place, transport)
    draw_seed(ledger, attempt_for(ledger, A))
    assert len(asked) == 1


def test_an_encrypted_witness_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The passphrase is in the file that the environment names; a generated one is found without it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    older = open_witness(tmp_path / "older", "witness.example/w0").verifier
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse battery")
    monkeypatch.setenv(PASSPHRASE_FILE, str(secret))
    found = open_witness(tmp_path / "witness", "witness.example/w1").verifier
    assert open_witness(tmp_path / "witness").verifier == found
    assert open_witness(tmp_path / "older").verifier == older


def test_an_invalid_witness_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="name must not contain spaces"):
        open_witness(tmp_path / "named", "my witness")
    assert not (tmp_path / "named").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot create the witness folder"):
        open_witness(tmp_path / "file", "witness.example/w1")
