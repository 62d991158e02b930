"""The audit on a small real home: an untouched home passes, and every alteration is found and named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tamper import altered, copy_home, flip_byte, main, tamper, truncate
from configs.errors import BadInput, Refused
from configs.home import Home
from neorl_core.networks import Normaliser, Policy
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from tasks.evidence.attempts import Attempt, Outcome, ResultBody, attempt_alpha, draw_seed, seed_file
from tasks.evidence.audit.audit import AuditReport, audit
from tasks.evidence.certificate import PAYLOAD_TYPE, make_certificate, state
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger, artefact, folder_artefacts
from tasks.evidence.ledger.protocol import Certify
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.witness.seeds import DrawnSeed
from tasks.files.canonical import read_secret, sha256_hex, write_atomic
from tasks.models.bundles.bundle import save_bundle
from tests.evidence import (
    CLAIM,
    MATERIALS,
    OTHERWISE,
    PLANT,
    attempt_for,
    candidate_record,
    certify,
    counts,
    forge,
    furnished_home,
    inputs,
    open_ledger,
    outcome,
    served_folder,
)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(tmp_path_factory.mktemp("audit") / "home").home


@pytest.fixture
def copied(furnished: Home, tmp_path: Path) -> Home:
    shutil.copytree(furnished.root, tmp_path / "home")
    return Home(tmp_path / "home")


def named(report: AuditReport) -> str:
    assert not report.passed
    return " | ".join(f"{check.name}: {check.detail}" for check in report.failures)


def test_an_untouched_home_passes_and_says_what_was_checked(furnished: Home) -> None:
    head = (furnished.root / "ledger.head").read_text()
    report = audit(furnished, [head])
    assert report.passed
    assert {check.name: check.detail.split(",")[0] for check in report.checks} == {
        "table": "ledger.db: ok",
        "chain": "15 entries",
        "heads": "2 signed heads are in the ledger's history",
        "attempts": "6 entries",
        "decisions": "4 entries",
        "versions": "rules and texts: 15 entries by version 4; this NeoRL writes version 4",
        "promotions": "3 entries",
        "shadows": "0 entries",
        "monitoring": "0 entries",
        "keys": "0 entries",
        "people": "2 decisions are unsigned: they were made in the home's name",
        "federations": "0 entries",
        "others": "2 entries",
        "champions": "one champion for each of 1 plants",
        "policies": "1 pinned policies agree with the ledger and with the champions' claims",
        "files": "6 files named by entries match their SHA-256",
        "folders": "no unnamed files in 1 folders",
        "served": "1 models in MLflow match their SHA-256",
        "controllers": "0 composites are the plant's own controller",
        "signatures": "0 OpenSSF signatures of bundles are valid",
        "certificates": "2 certificates: seed",
        "time": "no entry is of the future",
        "witnesses": f"none are pinned in {furnished.root}/witnesses.yaml: completeness is the owner's word",
    }


def test_the_audit_needs_no_private_key_and_writes_nothing(copied: Home) -> None:
    (copied.root / "keys" / "signing.pem").unlink()
    before = {path: path.stat().st_mtime_ns for path in copied.root.rglob("*")}
    assert audit(copied).passed
    assert {path: path.stat().st_mtime_ns for path in copied.root.rglob("*")} == before


def test_another_trust_root_trusts_nothing_here(copied: Home, tmp_path: Path) -> None:
    other = open_ledger(Home(tmp_path / "other"))
    assert "entry 1: the signing key" in named(audit(copied, trust=other.home.trust))


def test_no_ledger_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no ledger"):
        audit(Home(tmp_path))


def test_files_that_are_gone_moved_or_overwritten_are_named(copied: Home) -> None:
    folder = copied.root / "datasets" / PLANT
    (folder / "shard.h5").unlink()
    (folder / "manifest.json").write_bytes(b"{}")
    outside = copied.root.with_name("outside.npz")
    (copied.root / "bundles" / "a" / "composite.npz").rename(outside)
    (copied.root / "bundles" / "a" / "composite.npz").symlink_to(outside)
    found = named(audit(copied))
    assert f"datasets/{PLANT}/shard.h5 (shard.h5, named by ledger entry 1): missing" in found
    assert "manifest.json, named by ledger entry 1): expected SHA-256" in found
    assert "composite.npz (bundle/composite.npz, named by ledger entry 2): outside the home" in found


def test_a_file_added_to_a_named_folder_is_found(copied: Home) -> None:
    (copied.root / "bundles" / "a" / "sub").mkdir()
    (copied.root / "bundles" / "a" / "sub" / "later.py").write_text("print('executed')")
    found = named(audit(copied))
    assert "bundles/a/sub/later.py: no entry names it, but entry 2 names all others in bundles/a" in found


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (lambda folder: (folder / "policy_model.py").write_text("import os"), "policy_model.py: expected SHA-256"),
        (lambda folder: (folder / "MLmodel").write_text("flavors: {}"), "MLmodel: expected SHA-256"),
        (lambda folder: (folder / "code" / "neorl_core" / "types.py").unlink(), "code/neorl_core/types.py: missing"),
        (lambda folder: (folder / "code" / "numpy.py").write_text(""), "code/numpy.py: a file that no entry names"),
        (lambda folder: shutil.rmtree(folder), "the model is missing"),
    ],
)
def test_every_file_that_mlflow_serves_is_followed(copied: Home, attack: Callable[[Path], object], said: str) -> None:
    """Loading a model executes its code and the files that MLmodel names, not its bundle."""
    attack(served_folder(copied))
    found = named(audit(copied))
    assert f"served: version 1 of {PLANT} in MLflow (ledger entry 7): {said}" in found


@pytest.mark.parametrize("beside", ["0", "2", "z"])
def test_an_untouched_copy_does_not_hide_an_altered_model(copied: Home, beside: str) -> None:
    """Attack: MLflow serves the folder of experiment 1, and the audit finds a copy of the same name first."""
    folder = served_folder(copied)
    experiments = folder.parents[3]
    shutil.copytree(experiments / "1", experiments / beside)
    (folder / "policy_model.py").write_text("import os")
    assert "policy_model.py: expected SHA-256" in named(audit(copied))


def test_a_policy_logged_as_the_own_controller_is_found(copied: Home) -> None:
    """It would need one gate instead of eight. The true own controller is not affected."""
    ledger = open_ledger(copied)
    reactor = PLANTS[PLANT]
    shape = reactor.spec.observation.size
    normaliser = Normaliser(np.zeros(shape), np.ones(shape), np.zeros(1), np.ones(1))
    policy = Policy({"Dense_0": {"kernel": np.zeros((shape, 1)), "bias": np.zeros(1)}}, normaliser)
    numbers = {}
    for name, composite in (("own", make_composite(reactor)), ("policy", make_composite(reactor, policy))):
        folder = copied.folder("bundles", name)
        digest = save_bundle(folder, composite, PLANT)
        certify(ledger, digest)
        record = candidate_record(ledger, digest)
        alone = tuple(gate for gate in record.gates if gate.name == "fallback")
        record = record.model_copy(update={"role": "fallback", "gates": alone, "version": name})
        files = folder_artefacts(copied, folder, "bundle")
        numbers[name] = ledger.append("candidate", record, plant=PLANT, artefacts=files).sequence
    report = audit(copied)
    assert [check.name for check in report.failures] == ["controllers"]
    assert f"version policy of {PLANT} (ledger entry {numbers['policy']}): logged as" in named(report)


def test_certificates_are_checked_whatever_else_fails(copied: Home) -> None:
    result = Ledger.open(copied, write=False).entries("result")[0]
    (copied.root / result.artefacts[0].path).unlink()
    found = named(audit(copied))
    assert "files: certificates/" in found
    assert "certificates: certificates/" in found


def test_heads_that_survive_elsewhere(copied: Home, furnished: Home) -> None:
    head = (furnished.root / "ledger.head").read_text()
    truncate(copied, 9)
    assert "but a signed head covers 15" in named(audit(copied))
    with pytest.raises(Refused, match=r"the ledger has 9 entries, .* covers 15: .*truncated"):
        open_ledger(copied).signed_head()
    key, _ = open_keys(copied, first_use=False)
    older = key.seal(HEAD_TYPE, Ledger.open(copied, write=False).head()._asdict())
    (copied.root / "ledger.head").write_bytes(older)
    # A genuine older state: only a head from elsewhere can tell.
    assert audit(copied).passed
    assert "but a signed head covers 15" in named(audit(copied, [head]))


@pytest.mark.parametrize("keep", [15, 9, 0])
def test_a_ledger_whose_own_head_was_taken_away_fails(copied: Home, keep: int) -> None:
    """Otherwise, truncating the ledger and removing its head would stay unnoticed."""
    truncate(copied, keep)
    (copied.root / "ledger.head").unlink()
    assert "heads: ledger.head is missing, so truncation cannot be excluded" in named(audit(copied))


@pytest.mark.parametrize("text", ["", "hello", "{}"])
def test_invalid_heads_are_refused(furnished: Home, text: str) -> None:
    assert "head 1: invalid signed envelope" in named(audit(furnished, [text]))


Make = Callable[[dict[str, Entry]], dict[str, Any]]


def audit_forged(home: Home, kind: str, body: Make) -> AuditReport:
    """Audit after the key's holder appended an entry that breaks the rules."""
    last = {entry.kind: entry for entry in Ledger.open(home, write=False).entries()}
    forge(home, kind, body(last))
    return audit(home)


