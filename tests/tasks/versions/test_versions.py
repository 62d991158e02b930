"""Versions of rules and texts: frozen results of version 1, and ledgers of mixed versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from neorl_core.plants import NAMES
from tasks import gates
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.claims import Claim
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger.entry import read_entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, insert
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.ledger.table import connect
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import sha256_hex
from tasks.references import Evidence, ProcessEvidence
from tasks.versions import versions
from tasks.versions.versions import VERSIONS, newest
from tests.evidence import PLANT, certify, crown, open_ledger, propose, put, verdict

FROZEN = json.loads(Path(__file__).with_name("version_1.json").read_text())
"""Verdicts and claims that commit 89a12a2 computed for random evidence near every threshold."""
VERDICTS = {"1": True, "0": False, "-": None}
TEXTS = {
    1: "11137d6672a2d3e0",
    2: "c44dd5dd3918fe5d",
    3: "c44dd5dd3918fe5d",
    4: "c44dd5dd3918fe5d",
}
"""SHA-256 of each version's wording. A released wording never changes: add a version instead."""


@pytest.mark.parametrize("kind", ["simulated", "log_only"])
def test_version_1_judges_as_commit_89a12a2(kind: str) -> None:
    frozen, model = FROZEN[kind], Evidence if kind == "simulated" else ProcessEvidence
    assert tuple(getattr(VERSIONS[1], kind)) == tuple(frozen["gates"])
    for change, verdicts in frozen["cases"]:
        evidence = model.model_validate_json(json.dumps({**frozen["base"], **change}))
        expected = dict(zip(frozen["gates"], map(VERDICTS.get, verdicts), strict=True))
        assert VERSIONS[1].verdicts(evidence) == expected, change


def test_version_1_words_claims_as_commit_89a12a2() -> None:
    claim = Claim.model_validate_json(json.dumps(FROZEN["claim"]))
    strict = claim.model_copy(update={"p0": 0.00025, "confidence": 0.999})
    for number, (passed, witnesses, text) in enumerate(FROZEN["claims"]):
        scope = strict if number == len(FROZEN["claims"]) - 1 else claim
        assert scope.lines("a" * 64, "b" * 64, passed, witnesses, VERSIONS[1].texts) == text


@pytest.mark.parametrize("number", VERSIONS)
def test_released_wording_never_changes(number: int) -> None:
    text = json.dumps(VERSIONS[number].texts._asdict(), sort_keys=True)
    assert sha256(text.encode()).hexdigest()[:16] == TEXTS[number]


def test_newest_version_knows_every_simulator() -> None:
    assert VERSIONS[newest()].simulators == set(NAMES), "add a version whose `simulators` are neorl_core.plants.NAMES"


