"""Upload a candidate to MLflow: a run with numbers, files and dataset, and the served model.

The tags `neorl.run_key` and `neorl.composite` identify a run. After a kill, a finished run is reused, and an unfinished
run is marked as failed and replaced."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from configs.code import Origin
from neorl_core.types import Plant, PlantSpec, Process
from tasks.files.arrays import read_npz
from tasks.files.provenance import ROOT, modules_of, source_file
from tasks.references import Dataset

if TYPE_CHECKING:
    from mlflow import MlflowClient

RUN_KEY, COMPOSITE, MODEL_ID = "neorl.run_key", "neorl.composite", "neorl.model_id"
STATUS_TAG, HEAD = "neorl.status", "neorl.ledger_head"
CURVE_POINTS = 200
REQUIREMENTS = ("mlflow", "numpy", "pandas", "jax", "jaxtyping", "flax")
BATCH = 1000
"""Largest number of metrics in one request."""


class Curve(NamedTuple):
    steps: np.ndarray
    """(L,) number of updates at each point."""
    values: np.ndarray
    """(L,) value at each point."""


class Artifact(NamedTuple):
    """A file or folder to upload to an MLflow run."""

    folder: str
    """Folder among the run's files; empty for the top folder."""
    path: Path


@dataclass(frozen=True)
class Submission:
    """Everything that is uploaded for one candidate."""

    plant: str
    run_key: str
    """Key of the retraining: digest of dataset, configuration and code."""
    name: str
    digest: str
    bundle: Path
    dataset: Dataset
    describe: Callable[[str], str]
    """Function that returns the version's description (Markdown), given the id of the run."""
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Sequence[Artifact] = ()
    signature: Path | None = None
    """Folder with the bundle's OpenSSF signature."""
    source: Origin | None = None
    """The plant's code, if it is not built in."""

    def all_tags(self) -> dict[str, str]:
        """Return all tags, including those that identify runs and versions."""
        return {**self.tags, RUN_KEY: self.run_key, COMPOSITE: self.digest}

    def version_tags(self, model_id: str) -> dict[str, str]:
        """Return the version's tags, which MLflow's table of versions shows in this order."""
        head = {HEAD: self.tags[HEAD]} if HEAD in self.tags else {}
        return {STATUS_TAG: "registered", COMPOSITE: self.digest, RUN_KEY: self.run_key, MODEL_ID: model_id} | head


class UploadedRun(NamedTuple):
    run_id: str
    model_id: str


def upload(client: MlflowClient, experiment: str, submission: Submission, plant: Plant | Process) -> UploadedRun:
    """Upload a candidate's run and model, or return the run that is already uploaded; the caller adds the version."""
    query = f"tags.`{RUN_KEY}` = '{submission.run_key}' and tags.`{COMPOSITE}` = '{submission.digest}'"
    for run in client.search_runs([experiment], filter_string=query):
        if run.info.status == "FINISHED":
            return UploadedRun(run.info.run_id, run.data.tags[MODEL_ID])
        if run.info.status == "RUNNING":
            client.set_terminated(run.info.run_id, "FAILED")
    return _new_run(client, experiment, submission, plant)


def put(client: MlflowClient, run_id: str, artifact: Artifact) -> None:
    send = client.log_artifacts if artifact.path.is_dir() else client.log_artifact
    send(run_id, str(artifact.path), artifact.folder or None)


def _new_run(client: MlflowClient, experiment: str, submission: Submission, plant: Plant | Process) -> UploadedRun:
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus, RunTag

    tags = submission.all_tags()
    run_id = client.create_run(experiment, tags=tags, run_name=submission.name).info.run_id
    model = client.create_logged_model(
        experiment, name=submission.plant, source_run_id=run_id, params=dict(submission.params), tags=tags
    )
    done = UploadedRun(run_id, model.model_id)
    client.log_outputs(run_id, [LoggedModelOutput(done.model_id, step=0)])
    _log_numbers(client, done, submission)
    _log_dataset(client, run_id, submission.plant, submission.dataset)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "model"
        _write_model(files, submission, plant)
        client.log_model_artifacts(done.model_id, str(files))
    client.finalize_logged_model(done.model_id, LoggedModelStatus.READY)
    for artifact in submission.artifacts:
        put(client, run_id, artifact)
    if submission.dataset.card is not None and submission.dataset.card.is_file():
        for file in (submission.dataset.card, *submission.dataset.card_pictures):
            put(client, run_id, Artifact("dataset", file))
    client.log_batch(run_id, tags=[RunTag(MODEL_ID, done.model_id)])
    client.set_terminated(run_id, "FINISHED")
    return done


