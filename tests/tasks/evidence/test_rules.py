"""False entries: gates without numbers or certificates, decisions without entries, malformed times."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.redteam.stage import forge as append_past_the_rules
from configs.errors import Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.rules import NoteBody
from tasks.files.canonical import sha256_hex
from tasks.gates import REQUIRED, judge
from tasks.references import CandidateRecord, DecisionRecord, Outcome, Verdict, Version
from tests import judged
from tests.evidence import DATASET, PLANT, candidate_record, certificate_of, certify, crown, forge, open_ledger

A, B = (sha256_hex(name) for name in (b"a", b"b"))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with two certified composites."""
    found = open_ledger(Home(tmp_path / "home"))
    certify(found, A)
    certify(found, B)
    return found


def refused(ledger: Ledger, record: CandidateRecord, sentence: str) -> None:
    """The signer refuses it; the audit names it if the key's holder appended it."""
    with pytest.raises(Refused, match=sentence):
        ledger.append("candidate", record, plant=PLANT)
    forge(ledger.home, "candidate", record)
    failures = audit(ledger.home).failures
    assert [check.name for check in failures] == ["decisions"]
    assert len(failures[0].detail.splitlines()) == 1


def test_a_true_record_is_logged(ledger: Ledger) -> None:
    entry = ledger.append("candidate", candidate_record(ledger, A), plant=PLANT)
    assert entry.read(CandidateRecord).passed
    assert audit(ledger.home).passed


def test_numbers_that_are_not_finite_are_kept_and_judged(ledger: Ledger) -> None:
    own, nan = certificate_of(ledger, A), float("nan")
    numbers = judged.evidence(fallback=own, certificate=own, ope=judged.interval(nan, nan))
    entry = ledger.append("candidate", candidate_record(ledger, A, numbers), plant=PLANT)
    assert not entry.read(CandidateRecord).passed
    assert audit(ledger.home).passed


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_gate_is_refused(ledger: Ledger, name: str) -> None:
    record = candidate_record(ledger, A)
    fewer = tuple(gate for gate in record.gates if gate.name != name)
    refused(ledger, record.model_copy(update={"gates": fewer}), f"the gates must be {', '.join(REQUIRED)}, got")


def test_a_verdict_that_its_numbers_contradict_is_refused(ledger: Ledger) -> None:
    own = certificate_of(ledger, A)
    numbers = judged.evidence(fallback=own, certificate=own, rollouts=judged.interval(-1.0, 1.0))
    failed = candidate_record(ledger, A, numbers)
    turned = tuple(gate.model_copy(update={"passed": True}) for gate in judge(numbers))
    changes = {"gates": turned, "passed": True}
    refused(ledger, failed.model_copy(update=changes), "gate rollouts must be failed by its evidence, got passed")


def test_a_record_that_passed_despite_a_failed_gate_is_refused(ledger: Ledger) -> None:
    own = certificate_of(ledger, A)
    failed = candidate_record(ledger, A, judged.evidence(fallback=own, certificate=own, data=("too few",)))
    refused(ledger, failed.model_copy(update={"passed": True}), "must be False according to the gates, got True")


def test_a_certificate_of_another_composite_is_refused(ledger: Ledger) -> None:
    other = certificate_of(ledger, B)
    numbers = judged.evidence(fallback=certificate_of(ledger, A), certificate=other)
    refused(ledger, candidate_record(ledger, A, numbers), "the evidence has a certificate of composite")


def test_numbers_without_an_attempt_are_refused(ledger: Ledger) -> None:
    own = certificate_of(ledger, A)
    assert own is not None
    better = own.model_copy(update={"episodes": own.episodes + 1000})
    numbers = judged.evidence(fallback=own, certificate=better)
    refused(ledger, candidate_record(ledger, A, numbers), "no result in the ledger agrees with attempt 1")


@pytest.mark.parametrize(("verdict", "wanted"), [("promoted", "a promotion"), ("shadow", "a shadow")])
def test_a_decision_without_its_entry_is_refused(ledger: Ledger, verdict: Verdict, wanted: str) -> None:
    """Attack: a decision reports a promotion that never happened, or is of another plant."""
    crown(ledger, B)
    for composite, plant, told in (
        (A, PLANT, f"'{verdict}', but there is no {wanted.removeprefix('a ')} of composite {A[:12]}"),
        (B, "double_mass", "the outcome"),
    ):
        version = Version(version="1", run_id="0", url="http://mlflow/1", digest=composite)
        outcome = Outcome(
            run="0",
            run_key="k",
            plant=plant,
            verdict=verdict,
            headline="",
            gates=(),
            candidate=version,
            population="",
            dataset=DATASET,
        )
        with pytest.raises(Refused, match=told):
            ledger.append("decision", DecisionRecord(run_key="k", verdict=verdict, outcome=outcome), plant=PLANT)
    forge(ledger.home, "decision", DecisionRecord(run_key="k", verdict=verdict, outcome=outcome))
    assert [check.name for check in audit(ledger.home).failures] == ["decisions"]
    if verdict == "promoted":
        true = DecisionRecord(run_key="k", verdict=verdict, outcome=outcome.model_copy(update={"plant": PLANT}))
        assert ledger.append("decision", true, plant=PLANT).kind == "decision"


@pytest.mark.parametrize(
    "time", ["zzzz", "9", "2999-12-01", "2999-12-01T10:00:00Z", "2999-12-01T10:00:00.000000+00:00", "29991201T100000Z"]
)
def test_a_time_in_another_form_is_named(ledger: Ledger, time: str) -> None:
    """The key's holder can sign such an entry, which once ended the audit with a traceback."""
    number = ledger.head().size + 1
    with pytest.raises(Refused, match=f"ledger entry {number}: "):
        append_past_the_rules(ledger.home, "note", NoteBody(text="second"), timestamp=time)
    with pytest.raises(Refused, match=f"ledger entry {number}: "):
        Ledger.open(ledger.home, write=False).entries()
    (chain,) = (check for check in audit(ledger.home).failures if check.name == "chain")
    assert chain.detail.startswith(f"ledger entry {number}: ")
