"""What a retraining says at its end, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.adapters.ledger.ledger import Entry
from tasks.simulate import PUBLISHED_SCORES

VERDICTS = {
    "promoted": "the candidate is champion",
    "waiting": "the candidate waits for approval",
    "fallback": "the plant's own controller, certified, is champion: the candidate did not pass every gate",
    "fallback_waiting": "the candidate did not pass every gate; the plant's certified controller waits for approval",
    "refused": "the candidate is refused; the champion stays",
    "unchanged": "nothing new to promote",
}


def interval(found: Mapping[str, float]) -> str:
    """`value [lower, upper]` with signs."""
    return f"{found['value']:+.4g} [{found['lower']:+.4g}, {found['upper']:+.4g}]"


def headline(verdict: str, gates: Sequence[Mapping[str, Any]], rollouts: Mapping[str, Any]) -> str:
    """The reason of a verdict in one sentence."""
    failed = [gate for gate in gates if gate["passed"] is False]
    difference = rollouts["differences"].get("plant controller")
    versus = f"return against the plant's controller on the twin {interval(difference)}" if difference else ""
    if failed:
        return f"The candidate failed {failed[0]['name']}: {failed[0]['detail']}; {versus}."
    return f"The candidate passed every gate; {versus}."


def champion_record(promotion: Entry, entries: Sequence[Entry]) -> dict[str, Any]:
    """The champion in force, for reports and programs."""
    by_digest = {entry.digest: entry for entry in entries}
    candidate, approval = by_digest[promotion.body["candidate"]], by_digest[promotion.body["approval"]]
    return {
        "version": str(promotion.body["version"]),
        "url": candidate.body["url"],
        "composite": promotion.body["composite"],
        "since": promotion.timestamp,
        "approver": approval.body["by"],
        "claim": candidate.body["claim"],
    }


def history_rows(entries: Sequence[Entry], plant: str) -> list[dict[str, Any]]:
    """The plant's ledger entries in a few words each."""
    rows = []
    for entry in entries:
        if entry.plant != plant:
            continue
        parts = {key: entry.body[key] for key in ("number", "version", "by", "passed", "reason") if key in entry.body}
        if "composite" in entry.body:
            parts["composite"] = entry.body["composite"][:12]
        detail = ", ".join(f"{key} {value}" for key, value in parts.items())
        rows.append({"sequence": entry.sequence, "timestamp": entry.timestamp, "kind": entry.kind, "detail": detail})
    return rows


def summary_lines(result: Mapping[str, Any]) -> list[str]:
    """The end of `neorl retrain` for people."""
    champion, certificate = result["champion"], result["certificate"]
    lines = ["", f"{result['plant']}: {VERDICTS[result['verdict']]}.", f"  {result['headline']}"]
    if champion:
        lines.append(f"  champion     version {champion['version']}, composite {champion['composite'][:12]}")
        lines.append(f"  certificate  {champion['claim']}")
    if certificate and (not champion or certificate["composite"] != champion["composite"]):
        lines.append(f"  candidate's  {certificate['claim']}")
    if result["difference"]:
        lines.append(
            f"  against the plant's controller, return per episode on the twin: {interval(result['difference'])}"
        )
    lines.append(f"  against the logged controller, by held-out logs (OPE): {interval(result['ope_difference'])}")
    published = PUBLISHED_SCORES.get(result["plant"])
    if published:
        others = ", ".join(f"{name} {value:g}" for name, value in published.items())
        lines.append(f"  score {result['score']:.1f} by rollout, recorded only; published: {others}")
    marks = {True: "pass", False: "FAIL", None: "not run"}
    lines += [f"  gate {gate['name']:<12} {marks[gate['passed']]:<8} {gate['detail']}" for gate in result["gates"]]
    lines += [f"  {name:<12} {url}" for name, url in result["links"].items()]
    lines += [f"  next: neorl approve {result['plant']} {version}" for version in result["waiting"]]
    spent = ", ".join(
        f"{name} {seconds:.1f}" + (" (reused)" if name in result["reused"] else "")
        for name, seconds in result["seconds"].items()
    )
    lines.append(f"  seconds      {spent}; {sum(result['seconds'].values()):.1f} in all")
    return lines
