"""OpenLineage events of a retraining, for a team's lineage server: which stage made what, of what.

Each flow run is a run of OpenLineage's, and each of its stages another, whose parent it is. A reference that stages
hand on is a dataset, `PLANT/KIND`, whose version is its digest; logs are files. Nothing is sent without
OPENLINEAGE_URL, and a server that does not answer is told of once and changes nothing.

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
"""Variables, named as OpenLineage's own clients name them."""
PRODUCER = f"pkg:pypi/neorl@{metadata.version('neorl')}"
SPEC = "https://openlineage.io/spec"
FACETS = {
    "parent": "1-2-0/ParentRunFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
}
Facet = dict[str, str | dict[str, str]]
"""More about a run or a dataset."""


class Named(TypedDict):
    """A dataset."""

    namespace: str
    name: str
    facets: dict[str, Facet]


class DataLineage:
    """What is told of one flow run."""

    def __init__(self, plant: str, flow_run: str, say: Callable[[str], None]) -> None:
        """Of a plant's retraining, by its flow run's id; `say` is told in words when events are lost."""
        self.plant, self.run, self.say = plant, UUID(flow_run), say
        self.silent = not os.environ.get(URL)
        self.namespace = os.environ.get(NAMESPACE) or "neorl"
        self.job = f"retrain.{plant}"
        self.made: dict[str, Named] = {}
        self.begun = 0

    @contextmanager
    def flow(self, logs: Sequence[Path]) -> Iterator[None]:
        """Tell that the run begins with these logs, and how it ends."""
        inputs = self._datasets(logs)
        self._tell("START", self.job, self.run, {}, inputs, [])
        try:
            yield
        except BaseException as error:
            self._tell("FAIL", self.job, self.run, _failure(str(error)), inputs, list(self.made.values()))
            raise
        self._tell("COMPLETE", self.job, self.run, {}, inputs, list(self.made.values()))

    def stage(self, name: str, given: Iterable[object]) -> Callable[[Came], None]:
        """Tell that a stage begins with these arguments; what is returned tells what came of it, or why nothing did."""
        if self.silent:
            return lambda _: None
        self.begun += 1
        job, run, inputs = f"{self.job}.{name}", uuid5(self.run, f"{self.begun} {name}"), self._datasets(given)
        above = {"namespace": self.namespace, "name": self.job}
        parent = {"parent": _facet("parent", run={"runId": str(self.run)}, job=above)}
        self._tell("START", job, run, parent, inputs, [])

        def came(result: Came) -> None:
            if not isinstance(result, Reference):
                self._tell("FAIL", job, run, parent | _failure(result), inputs, [])
                return
            outputs = self._datasets([result])
            self.made |= {each["name"]: each for each in outputs}
            self._tell("COMPLETE", job, run, parent, inputs, outputs)

        return came

    def _datasets(self, values: Iterable[object]) -> list[Named]:
        found: dict[str, Named] = {}
        for value in () if self.silent else values:
            if isinstance(value, Reference):
                name, known = f"{self.plant}/{type(value).__name__.lower()}", content(value)
                version = known if isinstance(known, str) else digest_json(known)
                facets = {"version": _facet("version", datasetVersion=version)}
                found[name] = {"namespace": self.namespace, "name": name, "facets": facets}
            elif isinstance(value, Path):
                found[str(value)] = {"namespace": "file", "name": str(value.absolute()), "facets": {}}
            elif isinstance(value, tuple | list):
                found |= {each["name"]: each for each in self._datasets(value)}
        return list(found.values())

    def _tell(
        self, kind: str, job: str, run: UUID, facets: dict[str, Facet], inputs: list[Named], outputs: list[Named]
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
            # The address may hold a password.
            self.silent = True
            self.say(f"no more OpenLineage events of this run: the server that {URL} names gave {type(error).__name__}")


def _facet(name: str, **fields: str | dict[str, str]) -> Facet:
    kind = FACETS[name]
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{kind}.json#/$defs/{kind.partition('/')[2]}", **fields}


def _failure(message: str) -> dict[str, Facet]:
    return {"errorMessage": _facet("errorMessage", message=message, programmingLanguage="PYTHON")}
