"""Shadows of log-only plants: approval, duration, and no champions."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from tasks.audit_report.decisions import in_force_in
from tasks.audit_report.tables import Period
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions import approvals, champions, shadows, verdicts
from tasks.evidence.decisions.queue import waiting
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import read_payload, with_key
from tasks.files.canonical import sha256_hex
from tasks.gates import REQUIRED_LOG_ONLY
from tasks.log_only.shadow_comparison import known_comparison
from tasks.promote import promote_candidate, reject_candidate
from tasks.references import (
    CandidateRecord,
    ProcessEvidence,
    ShadowComparison,
)
from tests import judged
from tests.evidence import DATASET, PLANT, forge, judged_record, open_ledger, propose
from tests.tasks.evidence.people.persons import Person, enrol

PROCESS = "buffer_vessel"
A, B = (sha256_hex(name) for name in (b"a", b"b"))
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    """A clock set by tests."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    found = open_ledger(Home(tmp_path / "home"), clock)
    # Decisions open the ledger themselves: give them this one, whose signer uses the test clock.
    monkeypatch.setattr(Ledger, "open", staticmethod(lambda home, **_: found))
    return found


def record(composite: str, evidence: ProcessEvidence | None = None, **changes: Any) -> CandidateRecord:
    """Log a candidate of a log-only plant that passes every gate, with changes."""
    return judged_record(PROCESS, composite, evidence or judged.process_evidence(), **{"shadow_days": 30} | changes)


def logged(ledger: Ledger, composite: str, **changes: Any) -> Entry:
    return ledger.append("candidate", record(composite, **changes), plant=PROCESS)


def begun(ledger: Ledger, composite: str = A, **changes: Any) -> Entry:
    return promote_candidate(ledger.home, logged(ledger, composite, **changes), "shift engineer", "looks well")


def reported(ledger: Ledger) -> list[tuple[str, str | None, str]]:
    """Return composite, end and reason of every shadow in the year's report."""
    year = Period(first=date(2026, 1, 1), last=date(2026, 12, 31))
    return [(row.composite, row.until, row.ended) for row in in_force_in(ledger.entries(), year)]


def test_an_approved_candidate_runs_in_shadow_for_its_days(ledger: Ledger, clock: Clock) -> None:
    entry = begun(ledger)
    assert (entry.kind, entry.body["days"]) == ("shadow", 30)
    watched = shadows.shadow(ledger.entries(), PROCESS)
    assert watched is not None
    assert watched.until == NOON + timedelta(days=30)
    assert watched.runs(NOON + timedelta(days=30) - timedelta(seconds=1))
    assert not watched.runs(NOON + timedelta(days=30))
    assert champions.champion(ledger.entries(), PROCESS) is None
    assert not waiting(ledger.entries(), PROCESS)
    # One approval is enough; an ended shadow is extended, not approved again.
    candidate = ledger.entry(entry.body["candidate"])
    assert promote_candidate(ledger.home, candidate, "again", "", clock).digest == entry.digest
    clock.now = NOON + timedelta(days=31)
    with pytest.raises(Refused, match=f"has ended: extend it with 'neorl extend {PROCESS} --days"):
        promote_candidate(ledger.home, candidate, "again", "", clock)


def test_a_person_with_a_key_signs_an_extension(ledger: Ledger, clock: Clock) -> None:
    """Attack: the home's owner extends a shadow in the name of a person who has a key."""
    entry, ada = begun(ledger), Person("Ada")
    enrol(ledger, ada)
    said = shadows.ExtensionBody(shadow=entry.digest, days=10, by="ada", note="the winter is to come")
    with pytest.raises(Refused, match="the extension needs the signature of ada"):
        ledger.append("extension", said, plant=PROCESS)
    forge(ledger.home, "extension", said, plant=PROCESS)
    assert "shadows" in {check.name for check in audit(ledger.home).failures}
    envelope = with_key(ada.name, ada.key, clock).sign(shadows.extension_content(entry, said))
    signed = said.model_copy(update={"signature": envelope, "signed": read_payload(envelope)["signed"]})
    with pytest.raises(Refused, match="the statement's days is '10', the ledger requires '100'"):
        ledger.append("extension", signed.model_copy(update={"days": 100}), plant=PROCESS)
    ledger.append("extension", signed, plant=PROCESS)
    with pytest.raises(Refused, match="is already in the ledger"):
        ledger.append("extension", signed, plant=PROCESS)


