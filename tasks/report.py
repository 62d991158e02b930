"""Reports of a retraining: pictures, one HTML file that opens offline, and a short Markdown version."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from configs.home import Home
from neorl_core.types import Constraint
from tasks.evidence.claims import NON_CLAIMS
from tasks.files.arrays import read_npz
from tasks.files.canonical import write_atomic
from tasks.gates import ABSENT_LOG_ONLY
from tasks.models.plants.known import plant_of
from tasks.pictures.curves import plot_curves, plot_prediction
from tasks.pictures.departure import plot_departure
from tasks.pictures.estimates import plot_intervals, plot_ope
from tasks.pictures.style import CONTROLLERS
from tasks.pictures.trajectories import Trajectory, plot_glance, plot_trajectories
from tasks.record import GATE_TITLES, Record, mark, process_claims, verdict_text
from tasks.references import (
    Certificate,
    ControllerRollouts,
    Interval,
    Member,
    MemberEvaluation,
    RankedMember,
    Reference,
    Rollouts,
)

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
TONES: dict[str, Literal["good", "bad", "wait"]] = {
    "promoted": "good",
    "passed": "good",
    "fallback": "good",
    "unchanged": "good",
    "shadow": "good",
    "refused": "bad",
    "failed": "bad",
}
"""Colour of a verdict's headline; other verdicts wait for a person."""
GAP = "\u2003\u2060"
"""Space between columns of a table, because MLflow shows none. The word joiner stops Markdown from trimming."""
CERTIFIED = "The tuned controller is certified"
"""Verdict of the tuned controller's version at registration."""
NO_SIMULATOR = (
    "No probability of violating a limit: there is no simulator.",
    "No return of actions outside the support of the logs.",
    "Nothing about a plant that has changed since the logs; drift detection of a shadow monitors that.",
)
"""Non-claims for a log-only plant."""
NOT_CERTIFIED = "plant controller; the candidate has no certificate"


class ReportFiles(Reference):
    """Files that `report` writes."""

    page: Path
    glance: Path | None
    """Summary picture; None without rollouts."""


class GateRow(NamedTuple):
    """A row of the table of gates."""

    title: str
    mark: Literal["pass", "FAIL", "not run"]
    detail: str


class MemberRow(NamedTuple):
    """A row of the table of members."""

    member: Member
    estimate: MemberEvaluation
    ranked: RankedMember | None
    selected: bool


@dataclass(frozen=True)
class View:
    """Data that the HTML and Markdown templates show in addition to the record."""

    title: str
    verdict: str
    tone: Literal["good", "bad", "wait"]
    gates: tuple[GateRow, ...]
    certificate: Certificate | None
    """Certificate that the verdict is based on."""
    certificate_of: str
    non_claims: tuple[str, ...]
    controllers: dict[str, ControllerRollouts]
    differences: dict[str, Interval]
    members: tuple[MemberRow, ...]
    limits: tuple[Constraint, ...]
    confidence: str
    claims: tuple[str, ...]
    """Claims about a log-only plant; empty if there is a simulator, because then the certificate has the claim."""
    absent: dict[str, str]
    """Gates that do not apply to the plant, with the reason."""


def view(record: Record) -> View:
    """Return the values that the report's templates show."""
    rollouts, own = record.rollouts, record.certificate
    # The first screen shows the certificate that the verdict is based on.
    by_fallback = record.of_fallback or record.verdict in ("fallback", "fallback_waiting")
    alone = record.of_fallback and record.verdict == "passed"
    certificate = own if own is not None and not by_fallback else record.fallback
    of = "candidate" if certificate is own else "plant controller" if by_fallback else NOT_CERTIFIED
    ranking = record.evaluation.ranking
    estimates = {estimate.index: estimate for estimate in record.evaluation.members}
    return View(
        title=record.run.plant.replace("_", " ").capitalize(),
        verdict=CERTIFIED if alone else verdict_text(record.verdict, record.gates, record.champion),
        tone=TONES.get(record.verdict, "wait"),
        gates=tuple(
            GateRow(f"{gate.name}: {GATE_TITLES.get(gate.name, '')}", mark(gate), gate.detail) for gate in record.gates
        ),
        certificate=certificate,
        certificate_of=of,
        non_claims=NO_SIMULATOR if record.of_process else NON_CLAIMS,
        controllers={name: rollouts.controllers[name] for name in CONTROLLERS if name in rollouts.controllers}
        if rollouts
        else {},
        differences=rollouts.differences if rollouts else {},
        members=tuple(
            MemberRow(
                member,
                estimates[member.index],
                ranking.members[i] if ranking else None,
                i == record.evaluation.selected,
            )
            for i, member in enumerate(record.population.members)
        ),
        limits=plant_of(record.run).spec.constraints,
        confidence=f"{100 * record.run.evaluate.confidence:g} %",
        claims=process_claims(record),
        absent=ABSENT_LOG_ONLY if record.of_process else {},
    )


def draw_plots(folder: Path, record: Record) -> dict[str, Path]:
    """Draw learning curves, trajectories, intervals, and off-policy estimates (OPE) against rollouts.

    The pictures do not depend on the verdict, so they are drawn once, before registration.

    Returns:
        Paths of the pictures by name. Without rollouts, only curves and prediction are drawn.
    """
    plots: dict[str, Path] = {}
    member = record.selected
    steps, curves = read_curves(record.population.learners[member.learner].curves)
    if curves:
        plots["curves"] = plot_curves(folder / "curves.png", steps, curves, member.row)
    if record.model is not None:
        plots["prediction"] = plot_prediction(folder / "prediction.png", record.model.prediction)
    if record.rollouts is None:
        return plots
    shown, plant = view(record), plant_of(record.run)
    plots["trajectories"] = plot_trajectories(
        folder / "trajectories.png", plant.spec, read_trajectories(record.rollouts), plant.drawn
    )
    if record.rollouts.departure is not None:
        histograms = read_npz(record.rollouts.departure.histograms)
        plots["departure"] = plot_departure(folder / "departure.png", plant.spec, histograms)
    plots["intervals"] = plot_intervals(
        folder / "intervals.png", _estimates(record, shown), record.run.evaluate.confidence
    )
    rated = [
        (row.estimate.ope, row.ranked.score, row.selected)
        for row in shown.members
        if row.ranked is not None and row.estimate.supported
    ]
    if rated:
        estimates, scores, marked = zip(*rated, strict=True)
        chosen = marked.index(True) if True in marked else -1
        plots["ope"] = plot_ope(folder / "ope.png", estimates, scores, chosen, "discounted return", "score")
    return plots


