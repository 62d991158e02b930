"""Rollbacks: verified again, under the current policy, never to a version that was ruled out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from configs.errors import Refused
from configs.home import Home
from configs.safety_policy import SafetyPolicy
from configs.strict import Approvers
from flows.cli.main import run
from flows.decisions import rollback
from tasks import promote
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions import queue
from tasks.evidence.decisions.approvals import approvers
from tasks.evidence.decisions.champions import RollbackBody, champion, leaving, promotion_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.lifecycle.champions import withdraw_champion
from tasks.lifecycle.in_force import in_force_at
from tasks.lifecycle.pages import wanted_pages
from tasks.lifecycle.policy import sign
from tests.evidence import PLANT, POLICY, candidate_record, certify, forge, open_ledger, propose
from tests.tasks.lifecycle.served import Served

if TYPE_CHECKING:
    pass

A, B, C = "a" * 64, "b" * 64, "c" * 64
WHY = "version 2 is nervous on the valve"


def crowned(ledger: Ledger, composite: str, version: str, by: str = "a reviewer", **changes: object) -> Entry:
    candidate = ledger.entry(propose(ledger, composite, version=version, run_key=version, **changes))
    return promote.promote_candidate(ledger.home, candidate, by, "compared")


def said(ledger: Ledger, version: str, by: str = "shift engineer") -> RollbackBody:
    """Return the body of a rollback to a version from the current ledger."""
    history = ledger.entries()
    promotion = promotion_of(history, PLANT, version)
    assert promotion is not None
    replaces, leaves = leaving(history, PLANT)
    return RollbackBody(
        composite=promotion.body["composite"],
        candidate=promotion.body["candidate"],
        version=version,
        restores=promotion.digest,
        replaces=replaces,
        leaves=leaves,
        by=by,
        why=WHY,
    )


def back(ledger: Ledger, version: str, by: str = "shift engineer") -> Entry:
    """Append a rollback without earlier checks, so that only the ledger's rule applies."""
    return ledger.append("rollback", said(ledger, version, by), plant=PLANT)


def test_an_earlier_champion_returns_and_the_replaced_one_does_not(ledger: Ledger) -> None:
    first, second = crowned(ledger, A, "1"), crowned(ledger, B, "2")
    entry = back(ledger, "1")
    entries = ledger.entries()
    assert champion(entries, PLANT) == entry
    assert champion(entries, PLANT, at=second.timestamp) == second
    assert (entry.body["restores"], entry.body["replaces"], entry.body["leaves"]) == (first.digest, second.digest, B)
    assert approvers(entries, entry) == "a reviewer, brought back by shift engineer"
    assert audit(ledger.home).passed
    pages = wanted_pages(entries, PLANT, datetime.now(UTC))
    assert [pages[v].tags["neorl.status"] for v in ("1", "2")] == ["champion", "rolled back from"]
    for version in ("1", "2"):
        told = f"| rolled back to version 1 | shift engineer | {WHY} | in the home's name |"
        assert told in pages[version].description
    # The next retraining that comes to the same composite does not put it into force.
    again = ledger.entry(propose(ledger, B, version="3", run_key="3"))
    assert queue.waiting(ledger.entries(), PLANT) == []
    with pytest.raises(Refused, match="shift engineer rolled back from version"):
        promote.promote_candidate(ledger.home, again, "rule: auto", "")
    # A new candidate is compared with the champion in force; only a rollback restores a replaced version.
    assert crowned(ledger, C, "4").body["replaces"] == entry.digest
    assert back(ledger, "2").body["leaves"] == C
    assert queue.verdict_against(ledger.entries(), PLANT, B) is None
    assert audit(ledger.home).passed


def test_an_earlier_champion_may_return_after_a_withdrawal(ledger: Ledger) -> None:
    first = crowned(ledger, A, "1")
    crowned(ledger, B, "2")
    withdraw_champion(ledger.home, PLANT, "2", "shift engineer", "it hunts")
    with pytest.raises(Refused, match=r"version 2 of .* was ruled out: shift engineer withdrew \(it hunts\)"):
        back(ledger, "2")
    entry = back(ledger, "1")
    assert (entry.body["restores"], entry.body["replaces"], entry.body["leaves"]) == (first.digest, None, "")
    assert champion(ledger.entries(), PLANT) == entry
    withdraw_champion(ledger.home, PLANT, "1", "shift engineer", "so does this")
    assert champion(ledger.entries(), PLANT) is None
    report = audit(ledger.home)
    assert report.passed, report.failures


