"""A small record of a retraining, for tests of reports and the registry."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from configs.run import Data, OpenedRun
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from tasks.files.canonical import sha256_hex, write_json
from tasks.models.bundles.bundle import save_bundle
from tasks.record import Record
from tasks.references import (
    Bundle,
    Certificate,
    ChampionInForce,
    ControllerRollouts,
    Dataset,
    Departure,
    Digests,
    Evaluation,
    Gate,
    HistoryRow,
    Interval,
    LedgerHead,
    Member,
    MemberEvaluation,
    Placement,
    Population,
    RankedMember,
    Ranking,
    Rollouts,
    Source,
    TrainedLearner,
    Validation,
)

PLANT = PLANTS["chemical_reactor"]
CLAIM = (
    "P(an episode of 60 steps under domain chemical_reactor/standard violates 316 <= reactor temperature <= 332 K) <= "
    "0.001 with confidence 95 %, for composite 0123456789ab on simulator cdef01234567"
)


def spread(value: float, half: float) -> Interval:
    """Return an interval around a value."""
    return Interval(value=value, lower=value - half, upper=value + half)


def write_bundle(folder: Path) -> str:
    """Write the plant's own controller as a bundle, which needs no training."""
    return save_bundle(folder, make_composite(PLANT), "chemical_reactor")


