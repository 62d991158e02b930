"""The record of a retraining: everything that is known of it, and the words for its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from configs.run import OpenedRun
from tasks.references import (
    KNOWN,
    NO_CLAIM,
    Certificate,
    ChampionInForce,
    Dataset,
    Digests,
    Evaluation,
    Gate,
    HistoryRow,
    Identification,
    LearnedModel,
    LedgerHead,
    Member,
    ModelEstimate,
    Population,
    Protection,
    Reference,
    Rollouts,
    ShadowInForce,
    Validation,
    Verdict,
    Version,
)

if TYPE_CHECKING:
    from tasks.evidence.decisions import shadows
    from tasks.evidence.ledger.entry import Entry

Known = Verdict | Literal["passed", "failed"]
VERDICTS: dict[Known, str] = {
    "promoted": "The candidate passed every gate and is champion",
    "waiting": "The candidate passed every gate and waits for approval",
    "fallback": "The candidate did not pass every gate; the plant's certified controller is champion",
    "fallback_waiting": "The candidate did not pass every gate; the plant's certified controller waits for approval",
    "shadow": "The candidate passed every gate that a process without a simulator has, and runs in shadow",
    "shadow_waiting": "The candidate passed every gate that a process without a simulator has, and waits for approval",
    "refused": "The candidate is refused; the champion stays",
    "unchanged": "Nothing new to promote",
    "passed": "The candidate passed every gate",
    "failed": "The candidate did not pass every gate",
}
"""`passed` and `failed` are what is known at registration, before anything is decided, and what stays so."""
GATE_TITLES: dict[str, str] = {
    "data": "the logs meet every expectation",
    "simulator": "it predicts held-out logs",
    "learned_model": "it predicts held-out logs",
    "ope": "better than the logged controller, by held-out logs",
    "rollouts": "better than the plant's controller on the simulator",
    "champion": "not worse than the champion",
    "bounds": "actions within bounds and rates",
    "shield": "hand-over outside the data's support",
    "statistical": "certified on the simulator",
    "fallback": "what takes over is sound",
    "servability": "loads elsewhere and answers in time",
}
"""What each gate asks; docs/how-to/review.md explains them under the same names."""


class Record(Reference):
    """Everything that is known of one retraining, for the registry and the report; what is not known yet is empty."""

    run: OpenedRun
    run_key: str
    verdict: Known
    headline: str
    """The verdict's reason in one sentence."""
    dataset: Dataset
    validation: Validation
    identification: Identification = KNOWN
    """Constants of the simulator that were estimated from the logs."""
    population: Population
    evaluation: Evaluation
    rollouts: Rollouts | None = None
    fallback: Certificate | None = None
    """The certificate of the plant's own controller."""
    certificate: Certificate | None = None
    """The certificate of the candidate."""
    model: LearnedModel | None = None
    """Of a process without a simulator, as the next two."""
    protection: Protection | None = None
    estimate: ModelEstimate | None = None
    gates: tuple[Gate, ...]
    digests: Digests
    """Digests of the version that this record is about: the candidate, or the fallback where that is registered."""
    candidate: Version | None = None
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    links: dict[str, str]
    """Pages about this run, by name."""
    ledger: LedgerHead | None = None
    history: tuple[HistoryRow, ...] = ()
    """Ledger entries of the plant."""
    seconds: dict[str, float]
    """Time spent, by stage."""

    @property
    def selected(self) -> Member:
        """The member that off-policy evaluation selected."""
        return self.population.members[self.evaluation.selected]

    @property
    def of_fallback(self) -> bool:
        """Whether the version is the plant's own controller: its composite is no member's."""
        return self.digests.composite not in {member.bundle.digest for member in self.population.members}

    @property
    def of_process(self) -> bool:
        """Whether the plant has no simulator, so that nothing is certified."""
        return self.protection is not None

    def certificates(self) -> Iterator[tuple[str, Certificate]]:
        """The certificates that there are, by whom they are of."""
        for name, found in (("candidate", self.certificate), ("fallback", self.fallback)):
            if found is not None:
                yield name, found


def verdict_text(verdict: Known, gates: Sequence[Gate], champion: ChampionInForce | None) -> str:
    """A verdict in words; where neither the candidate nor the plant's own controller stands, they say so.

    Args:
        verdict: what the run came to.
        gates: its gates, the fallback's among them.
        champion: who is champion now.
    """
    if verdict != "refused" or champion is not None:
        return VERDICTS[verdict]
    if any(gate.name == "learned_model" for gate in gates):
        return "The candidate is refused, and nothing changes on the process"
    if any(gate.name == "fallback" and gate.passed for gate in gates):
        return "The candidate is refused, and there is no champion"
    return "Neither the candidate nor the plant's own controller is certified: there is no champion"


