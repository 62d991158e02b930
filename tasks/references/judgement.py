"""Gates with their verdicts and evidence."""

from __future__ import annotations

from tasks.references.base import Reference
from tasks.references.evidence import Evidence
from tasks.references.process import ProcessEvidence


class Gate(Reference):
    """One verdict; `passed` is None if an earlier gate failed first."""

    name: str
    passed: bool | None
    detail: str


class Judgement(Reference):
    """All gates, with their evidence."""

    evidence: Evidence | ProcessEvidence
    gates: tuple[Gate, ...]

    @property
    def passed(self) -> bool:
        """Whether every gate passed."""
        return all(gate.passed for gate in self.gates)

    @property
    def failed(self) -> Gate | None:
        """The first gate that failed."""
        return next((gate for gate in self.gates if gate.passed is False), None)

    @property
    def found(self) -> str:
        marks = {True: "pass", False: "FAIL", None: "not run"}
        return ", ".join(f"{gate.name} {marks[gate.passed]}" for gate in self.gates)