def test_an_extension_counts_from_the_end_or_from_now(ledger: Ledger, clock: Clock) -> None:
    entry = begun(ledger)
    extension = shadows.ExtensionBody(shadow=entry.digest, days=10, by="shift engineer")
    ledger.append("extension", extension, plant=PROCESS)
    watched = shadows.shadow(ledger.entries(), PROCESS)
    assert watched is not None
    assert watched.until == NOON + timedelta(days=40)
    clock.now = NOON + timedelta(days=100)
    ledger.append("extension", extension, plant=PROCESS)
    watched = shadows.shadow(ledger.entries(), PROCESS)
    assert watched is not None
    assert watched.until == NOON + timedelta(days=110)
    assert reported(ledger) == [(A, "2027-03-10T12:00:00.000000Z", "its period ended")]
    for body, sentence in (
        (extension.model_copy(update={"by": " "}), "an extension needs a person's name"),
        (extension.model_copy(update={"days": 5000}), "a period must be 1 to 366 days"),
        (extension.model_copy(update={"shadow": B}), "is not the present shadow of"),
    ):
        with pytest.raises(Refused, match=sentence):
            ledger.append("extension", body, plant=PROCESS)


def test_a_rejection_ends_it(ledger: Ledger) -> None:
    entry = begun(ledger)
    reject_candidate(ledger.home, ledger.entry(entry.body["candidate"]), "shift engineer", "too nervous")
    assert shadows.shadow(ledger.entries(), PROCESS) is None
    assert reported(ledger) == [(A, ledger.entries()[-1].timestamp, "rejected by shift engineer")]
    # Nor is it approved again as if nothing had been said.
    with pytest.raises(Refused, match="shift engineer rejected"):
        promote_candidate(ledger.home, ledger.entry(entry.body["candidate"]), "somebody else", "")


def test_a_newer_candidate_replaces_a_shadow_if_compared_with_it(ledger: Ledger) -> None:
    stale = logged(ledger, B)
    first = begun(ledger)
    with pytest.raises(Refused, match=r"was compared with .*: retrain"):
        promote_candidate(ledger.home, stale, "shift engineer", "")
    fresh = logged(ledger, B, champion=first.digest, run_key="later")
    assert promote_candidate(ledger.home, fresh, "shift engineer", "").body["replaces"] == first.digest


def test_a_log_only_plant_never_has_a_champion(ledger: Ledger) -> None:
    """Not even with an approval and a forged promotion."""
    candidate = logged(ledger, A)
    verdict = approvals.VerdictBody(composite=A, by="somebody", candidate=candidate.digest)
    approval = verdicts.approve(ledger, PROCESS, verdict)
    promotion = champions.PromotionBody(
        composite=A, approval=approval.digest, replaces=None, candidate=candidate.digest
    )
    with pytest.raises(Refused, match="it can run in shadow until there is a simulator"):
        champions.promote(ledger, PROCESS, promotion)
    forge(ledger.home, "promotion", promotion, plant=PROCESS)
    failures = audit(ledger.home).failures
    assert [check.name for check in failures] == ["promotions"]


def test_a_simulated_plant_cannot_pass_as_log_only(ledger: Ledger) -> None:
    with pytest.raises(Refused, match="chemical_reactor has a simulator, but the evidence is of a log-only plant"):
        ledger.append("candidate", record(A), plant=PLANT)


@pytest.mark.parametrize("name", REQUIRED_LOG_ONLY)
def test_a_missing_gate_is_refused(ledger: Ledger, name: str) -> None:
    gates = tuple(gate for gate in record(A).gates if gate.name != name)
    with pytest.raises(Refused, match="the gates must be data, learned_model, ope, bounds, shield, fallback, serv"):
        logged(ledger, A, gates=gates)


