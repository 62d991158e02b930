"""The report: one HTML file that opens offline and joins the verdict, the evidence and how to check it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from tasks.adapters.files.canonical import write_atomic
from tasks.adapters.files.spec import spec_record
from tasks.adapters.ledger.certificate import NON_CLAIMS

TEMPLATES = Path(__file__).parent / "adapters" / "reporting" / "templates"
VERDICTS = {
    "promoted": "Promoted: the candidate is champion",
    "waiting": "All gates passed: waits for approval",
    "refused": "Refused: the candidate is not promoted",
    "fallback": "The certified plant controller is champion",
    "fallback_waiting": "The certified plant controller waits for approval: no candidate passed every gate",
    "unchanged": "Nothing new to promote",
    "passed": "All gates passed",
}
OF_FALLBACK = ("fallback", "fallback_waiting")
"""Verdicts that rest on the plant controller's certificate."""
GOOD = ("promoted", "passed", "fallback", "unchanged")
GATE_NAMES = {
    "data": "Data",
    "twin": "Twin predicts held-out logs",
    "ope": "Better than the logged controller",
    "rollouts": "Better than the plant's controller on the twin",
    "champion": "Not worse than the champion",
    "statistical": "Statistical certificate",
    "fallback": "Fallback alone is certified",
    "servability": "Servability",
}
CONTROLLERS = ("candidate", "champion", "plant controller")


@dataclass(frozen=True)
class Record:
    """Everything that is known of one retraining, as JSON-able references; what is not known yet stays empty."""

    run: RunConfig
    run_key: str
    verdict: str
    """A key of VERDICTS."""
    headline: str
    """The verdict's reason in one sentence."""
    dataset: Mapping[str, Any]
    validation: Mapping[str, Any]
    population: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    """OPE's, with the rollouts' under `rollouts`."""
    certificates: Mapping[str, Mapping[str, Any] | None]
    """`candidate` and `fallback`."""
    gates: Sequence[Mapping[str, Any]]
    digests: Mapping[str, str] = field(default_factory=dict)
    """Every digest by what it is of: composite, dataset, config, code, lock, certificate, ledger head."""
    candidate: Mapping[str, Any] | None = None
    """{version, run_id, url, digest}."""
    champion: Mapping[str, Any] | None = None
    """{version, url, composite, since, approver}."""
    links: Mapping[str, str] = field(default_factory=dict)
    ledger: Mapping[str, Any] | None = None
    """The head: {size, last, root}."""
    history: Sequence[Mapping[str, Any]] = ()
    """Ledger entries of the plant: {sequence, timestamp, kind, detail}."""
    seconds: Mapping[str, float] = field(default_factory=dict)


def environment() -> Environment:
    """Templates of the report and the version's description; a missing value is an error, never a blank."""
    loader = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader.filters |= {"interval": interval, "short": short, "number": number, "signed": signed}
    return loader


def number(value: Any) -> str:
    """A number for people: thousands apart, four digits, the minus sign a minus sign."""
    if value is None:
        return "–"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return text.replace("-", "−")


def signed(value: float) -> str:
    """A difference: with its sign."""
    return f"{value:+,.4g}".replace("-", "−")


def interval(value: Mapping[str, Any] | None, difference: bool = False) -> str:
    """`value [lower, upper]`."""
    if value is None:
        return "–"
    form = signed if difference else number
    if value.get("lower") is None or value.get("upper") is None:
        return form(value["value"])
    return f"{form(value['value'])} [{form(value['lower'])}, {form(value['upper'])}]"


def short(digest: str) -> str:
    """The first twelve characters of a digest."""
    return digest[:12]


def untrained(record: Record) -> bool:
    """Whether this is about the version that is the plant's own controller: its composite is no member's."""
    composite = record.digests.get("composite")
    return composite is not None and composite not in {member["digest"] for member in record.population["members"]}


def view(record: Record) -> dict[str, Any]:
    """What both templates show: the record, and what follows from it."""
    plant = PLANTS[record.run.plant]
    rollouts = record.evaluation.get("rollouts") or {}
    members = [dict(member) for member in record.population["members"]]
    estimates = {member["index"]: member for member in record.evaluation["members"]}
    scores = rollouts.get("member_scores", [])
    for position, member in enumerate(members):
        found = estimates.get(member["index"], {})
        member["ope"], member["cost_ope"] = found.get("ope"), found.get("cost_ope")
        member["score"] = scores[position] if position < len(scores) else None
        member["selected"] = position == record.evaluation["selected"]
    # The first screen shows the certificate that the verdict rests on.
    own = record.certificates.get("candidate")
    of_fallback = record.verdict in OF_FALLBACK or not own
    certificate = record.certificates.get("fallback") if of_fallback else own
    not_tested = "" if own or record.verdict in OF_FALLBACK else "; the candidate has none"
    failed = [GATE_NAMES.get(gate["name"], gate["name"]) for gate in record.gates if gate["passed"] is False]
    return {
        "record": record,
        "title": record.run.plant.replace("_", " ").capitalize(),
        "verdict": VERDICTS[record.verdict],
        "good": record.verdict in GOOD,
        "gates": [{**gate, "title": GATE_NAMES.get(gate["name"], gate["name"])} for gate in record.gates],
        "failed": failed,
        "certificate": certificate,
        "certificate_of": f"plant controller{not_tested}" if of_fallback else "candidate",
        "untrained": untrained(record),
        "non_claims": NON_CLAIMS,
        "controllers": {name: rollouts["controllers"][name] for name in CONTROLLERS if name in rollouts["controllers"]}
        if rollouts
        else {},
        "differences": rollouts.get("differences", {}),
        "score": rollouts.get("score"),
        "members": members,
        "spec": plant.spec,
        "limits": spec_record(plant.spec)["constraints"],
        "confidence": f"{100 * record.run.evaluate.confidence:g} %",
    }


def _pictures(plots: Mapping[str, Path]) -> dict[str, str]:
    return {
        name: f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for name, path in plots.items()
        if path.is_file()
    }


def report(home: Home, record: Record, plots: Mapping[str, Path]) -> Path:
    """Write the report of a retraining.

    Args:
        record: everything known of it.
        plots: PNG files by name: trajectories, intervals, ope, curves (`tasks.register.draw_plots`); those that are
            missing are left out.

    Returns:
        `reports/<plant>/<run key>.html` under the home: one file, no request leaves it.
    """
    text = environment().get_template("report.html.j2").render(**view(record), pictures=_pictures(plots))
    return write_atomic(home.folder("reports", record.run.plant) / f"{record.run_key}.html", text.encode())