def test_the_own_controller_takes_over_after_a_rollback(ledger: Ledger) -> None:
    certify(ledger, C)
    record = candidate_record(ledger, C, version="0", run_key="own", role="fallback")
    alone = tuple(gate for gate in record.gates if gate.name == "fallback")
    ledger.append("candidate", record.model_copy(update={"gates": alone}), plant=PLANT)
    crowned(ledger, A, "1")
    crowned(ledger, B, "2")
    assert withdraw_champion(ledger.home, PLANT, "2", "x", "y").takes_over.endswith("version 0")
    assert back(ledger, "1").body["leaves"] == ""
    assert withdraw_champion(ledger.home, PLANT, "1", "x", "y").takes_over.endswith("version 0")


def test_a_version_that_cannot_be_restored_is_refused(ledger: Ledger) -> None:
    crowned(ledger, A, "1")
    crowned(ledger, B, "2")
    propose(ledger, C, version="3", run_key="3")
    for version in ("3", "99"):
        body = said(ledger, "1").model_copy(update={"version": version})
        with pytest.raises(Refused, match=rf"version {version} of .* never was champion \(earlier champions: 1, 2\)"):
            ledger.append("rollback", body, plant=PLANT)
    with pytest.raises(Refused, match="version 2 of chemical_reactor is already champion"):
        back(ledger, "2")
    again = ledger.entry(propose(ledger, A, version="5", run_key="5"))
    promote.reject_candidate(ledger.home, again, "Ada", "too lively")
    with pytest.raises(Refused, match=r"was ruled out: Ada rejected \(too lively\)"):
        back(ledger, "1")
    assert audit(ledger.home).passed


def test_a_rollback_is_compare_and_set_with_person_and_reason(ledger: Ledger) -> None:
    crowned(ledger, A, "1")
    crowned(ledger, B, "2")
    stale = said(ledger, "1")
    crowned(ledger, C, "3")
    with pytest.raises(Refused, match="changed while the rollback was prepared"):
        ledger.append("rollback", stale, plant=PLANT)
    with pytest.raises(Refused, match="changed while the rollback was prepared"):
        ledger.append("rollback", said(ledger, "1").model_copy(update={"leaves": ""}), plant=PLANT)
    for empty in ({"by": " "}, {"why": " "}):
        with pytest.raises(Refused, match="a rollback needs a person and a reason"):
            ledger.append("rollback", said(ledger, "1").model_copy(update=empty), plant=PLANT)
    with pytest.raises(Refused, match="the rollback does not match the promotion of version 1"):
        ledger.append("rollback", said(ledger, "1").model_copy(update={"composite": B}), plant=PLANT)
    forge(ledger.home, "rollback", stale)
    assert {check.name for check in audit(ledger.home).failures} == {"promotions", "champions"}


def policy(**changes: object) -> SafetyPolicy:
    return POLICY.model_copy(update=changes)


def test_the_current_policy_applies_to_a_rollback(ledger: Ledger) -> None:
    crowned(ledger, A, "1", "rule: auto")
    crowned(ledger, B, "2", "Ada")
    sign(ledger, policy(approvers=Approvers(count=1)), "a reviewer", "a person from now on")
    assert back(ledger, "1", "Ben").kind == "rollback"
    sign(ledger, policy(approvers=Approvers(count=2)), "a reviewer", "two from now on")
    # Ada approved it then, which counts on; with Ben there are two, and twice Ada is one.
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1: see"):
        back(ledger, "2", "ADA")
    assert back(ledger, "2", "Ben").kind == "rollback"
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1: see"):
        back(ledger, "1", "Ben")
    sign(ledger, policy(p0=1e-4), "a reviewer", "stricter")
    with pytest.raises(Refused, match=r"p0 must be at most 0\.0001 \(policy\), got 0\.001: see"):
        back(ledger, "1")
    sign(ledger, policy(approvers=Approvers(count=1, keys=True)), "a reviewer", "with keys")
    with pytest.raises(Refused, match="the rollback needs the signature of shift engineer"):
        back(ledger, "1")