def test_rules_are_replayed(copied: Home) -> None:
    def spare(last: dict[str, Entry]) -> dict[str, Any]:
        return {
            **inputs(sha256_hex(b"c")).model_dump(),
            "number": 1,
            "alpha": attempt_alpha(0.95, 1),
            "scope": CLAIM.model_dump(mode="json"),
        }

    assert "attempts: ledger entry 16: the next attempt of this lineage is number 3" in named(
        audit_forged(copied, "attempt", spare)
    )


@pytest.mark.parametrize(
    ("kind", "body", "failing"),
    [
        # The approval is used already.
        (
            "promotion",
            lambda last: {**last["promotion"].body, "replaces": last["promotion"].digest},
            "promotions: ledger entry 16: .* has no unused approval",
        ),
        # A second champion beside the first.
        ("promotion", lambda last: last["promotion"].body, "promotions: ledger entry 16: the champion .* changed to"),
        (
            "promotion",
            lambda last: {
                **last["promotion"].body,
                "composite": "c" * 64,
                "approval": "",
                "replaces": last["promotion"].digest,
            },
            "promotions: ledger entry 16: .* has no passed certification",
        ),
        ("promotion", lambda last: {}, "promotions: ledger entry 16: .*'composite'"),
        ("promotion", lambda last: {"replaces": {}}, "promotions: ledger entry 16: .*'composite'"),
        ("withdrawal", lambda last: {"promotion": []}, "promotions: ledger entry 16: .*'composite'"),
        ("approval", lambda last: {"composite": "c" * 64}, "decisions: ledger entry 16: .*'by'"),
        (
            "approval",
            lambda last: {**last["approval"].body, "composite": "c" * 64},
            "decisions: ledger entry 16: the approval names no logged candidate",
        ),
        ("seed", lambda last: last["seed"].body, "attempts: ledger entry 16: .* already has a seed"),
        (
            "seed",
            lambda last: {"attempt": "c" * 64, "commitment": ""},
            "attempts: ledger entry 16: .* already has a seed",
        ),
        ("result", lambda last: last["result"].body, "attempts: ledger entry 16: .* already has a result"),
        ("seed", lambda last: {}, "attempts: ledger entry 16: .*'attempt'"),
        ("result", lambda last: {}, "attempts: ledger entry 16: .*'lineage'"),
        ("champion", lambda last: {}, "others: ledger entry 16: an entry's kind must be one of"),
    ],
)
def test_entries_past_the_rules_are_found(copied: Home, kind: str, body: Make, failing: str) -> None:
    assert re.search(failing, named(audit_forged(copied, kind, body)))