def _log_numbers(client: MlflowClient, run: UploadedRun, submission: Submission) -> None:
    from mlflow.entities import Metric, Param

    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, step) for key, value, step in curve_points(submission.curves)]
    last = max((metric.step for metric in metrics), default=0)
    # With the model's id, results also appear on the model's page.
    metrics += [
        Metric(key, float(value), now, last, model_id=run.model_id, run_id=run.run_id)
        for key, value in submission.metrics.items()
        if np.isfinite(value)
    ]
    params = [Param(key, value) for key, value in submission.params.items()]
    for start in range(0, max(len(metrics), 1), BATCH):
        batch = params if start == 0 else []
        client.log_batch(run.run_id, metrics=metrics[start : start + BATCH], params=batch, synchronous=True)


def _log_dataset(client: MlflowClient, run_id: str, plant: str, dataset: Dataset) -> None:
    from mlflow import entities

    facts = {"rows": dataset.rows, "episodes": dataset.episodes, "quarantined": dataset.quarantined}
    entry = entities.Dataset(
        name=plant,
        # MLflow keeps 36 characters of a digest; the tag has all 64.
        digest=dataset.digest[:36],
        source_type="local",
        source=json.dumps({"uri": str(dataset.store)}),
        profile=json.dumps({**facts, "sha256": dataset.digest}),
    )
    tags = [
        entities.InputTag("mlflow.data.context", "training"),
        entities.InputTag("neorl.dataset", dataset.digest),
    ]
    client.log_inputs(run_id, [entities.DatasetInput(entry, tags)])


def _write_model(target: Path, submission: Submission, plant: Plant | Process) -> None:
    """Write the model's folder for MLflow: code, bundle, signature and input example; nothing is pickled."""
    from importlib.metadata import version

    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    pyfunc = import_pyfunc()
    with tempfile.TemporaryDirectory() as folder:
        # MLflow keeps the folder's name, and loading expects the name `bundle`.
        bundle = Path(shutil.copytree(submission.bundle, Path(folder) / "bundle"))
        observation, action = plant.spec.observation, plant.spec.action
        pyfunc.save_model(
            path=str(target),
            python_model=str(Path(__file__).with_name("policy_model.py")),
            artifacts={"bundle": str(bundle)},
            model_config={"digest": submission.digest},
            code_paths=[str(path) for path in loadable_code(Path(folder) / "code")],
            signature=ModelSignature(
                inputs=Schema([ColSpec("double", name) for name in observation.names]),
                outputs=Schema([ColSpec("double", name) for name in action.names]),
            ),
            # Without this type, MLflow compares column names in a way that pandas deprecates.
            input_example=pd.DataFrame(
                example_row(submission.bundle), columns=pd.Index(observation.names, dtype=object)
            ),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
            metadata={"composite": submission.digest, "units": units(plant.spec)},
        )
    if submission.signature is not None:
        shutil.copytree(submission.signature, target / "openssf")


def import_pyfunc() -> ModuleType:
    """Import MLflow's pyfunc without its warnings about type hints."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*type hint", category=UserWarning)
        import mlflow.pyfunc
    return mlflow.pyfunc


def loadable_code(folder: Path) -> list[Path]:
    """Copy the code that a model needs into a folder, so that the model loads without an installation of NeoRL."""
    shutil.copytree(ROOT / "neorl_core", folder / "neorl_core", ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules_of("tasks.models.mlflow_entry"):
        source = source_file(module)
        copy = folder / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return [folder / name for name in ("neorl_core", "configs", "tasks")]


def example_row(bundle: Path) -> np.ndarray:
    """Return the first recorded observation (1, O), in physical units."""
    return np.asarray(read_npz(bundle / "examples.npz")["observations"][:1], float)


def units(spec: PlantSpec) -> dict[str, str]:
    """Return the units of all observations and actions: name -> unit."""
    spaces = (spec.observation, spec.action)
    return {name: unit for space in spaces for name, unit in zip(space.names, space.units, strict=True)}


def curve_points(curves: Mapping[str, Curve]) -> Iterator[tuple[str, float, int]]:
    """Yield (metric, value, step), at most CURVE_POINTS for each curve, because more make MLflow's charts slow."""
    for key, curve in curves.items():
        count = len(curve.steps)
        for i in np.unique(np.linspace(0, count - 1, min(count, CURVE_POINTS)).round().astype(int)):
            if np.isfinite(curve.values[i]):
                yield key, float(curve.values[i]), int(curve.steps[i])