def test_the_author_does_not_approve_a_rollback(ledger: Ledger) -> None:
    crowned(ledger, A, "1", author="Ada")
    crowned(ledger, B, "2")
    sign(ledger, policy(approvers=Approvers(count=2, not_author=True)), "a reviewer", "not who made it")
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1"):
        back(ledger, "1", "Ada")
    assert back(ledger, "1", "Ben").kind == "rollback"


def test_an_expired_certificate_is_refused_but_not_an_old_approval(home: Path) -> None:
    start = datetime(2030, 3, 1, tzinfo=UTC)

    def at(days: int) -> Ledger:
        return open_ledger(Home(home), clock=lambda: start + timedelta(days=days))

    ledger = at(0)
    sign(ledger, policy(approval_days=1, certificate_days=30), "a reviewer", "short")
    for composite, version in ((A, "1"), (B, "2")):
        candidate = ledger.entry(propose(ledger, composite, version=version, run_key=version))
        promote._approved(ledger, candidate, promote.verdict_on(candidate, "a reviewer", ""), None)
    with pytest.raises(Refused, match="the certificate is older than 30 days"):
        back(at(31), "1")
    assert back(at(29), "1").kind == "rollback"


def test_the_champion_at_a_time_is_shown_with_its_evidence(home: Path) -> None:
    start = datetime(2030, 3, 1, 12, tzinfo=UTC)

    def at(hours: float) -> Ledger:
        return open_ledger(Home(home), clock=lambda: start + timedelta(hours=hours))

    sign(at(0), policy(certificate_days=30), "a reviewer", "first")
    for hours, composite, version in ((0, A, "1"), (24, B, "2")):
        ledger = at(hours)
        candidate = ledger.entry(propose(ledger, composite, version=version, run_key=version))
        promote._approved(ledger, candidate, promote.verdict_on(candidate, "Ada", "compared"), None)
    back(at(48), "1", "Ben")
    entries = at(48).entries()
    before = in_force_at(entries, PLANT, "2030-02-28")
    assert (before.version, before.who) == (None, "nobody: there had been no promotion")
    # Midnight in a zone five hours west is five in the morning in UTC.
    found = in_force_at(entries, PLANT, "2030-03-02T06:59:59-05:00")
    assert (found.version, found.at, found.zone) == ("1", "2030-03-02T11:59:59.000000Z", "with its own zone")
    found = in_force_at(entries, PLANT, "2030-03-02T07:00:00-05:00")
    assert (found.version, found.composite, found.who) == ("2", B, "version 2 was champion")
    assert in_force_at(entries, PLANT, "2030-03-02T12:00:00").zone == "UTC, because it has no zone"
    assert [(each.by, each.note, each.meaning) for each in found.approvals] == [
        ("Ada", "compared", "approved for closed loop")
    ]
    assert found.dataset is not None
    assert (found.dataset.rows, found.dataset.episodes) == (50, 5)
    assert found.certificate is not None
    assert (home / found.certificate.file).is_file()
    assert (found.certificate.since[:10], found.certificate.until) == ("2030-03-02", "2030-04-01T12:00:00Z")
    now = in_force_at(entries, PLANT, "2030-03-03")
    assert (now.version, now.zone) == ("1", "the end of that day in UTC")
    assert now.who == f"version 1 was champion, brought back by Ben ({WHY})"
    assert [each.by for each in now.approvals] == ["Ada", "Ben"]