def mark(gate: Gate) -> Literal["pass", "FAIL", "not run"]:
    """A gate's verdict in a word."""
    return "not run" if gate.passed is None else "pass" if gate.passed else "FAIL"


def process_claims(record: Record) -> tuple[str, ...]:
    """What is claimed of a composite without a simulator, and of what kind each claim is; () where there is one."""
    if record.protection is None or record.model is None or record.estimate is None:
        return ()
    guard, found = record.protection, record.evaluation
    gain = str(found.difference) if found.supported else found.unsupported
    return (
        f"{NO_CLAIM.capitalize()}: without a simulator no probability of violating a limit is certified.",
        f"Actions stay within bounds and rate limits for all inputs; {guard.bounds.inputs:,} of every kind were tried.",
        f"Outside the data's support (calibrated to leave out {1 - guard.support.quantile:.3g} of rows; of rows of "
        f"episodes held out from calibration {guard.support.outside:.3g} were found outside) the fallback acts: "
        f"{guard.fallback.about}.",
        f"Gain over the logged controller, estimated from held-out logs (OPE): {gain}.",
        f"The learned model on held-out episodes: {record.model.prediction.found}.",
        f"Estimate on the learned model, which is no certificate: {record.estimate.found.partition(': ')[2]}.",
    )


def headline(gates: Sequence[Gate], rollouts: Rollouts | None) -> str:
    """The reason of a verdict in one sentence."""
    failed = [gate for gate in gates if gate.passed is False]
    parts = [
        f"The candidate failed {failed[0].name}: {failed[0].detail}" if failed else "The candidate passed every gate"
    ]
    if any(gate.name == "learned_model" for gate in gates):
        if others := [gate.name for gate in failed[1:]]:
            parts.append(f"it failed besides: {', '.join(others)}")
    elif any(gate.name == "fallback" for gate in failed[1:]):
        parts.append("the plant's own controller is not certified either")
    if rollouts is not None and "plant controller" in rollouts.differences:
        difference = rollouts.differences["plant controller"]
        parts.append(f"return against the plant's controller on the simulator {difference}")
    return "; ".join(parts) + "."


def champion_in_force(promotion: Entry, entries: Sequence[Entry]) -> ChampionInForce:
    """The champion of a promotion, with its approval.

    Args:
        promotion: the entry in force.
        entries: the ledger's, which hold the candidate and the approval that it names.
    """
    from tasks.evidence.decisions.approvals import approvers

    candidate = {entry.digest: entry for entry in entries}[promotion.body["candidate"]]
    return ChampionInForce(
        version=str(promotion.body["version"]),
        url=candidate.body["url"],
        composite=promotion.body["composite"],
        since=promotion.timestamp,
        approver=approvers(entries, promotion),
        claim=candidate.body["claim"],
    )


def shadow_in_force(shadow: shadows.ShadowInForce, entries: Sequence[Entry]) -> ShadowInForce:
    """The shadow of a process, with its approval and its end.

    Args:
        shadow: from `tasks.evidence.decisions.shadows`.
        entries: the ledger's, which hold the candidate and the approval that it names.
    """
    by_digest, body = {entry.digest: entry for entry in entries}, shadow.entry.body
    return ShadowInForce(
        version=str(body["version"]),
        url=by_digest[body["candidate"]].body["url"],
        composite=body["composite"],
        since=shadow.entry.timestamp,
        until=shadow.until.isoformat(timespec="seconds").replace("+00:00", "Z"),
        approver=by_digest[body["approval"]].body["by"],
    )


TOLD = (
    "number",
    "version",
    "verdict",
    "person",
    "key",
    "since",
    "by",
    "role",
    "meaning",
    "days",
    "passed",
    "why",
    "note",
    "reason",
    "text",
)
"""What of an entry is told in a few words."""


def _in_words(value: object) -> str:
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"


def history_rows(entries: Sequence[Entry], plant: str) -> tuple[HistoryRow, ...]:
    """The plant's ledger entries in a few words each."""
    from tasks.evidence.decisions.approvals import signed_how

    rows = []
    for entry in entries:
        if entry.plant != plant:
            continue
        told = {key: entry.body[key] for key in TOLD if entry.body.get(key) not in (None, "")}
        parts = [f"{key} {_in_words(value)}" for key, value in told.items()]
        if entry.kind in ("approval", "rejection", "withdrawal", "rollback", "extension"):
            parts.append(signed_how(entry))
        if "composite" in entry.body:
            parts.append(f"composite {entry.body['composite'][:12]}")
        rows.append(
            HistoryRow(sequence=entry.sequence, timestamp=entry.timestamp, kind=entry.kind, detail=", ".join(parts))
        )
    return tuple(rows)
