"""A moved home: absolute paths in the ledger are resolved at the new place."""

from __future__ import annotations

from pathlib import Path

from configs.home import Home
from tasks import promote
from tasks.references import Dataset
from tests.evidence import PLANT, open_ledger, propose, signer_at
from tests.small_data import reactor_run


def dataset(store: Path, digest: str) -> Dataset:
    """Return a dataset as in a ledger entry, with files of every kind."""
    return Dataset(
        digest=digest,
        plant=PLANT,
        store=store,
        manifest=store / "manifests" / f"{digest}.json",
        shards=(store / "shards" / "1.h5", store / "shards" / "2.h5"),
        view=store / "views" / "1.h5",
        card_pictures=(store / "cards" / "1.svg",),
        rows=1,
        episodes=1,
        quarantine=Path("/elsewhere"),
    )


def test_drift_uses_the_dataset_at_its_present_path(home: Path) -> None:
    before, now = Path("/before/home/datasets") / PLANT, home / "datasets" / PLANT
    ledger = open_ledger(Home(home))
    candidate = ledger.entry(propose(ledger, "a" * 64, dataset=dataset(before, "d" * 64)))
    with signer_at(Home(home)):
        promote.promote_candidate(Home(home), candidate, "a reviewer", "")
        found = promote.drift_reference(Home(home), reactor_run(), dataset(now, "e" * 64)).dataset
    assert found == dataset(now, "d" * 64)
    assert found is not None
    assert found.quarantine == Path("/elsewhere"), "what lay outside the folder of datasets stays where it is"
