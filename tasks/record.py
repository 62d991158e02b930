"""Record of all results of a retraining, and the sentences for the verdict."""

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

RecordVerdict = Verdict | Literal["passed", "failed"]
VERDICTS: dict[RecordVerdict, str] = {
    "promoted": "The candidate passed every gate and is champion",
    "waiting": "The candidate passed every gate and waits for approval",
    "fallback": "The candidate did not pass every gate; the plant's certified controller is champion",
    "fallback_waiting": "The candidate did not pass every gate; the plant's certified controller waits for approval",
    "shadow": "The candidate passed every gate of a log-only plant, and runs in shadow",
    "shadow_waiting": "The candidate passed every gate of a log-only plant, and waits for approval",
    "refused": "The candidate is refused; the champion stays",
    "unchanged": "Nothing new to promote",
    "passed": "The candidate passed every gate",
    "failed": "The candidate did not pass every gate",
}
"""Sentence for each verdict; `passed` and `failed` apply at registration, before the decision."""
GATE_TITLES: dict[str, str] = {
    "data": "the logs meet every expectation",
    "simulator": "the simulator predicts held-out logs",
    "learned_model": "the model predicts held-out logs",
    "ope": "held-out logs do not contradict the policy; without a simulator, they show a gain",
    "rollouts": "the policy is better than the plant's controller on the simulator",
    "champion": "the policy is not worse than the champion",
    "bounds": "actions are within bounds and rates",
    "shield": "the shield hands over outside the data's support",
    "statistical": "the claim is certified on the simulator",
    "fallback": "the fallback is sound",
    "servability": "the bundle loads in a new process and answers in time",
}
"""Requirement of each gate in the report; docs/how-to/review.md has the same sentences."""


class Record(Reference):
    """All results of one retraining, for the registry and the report; unknown fields are empty."""

    run: OpenedRun
    run_key: str
    verdict: RecordVerdict
    headline: str
    """Reason for the verdict in one sentence."""
    dataset: Dataset
    validation: Validation
    identification: Identification = KNOWN
    """Simulator constants estimated from the logs."""
    population: Population
    evaluation: Evaluation
    rollouts: Rollouts | None = None
    fallback: Certificate | None = None
    """Certificate of the tuned controller."""
    certificate: Certificate | None = None
    """Certificate of the candidate."""
    model: LearnedModel | None = None
    """Learned model of a log-only plant. The fields `protection` and `estimate` also apply to log-only plants only."""
    protection: Protection | None = None
    estimate: ModelEstimate | None = None
    gates: tuple[Gate, ...]
    digests: Digests
    """Digests of the registered version: candidate or fallback."""
    candidate: Version | None = None
    champion: ChampionInForce | None = None
    shadow: ShadowInForce | None = None
    links: dict[str, str]
    """Addresses of pages about this run, by name."""
    ledger: LedgerHead | None = None
    history: tuple[HistoryRow, ...] = ()
    """History of the plant from the ledger."""
    seconds: dict[str, float]
    """Time per task."""

    @property
    def selected(self) -> Member:
        """Return the member selected by off-policy evaluation."""
        return self.population.members[self.evaluation.selected]

    @property
    def of_fallback(self) -> bool:
        """Return whether the version is the tuned controller, which is no member of the population."""
        return self.digests.composite not in {member.bundle.digest for member in self.population.members}

    @property
    def of_process(self) -> bool:
        """Return whether the plant is log-only, so that nothing is certified."""
        return self.protection is not None

    def certificates(self) -> Iterator[tuple[str, Certificate]]:
        """Yield the certificates of candidate and fallback, if present."""
        for name, certificate in (("candidate", self.certificate), ("fallback", self.fallback)):
            if certificate is not None:
                yield name, certificate


