"""Whose ledger witnesses countersign: one of this name, by its key or one that the key before vouches for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from ruamel.yaml import YAML

from benchmarks.redteam.witnessed import ORIGIN, direct, pin_witnesses, watched, witness_in
from configs.errors import Refused
from configs.home import Home
from tasks.adapters.ledger.attempts import draw_seed
from tasks.adapters.ledger.audit import audit
from tasks.adapters.ledger.certificate import verify_certificate
from tasks.adapters.ledger.keys import open_keys
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.ledger.protocol import Rotate
from tasks.adapters.ledger.signing import SigningKey
from tasks.adapters.ledger.witness.notes import SIGNATURE, Note, Verifier, signed_note
from tasks.adapters.ledger.witness.pinned import FILE
from tasks.adapters.ledger.witness.service import Denied
from tests.evidence import attempt_for, certify

A, B = "a" * 64, "b" * 64


def test_the_key_that_a_home_rotates_to_is_vouched_for_at_its_witness(home: Path, tmp_path: Path) -> None:
    """A witness of others takes the next key on the word of one that it knows, and on nobody else's."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1", open_to_all=False)
    pin_witnesses(place, witness)
    ledger = watched(place, direct(witness))
    old, _ = open_keys(place, first_use=False)
    mine, strange = (Verifier.of(ORIGIN, SIGNATURE, key) for key in (old, SigningKey(Ed25519PrivateKey.generate())))
    with pytest.raises(Denied) as unknown:
        witness.take_log(str(signed_note(f"{strange}\n", ORIGIN, old)))
    assert unknown.value.status == 404
    witness.add_log(mine)
    draw_seed(ledger, attempt_for(ledger, A))
    # Somebody else's word, a word about another key, and a key without a word.
    thief = SigningKey(Ed25519PrivateKey.generate())
    for text in (str(signed_note(f"{strange}\n", ORIGIN, thief)), f"{strange}\n"):
        with pytest.raises(Denied, match="got another"):
            witness.take_log(text)
    ledger.request(Rotate(by="an administrator", why="yearly"))
    new, _ = open_keys(place, first_use=False)
    assert set(witness.logs()[0].keys) == {str(mine), str(Verifier.of(ORIGIN, SIGNATURE, new))}
    again = watched(place, direct(witness))
    draw_seed(again, attempt_for(again, B))
    assert Note.parse(witness.newest(ORIGIN)).is_signed_by(Verifier.of(ORIGIN, SIGNATURE, new))
    assert audit(place).passed


def test_a_key_is_not_rotated_where_a_witness_does_not_answer(home: Path, tmp_path: Path) -> None:
    """It would sign heads that the witness refuses for ever."""
    place, witness = Home(home), witness_in(tmp_path / "witness", "witness.example/w1")
    pin_witnesses(place, witness)
    ledger = watched(place, direct(witness))
    draw_seed(ledger, attempt_for(ledger, A))
    old, _ = open_keys(place, first_use=False)
    silent = watched(place, direct(witness, silent=[witness.name]))
    with pytest.raises(Refused, match="expected every witness to learn of the next key, got no answer"):
        silent.request(Rotate(by="an administrator", why="yearly"))
    assert open_keys(place, first_use=False)[0].public == old.public
    assert not ledger.entries("rotation")


def test_a_certificate_of_another_ledger_at_the_same_witness_is_told_apart(home: Path, tmp_path: Path) -> None:
    """The attack: a second ledger under a new name, whose attempts begin at one again."""
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
    assert found["witnesses"].detail == f"expected a head of ledger neorl.example/plant-8, got one of {ORIGIN}"
    said = next(check.detail for check in audit(other).failures if check.name == "witnesses")
    assert said.endswith(f"expected a head of ledger neorl.example/plant-8, got one of {ORIGIN}")