def test_waiting_candidates_are_listed_with_their_claim(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = ledger.entry(propose(ledger, A, version="1", run_key="1"))
    assert run(["candidates", PLANT]) == 0
    head, *claim, page, following = capsys.readouterr().out.splitlines()
    assert head == f"{PLANT} version 1, composite {A[:12]}"
    assert [line.strip() for line in claim] == waiting.body["claim"].splitlines()
    assert page == f"  page: {waiting.body['url']}"
    assert following == f"  next: neorl approve {PLANT} 1, or neorl reject"


def test_the_history_shows_versions_in_force(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    crowned(ledger, A, "1")
    withdraw_champion(ledger.home, PLANT, "1", "Ben", "it hunts")
    assert run(["history", PLANT, "--at", "2999-01-01"]) == 0
    assert "(the end of that day in UTC): nobody: Ben had withdrawn version 1 (it hunts)" in capsys.readouterr().out
    crowned(ledger, B, "2")
    assert run(["history", PLANT]) == 0
    head, first, second = capsys.readouterr().out.splitlines()[:3]
    assert head.split("  ")[0] == "since"
    assert first.endswith("withdrawn by Ben: it hunts")
    assert "in force" in second
    assert "in force" not in first
    assert run(["history", PLANT, "--at", "2999-01-01T00:00:00"]) == 0
    shown = capsys.readouterr().out
    for told in ("(UTC, because it has no zone): version 2 was champion", "certificates/", "50 rows in 5 episodes"):
        assert told in shown
    assert run(["history", PLANT, "--at", "2999-01-01", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["then"]["version"], answer["champions"][0]["version"]) == ("2", "2")
    assert run(["history", PLANT, "--at", "noon"]) == 2


@pytest.mark.slow
def test_a_rollback_is_verified_and_mlflow_follows(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    v1, v2 = _two_champions(served)
    assert run(["rollback", PLANT, "--to", v1, "--why", WHY, "--by", "Ben", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["champion"], answer["record"]["approver"]) == (v1, "a reviewer, brought back by Ben")
    assert served.registry.aliases(PLANT) == {"champion": v1}
    assert served.said(v1, v2) == ["champion", "rolled back from"]
    # Given again, the command changes nothing.
    size = served.ledger.head().size
    assert rollback(served.home, PLANT, v1, "Ben", WHY).champion == v1
    assert served.ledger.head().size == size
    assert run(["rollback", PLANT, "--to", "99", "--why", WHY]) == 1
    assert "never was champion" in capsys.readouterr().err
    assert audit(served.home).passed


@pytest.mark.slow
def test_altered_or_missing_files_are_not_restored(served: Served) -> None:
    v1, v2 = _two_champions(served)
    size = served.ledger.head().size

    def refused(path: Path, match: str, content: bytes | None = None) -> None:
        kept = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(Refused, match=match):
            rollback(served.home, PLANT, v1, "Ben", WHY)
        path.write_bytes(kept)

    (candidate,) = (e for e in served.ledger.entries("candidate") if e.body["version"] == v1)
    bundle = next(served.home.root / f.path for f in candidate.artefacts if f.path.endswith("composite.npz"))
    refused(bundle, r"composite\.npz of version .* was altered: restore it", bundle.read_bytes() + b"x")
    refused(bundle, r"composite\.npz of version .* is missing: restore it")
    result = next(e for e in served.ledger.entries("result") if e.body["composite"] == candidate.body["composite"])
    certificate = served.home.root / result.artefacts[0].path
    refused(certificate, "no valid certificate \\(cannot read the certificate")
    forged = certificate.read_bytes().replace(b'"sig":"', b'"sig":"AAAA')
    refused(certificate, "no valid certificate \\(.*: signature: ", forged)
    model = served.registry.version(PLANT, v1).model_id
    root = Path(served.services.home.root) / "mlflow" / "artifacts"
    code = next(root.glob(f"*/models/{model}/artifacts/policy_model.py"))
    refused(code, r"in MLflow differs from the ledger \(.*policy_model\.py", b"print('another')\n")
    served.registry.annotate(PLANT, v1, {"neorl.composite": "0" * 64})
    with pytest.raises(
        Refused, match=r"version .* of chemical_reactor in MLflow must be composite .*, got 000000000000: restore it"
    ):
        rollback(served.home, PLANT, v1, "Ben", WHY)
    assert served.registry.aliases(PLANT) == {"champion": v2}
    assert served.ledger.head().size == size


def _two_champions(served: Served) -> tuple[str, str]:
    versions = []
    for _ in range(2):
        candidate = served.candidate()
        promote.promote_candidate(served.home, candidate, "a reviewer", "compared")
        versions.append(candidate.body["version"])
    return versions[0], versions[1]
