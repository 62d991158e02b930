"""OpenLineage events of a retraining, for a team's lineage server: inputs and outputs of each task.

A flow run is an OpenLineage run, and the parent of one OpenLineage run per task. A task's result is an OpenLineage
dataset: the name is `PLANT/KIND`, the version is the result's digest. Logs are files. Without OPENLINEAGE_URL nothing
is sent. If the server does not answer, a warning is logged once and the retraining continues.

Source: OpenLineage specification 2-0-2, https://openlineage.io/spec/2-0-2/OpenLineage.json.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import TypedDict
from uuid import UUID, uuid5

from flows.services import rest
from tasks.files.canonical import digest_json
from tasks.references import Reference
from tasks.stages import Came, content

URL, KEY, NAMESPACE = "OPENLINEAGE_URL", "OPENLINEAGE_API_KEY", "OPENLINEAGE_NAMESPACE"
"""Environment variables. OpenLineage's own clients read the same names."""
PRODUCER = f"pkg:pypi/neorl@{metadata.version('neorl')}"
SPEC = "https://openlineage.io/spec"
FACETS = {
    "parent": "1-2-0/ParentRunFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
}
Facet = dict[str, str | dict[str, str]]


class LineageDataset(TypedDict):
    """A dataset in an event."""

    namespace: str
    name: str
    facets: dict[str, Facet]


class LineageEvents:
    """Sends the events of one flow run. If the server does not answer, `say` receives a warning."""

    def __init__(self, plant: str, flow_run: str, say: Callable[[str], None]) -> None:
        self.plant, self.run, self.say = plant, UUID(flow_run), say
        self.silent = not os.environ.get(URL)
        self.namespace = os.environ.get(NAMESPACE) or "neorl"
        self.job = f"retrain.{plant}"
        self.outputs: dict[str, LineageDataset] = {}
        self.started = 0

    @contextmanager
    def flow(self, logs: Sequence[Path]) -> Iterator[None]:
        """Send the start and end events of the flow run."""
        inputs = self._datasets(logs)
        self._send("START", self.job, self.run, {}, inputs, [])
        try:
            yield
        except BaseException as error:
            self._send("FAIL", self.job, self.run, _failure(str(error)), inputs, list(self.outputs.values()))
            raise
        self._send("COMPLETE", self.job, self.run, {}, inputs, list(self.outputs.values()))

    def stage(self, name: str, arguments: Iterable[object]) -> Callable[[Came], None]:
        """Send the start event of a task; return a function that sends the end event."""
        if self.silent:
            return lambda _: None
        self.started += 1
        job, run, inputs = f"{self.job}.{name}", uuid5(self.run, f"{self.started} {name}"), self._datasets(arguments)
        flow = {"namespace": self.namespace, "name": self.job}
        parent = {"parent": _facet("parent", run={"runId": str(self.run)}, job=flow)}
        self._send("START", job, run, parent, inputs, [])

        def ended(result: Came) -> None:
            if not isinstance(result, Reference):
                self._send("FAIL", job, run, parent | _failure(result), inputs, [])
                return
            outputs = self._datasets([result])
            self.outputs |= {each["name"]: each for each in outputs}
            self._send("COMPLETE", job, run, parent, inputs, outputs)

        return ended

    def _datasets(self, values: Iterable[object]) -> list[LineageDataset]:
        datasets: dict[str, LineageDataset] = {}
        for value in () if self.silent else values:
            if isinstance(value, Reference):
                name, identity = f"{self.plant}/{type(value).__name__.lower()}", content(value)
                version = identity if isinstance(identity, str) else digest_json(identity)
                facets = {"version": _facet("version", datasetVersion=version)}
                datasets[name] = {"namespace": self.namespace, "name": name, "facets": facets}
            elif isinstance(value, Path):
                datasets[str(value)] = {"namespace": "file", "name": str(value.absolute()), "facets": {}}
            elif isinstance(value, tuple | list):
                datasets |= {each["name"]: each for each in self._datasets(value)}
        return list(datasets.values())

    def _send(
        self,
        kind: str,
        job: str,
        run: UUID,
        facets: dict[str, Facet],
        inputs: list[LineageDataset],
        outputs: list[LineageDataset],
    ) -> None:
        if self.silent:
            return
        event = {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(),
            "producer": PRODUCER,
            "schemaURL": f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
            "run": {"runId": str(run), "facets": facets},
            "job": {"namespace": self.namespace, "name": job},
            "inputs": inputs,
            "outputs": outputs,
        }
        try:
            rest.request(
                f"{os.environ[URL].rstrip('/')}/api/v1/lineage", event, bearer=os.environ.get(KEY, ""), timeout=5.0
            )
        except (OSError, ValueError, HTTPException) as error:
            # The address may contain a password, so it is not shown.
            self.silent = True
            self.say(f"OpenLineage events are off for this run: the server in {URL} failed ({type(error).__name__})")


def _facet(name: str, **fields: str | dict[str, str]) -> Facet:
    kind = FACETS[name]
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{kind}.json#/$defs/{kind.partition('/')[2]}", **fields}


def _failure(message: str) -> dict[str, Facet]:
    return {"errorMessage": _facet("errorMessage", message=message, programmingLanguage="PYTHON")}