def test_a_shadow_needs_passed_gates_and_its_own_approval(ledger: Ledger) -> None:
    failed = logged(ledger, A, evidence=judged.process_evidence(supported=False))
    with pytest.raises(Refused, match="failed ope"):
        promote_candidate(ledger.home, failed, "shift engineer", "")
    candidate = logged(ledger, B)
    body = shadows.ShadowBody(composite=B, approval=A, candidate=candidate.digest, replaces=None, days=30)
    with pytest.raises(Refused, match="has no unused approval"):
        ledger.append("shadow", body, plant=PROCESS)
    approval = verdicts.approve(
        ledger, PROCESS, approvals.VerdictBody(composite=B, by="somebody", candidate=candidate.digest)
    )
    body = body.model_copy(update={"approval": approval.digest})
    first = ledger.append("shadow", body, plant=PROCESS)
    with pytest.raises(Refused, match="has no unused approval"):
        ledger.append("shadow", body.model_copy(update={"replaces": first.digest}), plant=PROCESS)


def test_a_review_starts_no_shadow(ledger: Ledger) -> None:
    """A review is not an approval, neither for the task nor for the signer."""
    candidate = logged(ledger, A)
    review = promote_candidate(ledger.home, candidate, "a colleague", "read", reviewed=True)
    assert (review.kind, review.body["meaning"]) == ("approval", "reviewed")
    assert ledger.entries("shadow") == []
    body = shadows.ShadowBody(composite=A, approval=review.digest, candidate=candidate.digest, replaces=None, days=30)
    with pytest.raises(Refused, match="has no unused approval"):
        ledger.append("shadow", body, plant=PROCESS)
    forge(ledger.home, "shadow", body, plant=PROCESS)
    assert [check.name for check in audit(ledger.home).failures] == ["shadows"]


def test_a_shadow_is_exactly_the_approved_composite(ledger: Ledger) -> None:
    candidate = logged(ledger, A)
    verdict = approvals.VerdictBody(composite=A, by="somebody", candidate=candidate.digest)
    approval = verdicts.approve(ledger, PROCESS, verdict)
    body = shadows.ShadowBody(composite=B, approval=approval.digest, candidate=candidate.digest, replaces=None, days=30)
    with pytest.raises(Refused, match=f"has no candidate .* of {PROCESS}"):
        ledger.append("shadow", body, plant=PROCESS)
    another = logged(ledger, B)
    with pytest.raises(Refused, match=f"composite {B[:12]}"):
        ledger.append("shadow", body.model_copy(update={"candidate": another.digest}), plant=PROCESS)
    assert ledger.append("shadow", body.model_copy(update={"composite": A}), plant=PROCESS).kind == "shadow"


def test_a_rejected_composite_runs_in_no_later_shadow(ledger: Ledger) -> None:
    candidate = logged(ledger, A)
    said = approvals.VerdictBody(composite=A, by="somebody", candidate=candidate.digest)
    verdicts.reject(ledger, PROCESS, said.model_copy(update={"by": "Ada"}))
    approval = verdicts.approve(ledger, PROCESS, said)
    body = shadows.ShadowBody(
        composite=A, approval=approval.digest, candidate=candidate.digest, replaces=None, days=30, version="99"
    )
    with pytest.raises(Refused, match=r"has version 1, got '99'"):
        ledger.append("shadow", body, plant=PROCESS)
    with pytest.raises(Refused, match=r"was ruled out: Ada rejected"):
        ledger.append("shadow", body.model_copy(update={"version": ""}), plant=PROCESS)


def test_a_candidate_of_a_simulated_plant_is_no_shadow(ledger: Ledger) -> None:
    certified = ledger.entry(propose(ledger, A))
    verdict = approvals.VerdictBody(composite=A, by="somebody", candidate=certified.digest)
    approval = verdicts.approve(ledger, PLANT, verdict)
    body = shadows.ShadowBody(composite=A, approval=approval.digest, candidate=certified.digest, replaces=None, days=30)
    with pytest.raises(Refused, match=f"{PLANT} has a simulator, so candidates do not run in shadow"):
        ledger.append("shadow", body, plant=PLANT)


