"""What makes a candidate's entry true: complete gates, verdicts that follow from numbers, logged certificates."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import Refused
from tasks.adapters.ledger.attempts import ResultBody
from tasks.adapters.ledger.ledger import Entry
from tasks.gates import check_gates
from tasks.references import CandidateRecord, Certificate, DecisionRecord


def check_candidate(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a candidate whose gates are incomplete or contradict their numbers, or whose certificates are not logged.

    Args:
        history: all entries before the candidate.
        entry: the candidate.

    Raises:
        Refused: naming the gate or the certificate.
    """
    record = entry.read(CandidateRecord)
    check_record(record, entry.plant)
    evidence = record.evidence
    own = evidence.fallback if record.role == "fallback" else evidence.certificate
    if own is not None and own.composite != record.composite:
        raise Refused(
            f"expected a certificate of composite {record.composite[:12]} in its evidence, got one of "
            f"{own.composite[:12]}: certify what is proposed."
        )
    results = [e.read(ResultBody) for e in history if (e.kind, e.plant) == ("result", entry.plant)]
    for certificate in (evidence.fallback, evidence.certificate):
        if certificate is not None and not any(_agrees(certificate, result) for result in results):
            raise Refused(
                f"expected the numbers of attempt {certificate.attempt} as the ledger has them, got "
                f"{certificate.found}: retrain, so that the evidence is gathered again."
            )


def check_record(record: CandidateRecord, plant: str) -> None:
    """Refuse a candidate whose gates are incomplete, or whose verdicts do not follow from the numbers beside them.

    Args:
        record: what was, or is to be, written down.
        plant: the plant's name.

    Raises:
        Refused: naming the gate.
    """
    fault = check_gates(record.gates, record.evidence, record.role == "fallback")
    passed = all(gate.passed for gate in record.gates)
    if fault is None and record.passed is not passed:
        fault = f"expected 'passed' to be {passed} by its gates, got {record.passed}"
    if fault is not None:
        raise Refused(f"{fault}, in version {record.version} of {plant}: retrain it, no decision can mend a record.")


def check_decision(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a decision that says one thing in its verdict and another in its outcome.

    Args:
        history: all entries before the decision.
        entry: the decision.
    """
    record = entry.read(DecisionRecord)
    if (record.verdict, record.run_key) != (record.outcome.verdict, record.outcome.run_key):
        raise Refused(f"expected a decision with the verdict {record.outcome.verdict}, got {record.verdict}.")


def _agrees(certificate: Certificate, result: ResultBody) -> bool:
    names = ("passed", "claim", "alpha", "episodes", "violations", "upper_bound", "composite")
    return certificate.attempt == result.number and all(
        getattr(certificate, name) == getattr(result, name) for name in names
    )