def draw_glance(folder: Path, record: Record) -> Path | None:
    """Draw the summary picture: trajectories, comparison, verdict and claim; None without rollouts."""
    shown = view(record)
    if record.rollouts is None or shown.certificate is None:
        return None
    found, plant = shown.certificate, plant_of(record.run)
    return plot_glance(
        folder / "glance.png",
        plant.spec,
        read_trajectories(record.rollouts),
        {name: controller.returns for name, controller in shown.controllers.items()},
        plant.drawn,
        verdict=shown.verdict,
        reason=record.headline,
        claim=f"{found.claim}: {found.violations} violations in {found.episodes:,} episodes",
    )


def _estimates(record: Record, shown: View) -> dict[str, dict[str, Interval]]:
    """Return the candidate's estimates for the picture of intervals, by axis label and name."""
    differences = {f"rollouts, vs {name}": found for name, found in shown.differences.items()}
    differences["logs (OPE), vs logged controller"] = record.evaluation.difference
    selected = next(row.estimate for row in shown.members if row.selected)
    return {
        "return per episode (rollouts on the simulator)": {
            name: controller.returns for name, controller in shown.controllers.items()
        },
        "difference of returns": differences,
        "cost per episode: steps beyond a limit (OPE)": {"candidate": selected.cost_ope},
    }


def read_curves(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the logged updates (L,) and the values (P, L) of each metric."""
    curves = read_npz(path)
    return curves.pop("step"), curves


def read_trajectories(rollouts: Rollouts) -> dict[str, Trajectory]:
    """Return one episode of each controller, the candidate first."""
    arrays = read_npz(rollouts.trajectories)
    names = dict.fromkeys(name.rpartition("/")[0] for name in arrays)
    ordered = [
        *(name for name in CONTROLLERS if name in names),
        *(name for name in names if name not in CONTROLLERS),
    ]
    # Rollouts from older versions of NeoRL have no margins.
    kinds = ["observations", "actions", *(["margins"] if f"{ordered[0]}/margins" in arrays else [])]
    return {name: Trajectory(*(arrays[f"{name}/{kind}"] for kind in kinds)) for name in ordered}


def describe(record: Record, run_url: str = "", picture: str = "", page: Path | None = None) -> str:
    """Return the short report as Markdown, beginning with verdict, claim, comparison and gates.

    MLflow's page of a version shows a picture; Prefect's artifact cannot and names the report's file.

    Args:
        picture: URL of the picture of trajectories, relative to the UI.
    """
    template = environment().get_template("version.md.j2")
    about = {"record": record, "view": view(record), "run_url": run_url, "picture": picture, "page": page}
    return template.render(about, gap=GAP if picture else "")


def report(home: Home, record: Record, plots: Mapping[str, Path]) -> ReportFiles:
    """Write the report of a retraining.

    Args:
        plots: PNG files by name, from `draw_plots`; missing files are left out.

    Returns:
        The page, and the summary picture `runs/<plant>/<run key>/plots/glance.png`.
    """
    pictures = {
        name: f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        for name, path in plots.items()
        if path.is_file()
    }
    text = environment().get_template("report.html.j2").render(record=record, view=view(record), pictures=pictures)
    page = write_atomic(home.folder("reports", record.run.plant) / f"{record.run_key}.html", text.encode())
    glance = draw_glance(home.folder("runs", record.run.plant, record.run_key, "plots"), record)
    return ReportFiles(page=page, glance=glance)


def environment() -> Environment:
    """Return the templates' environment, in which a missing value is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader.filters |= {"interval": interval, "short": short, "number": number, "limit": limit, "cell": cell}
    return loader


def number(value: float | None) -> str:
    """Format a number with four digits, thousands separators and a true minus sign; a dash if missing."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return text.replace("-", "−")


def signed(value: float) -> str:
    """Format a difference with a sign."""
    return f"{value:+,.4g}".replace("-", "−") if math.isfinite(value) else "–"


def interval(value: Interval | None, difference: bool = False, absent: str = "–") -> str:
    """Format an estimate as `value [lower, upper]`, or `absent` if it does not exist."""
    if value is None or not math.isfinite(value.value):
        return absent
    form = signed if difference else number
    if not (math.isfinite(value.lower) and math.isfinite(value.upper)):
        return form(value.value)
    return f"{form(value.value)} [{form(value.lower)}, {form(value.upper)}]"


def limit(constraint: Constraint) -> str:
    """Describe a hard limit in words, such as `level at most 1.8 m`."""
    low, high = math.isfinite(constraint.low), math.isfinite(constraint.high)
    bounds = f"within {constraint.low:g} to {constraint.high:g}" if low and high else ""
    bounds = bounds or (f"at most {constraint.high:g}" if high else f"at least {constraint.low:g}")
    return f"{constraint.name} {bounds} {constraint.unit}"


def short(digest: str) -> str:
    """Return the first twelve characters of a digest."""
    return digest[:12]


def cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