def verdict_text(verdict: RecordVerdict, gates: Sequence[Gate], champion: ChampionInForce | None) -> str:
    """Return a verdict as a sentence. After a refusal, the sentence says whether there is a champion.

    Args:
        verdict: verdict of the run.
        gates: gates of the run, including the fallback's.
        champion: current champion.
    """
    if verdict != "refused" or champion is not None:
        return VERDICTS[verdict]
    if any(gate.name == "learned_model" for gate in gates):
        return "The candidate is refused, and nothing changes on the plant"
    if any(gate.name == "fallback" and gate.passed for gate in gates):
        return "The candidate is refused, and there is no champion"
    return "Neither the candidate nor the plant's own controller is certified: there is no champion"


def mark(gate: Gate) -> Literal["pass", "FAIL", "not run"]:
    """Return a gate's verdict as one word."""
    return "not run" if gate.passed is None else "pass" if gate.passed else "FAIL"


def process_claims(record: Record) -> tuple[str, ...]:
    """Return the claims about a log-only plant's composite, one sentence each; () for a plant with a simulator."""
    if record.protection is None or record.model is None or record.estimate is None:
        return ()
    protection, evaluation = record.protection, record.evaluation
    gain = str(evaluation.difference) if evaluation.supported else evaluation.unsupported
    return (
        f"{NO_CLAIM.capitalize()}: without a simulator no probability of violating a limit is certified.",
        f"Actions stay within bounds and rate limits for all inputs; {protection.bounds.inputs:,} were tested.",
        f"Outside the data's support, the fallback acts: {protection.fallback.about}. The support was calibrated to "
        f"exclude a share of {1 - protection.support.quantile:.3g} of rows; of other held-out rows "
        f"{protection.support.outside:.3g} were outside.",
        f"Gain over the logged controller, estimated from held-out logs (OPE): {gain}.",
        f"Learned model on held-out episodes: {record.model.prediction.found}.",
        f"Estimate on the learned model, which is no certificate: {record.estimate.found.partition(': ')[2]}.",
    )


def headline(gates: Sequence[Gate], rollouts: Rollouts | None) -> str:
    """Return the reason for a verdict in one sentence."""
    failed = [gate for gate in gates if gate.passed is False]
    parts = [
        f"The candidate failed {failed[0].name}: {failed[0].detail}" if failed else "The candidate passed every gate"
    ]
    if any(gate.name == "learned_model" for gate in gates):
        if others := [gate.name for gate in failed[1:]]:
            parts.append(f"it also failed {', '.join(others)}")
    elif any(gate.name == "fallback" for gate in failed[1:]):
        parts.append("the plant's own controller is not certified either")
    if rollouts is not None and "plant controller" in rollouts.differences:
        difference = rollouts.differences["plant controller"]
        parts.append(f"return against the plant's controller on the simulator {difference}")
    return "; ".join(parts) + "."


def champion_in_force(promotion: Entry, entries: Sequence[Entry]) -> ChampionInForce:
    """Return version, composite, approver and claim of the current champion.

    Args:
        promotion: ledger entry that made the composite champion.
        entries: ledger entries, including the promotion's candidate and approval.
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
    """Return version, composite, period and approver of a log-only plant's shadow.

    Args:
        shadow: the shadow according to `tasks.evidence.decisions.shadows`.
        entries: ledger entries, including the shadow's candidate and approval.
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


SHOWN_FIELDS = (
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
"""Fields of an entry's body that a history shows."""


YES_NO = {True: "yes", False: "no"}


def history_rows(entries: Sequence[Entry], plant: str) -> tuple[HistoryRow, ...]:
    """Return a plant's ledger entries, each as one line."""
    from tasks.evidence.decisions.approvals import signed_how

    rows = []
    for entry in entries:
        if entry.plant != plant:
            continue
        shown = {key: entry.body[key] for key in SHOWN_FIELDS if entry.body.get(key) not in (None, "")}
        parts = [f"{key} {YES_NO[value] if isinstance(value, bool) else value}" for key, value in shown.items()]
        if entry.kind in ("approval", "rejection", "withdrawal", "rollback", "extension"):
            parts.append(signed_how(entry))
        if "composite" in entry.body:
            parts.append(f"composite {entry.body['composite'][:12]}")
        rows.append(
            HistoryRow(sequence=entry.sequence, timestamp=entry.timestamp, kind=entry.kind, detail=", ".join(parts))
        )
    return tuple(rows)