def later(gate: str | None) -> versions.Version:
    """The newest version with one more gate, or without it."""
    simulated = {name: verdict for name, verdict in versions.current().simulated.items() if name != "noise"}
    if gate:
        simulated = {**simulated, gate: lambda evidence: evidence.fallback_share <= 0.5}
    return versions.current()._replace(simulated=simulated)


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Add a version with one more gate (`add("noise")`) or without it (`add(None)`)."""
    monkeypatch.setitem(gates.DETAILS, "noise", lambda evidence: f"fallback share {evidence.fallback_share:g}")

    def added(gate: str | None) -> None:
        monkeypatch.setitem(versions.VERSIONS, newest() + 1, later(gate))

    return added


def digest(name: str) -> str:
    return sha256_hex(name.encode())


def test_audit_judges_each_entry_by_its_own_version(tmp_path: Path, add: Any) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    crown(ledger, digest("a"))
    before, now = len(ledger.entries()), newest()
    add("noise")
    crown(ledger, digest("b"))
    assert [gate["name"] for gate in ledger.entries("candidate")[-1].body["gates"]][-1] == "noise"
    add(None)
    crown(ledger, digest("c"))
    found = audit(ledger.home)
    assert not [check for check in found.failures if check.name not in ("files", "served")]
    rules = [entry.rules for entry in ledger.entries()]
    assert rules == sorted(rules)
    assert (set(rules), rules[before - 1], rules[before]) == ({now, now + 1, now + 2}, now, now + 1)
    named = next(check.detail for check in found.checks if check.name == "versions")
    assert named.startswith(f"rules and texts: {before} entries by version {now}, ")
    assert named.endswith(f"this NeoRL writes version {now + 2}")


def test_a_candidate_without_a_later_gate_cannot_be_approved(tmp_path: Path, add: Any) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    waiting, approved = verdict(ledger, digest("a")), approve(ledger, PLANT, verdict(ledger, digest("b")))
    add("noise")
    cure = (
        f"judged by rules version {newest() - 1}, but rules version {newest()} requires the gate noise too: retrain it"
    )
    with pytest.raises(Refused, match=cure):
        approve(ledger, PLANT, waiting)
    with pytest.raises(Refused, match=cure):
        put(ledger, approved, None)


def forge(ledger: Ledger, rules: object) -> None:
    """Append a note that claims a version, as the holder of the private key could."""
    key, last = open_keys(ledger.home, first_use=False)[0], ledger.entries()[-1]
    payload = {
        **{"artefacts": [], "body": {"text": ""}, "kind": "note", "plant": "", "predecessor": last.digest},
        **{"sequence": last.sequence + 1, "timestamp": last.timestamp},
    }
    claimed = payload if rules is None else {**payload, "rules": rules}
    entry = replace(read_entry(payload, key.seal(ENTRY_TYPE, claimed)))
    insert(connect(ledger.home.ledger_url), entry)


@pytest.mark.parametrize(
    ("rules", "refusal"),
    [
        (
            None,
            f"ledger entry 2: uses rules version 1 after an entry of version {newest()}, and versions",
        ),
        (9, f"ledger entry 2: uses rules version 9, this NeoRL knows up to {newest()}: upgrade"),
        (1, "ledger entry 2: rules must be a whole number of at least 2, got 1"),
        (0, "ledger entry 2: rules must be a whole number of at least 2, got 0"),
        (True, "ledger entry 2: rules must be a whole number of at least 2, got True"),
        ("2", "ledger entry 2: rules must be a whole number of at least 2, got '2'"),
        (2.0, "ledger entry 2: "),
    ],
)
def test_a_forged_version_is_refused(tmp_path: Path, rules: object, refusal: str) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    ledger.append("note", NoteBody())
    forge(ledger, rules)
    with pytest.raises(Refused, match=refusal):
        Ledger.open(ledger.home, write=False).entries()


def test_a_later_version_asks_for_an_upgrade_and_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    ledger.append("note", NoteBody())
    forge(ledger, 9)
    monkeypatch.setenv("NEORL_HOME", str(ledger.home.root))
    assert run(["audit", "verify"]) == 1
    shown = capsys.readouterr()
    assert f"ledger entry 2: uses rules version 9, this NeoRL knows up to {newest()}: upgrade NeoRL" in shown.out
    assert shown.err.rstrip().endswith("upgrade NeoRL.")
    assert "backup" not in shown.err


def test_the_signer_writes_the_newest_version_only(tmp_path: Path) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    assert ledger.append("note", NoteBody()).rules == newest()


def test_a_certificate_keeps_the_wording_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    path = certify(ledger, digest("a"))
    texts = versions.current().texts._replace(claim="Entirely other words", unwitnessed="nobody")
    monkeypatch.setitem(versions.VERSIONS, newest() + 1, versions.current()._replace(texts=texts))
    assert not [check for check in verify_certificate(path, ledger.trust, ledger=ledger) if check.passed is False]
    propose(ledger, digest("b"))
    assert ledger.entries("result")[-1].body["claim"] == "Entirely other words.\nnobody"


def test_a_certificate_of_a_later_version_asks_for_an_upgrade(tmp_path: Path, add: Any) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(versions.VERSIONS, newest() + 1, versions.current())
        path = certify(ledger, digest("a"))
    checks = verify_certificate(path, ledger.trust)
    details = [check.detail for check in checks if check.passed is False]
    assert f"uses rules version {newest() + 1}, this NeoRL knows up to {newest()}: upgrade NeoRL" in details


def test_signed_heads_do_not_depend_on_versions(tmp_path: Path, add: Any) -> None:
    ledger = open_ledger(Home(tmp_path / "home"))
    ledger.append("note", NoteBody())
    head = ledger.signed_head()
    add("noise")
    ledger.append("note", NoteBody())
    assert set(ledger.trust.unseal(HEAD_TYPE, head.encode())) == {"last", "root", "size"}
    ledger.verify([head])