def test_two_champions_are_counted(copied: Home) -> None:
    found = named(audit_forged(copied, "promotion", lambda last: last["promotion"].body))
    assert f"champions: expected one champion of {PLANT}, got 2" in found


def opened(home: Home) -> Attempt:
    """Open an attempt for composite "c" with a seed and without a result."""
    ledger = open_ledger(home)
    attempt = attempt_for(ledger, sha256_hex(b"c"))
    draw_seed(ledger, attempt)
    return attempt


def forge_result(home: Home, said: Outcome, envelope: bytes | None, attempt: Attempt | None = None) -> AuditReport:
    """Audit after the key's holder closed an attempt of composite "c" with this certificate."""
    attempt = attempt or opened(home)
    secret = read_secret(seed_file(home, attempt.entry)).hex()
    logged = attempt.body.model_dump(exclude={"scope"})
    body = ResultBody(**said.model_dump(), **logged, attempt=attempt.entry, secret=secret)
    files = []
    if envelope is not None:
        files.append(artefact(home, write_atomic(home.root / "certificates" / "forged.json", envelope)))
    forge(home, "result", body, files)
    return audit(home)


def test_a_certificate_of_another_attempt_is_found(copied: Home) -> None:
    """The valid certificate of one attempt is named by the result of another one."""
    old = Ledger.open(copied, write=False).entries("result")[0]
    said = Outcome.model_validate({name: old.body[name] for name in Outcome.model_fields})
    report = forge_result(copied, said, (copied.root / old.artefacts[0].path).read_bytes())
    assert "certificates/forged.json: belongs to another attempt than ledger entry 18" in named(report)


