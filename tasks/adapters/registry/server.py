"""MLflow: experiments, runs, models, versions and their aliases. A projection: the ledger holds the truth.

Everything is named by content. A version carries the tags `neorl.run_key` and `neorl.composite`, and registering the
same two again finds what is there; a run that a killed process left open is closed as failed and made anew.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import Refused, ServiceMissing
from configs.telemetry import TELEMETRY_OFF
from neorl_core.types import Plant, PlantSpec
from tasks.adapters.models.bundle import load_bundle, read_manifest
from tasks.adapters.registry.submission import REQUIREMENTS, Submission, curve_points, example_row, loadable_code, units

CHAMPION, CHALLENGER = "champion", "challenger"
RUN_KEY, COMPOSITE = "neorl.run_key", "neorl.composite"
CLIENT = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A server that is gone is said to be gone within seconds; a second run of the command resumes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
DESCRIPTION_LIMIT = 5000
"""Characters of a version's description that every database MLflow runs on accepts."""


def _model_files(target: Path, submission: Submission, plant: Plant) -> None:
    """Write the model as MLflow stores it: code, arrays, signature, input example; nothing is inferred or pickled."""
    from importlib.metadata import version

    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    pyfunc = _pyfunc()
    with tempfile.TemporaryDirectory() as folder:
        # MLflow stores a folder under its own name, so it has to have the name under which it is fetched.
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
            # MLflow compares column names in a way that pandas deprecates for its own strings.
            input_example=pd.DataFrame(
                example_row(submission.bundle), columns=pd.Index(observation.names, dtype=object)
            ),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
            metadata={"composite": submission.digest, "units": units(plant.spec)},
        )


