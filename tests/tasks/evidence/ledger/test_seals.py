"""Seals on results of tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.home import Home
from tasks.evidence.ledger.protocol import Head, Seal
from tasks.evidence.ledger.seals import result_file, seal_result, verify_result
from tasks.evidence.signer import Signer
from tests.evidence import signer_at

A, B = "a" * 64, "b" * 64


def test_a_sealed_result_is_known_again(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    signer = Signer.open(place)
    assert not verify_result(place, "evaluate", "key", A)
    seal_result(place, "evaluate", "key", A, signer.answer)
    path = result_file(place, "evaluate", "key")
    assert path == home / "results" / "evaluate-key.dsse.json"
    assert verify_result(place, "evaluate", "key", A)
    assert not verify_result(place, "evaluate", "key", B)
    # Nor does it pass for another stage's or another key's.
    for stage, key in (("evaluate", "other"), ("simulate", "key")):
        result_file(place, stage, key).write_bytes(path.read_bytes())
        assert not verify_result(place, stage, key, A)
    path.write_bytes(path.read_bytes().replace(b'"sig":"', b'"sig":"A'))
    assert not verify_result(place, "evaluate", "key", A)
    # The seal of another home, whose key is not pinned here.
    other = Home(tmp_path / "other")
    seal_result(other, "evaluate", "key", A, Signer.open(other).answer)
    path.write_bytes(result_file(other, "evaluate", "key").read_bytes())
    assert not verify_result(place, "evaluate", "key", A)


def test_a_result_is_sealed_by_the_given_signer(home: Path) -> None:
    with signer_at(Home(home)):
        seal_result(Home(home), "train", "k", A)
    assert verify_result(Home(home), "train", "k", A)
    assert not verify_result(Home(home), "train", "k", B)


def test_other_signed_envelopes_are_no_seals(home: Path) -> None:
    place = Home(home)
    head = Signer.open(place).answer(Head()).envelope
    place.folder("results")
    result_file(place, "evaluate", "key").write_text(head)
    assert not verify_result(place, "evaluate", "key", A)


@pytest.mark.parametrize(
    ("stage", "key", "sha256"), [("../keys", "k", A), ("s", "a/b", A), ("s", "", A), ("s", "k", "a")]
)
def test_paths_are_not_accepted_as_names(stage: str, key: str, sha256: str) -> None:
    with pytest.raises(ValidationError):
        Seal(stage=stage, key=key, sha256=sha256)