@pytest.mark.parametrize(("changed", "to"), OTHERWISE.items())
def test_a_result_that_exceeds_its_certificate_is_found(copied: Home, changed: str, to: object) -> None:
    """A failed test is logged as passed; the certificate is valid and of this attempt."""
    attempt = opened(copied)
    failed = counts(attempt.alpha, (1,), episodes=4000)
    envelope = make_certificate(open_ledger(copied), attempt.entry, failed, MATERIALS)
    said = outcome(attempt.body.composite, failed).model_copy(update={changed: to})
    found = named(forge_result(copied, said, envelope, attempt))
    assert "certificates/forged.json: ledger: entries for attempt 3, seed and result" in found


def test_a_passed_result_without_a_certificate_is_found(copied: Home) -> None:
    report = forge_result(copied, Outcome(passed=True), None)
    assert "attempts: ledger entry 18: the passed result of attempt" in named(report)


def test_a_false_certificate_is_found(copied: Home) -> None:
    """The ledger names its exact bytes, but the verdict does not follow from the counts."""
    attempt, ledger = opened(copied), open_ledger(copied)
    secret, record = read_secret(seed_file(copied, attempt.entry)), ledger.entries("seed")[-1]
    drawn = DrawnSeed(record, secret, "", ())
    key, _ = open_keys(copied, first_use=False)
    true = counts(attempt.alpha)
    request = Certify(attempt=attempt.entry, counts=true, materials=MATERIALS)
    statement = state(ledger.entry(attempt.entry), drawn, request, ledger.signed_head(), ledger.entries()).model_dump(
        mode="json", by_alias=True
    )
    false = counts(attempt.alpha, (1,), episodes=4000).model_copy(update={"certified": True})
    statement["predicate"]["counts"] = false.model_dump(mode="json")
    report = forge_result(copied, outcome(attempt.body.composite, false), key.seal(PAYLOAD_TYPE, statement))
    assert "certificates/forged.json: statistics: 1 violations in 4000 episodes" in named(report)


@pytest.mark.parametrize(("part", "field"), [("materials", "dataset"), ("materials", "config"), ("attempt", "opened")])
def test_a_certificate_with_other_inputs_than_its_attempt_is_found(copied: Home, part: str, field: str) -> None:
    """Counts and signature are valid; only the attempt's entry differs."""
    attempt, ledger = opened(copied), open_ledger(copied)
    true = counts(attempt.alpha)
    statement = ledger.trust.unseal(PAYLOAD_TYPE, make_certificate(ledger, attempt.entry, true, MATERIALS))
    statement["predicate"][part][field] = "2020-01-01T00:00:00.000000Z" if field == "opened" else "f" * 64
    key, _ = open_keys(copied, first_use=False)
    report = forge_result(copied, outcome(attempt.body.composite, true), key.seal(PAYLOAD_TYPE, statement), attempt)
    assert "certificates/forged.json: ledger: entries for attempt 3, seed and result" in named(report)


def test_damage_that_no_query_reads_is_found(furnished: Home, tmp_path: Path) -> None:
    """A digest occurs in the table, in an index, and as predecessor in both: flip each."""
    home = copy_home(furnished, tmp_path / "copy")
    digest = Ledger.open(home, write=False).entries()[4].digest.encode()
    raw = home.ledger.read_bytes()
    found = [at for at in range(len(raw)) if raw.startswith(digest, at)]
    assert len(found) == 4
    for at in found:
        with altered(home.ledger):
            flip_byte(home.ledger, at + 20, 1)
            assert not audit(home).passed


@pytest.mark.slow
def test_flipped_bytes_are_all_found(furnished: Home, tmp_path: Path) -> None:
    """`make tamper` in small; the home itself is untouched."""
    results = tamper(furnished, flips=60, seed=1, scratch=tmp_path)
    assert set(results) == {
        "ledger row",
        "ledger file",
        "certificate",
        "dataset",
        "flip bytes outside dataset values",
        "model and evidence",
        "sign again with a fresh key",
        "truncate the ledger",
        "restore an older home",
    }
    for kind, count in results.items():
        assert count["found"] == count["tried"] > 0, (kind, count)
    assert audit(furnished).passed


def test_the_benchmark_copies_and_reports(
    furnished: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(copy_home(furnished, tmp_path / "copy")).passed
    monkeypatch.setattr("sys.argv", ["tamper", "--home", str(furnished.root), "--flips", "5"])
    assert main() == 0
    assert "restore an older home" in capsys.readouterr().out