def _pyfunc() -> Any:
    """MLflow's pyfunc, without the warnings about its own type hints that importing it gives."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*type hint", category=UserWarning)
        import mlflow.pyfunc
    return mlflow.pyfunc


class Registry:
    """One MLflow tracking server (or its database, as `sqlite:///...`).

    Args:
        tracking_uri: `http://host:port`, or a database URI without a server.
    """

    def __init__(self, tracking_uri: str) -> None:
        for name, value in {**TELEMETRY_OFF, **CLIENT}.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self.uri = tracking_uri.rstrip("/")
        self.client = MlflowClient(self.uri, self.uri)

    @contextmanager
    def _answering(self, wanted: str = "what the ledger names") -> Iterator[None]:
        """A server that stops answering, fails, or does not have what is wanted becomes one sentence."""
        from mlflow.exceptions import MlflowException, RestException

        try:
            yield
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise Refused(
                    f"expected {wanted} in MLflow at {self.uri}, got none: bring MLflow's database back from its "
                    "backup, or retrain, which registers a candidate again."
                ) from error
            if isinstance(error, RestException) and error.get_http_status_code() >= 500:
                said = " ".join(error.message.split())[:200]
                raise ServiceMissing(
                    f"expected the MLflow server at {self.uri} to work, got '{said}': read logs/mlflow.log in the "
                    "home, start it again with `neorl down` and `neorl up`, then run the same command again."
                ) from error
            # RestException means that the server did answer, with an error of its own.
            if isinstance(error, RestException) or not self.uri.startswith("http"):
                raise
            if not error.message.startswith(("API request to", "Invalid url")):
                raise
            raise self._gone() from error
        except OSError as error:
            # Uploads speak HTTP through requests, whose errors are OSErrors.
            if type(error).__module__.split(".")[0] != "requests":
                raise
            raise self._gone() from error

    def _gone(self) -> ServiceMissing:
        return ServiceMissing(
            f"expected the MLflow server at {self.uri} to answer, got no connection: start it with `neorl up`, then "
            "run the same command again; what is finished is not computed again."
        )

    def ping(self) -> None:
        """Ask for one experiment.

        Raises:
            ServiceMissing: when the server does not answer.
        """
        with self._answering():
            self.client.search_experiments(max_results=1)

    def run_url(self, experiment_id: str, run_id: str) -> str:
        """Where the UI shows a run; a database without a server has no pages."""
        page = f"/#/experiments/{experiment_id}/runs/{run_id}"
        return f"{self.uri}{page}" if self.uri.startswith("http") else f"runs:/{run_id}"

    def version_url(self, plant: str, version: str) -> str:
        """Where the UI shows a model version."""
        page = f"/#/models/{plant}/versions/{version}"
        return f"{self.uri}{page}" if self.uri.startswith("http") else f"models:/{plant}/{version}"

    def experiment(self, plant: str) -> str:
        """The id of the plant's experiment, made when absent."""
        from mlflow.entities import ViewType

        with self._answering():
            found = self.client.search_experiments(ViewType.ACTIVE_ONLY, filter_string=f"name = '{plant}'")
            return found[0].experiment_id if found else self.client.create_experiment(plant)

    def find(self, plant: str, run_key: str, digest: str) -> dict[str, Any] | None:
        """The registered candidate of this run key and composite digest, or None."""
        query = f"name = '{plant}' and tags.`{RUN_KEY}` = '{run_key}' and tags.`{COMPOSITE}` = '{digest}'"
        with self._answering():
            found = self.client.search_model_versions(query)
        if not found:
            return None
        first = min(found, key=lambda version: int(version.version))
        return self._reference(plant, first)

    def version(self, plant: str, version: str) -> dict[str, Any]:
        """One version: {version, run_id, url, digest, tags, description}."""
        with self._answering(f"version {version} of {plant}"):
            found = self.client.get_model_version(plant, version)
        return {**self._reference(plant, found), "tags": dict(found.tags), "description": found.description or ""}

    def _reference(self, plant: str, version: Any) -> dict[str, Any]:
        number = str(version.version)
        url = self.version_url(plant, number)
        return {"version": number, "run_id": version.run_id, "url": url, "digest": version.tags.get(COMPOSITE, "")}

    def register(self, submission: Submission) -> dict[str, Any]:
        """Put a candidate into the registry, once.

        Returns:
            {version, run_id, url, digest}; the existing one when the run key and the composite are known.

        Raises:
            ServiceMissing: when MLflow stops answering; running again completes it.
            Refused: when the bundle is not the composite it is said to be.
        """
        existing = self.find(submission.plant, submission.run_key, submission.digest)
        if existing is not None:
            return existing
        plant, _ = load_bundle(submission.bundle, submission.digest)
        with self._answering():
            run_id, model_id = self._finished_run(submission) or self._new_run(submission, plant)
            self._registered_model(submission.plant, plant.spec)
            # One request makes the version with its tags and description: it exists whole or not at all.
            version = self.client.create_model_version(
                submission.plant,
                source=f"models:/{model_id}",
                run_id=run_id,
                tags={**self._tags(submission), "neorl.model_id": model_id},
                description=submission.describe(run_id)[:DESCRIPTION_LIMIT],
                model_id=model_id,
                await_creation_for=0,
            )
        return self._reference(submission.plant, version)

    def _tags(self, submission: Submission) -> dict[str, str]:
        return {**submission.tags, RUN_KEY: submission.run_key, COMPOSITE: submission.digest}

    def _registered_model(self, name: str, spec: PlantSpec) -> None:
        from mlflow.exceptions import MlflowException

        limits = "; ".join(f"{c.name} within {c.low:g} to {c.high:g} {c.unit}" for c in spec.constraints)
        text = (
            f"Shielded control policies for **{name}**. Hard limits: {limits}. The alias `champion` is a copy of what "
            "the signed ledger says; `neorl history` and `neorl audit verify` read the ledger itself."
        )
        try:
            self.client.create_registered_model(name, description=text)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _runs(self, submission: Submission) -> list[Any]:
        query = f"tags.`{RUN_KEY}` = '{submission.run_key}' and tags.`{COMPOSITE}` = '{submission.digest}'"
        return list(self.client.search_runs([self.experiment(submission.plant)], filter_string=query))

    def _finished_run(self, submission: Submission) -> tuple[str, str] | None:
        """A run that was finished before a kill kept its version from being made; open ones are closed as failed."""
        for run in self._runs(submission):
            if run.info.status == "FINISHED":
                return run.info.run_id, run.data.tags["neorl.model_id"]
            if run.info.status == "RUNNING":
                self.client.set_terminated(run.info.run_id, "FAILED")
        return None

    def _new_run(self, submission: Submission, plant: Plant) -> tuple[str, str]:
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus, RunTag

        experiment = self.experiment(submission.plant)
        run = self.client.create_run(experiment, tags=self._tags(submission), run_name=submission.run_key[:12])
        run_id = run.info.run_id
        parameters = {key: str(value) for key, value in submission.params.items()}
        model = self.client.create_logged_model(
            experiment, name=submission.plant, source_run_id=run_id, params=parameters, tags=self._tags(submission)
        )
        self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        self._log_numbers(run_id, model.model_id, submission, parameters)
        self._log_dataset(run_id, submission.plant, submission.dataset)
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "model"
            _model_files(files, submission, plant)
            self.client.log_model_artifacts(model.model_id, str(files))
        self.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        for place, path in submission.artifacts.items():
            self._upload(run_id, place, path)
        card = submission.dataset.get("card")
        if card is not None and Path(card).is_file():
            self._upload(run_id, "dataset", Path(card))
        self.client.log_batch(run_id, tags=[RunTag("neorl.model_id", model.model_id)])
        self.client.set_terminated(run_id, "FINISHED")
        return run_id, model.model_id

    def _log_numbers(self, run_id: str, model_id: str, submission: Submission, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param

        now = int(time.time() * 1000)
        metrics = [Metric(key, value, now, step) for key, value, step in curve_points(submission.curves)]
        last = max((metric.step for metric in metrics), default=0)
        # Named with their model, the results appear on the model's own page too.
        results = [(key, value) for key, value in submission.metrics.items() if np.isfinite(value)]
        metrics += [Metric(key, float(value), now, last, model_id=model_id, run_id=run_id) for key, value in results]
        params = [Param(key, value) for key, value in parameters.items()]
        for start in range(0, max(len(metrics), 1), 1000):
            batch = params if start == 0 else []
            self.client.log_batch(run_id, metrics=metrics[start : start + 1000], params=batch, synchronous=True)

    def _log_dataset(self, run_id: str, plant: str, dataset: Mapping[str, Any]) -> None:
        import json

        from mlflow.entities import Dataset, DatasetInput, InputTag

        facts = {key: dataset[key] for key in ("rows", "episodes", "quarantined") if key in dataset}
        entry = Dataset(
            name=plant,
            # MLflow keeps 36 characters; the tag holds all 64.
            digest=dataset["digest"][:36],
            source_type="local",
            source=json.dumps({"uri": str(dataset["path"])}),
            profile=json.dumps({**facts, "sha256": dataset["digest"]}),
        )
        tags = [InputTag("mlflow.data.context", "training"), InputTag("neorl.dataset", dataset["digest"])]
        self.client.log_inputs(run_id, [DatasetInput(entry, tags)])

    def _upload(self, run_id: str, place: str, path: Path) -> None:
        if path.is_dir():
            self.client.log_artifacts(run_id, str(path), place or None)
        else:
            self.client.log_artifact(run_id, str(path), place or None)

    def attach(self, run_id: str, artifacts: Mapping[str, Path]) -> None:
        """Add files to a finished run (the report is written after the promotion that it reports)."""
        with self._answering():
            for place, path in artifacts.items():
                self._upload(run_id, place, path)

    def annotate(
        self, plant: str, version: str, tags: Mapping[str, str] | None = None, description: str | None = None
    ) -> None:
        """Set a version's tags and description, as a projection of what the ledger says later."""
        with self._answering(f"version {version} of {plant}"):
            current = self.client.get_model_version(plant, version)
            for key, value in (tags or {}).items():
                if current.tags.get(key) != value:
                    self.client.set_model_version_tag(plant, version, key, value)
            if description is not None and description != current.description:
                self.client.update_model_version(plant, version, description=description[:DESCRIPTION_LIMIT])

    def tagged(self, name: str) -> list[str]:
        """What versions of all plants say under a tag."""
        with self._answering():
            found = self.client.search_model_versions()
        return sorted({version.tags[name] for version in found if name in version.tags})

    def aliases(self, plant: str) -> dict[str, str]:
        """The plant's aliases: {"champion": "3", ...}; empty when nothing is registered."""
        with self._answering():
            found = self.client.search_registered_models(f"name = '{plant}'")
            return {key: str(value) for model in found for key, value in model.aliases.items()}

    def reconcile(self, plant: str, champion: str | None, challenger: str | None = None) -> list[str]:
        """Make the aliases say what the ledger says.

        Args:
            plant: the registered model.
            champion: the ledger's champion version, or None.
            challenger: the version that waits for approval, or None.

        Returns:
            what was changed, in words; empty when all was right already.
        """
        current = self.aliases(plant)
        changes = []
        for alias, wanted in ((CHAMPION, champion), (CHALLENGER, challenger)):
            if current.get(alias) == wanted:
                continue
            with self._answering(f"version {wanted} of {plant}"):
                if wanted is None:
                    self.client.delete_registered_model_alias(plant, alias)
                else:
                    self.client.set_registered_model_alias(plant, alias, wanted)
            changes.append(f"@{alias}: {current.get(alias)} -> {wanted}")
        return changes

    def fetch_bundle(self, plant: str, version: str, target: Path) -> Path:
        """Download a version's bundle into a folder; nothing is loaded."""
        import mlflow

        with self._answering(f"version {version} of {plant}"):
            found = self.client.get_model_version(plant, version)
            model = self.client.get_logged_model(found.tags["neorl.model_id"])
            place = f"{model.artifact_location}/artifacts/bundle"
            got = mlflow.artifacts.download_artifacts(
                artifact_uri=place, dst_path=str(target), tracking_uri=self.uri, registry_uri=self.uri
            )
        return Path(got)

    def load(self, plant: str, version: str, expected_digest: str) -> tuple[Plant, Any]:
        """A version's (plant, composite), once its tag and its bytes agree with what the ledger expects.

        Raises:
            Refused: on any other digest; nothing of the model has been run then.
        """
        tagged = self.version(plant, version)["digest"]
        if tagged != expected_digest:
            raise Refused(
                f"expected composite {expected_digest} as version {version} of {plant}, got the tag {tagged!r}: run "
                "`neorl audit verify` and register the certified composite again."
            )
        with tempfile.TemporaryDirectory() as folder:
            bundle = self.fetch_bundle(plant, version, Path(folder))
            read_manifest(bundle)
            return load_bundle(bundle, expected_digest)

    def load_champion(self, plant: str, expected_digest: str) -> tuple[Plant, Any]:
        """The composite behind @champion, verified against the digest that the ledger expects.

        Raises:
            Refused: when there is no champion or it is another composite.
        """
        version = self.aliases(plant).get(CHAMPION)
        if version is None:
            raise Refused(f"expected a champion of {plant}, got none: promote one with `neorl retrain` first.")
        return self.load(plant, version, expected_digest)