def _arrays(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    steps = np.arange(1, 401) * 50
    losses = {name: np.exp(-steps / 5e3) + 0.05 * rng.random((4, 400)) for name in ("critic_loss", "actor_loss")}
    np.savez(folder / "curves.npz", step=steps, **losses)
    t = np.arange(60)
    traces: dict[str, np.ndarray] = {}
    for i, name in enumerate(("plant controller", "candidate", "champion")):
        goal = np.where(t < 20, 0.875, np.where(t < 40, 0.89, 0.865))
        concentration = goal + 0.012 * np.exp(-(t % 20) / (2.0 + 3 * i)) * np.cos(t / (3 + i))
        temperature = 324.5 - 120 * (concentration - 0.877) + 0.1 * rng.standard_normal(60)
        coolant = 298.5 + 1.5 * np.sin(t / 6 + i)
        traces[f"{name}/observations"] = np.stack([concentration, temperature, coolant, goal], axis=1)
        traces[f"{name}/actions"] = coolant[:, None]
        traces[f"{name}/handed_over"] = np.zeros(60, bool)
    np.savez(folder / "trajectories.npz", allow_pickle=False, **traces)
    signals = PLANT.spec.observation.size + PLANT.spec.action.size
    shares = dict.fromkeys(("logs", "plant controller", "candidate", "champion"), np.full((signals, 4), 0.25))
    edges = np.tile(np.arange(5.0), (signals, 1))
    np.savez(folder / "departure.npz", allow_pickle=False, edges=edges, **shares)
    return folder / "curves.npz", folder / "trajectories.npz"


def _certificate(folder: Path, name: str, composite: str) -> Certificate:
    return Certificate(
        path=write_json(folder / f"{name}.dsse.json", {"payload": name}),
        claim=CLAIM,
        passed=True,
        attempt=1 if name == "fallback" else 2,
        alpha=0.025,
        episodes=4097,
        violations=0,
        upper_bound=0.0009,
        handovers=12,
        composite=composite,
    )


def _evaluation() -> Evaluation:
    members = tuple(
        MemberEvaluation(
            index=i,
            ope=spread(-1.2 + 0.1 * i, 0.08),
            cost_ope=spread(0.01 * i, 0.005),
            gain=spread(0.07 * i, 0.06),
            outside=0.04,
            disagreement=0.02,
            supported=True,
            effective_rows=900.0,
        )
        for i in range(4)
    )
    return Evaluation(
        selected=3,
        members=members,
        behaviour=spread(-1.1, 0.1),
        difference=spread(0.21, 0.06),
        supported=True,
        ranking=Ranking(
            members=tuple(
                RankedMember(score=spread(80 + 2.5 * i, 1.5), gain=spread(2.5 * i, 0.5), violated=0) for i in range(4)
            ),
            tuned_violated=0,
            episodes=256,
        ),
        discount=0.99,
        episodes=150,
    )


def _rollouts(trajectories: Path) -> Rollouts:
    def controller(value: float, half: float) -> ControllerRollouts:
        return ControllerRollouts(
            returns=spread(value, half),
            score=100 * (value + 1),
            violated=0,
            episodes=256,
            handovers_per_episode=0.2,
            fallback_share=0.04,
            least_margins=(2.1,),
        )

    return Rollouts(
        controllers={
            "plant controller": controller(-0.231, 0.011),
            "candidate": controller(-0.128, 0.009),
            "champion": controller(-0.152, 0.010),
        },
        differences={"plant controller": spread(0.103, 0.012), "champion": spread(0.024, 0.007)},
        score=87.5,
        trajectories=trajectories,
        departure=Departure(
            unlike={"plant controller": 0.098, "candidate": 0.3, "champion": 0.12},
            beyond={
                name: {"temperature": 0.0, "action coolant_temperature": share}
                for name, share in (("plant controller", 0.0), ("candidate", 0.055), ("champion", 0.01))
            },
            steps=8192,
            histograms=trajectories.with_name("departure.npz"),
        ),
    )


def _gates() -> tuple[Gate, ...]:
    return (
        Gate(name="data", passed=True, detail="all expectations hold"),
        Gate(name="simulator", passed=True, detail="one-step error on held-out logs at most 6.1% of the spread"),
        Gate(name="ope", passed=True, detail="estimated gain over the logged controller +0.21"),
        Gate(name="fallback", passed=True, detail="0 violations in 3327 episodes, attempt 1, α = 0.05"),
        Gate(name="statistical", passed=True, detail="0 violations in 4097 episodes, attempt 2, α = 0.025"),
        Gate(name="servability", passed=True, detail="16 answers agree, p99 310 µs"),
    )


def _population(folder: Path, bundle: Bundle, curves: Path) -> Population:
    return Population(
        digest=sha256_hex(b"population"),
        folder=folder,
        members=tuple(
            Member(index=i, learner=0, row=i, algorithm="td3_bc", seed=i, hyperparameters={"alpha": 2.5}, bundle=bundle)
            for i in range(4)
        ),
        learners=(
            TrainedLearner(
                algorithm="td3_bc",
                updates=20_000,
                curves=curves,
                steps_per_second=5120.0,
                placement=Placement(processes=False, reason="one program is faster here"),
            ),
        ),
        rows=40_000,
    )


def sample_record(folder: Path) -> tuple[Record, Bundle]:
    """Return a record with passed gates, and its bundle."""
    composite = write_bundle(folder / "bundle")
    bundle = Bundle(digest=composite, plant="chemical_reactor", folder=folder / "bundle")
    curves, trajectories = _arrays(folder / "arrays")
    docs = folder / "docs" / "index.html"
    docs.parent.mkdir(parents=True, exist_ok=True)
    docs.write_text("<p>Data Docs</p>")
    digests = {name: sha256_hex(name.encode()) for name in ("dataset", "config", "code", "lock", "certificate")}
    record = Record(
        run=OpenedRun(plant="chemical_reactor", data=Data(mapping=Path("configs/mappings/chemical_reactor.yaml"))),
        run_key=sha256_hex(b"run"),
        verdict="waiting",
        headline="Better than the plant's own controller on held-out logs, certified, and waiting for a reviewer.",
        dataset=Dataset(
            plant="chemical_reactor",
            digest=digests["dataset"],
            store=folder / "dataset",
            manifest=folder / "dataset" / "manifests" / f"{digests['dataset']}.json",
            shards=(),
            rows=46_512,
            episodes=775,
            quarantined=31,
            quarantine=folder / "quarantine",
            reasons={"out of order": 31},
            sources=(Source(path="reactor_log.parquet", sha256=sha256_hex(b"source")),),
        ),
        validation=Validation(passed=True, reasons=(), data_docs=docs),
        population=_population(folder, bundle, curves),
        evaluation=_evaluation(),
        rollouts=_rollouts(trajectories),
        fallback=_certificate(folder, "fallback", composite),
        certificate=_certificate(folder, "candidate", composite),
        gates=_gates(),
        digests=Digests(composite=composite, **digests),
        champion=ChampionInForce(
            version="2",
            url="",
            composite=sha256_hex(b"champion"),
            since="2026-11-19T14:00:00Z",
            approver="a reviewer",
            claim=CLAIM,
        ),
        links={"Prefect run": "http://127.0.0.1:4200/runs/flow-run/1", "Data Docs": docs.as_uri()},
        ledger=LedgerHead(size=14, last=sha256_hex(b"last"), root=sha256_hex(b"root"), signed='{"payload":"x"}'),
        history=(
            HistoryRow(sequence=1, timestamp="2026-11-20T14:00:00Z", kind="attempt", detail="number 1 of the lineage"),
        ),
        seconds={"ingest": 3.1, "validate": 8.4, "train": 41.0, "certify": 22.5},
    )
    return record, bundle