def comparison(shadow: str, **changes: Any) -> ShadowComparison:
    return judged.shadow_comparison(shadow, DATASET, **changes)


def test_a_comparison_follows_from_a_logged_shadow_and_its_numbers(ledger: Ledger) -> None:
    entry = begun(ledger)
    found = comparison(entry.digest)
    ledger.append("comparison", found, plant=PROCESS)
    alarmed = found.drift.model_copy(update={"alarm": "episode 1, step 5"})
    easier = alarmed.model_copy(update={"log_threshold": 1.5})
    blind = found.drift.model_copy(update={"blocks": 0})
    timeless = found.drift.model_copy(update={"step_seconds": 0.0})
    for wrong, sentence in (
        (comparison(B), "no shadow"),
        (comparison(entry.digest, agreement=1.5), "agreement, support and interventions must be between 0 and 1"),
        (comparison(entry.digest, drift=alarmed), "an alarm must be stated if and only if the evidence"),
        (
            comparison(entry.digest, drift=easier),
            "the threshold for 0.1 alarms per year is 15.6579, got 1.5",
        ),
        (comparison(entry.digest, drift=blind), "without blocks the evidence of drift must be 0, got 2"),
        (comparison(entry.digest, drift=timeless), "alarms per year must be positive"),
    ):
        with pytest.raises(Refused, match=sentence):
            ledger.append("comparison", wrong, plant=PROCESS)
    unwatched = blind.model_copy(update={"log_evidence": 0.0})
    ledger.append("comparison", comparison(entry.digest, drift=unwatched), plant=PROCESS)
    assert audit(ledger.home).passed


def test_a_drift_follows_from_the_version_in_force_and_its_numbers(ledger: Ledger) -> None:
    entry = begun(ledger)
    found = judged.drift_record(entry.digest, DATASET, B)
    ledger.append("drift", found, plant=PROCESS)
    alarmed = {"log_evidence": 20.0, "alarm": "episode 1, step 5"}
    ledger.append("drift", found.model_copy(update=alarmed), plant=PROCESS)
    for changed, sentence in (
        ({"against": B}, "was never champion or shadow"),
        ({"reference": B}, "is not the dataset of version"),
        ({"step_seconds": 0.0}, "step and alarms per year must be positive"),
        ({"log_threshold": 1.5}, "the threshold for 0.1 alarms per year is 17.2673, got 1.5"),
        ({"alarm": "episode 1, step 5"}, "an alarm must be stated if and only if the evidence"),
        ({"log_evidence": 20.0}, "an alarm must be stated if and only if the evidence"),
    ):
        with pytest.raises(Refused, match=sentence):
            ledger.append("drift", found.model_copy(update=changed), plant=PROCESS)
    assert audit(ledger.home).passed
    forge(ledger.home, "drift", found.model_copy(update={"log_threshold": 1.5}).model_dump(mode="json"), plant=PROCESS)
    assert [check.name for check in audit(ledger.home).failures] == ["monitoring"]


def test_a_comparison_is_identified_by_shadow_logs_and_alarm_rate(ledger: Ledger) -> None:
    shadow = begun(ledger)
    entry = ledger.append("comparison", comparison(shadow.digest), plant=PROCESS)
    dataset = record(A).dataset

    def found(alarms: float, digest: str = DATASET) -> Entry | None:
        run = OpenedRun.model_validate({"plant": PROCESS, "shadow": {"alarms_per_year": alarms}})
        newer = dataset.model_copy(update={"digest": digest})
        return known_comparison(ledger.entries("comparison", PROCESS), run, shadow, newer)

    assert found(0.1) == entry
    assert found(0.2) is None
    assert found(0.1, B) is None


def test_a_comparison_states_no_return_of_proposed_actions(ledger: Ledger) -> None:
    """Signer and audit reject an entry with such a field."""
    body = {**comparison(begun(ledger).digest).model_dump(mode="json"), "return": 12.0}
    forge(ledger.home, "comparison", body, plant=PROCESS)
    failures = audit(ledger.home).failures
    assert [check.name for check in failures] == ["shadows"]
    assert "'return'" in failures[0].detail
