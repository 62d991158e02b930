"""What a shadow has seen is not taken for newer logs, in whatever file or folder it comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun
from flows.preflight import checked_run
from tasks.evidence.ledger.ledger import Ledger
from tasks.ingest import ingest
from tasks.log_only.shadow_comparison import compare, unseen_episodes
from tasks.promote import promote_candidate
from tasks.references import Dataset
from tests import judged, small_process
from tests.evidence import judged_record, open_ledger

Logs = Callable[[str], Dataset]


@pytest.fixture
def run(tmp_path: Path) -> OpenedRun:
    return checked_run(small_process.project(tmp_path))


@pytest.fixture
def ingested(tmp_path: Path, run: OpenedRun) -> Logs:
    """The dataset of a file or folder below the test's own folder."""
    return lambda name: ingest(Home(tmp_path / "home"), run, (tmp_path / name,))


def test_episodes_of_the_shadows_own_data_are_left_out_of_a_folder_that_grew(tmp_path: Path, ingested: Logs) -> None:
    (tmp_path / "logs").mkdir()
    small_process.export(tmp_path / "logs" / "january.csv", 360)
    own = ingested("logs")
    small_process.export(tmp_path / "logs" / "february.csv", 240, seed=1, start="2026-02-05")
    store, unseen = unseen_episodes(own, ingested("logs"))
    assert own.episodes == 3
    np.testing.assert_array_equal(unseen, [3, 4])
    # February's valve, the first action that the own data does not have.
    valve = small_process.history(240, 1)["LV-1"]
    np.testing.assert_allclose(store.arrays()["actions"][store.episodes[3]], valve[:1], rtol=1e-6)


def test_rows_of_the_shadows_own_data_are_left_out_where_an_export_begins_at_another_moment(
    tmp_path: Path, ingested: Logs
) -> None:
    head, *january = small_process.export(tmp_path / "january.csv", 360).read_text().splitlines()
    _, *february = small_process.export(tmp_path / "feb.csv", 240, seed=1, start="2026-02-05").read_text().splitlines()
    (tmp_path / "later.csv").write_text("\n".join([head, *january[50:], *february]))
    store, unseen = unseen_episodes(ingested("january.csv"), ingested("later.csv"))
    # The last step of January, 309 steps in three episodes, is known; February's are not.
    np.testing.assert_array_equal(unseen, [3, 4])
    assert store.episodes[3] == 309


def test_an_episode_with_one_row_that_the_shadow_has_not_seen_is_newer(tmp_path: Path, ingested: Logs) -> None:
    head, *january = small_process.export(tmp_path / "january.csv", 360).read_text().splitlines()
    (tmp_path / "first.csv").write_text("\n".join([head, *january[:300]]))
    (tmp_path / "later.csv").write_text("\n".join([head, *january[50:]]))
    # From row 50 on an episode takes 120 steps: the second ends before row 300, the third lies on both sides.
    np.testing.assert_array_equal(unseen_episodes(ingested("first.csv"), ingested("later.csv"))[1], [2])


def test_other_rows_at_the_shadows_own_moments_are_newer(tmp_path: Path, ingested: Logs) -> None:
    small_process.export(tmp_path / "ours.csv", 360)
    small_process.export(tmp_path / "another.csv", 360, seed=1)
    assert len(unseen_episodes(ingested("ours.csv"), ingested("another.csv"))[1]) == 3


def test_a_part_of_the_shadows_own_folder_is_refused(
    tmp_path: Path, run: OpenedRun, ingested: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    small_process.export(tmp_path / "logs" / "january.csv", 360)
    small_process.export(tmp_path / "logs" / "february.csv", 240, seed=1, start="2026-02-05")
    ledger = open_ledger(Home(tmp_path / "home"))
    monkeypatch.setattr(Ledger, "open", staticmethod(lambda home, **_: ledger))
    record = judged_record(run.plant, "0" * 64, judged.process_evidence(), dataset=ingested("logs"), shadow_days=30)
    candidate = ledger.append("candidate", record, plant=run.plant)
    promote_candidate(ledger.home, candidate, "shift engineer", "looks well")
    with pytest.raises(Refused, match="the shadow of buffer_vessel was trained on dataset"):
        compare(ledger.home, run, ingested("logs/january.csv"))
