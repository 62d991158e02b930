"""The registry: the versions of each plant in MLflow, and their aliases, which NeoRL copies from the ledger.

The tags `neorl.run_key` and `neorl.composite` identify a version, so registering twice makes one version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from configs.environment import TELEMETRY_OFF
from configs.errors import Refused, ServiceMissing
from neorl_core.types import PlantSpec
from tasks.models.bundles.bundle import load_bundle
from tasks.registry import reading
from tasks.registry.reading import LIMIT, TOLD_ONCE, Page, joined, split
from tasks.registry.upload import COMPOSITE, MODEL_ID, RUN_KEY, Artifact, Submission, put, upload

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


CHAMPION, CHALLENGER, SHADOW = "champion", "challenger", "shadow"
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Tags of a plant's experiment. They tell MLflow which pages to show."""
TRAINING_PAGES = "workflowType=machine_learning"
"""End of a link, which makes MLflow show its pages for training: runs and registered models."""
CLIENT = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Report a missing server within seconds; a rerun of the command resumes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


class RegisteredVersion(NamedTuple):
    version: str
    run_id: str
    url: str
    tags: Mapping[str, str]
    description: str

    @property
    def digest(self) -> str:
        """Digest of the composite according to MLflow's tag, which is not verified here."""
        return self.tags.get(COMPOSITE, "")

    @property
    def model_id(self) -> str:
        """Id of the model in MLflow, which is also the name of the model's folder."""
        return self.tags[MODEL_ID]


