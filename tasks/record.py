"""The record of a retraining: everything that is known of it, and the words for its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from configs.run import RunConfig
from tasks.adapters.ledger.ledger import Entry
from tasks.references import (
    Certificate,
    ChampionInForce,
    Dataset,
    Digests,
    Evaluation,
    Gate,
    GateName,
    HistoryRow,
    LedgerHead,
    Member,
    Population,
    Reference,
    Rollouts,
    Validation,
    Verdict,
    Version,
)

VERDICTS: dict[Verdict | Literal["passed"], str] = {
    "promoted": "The candidate passed every gate and is champion",
    "waiting": "The candidate passed every gate and waits for approval",
    "fallback": "The candidate did not pass every gate; the plant's certified controller is champion",
    "fallback_waiting": "The candidate did not pass every gate; the plant's certified controller waits for approval",
    "refused": "The candidate is refused; the champion stays",
    "unchanged": "Nothing new to promote",
    "passed": "The candidate passed every gate",
}
"""`passed` is what is known at registration, before anything is decided."""
GATE_TITLES: dict[GateName, str] = {
    "data": "Data",
    "simulator": "Simulator predicts held-out logs",
    "ope": "Better than the logged controller",
    "rollouts": "Better than the plant's controller on the simulator",
    "champion": "Not worse than the champion",
    "statistical": "Statistical certificate",
    "fallback": "Fallback alone is certified",
    "servability": "Servability",
}


class Record(Reference):
    """Everything that is known of one retraining, for the registry and the report; what is not known yet is empty."""

    run: RunConfig
    run_key: str
    verdict: Verdict | Literal["passed"]
    headline: str
    """The verdict's reason in one sentence."""
    dataset: Dataset
    validation: Validation
    population: Population
    evaluation: Evaluation
    rollouts: Rollouts | None = None
    fallback: Certificate | None = None
    """The certificate of the plant's own controller."""
    certificate: Certificate | None = None
    """The certificate of the candidate."""
    gates: tuple[Gate, ...]
    digests: Digests
    """Digests of the version that this record is about: the candidate, or the fallback where that is registered."""
    candidate: Version | None = None
    champion: ChampionInForce | None = None
    links: dict[str, str]
    """Pages about this run, by name."""
    ledger: LedgerHead | None = None
    history: tuple[HistoryRow, ...] = ()
    """Ledger entries of the plant."""
    seconds: dict[str, float]
    """Time spent, by stage."""

    @property
    def selected(self) -> Member:
        """The member that off-policy evaluation selected; its `index` is its row of the learning curves."""
        return self.population.members[self.evaluation.selected]

    @property
    def of_fallback(self) -> bool:
        """Whether the version is the plant's own controller: its composite is no member's."""
        return self.digests.composite not in {member.bundle.digest for member in self.population.members}

    def certificates(self) -> Iterator[tuple[str, Certificate]]:
        """The certificates that there are, by whom they are of."""
        for name, found in (("candidate", self.certificate), ("fallback", self.fallback)):
            if found is not None:
                yield name, found


def verdict_text(verdict: Verdict | Literal["passed"], gates: Sequence[Gate], champion: ChampionInForce | None) -> str:
    """A verdict in words; where neither the candidate nor the plant's own controller stands, they say so.

    Args:
        verdict: what the run came to.
        gates: its gates, the fallback's among them.
        champion: who is champion now.
    """
    if verdict != "refused" or champion is not None:
        return VERDICTS[verdict]
    if any(gate.name == "fallback" and gate.passed for gate in gates):
        return "The candidate is refused, and there is no champion"
    return "Neither the candidate nor the plant's own controller is certified: there is no champion"


def headline(gates: Sequence[Gate], rollouts: Rollouts | None) -> str:
    """The reason of a verdict in one sentence."""
    failed = [gate for gate in gates if gate.passed is False]
    parts = [
        f"The candidate failed {failed[0].name}: {failed[0].detail}" if failed else "The candidate passed every gate"
    ]
    if any(gate.name == "fallback" for gate in failed[1:]):
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
    by_digest = {entry.digest: entry for entry in entries}
    candidate, approval = by_digest[promotion.body["candidate"]], by_digest[promotion.body["approval"]]
    return ChampionInForce(
        version=str(promotion.body["version"]),
        url=candidate.body["url"],
        composite=promotion.body["composite"],
        since=promotion.timestamp,
        approver=approval.body["by"],
        claim=candidate.body["claim"],
    )


def history_rows(entries: Sequence[Entry], plant: str) -> tuple[HistoryRow, ...]:
    """The plant's ledger entries in a few words each."""
    rows = []
    for entry in entries:
        if entry.plant != plant:
            continue
        told = {key: entry.body[key] for key in ("number", "version", "by", "passed", "reason") if key in entry.body}
        parts = [f"{key} {value}" for key, value in told.items()]
        if "composite" in entry.body:
            parts.append(f"composite {entry.body['composite'][:12]}")
        rows.append(
            HistoryRow(sequence=entry.sequence, timestamp=entry.timestamp, kind=entry.kind, detail=", ".join(parts))
        )
    return tuple(rows)
