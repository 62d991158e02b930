"""A home on the session's servers with real versions in MLflow, for tests of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from configs.home import Home
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from tasks.evidence.decisions.champions import champion
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, folder_artefacts
from tasks.files.canonical import sha256_hex
from tasks.models.bundles.bundle import save_bundle
from tasks.references import Dataset, ServedModel
from tasks.registry.reading import Page
from tasks.registry.registry import Registry
from tasks.registry.serving import listed_model
from tasks.registry.upload import Submission
from tests.evidence import PLANT, candidate_record, certify

if TYPE_CHECKING:
    from flows.services.servers import Services


class Served:
    """A home, its ledger, and the registry that follows it."""

    def __init__(self, services: Services, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NEORL_HOME", str(root))
        monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect.url)
        monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url)
        self.home = Home(root)
        self.services = services
        self.ledger, self.registry = Ledger.open(self.home), Registry(services.mlflow.url)
        self.registry.reconcile(PLANT, None, None)
        self._made = 0

    def candidate(self, **changes: object) -> Entry:
        """Another composite, registered in MLflow, certified and logged, compared with who is champion now."""
        self._made += 1
        composite = make_composite(PLANTS[PLANT])
        composite = composite._replace(shield=composite.shield._replace(hold=composite.shield.hold + self._made))
        bundle = self.home.folder("made", str(self._made))
        digest = save_bundle(bundle, composite, PLANT)
        key = f"{self.home.root}-{self._made}"
        dataset = Dataset(
            digest=sha256_hex(b"dataset"), plant=PLANT, store=bundle, manifest=bundle, shards=(), rows=1, episodes=1
        )
        made = Submission(
            PLANT, key, "candidate", digest, bundle, dataset, describe=lambda run: "### What was found\n\nnumbers"
        )
        reference = self.registry.register(made)
        certify(self.ledger, digest)
        now = champion(self.ledger.entries(), PLANT)
        said: dict[str, object] = {
            "run_key": key,
            "version": reference.version,
            "url": reference.url,
            "author": "the scheduler",
        }
        said |= {"champion": now.digest if now else None, "served": self._listed(reference.version), **changes}
        record = candidate_record(self.ledger, digest, **said)
        files = folder_artefacts(self.home, bundle, "bundle")
        return self.ledger.append("candidate", record, plant=PLANT, artefacts=files)

    def _listed(self, version: str) -> ServedModel:
        return listed_model(self.home, self.registry, PLANT, version)

    def page(self, version: str) -> Page:
        """Return MLflow's record of a version through its own client."""
        found = self.registry.version(PLANT, version)
        return Page(found.tags, found.description)

    def said(self, *versions: str) -> list[str]:
        """Return the status of each page, which is also its tag."""
        found = [self.page(version) for version in versions]
        for page in found:
            assert page.description.startswith(f"### Status: {page.tags['neorl.status']}\n"), page
            assert page.description.endswith("### What was found\n\nnumbers")
        return [page.tags["neorl.status"] for page in found]

    def close(self) -> None:
        """Remove aliases and stop the signer."""
        from tasks.evidence.ledger import client

        self.registry.reconcile(PLANT, None, None)
        client.stop(self.home)
