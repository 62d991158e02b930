"""The audit on a small real home: what passes, and that every alteration is found and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tamper import altered, copy_home, flip_byte, main, tamper, truncate
from configs.errors import BadInput
from configs.home import Home
from tasks.adapters.files.canonical import sha256_hex, write_atomic
from tasks.adapters.ledger.attempts import attempt_alpha, close_attempt, draw_seed
from tasks.adapters.ledger.audit import AuditReport, audit
from tasks.adapters.ledger.certificate import make_certificate
from tasks.adapters.ledger.ledger import Entry, Ledger, artefact
from tests.evidence import CLAIM, CONFIG, DATASET, LINEAGE, MATERIALS, PLANT, attempt_for, counts, furnished_home


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
        "chain": "12 entries",
        "heads": "2 signed heads are in the ledger's history",
        "attempts": "4 attempts and results",
        "promotions": "2 promotions",
        "champions": "one champion for each of 1 plants",
        "files": "6 files named by entries",
        "certificates": "2 certificates: seed",
    }


def test_the_audit_needs_no_private_key_and_writes_nothing(copied: Home) -> None:
    (copied.root / "keys" / "signing.pem").unlink()
    before = {path: path.stat().st_mtime_ns for path in copied.root.rglob("*")}
    assert audit(copied).passed
    assert {path: path.stat().st_mtime_ns for path in copied.root.rglob("*")} == before


def test_another_trust_root_trusts_nothing_here(copied: Home, tmp_path: Path) -> None:
    other = Ledger.open(Home(tmp_path / "other"))
    assert "entry 1: expected a signature by a key pinned" in named(audit(copied, trust=other.home.trust))


def test_no_ledger_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected a ledger"):
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


def test_heads_that_survive_elsewhere(copied: Home, furnished: Home) -> None:
    head = (furnished.root / "ledger.head").read_text()
    truncate(copied, 9)
    assert "ledger.head: expected at least the 12 ledger entries" in named(audit(copied))
    (copied.root / "ledger.head").write_text(Ledger.open(copied).signed_head())
    # A genuine older state: only a head from elsewhere can tell.
    assert audit(copied).passed
    assert "head 1: expected at least the 12 ledger entries" in named(audit(copied, [head]))


@pytest.mark.parametrize("text", ["", "hello", "{}"])
def test_heads_that_are_none_are_refused(furnished: Home, text: str) -> None:
    assert "head 1: expected a canonical signed envelope" in named(audit(furnished, [text]))


def forge(home: Home, kind: str, body: Callable[[dict[str, Entry]], dict[str, Any]]) -> AuditReport:
    """Append an entry past the rules, as the holder of the key could."""
    ledger = Ledger.open(home)
    last = {entry.kind: entry for entry in ledger.entries()}
    ledger.append(kind, body(last), plant=PLANT)
    return audit(home)


def test_rules_are_replayed(copied: Home) -> None:
    def spare(last: dict[str, Entry]) -> dict[str, Any]:
        inputs = {"lineage": LINEAGE, "composite": sha256_hex(b"c"), "dataset": DATASET, "config": CONFIG}
        return {**inputs, "number": 1, "alpha": attempt_alpha(0.95, 1), "confidence": 0.95}

    assert "attempts: ledger entry 13: expected attempt 3 of its lineage" in named(forge(copied, "attempt", spare))


@pytest.mark.parametrize(
    ("body", "failing"),
    [
        # The approval is used already.
        (lambda last: {**last["promotion"].body, "replaces": last["promotion"].digest}, "approval of composite"),
        # A second champion beside the first.
        (lambda last: last["promotion"].body, "in force"),
        (lambda last: {"composite": "c" * 64, "approval": "", "replaces": last["promotion"].digest}, "certification"),
        (lambda last: {}, "ledger entry 13: 'composite'"),
    ],
)
def test_promotions_past_the_rules_are_found(copied: Home, body: Any, failing: str) -> None:
    found = named(forge(copied, "promotion", body))
    assert "promotions: ledger entry 13" in found
    assert failing in found


def test_two_champions_are_counted(copied: Home) -> None:
    found = named(forge(copied, "promotion", lambda last: last["promotion"].body))
    assert f"champions: expected one champion of {PLANT}, got 2" in found


def test_a_certificate_of_another_attempt_is_found(copied: Home) -> None:
    """A passed attempt's true certificate is put behind the result of another one."""
    ledger = Ledger.open(copied)
    attempt = attempt_for(ledger, sha256_hex(b"c"))
    draw_seed(ledger, attempt)
    old = copied.root / ledger.entries("result")[0].artefacts[0]["path"]
    path = write_atomic(copied.root / "certificates" / "again.json", old.read_bytes())
    close_attempt(ledger, attempt, {"passed": True}, [artefact(copied, path)])
    expected = "certificates/again.json: a certificate of another attempt than that of ledger entry 15"
    assert expected in named(audit(copied))


def test_a_certificate_that_was_never_true_is_found(copied: Home) -> None:
    """The ledger names its very bytes, but the verdict does not follow from the counts."""
    ledger = Ledger.open(copied)
    attempt = attempt_for(ledger, sha256_hex(b"c"))
    seed = draw_seed(ledger, attempt)
    found = {**counts(attempt.alpha, (1,), episodes=4000), "certified": True}
    envelope = make_certificate(ledger, attempt, seed, CLAIM, found, MATERIALS)
    path = write_atomic(copied.root / "certificates" / "c.json", envelope)
    close_attempt(ledger, attempt, {"passed": True}, [artefact(copied, path)])
    assert "certificates/c.json: statistics: 1 violations in 4000 episodes" in named(audit(copied))


def test_damage_that_no_query_reads_is_found(furnished: Home, tmp_path: Path) -> None:
    """A digest stands in the table, in its own index, and as the successor's predecessor in both: flip each."""
    home = copy_home(furnished, tmp_path / "copy")
    digest = Ledger.open(home, write=False).entries()[4].digest.encode()
    raw = home.ledger.read_bytes()
    found = [at for at in range(len(raw)) if raw.startswith(digest, at)]
    assert len(found) == 4
    for at in found:
        with altered(home.ledger):
            flip_byte(home.ledger, at + 20, 1)
            assert not audit(home).passed


def test_flipped_bytes_are_all_found(furnished: Home, tmp_path: Path) -> None:
    """`make tamper` in small; the home itself is untouched."""
    results = tamper(furnished, flips=60, seed=1, scratch=tmp_path)
    assert set(results) == {
        "ledger row",
        "ledger file",
        "certificate",
        "dataset",
        "dataset slack",
        "model and evidence",
        "signed again with a fresh key",
        "truncated ledger",
        "restored older home",
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
    assert "restored older home" in capsys.readouterr().out
