"""Shares of lost rows, bad samples and violations, against counts of files whose faults were put in by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from configs.errors import Refused
from tasks.metrics.quality import Quality, quality_of, read_sources, rises
from tasks.references import Dataset
from tests.tasks.test_accounts import MAPPING, STEPS, frame, made, with_statuses


def of(dataset: Dataset) -> Quality:
    found = quality_of(dataset.digest, read_sources(dataset.store, dataset.digest))
    assert found is not None
    return found


def test_shares_are_those_of_the_faults_that_were_put_in(tmp_path: Path) -> None:
    k = np.arange(STEPS + 1)
    missing = k % 200 < 10
    broken = frame().with_columns(P=pl.Series(np.where(missing, np.nan, frame()["P"].to_numpy())))
    dataset, _ = made(tmp_path, broken, 0.2)
    found = of(dataset)
    (account,) = dataset.accounts
    assert account is not None
    assert (found.read, found.used) == (account.steps, dataset.rows)
    assert found.used + sum(found.lost.values()) == found.read
    # Three tags, of which one has no number in so many rows.
    assert found.shares["raw_rows"] == missing.sum() / (3 * (STEPS + 1))
    lost = sum(dataset.reasons.values())
    assert found.shares["rows"] == pytest.approx(lost / (dataset.rows + lost))
    assert found.shares["gaps"] == pytest.approx(account.gap / (dataset.rows + lost + account.gap))


def test_violations_and_bad_samples_are_shares_of_rows_and_of_samples(tmp_path: Path) -> None:
    assert of(made(tmp_path, frame())[0]).shares["violations"] == 0.73  # 73 of every 100 minutes
    text = f"status_codes: opc_da\n{MAPPING.replace('layout: wide', '').replace('columns: {timestamp: time}', '')}"
    dataset, _ = made(tmp_path, with_statuses([192, 0, 192, 24, 192, 8]), 0.9, text=text)
    bad = sum(code != 192 for code in np.resize([192, 0, 192, 24, 192, 8], STEPS + 1))
    found = of(dataset)
    assert (found.shares["bad"], found.shares["uncertain"]) == (bad / (3 * (STEPS + 1)), 0.0)


def test_sources_that_the_champion_learned_from_are_left_out(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, frame())
    sources = read_sources(dataset.store, dataset.digest)
    assert quality_of(dataset.digest, sources, {source.sha256 for source in sources}) is None
    other = sources[0].model_copy(update={"sha256": "0" * 64, "seen": 10, "quarantined": 4, "reasons": {"odd": 4}})
    found = quality_of(dataset.digest, [*sources, other.model_copy(update={"account": None})], {sources[0].sha256})
    assert found is not None
    assert (found.sources, found.used, found.lost, found.shares) == (1, 6, {"odd": 4}, {"rows": 0.4})


def test_a_rise_is_told_from_more_points_on_than_are_put_up_with(tmp_path: Path) -> None:
    before = of(made(tmp_path, frame())[0])
    now = before.model_copy(update={"shares": before.shares | {"bad": 0.03, "gaps": 0.0200001, "rows": 0.02}})
    assert [rise.share for rise in rises(now, before, 0.02)] == ["bad", "gaps"]
    assert str(rises(now, before, 0.02)[0]) == "3.0% of samples Bad instead of 0.0%"
    # What only one of them knows is compared with nothing, and what is better is no rise.
    unknown = before.model_copy(update={"shares": {"rows": 0.0}})
    assert rises(now, unknown, 0.001) == rises(now, unknown, 0.019)
    assert rises(before, now, 0.001) == ()


def test_a_manifest_that_was_altered_is_refused(tmp_path: Path) -> None:
    dataset, _ = made(tmp_path, frame())
    dataset.manifest.chmod(0o600)
    dataset.manifest.write_bytes(dataset.manifest.read_bytes() + b" ")
    with pytest.raises(Refused, match=f"manifest {dataset.digest[:12]} was altered"):
        read_sources(dataset.store, dataset.digest)