class Registry:
    """Client of one MLflow tracking server, or of its database (`sqlite:///...`).

    Args:
        tracking_uri: `http://host:port`, or a database URI without a server.
    """

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri.rstrip("/")
        # MLflow reads these at import, which happens only if the client is needed.
        for name, value in {**TELEMETRY_OFF, **CLIENT}.items():
            os.environ.setdefault(name, value)

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's own client; every change needs it."""
        from mlflow import MlflowClient

        return MlflowClient(self.uri, self.uri)

    @contextmanager
    def answering(self, wanted: str = "data of the ledger") -> Iterator[None]:
        """Convert MLflow's errors into errors with a cause and a cure; `wanted` names the data for the message."""
        from mlflow.exceptions import MlflowException, RestException

        try:
            yield
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                raise Refused(
                    f"MLflow at {self.uri} does not have {wanted}: restore MLflow's database from a backup, or "
                    "retrain, which registers a candidate again"
                ) from error
            status = error.get_http_status_code() if isinstance(error, RestException) else 0  # type: ignore[no-untyped-call]
            if status >= 500:
                said = " ".join(error.message.split())[:200]
                raise ServiceMissing(
                    f"the MLflow server at {self.uri} failed, got '{said}': read logs/mlflow.log in the home, restart "
                    "the server with `neorl down` and `neorl up`, then repeat the command"
                ) from error
            # A RestException is the answer of a running server.
            if isinstance(error, RestException) or not self.uri.startswith("http"):
                raise
            if not error.message.startswith(("API request to", "Invalid url")):
                raise
            raise self._gone() from error
        except OSError as error:
            # Uploads use the package `requests`, which raises OSErrors.
            if type(error).__module__.split(".")[0] != "requests":
                raise
            raise self._gone() from error

    def _gone(self) -> ServiceMissing:
        return ServiceMissing(
            f"the MLflow server at {self.uri} does not answer: start it with `neorl up`, then repeat the command; "
            "finished work is not repeated"
        )

    def run_url(self, experiment_id: str, run_id: str) -> str:
        """Return the URL of a run's page in MLflow; without a server, return `runs:/ID`."""
        page = f"/#/experiments/{experiment_id}/runs/{run_id}?{TRAINING_PAGES}"
        return f"{self.uri}{page}" if self.uri.startswith("http") else f"runs:/{run_id}"

    def version_url(self, plant: str, version: str) -> str:
        """Return the URL of a version's page in MLflow; without a server, return `models:/PLANT/VERSION`."""
        page = f"/#/models/{plant}/versions/{version}?{TRAINING_PAGES}"
        return f"{self.uri}{page}" if self.uri.startswith("http") else f"models:/{plant}/{version}"

    def experiment(self, plant: str) -> str:
        """Return the id of the plant's experiment in MLflow; create it if necessary."""
        from mlflow.exceptions import MlflowException

        with self.answering():
            found = self.client.get_experiment_by_name(plant)
            if found is not None and found.lifecycle_stage == "active":
                for key, value in EXPERIMENT_TAGS.items() - found.tags.items():
                    self.client.set_experiment_tag(found.experiment_id, key, value)
                return str(found.experiment_id)
            try:
                return self.client.create_experiment(plant, tags=EXPERIMENT_TAGS)
            except MlflowException as error:
                # Another process or thread has created it meanwhile.
                found = self.client.get_experiment_by_name(plant)
                if error.error_code != "RESOURCE_ALREADY_EXISTS" or found is None:
                    raise
                return str(found.experiment_id)

    def find(self, plant: str, run_key: str, digest: str) -> RegisteredVersion | None:
        """Return the version with this run key and this digest of the composite, or None."""
        query = f"name = '{plant}' and tags.`{RUN_KEY}` = '{run_key}' and tags.`{COMPOSITE}` = '{digest}'"
        with self.answering():
            found = self.client.search_model_versions(query)
        first = min(found, key=lambda version: int(version.version), default=None)
        return None if first is None else self._registered(plant, first)

    def version(self, plant: str, version: str) -> RegisteredVersion:
        """Return a version of a plant's model.

        Raises:
            Refused: if MLflow has no such version.
        """
        with self.answering(f"version {version} of {plant}"):
            return self._registered(plant, self.client.get_model_version(plant, version))

    def _registered(self, plant: str, found: ModelVersion) -> RegisteredVersion:
        number = str(found.version)
        url = self.version_url(plant, number)
        return RegisteredVersion(number, found.run_id or "", url, dict(found.tags), found.description or "")

    def register(self, submission: Submission) -> RegisteredVersion:
        """Register a candidate and return its new version; if it is registered already, return the existing version.

        Raises:
            ServiceMissing: if MLflow stops answering; a rerun completes the registration.
            Refused: if the bundle's digest is not the digest in the submission.
        """
        existing = self.find(submission.plant, submission.run_key, submission.digest)
        if existing is not None:
            return existing
        plant, _ = load_bundle(submission.bundle, submission.digest, submission.source)
        experiment = self.experiment(submission.plant)
        with self.answering():
            run = upload(self.client, experiment, submission, plant)
            self._registered_model(submission.plant, plant.spec)
            # One request creates the version with tags and description, atomically.
            version = self.client.create_model_version(
                submission.plant,
                source=f"models:/{run.model_id}",
                run_id=run.run_id,
                tags=submission.version_tags(run.model_id),
                description=submission.describe(run.run_id)[:LIMIT],
                model_id=run.model_id,
                await_creation_for=0,
            )
        return self._registered(submission.plant, version)

    def _registered_model(self, name: str, spec: PlantSpec) -> None:
        from mlflow.exceptions import MlflowException

        limits = "; ".join(f"{c.name} within {c.low:g} to {c.high:g} {c.unit}" for c in spec.constraints)
        text = (
            f"Shielded control policies for **{name}**. Hard limits: {limits}. The alias `champion` is a copy of the "
            "signed ledger; `neorl history` and `neorl audit verify` read the ledger itself."
        )
        try:
            self.client.create_registered_model(name, description=text)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def attach(self, run_id: str, artifacts: Iterable[Artifact]) -> None:
        """Add files to a finished run, such as the report, which is written after the promotion."""
        with self.answering():
            for artifact in artifacts:
                put(self.client, run_id, artifact)

    def annotate(
        self,
        plant: str,
        version: str,
        tags: Mapping[str, str] | None = None,
        description: str | None = None,
        status: str | None = None,
    ) -> None:
        """Set a version's tags and one or both parts of its description.

        Args:
            description: Markdown with the findings; None keeps the current text.
            status: Markdown with the ledger's status (`tasks.lifecycle.pages`); None keeps the current text.
        """
        if description is None and status is None and tags:
            said = reading.tags(self.uri, plant, version)
            if said is not None and tags.items() <= said.items():
                return
        with self.answering(f"version {version} of {plant}"):
            current = self.client.get_model_version(plant, version)
            for key, value in (tags or {}).items():
                if current.tags.get(key) != value:
                    self.client.set_model_version_tag(plant, version, key, value)
            for key in current.tags.keys() & set(TOLD_ONCE):
                self.client.delete_model_version_tag(plant, version, key)
            before, rest = split(current.description or "")
            text = joined(before if status is None else status, rest if description is None else description)
            if text != (current.description or ""):
                self.client.update_model_version(plant, version, description=text)

    def pages(self, plant: str) -> dict[str, Page]:
        said = reading.pages(self.uri, plant)
        if said is not None:
            return said
        with self.answering():
            found = self.client.search_model_versions(f"name = '{plant}'")
        return {str(version.version): Page(dict(version.tags), version.description or "") for version in found}

    def tagged(self, name: str) -> list[str]:
        """Return all different values that a tag has in versions of all plants."""
        with self.answering():
            found = self.client.search_model_versions()
        return sorted({version.tags[name] for version in found if name in version.tags})

    def aliases(self, plant: str) -> dict[str, str]:
        said = reading.aliases(self.uri, plant)
        if said is not None:
            return said
        with self.answering():
            found = self.client.search_registered_models(f"name = '{plant}'")
            return {key: str(value) for model in found for key, value in model.aliases.items()}

    def reconcile(
        self, plant: str, champion: str | None, challenger: str | None = None, shadow: str | None = None
    ) -> list[str]:
        """Set a plant's aliases to these versions, None removes an alias; return a description of each change."""
        current = self.aliases(plant)
        changes = []
        for alias, wanted in ((CHAMPION, champion), (CHALLENGER, challenger), (SHADOW, shadow)):
            if current.get(alias) == wanted:
                continue
            with self.answering(f"version {wanted} of {plant}"):
                if wanted is None:
                    self.client.delete_registered_model_alias(plant, alias)
                else:
                    self.client.set_registered_model_alias(plant, alias, wanted)
            changes.append(f"@{alias}: {current.get(alias) or 'none'} -> {wanted or 'none'}")
        return changes

    def fetch_model(self, plant: str, version: str, target: Path) -> Path:
        """Download a version's model without loading it.

        Returns:
            The downloaded folder.
        """
        import mlflow

        with self.answering(f"version {version} of {plant}"):
            found = self.client.get_model_version(plant, version)
            model = self.client.get_logged_model(found.tags[MODEL_ID])
            got = mlflow.artifacts.download_artifacts(
                artifact_uri=model.artifact_location.rstrip("/"),
                dst_path=str(target),
                tracking_uri=self.uri,
                registry_uri=self.uri,
            )
        return Path(got)
