"""Put a candidate into the registry with everything a reviewer needs to decide on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.home import Home
from neorl_core.plants import PLANTS
from tasks.adapters.registry.server import Registry
from tasks.adapters.registry.submission import Submission
from tasks.adapters.reporting.curves import plot_curves
from tasks.adapters.reporting.plots import plot_glance, plot_intervals, plot_ope, plot_trajectories
from tasks.report import Record, environment, untrained, view


def describe(record: Record, run_url: str = "", picture: str = "") -> str:
    """The version's description in Markdown: verdict, claim, comparison and gates before anything else.

    Args:
        record: everything known of the retraining.
        run_url: where the UI shows the run and its artifacts.
        picture: URL of a picture of the trajectories, relative to the UI.
    """
    template = environment().get_template("version.md.j2")
    return template.render(**view(record), run_url=run_url, picture=picture)


def draw_plots(folder: Path, record: Record) -> dict[str, Path]:
    """Draw the pictures of a retraining: trajectories, intervals, ope, curves and glance (for the README)."""
    spec = PLANTS[record.run.plant].spec
    context = view(record)
    plots: dict[str, Path] = {}
    curves = read_curves(Path(record.population["curves_path"]))
    if curves:
        steps = next(iter(curves.values()))[0]
        stacked = {name: values for name, (_, values) in curves.items()}
        plots["curves"] = plot_curves(folder / "curves.png", steps, stacked, _selected(record)["index"])
    if not context["controllers"]:
        return plots
    rollouts = record.evaluation["rollouts"]
    traces = read_trajectories(Path(rollouts["trajectories"]))
    plots["trajectories"] = plot_trajectories(folder / "trajectories.png", spec, traces)
    returns = {name: found["return"] for name, found in context["controllers"].items()}
    costs = {m["name"]: m["cost_ope"] for m in _named_costs(context["members"])}
    groups: dict[str, Any] = {"return per episode (rollouts on the twin)": returns}
    differences = {f"rollouts, vs {name}": found for name, found in context["differences"].items()}
    logged = record.evaluation.get("difference")
    if logged and logged.get("lower") is not None:
        differences["logs (OPE), vs logged controller"] = logged
    if differences:
        groups["difference of returns"] = differences
    if costs:
        groups["cost per episode: steps beyond a limit (OPE)"] = costs
    plots["intervals"] = plot_intervals(folder / "intervals.png", groups, record.run.evaluate.confidence)
    rated = [m for m in context["members"] if m["ope"] and m["score"]]
    if rated:
        chosen = next((i for i, m in enumerate(rated) if m["selected"]), -1)
        estimates, scores = [m["ope"] for m in rated], [m["score"] for m in rated]
        plots["ope"] = plot_ope(folder / "ope.png", estimates, scores, chosen, "discounted return", "score")
    certificate = context["certificate"]
    claim = f"{certificate['claim']}: {certificate['violations']} violations in {certificate['episodes']:,} episodes"
    headline = f"{context['verdict']}. {record.headline}"
    plots["glance"] = plot_glance(folder / "glance.png", spec, traces, returns, headline, claim)
    return plots


def _selected(record: Record) -> dict[str, Any]:
    """The selected member; its `index` is its row of the learning curves, of which members may be fewer."""
    member: dict[str, Any] = record.population["members"][record.evaluation["selected"]]
    return member


def _named_costs(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only the selected member's: a reviewer decides on one."""
    return [{**member, "name": "candidate"} for member in members if member["selected"] and member["cost_ope"]]


def read_curves(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Learning curves: metric -> (steps (L,), values (P, L))."""
    with np.load(path, allow_pickle=False) as archive:
        return {name: (archive["step"], archive[name]) for name in archive.files if name != "step"}


def read_trajectories(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """One episode per controller, the candidate first."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            controller, quantity = name.rsplit("/", 1)
            found.setdefault(controller, {})[quantity] = archive[name]
    order = [name for name in ("candidate", "champion", "plant controller") if name in found]
    return {name: found[name] for name in [*order, *(n for n in found if n not in order)]}


def parameters(record: Record) -> dict[str, Any]:
    """What the run was configured with, flat, and the selected member's own hyper-parameters if it is the one."""
    flat: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    walk("", record.run.identity())
    if not untrained(record):
        member = _selected(record)
        walk("selected", {"seed": member["seed"], **member["hyperparameters"]})
    return flat


def metrics(record: Record) -> dict[str, float]:
    """The numbers a reviewer sorts runs by; of the plant's own controller only what is its own."""
    context, own = view(record), untrained(record)
    controllers = {name: c for name, c in context["controllers"].items() if not own or name == "plant controller"}
    score = controllers.get("plant controller", {}).get("score") if own else context["score"]
    found = {"score": score} if score is not None else {}
    for name, controller in controllers.items():
        prefix = name.replace(" ", "_")
        found[f"{prefix}/return"] = controller["return"]["value"]
        found[f"{prefix}/violated_episodes"] = controller["violated"]
    differences = {**context["differences"], "logged controller (OPE)": record.evaluation.get("difference")}
    for name, value in () if own else differences.items():
        if value:
            key = name.replace(" ", "_").replace("(", "").replace(")", "")
            found |= {f"difference/{key}/{part}": value[part] for part in ("value", "lower", "upper") if part in value}
    if context["certificate"]:
        kept = ("episodes", "violations", "upper_bound")
        found |= {f"certificate/{key}": context["certificate"][key] for key in kept if key in context["certificate"]}
    return {key: float(value) for key, value in found.items() if value is not None}


def register(
    home: Home, record: Record, registry: Registry, bundle: Path, artifacts: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """Register a candidate; the same run key and composite again find the version that is there.

    Args:
        home: plots are kept under `runs/<plant>/<run key>/plots`.
        record: everything known so far; its `digests` become the version's tags.
        registry: MLflow.
        bundle: folder of the composite that was certified.
        artifacts: more files for the run, folder in the run -> local file or folder (certificate, Data Docs).

    Returns:
        {version, run_id, url, digest}.

    Raises:
        ServiceMissing: when MLflow stops answering; running again completes it.
        Refused: when the bundle is not the composite that `digests["composite"]` names.
    """
    plant, digest = record.run.plant, record.digests["composite"]
    known = registry.find(plant, record.run_key, digest)
    if known is not None:
        return known
    folder = home.folder("runs", plant, record.run_key, "plots")
    draw_plots(folder, record)
    known_curves = {} if untrained(record) else read_curves(Path(record.population["curves_path"]))
    row = _selected(record)["index"]
    curves = {name: (steps, values[row]) for name, (steps, values) in known_curves.items()}
    files = {"plots": folder, **(artifacts or {})}
    if record.validation.get("data_docs"):
        files.setdefault("data_docs", Path(record.validation["data_docs"]).parent)
    for name, certificate in record.certificates.items():
        if certificate:
            files.setdefault(f"certificates/{name}", Path(certificate["path"]))

    def description(run_id: str) -> str:
        picture = f"get-artifact?path=plots%2Ftrajectories.png&run_uuid={run_id}"
        return describe(record, registry.run_url(registry.experiment(plant), run_id), picture)

    return registry.register(
        Submission(
            plant=plant,
            run_key=record.run_key,
            digest=digest,
            bundle=bundle,
            dataset=record.dataset,
            describe=description,
            params=parameters(record),
            metrics=metrics(record),
            curves=curves,
            tags={f"neorl.{name}": value for name, value in record.digests.items() if value},
            artifacts=files,
        )
    )
