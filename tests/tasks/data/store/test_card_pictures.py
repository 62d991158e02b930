"""Timeline, responses and pictures of a card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

from neorl_core.types import PlantSpec, Space
from tasks.data.store.cards import response
from tasks.data.store.cards.card import build_card, write_card
from tasks.data.store.cards.pictures import pictures_of
from tasks.data.store.cards.response import responses_of
from tasks.data.store.cards.timeline import OTHERS, timeline_of
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import FileRecord, Provenance, SourceRecord
from tasks.data.store.schema import Rows
from tasks.data.store.statistics import PERIODS, summarise
from tasks.data.store.writer import DatasetWriter

LENGTH, EPISODES = 30, 100
ROWS = LENGTH * EPISODES
SPEC = PlantSpec(
    name="tank",
    observation=Space(("level", "noise <1>", "valve"), ("m", "1", "%"), (-1e3, -5.0, -1.0), (1e3, 5.0, 1.0)),
    action=Space(("valve", "fixed"), ("%", "1"), (-1.0, 0.0), (1.0, 1.0)),
    constraints=(),
    dt=10.0,
    time_unit="s",
    horizon=LENGTH,
    score_range=(0.0, 1.0),
)


def rows(timed: bool = True) -> Rows:
    """A level that changes by twice the valve's opening each step; the valve is constant in each episode."""
    rng = np.random.default_rng(0)
    valve = np.repeat(rng.uniform(-1, 1, EPISODES), LENGTH)
    level = 2 * valve * (np.arange(ROWS) % LENGTH)
    noise = rng.uniform(-1, 1, ROWS + 1)
    found = {
        "observations": np.stack([level, noise[:-1], valve], axis=1),
        "actions": np.stack([valve, np.full(ROWS, 0.5)], axis=1),
        "rewards": np.arange(ROWS),
        "next_observations": np.stack([level + 2 * valve, noise[1:], valve], axis=1),
    }
    ends = np.arange(ROWS) % LENGTH == LENGTH - 1
    stamps = {"timestamps": np.arange(ROWS) * 10 * 10**9} if timed else {}
    return {
        **{key: values.astype(np.float32) for key, values in found.items()},
        "terminals": np.zeros(ROWS, bool),
        "timeouts": ends,
        **stamps,
    }


def held(folder: Path, timed: bool = True, source: SourceRecord | None = None) -> StoredDataset:
    with DatasetWriter(folder, SPEC) as writer:
        writer.append(rows(timed))
        digest = writer.commit(Provenance(format="test", sources=(source,) if source else ()))
    return StoredDataset.open(folder, digest)


def quarantined(folder: Path, name: str, **columns: object) -> FileRecord:
    (folder / "quarantine").mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_parquet(folder / "quarantine" / name)
    return FileRecord(file=f"quarantine/{name}", sha256="0" * 64)


def test_losses_are_counted_by_time(tmp_path: Path) -> None:
    # Sixty periods of 500 s: fifty steps each.
    reasons = ["too hot"] * 3 + ["too cold"] * 2 + [f"rare {i}" for i in range(5)] + ["astray"]
    seconds = [0, 499, 500, 29_999, 29_500, *[700] * 5, 30_000]
    stamps = [second * 10**9 for second in seconds]
    part = quarantined(tmp_path, "rows.parquet", timestamp=stamps, row=list(range(11)), reason=reasons)
    times = pl.Series([250 * 10**9, None], dtype=pl.Int64).cast(pl.Datetime("ns", "UTC"))
    raw = quarantined(tmp_path, "raw.parquet", timestamp=times, reason=["Bad", "no time"])
    gone = FileRecord(file="quarantine/gone.parquet", sha256="0" * 64)
    source = SourceRecord(
        sha256="0" * 64, seen=ROWS + 11, quarantined=11, quarantine=(part, gone), raw_quarantine=(raw,)
    )
    dataset = held(tmp_path, source=source)
    found = timeline_of(dataset, summarise(dataset, SPEC))
    assert (found.by, found.first, found.last) == ("time", 0, ROWS * 10 * 10**9)
    assert found.steps_per_period == pytest.approx(50.0)
    np.testing.assert_allclose(found.used, 1.0)
    assert found.lost["too hot"][:3] == (2, 1, 0)
    assert found.lost["too cold"][-2:] == (0, 2)
    # Five reasons are shown separately, most frequent first; the other two are summed up.
    assert list(found.lost)[:2] == ["too hot", "too cold"]
    assert len(found.lost) == 6
    assert found.lost[OTHERS][1] == 2
    assert found.raw_lost == {"Bad": (1, *[0] * (PERIODS - 1))}
    assert found.astray == 2


def test_without_timestamps_losses_are_counted_by_row(tmp_path: Path) -> None:
    # 3,060 rows, 51 per period; sixty rows in the second half were lost.
    lost = list(range(2000, 2060))
    part = quarantined(tmp_path, "rows.parquet", timestamp=[-1] * 60, row=lost, reason=["not finite"] * 60)
    source = SourceRecord(sha256="0" * 64, seen=ROWS + 60, quarantined=60, quarantine=(part,))
    dataset = held(tmp_path, timed=False, source=source)
    found = timeline_of(dataset, summarise(dataset, SPEC))
    assert (found.by, found.first, found.last, found.astray) == ("row", 0, 3060, 0)
    counts = np.bincount(np.array(lost) // 51, minlength=PERIODS)
    assert found.lost == {"not finite": tuple(counts.tolist())}
    np.testing.assert_allclose(found.used, 1 - counts / 51)


def test_responses_match_hand_calculated_means(tmp_path: Path) -> None:
    (level,) = responses_of(held(tmp_path), SPEC)
    # The valve's own reading, the noise and the fixed action are left out.
    assert (level.action, level.signal, level.unit) == ("valve", "level", "m")
    assert [change.steps for change in level.after] == [1, 10]
    for change in level.after:
        assert 9 <= len(change.level) <= 10
        np.testing.assert_allclose(change.change, 2 * change.steps * np.array(change.level), rtol=1e-4, atol=0.15)
    # Changes over ten steps are known up to step 20 of each episode.
    valve, step = rows()["actions"][:, 0], np.arange(ROWS) % LENGTH
    lowest = valve <= np.quantile(valve, 0.1)
    np.testing.assert_allclose(level.after[0].change[0], 2 * valve[lowest].mean(), rtol=0.02)
    np.testing.assert_allclose(level.after[1].change[0], 20 * valve[lowest & (step <= 20)].mean(), rtol=0.02)


def test_large_datasets_are_sampled_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "BLOCK_ROWS", 153)
    monkeypatch.setattr(response, "MOST_BLOCKS", 5)
    dataset, read = held(tmp_path), list[int]()
    whole = StoredDataset.read

    def counted(self: StoredDataset, start: int, stop: int, keys: Sequence[str] | None = None) -> Rows:
        read.append(stop - start)
        return whole(self, start, stop, keys)

    monkeypatch.setattr(StoredDataset, "read", counted)
    (level,) = responses_of(dataset, SPEC)
    assert read == [*[153] * 4, 93]
    assert level.action == "valve"
    for change in level.after:
        np.testing.assert_allclose(change.change, 2 * change.steps * np.array(change.level), rtol=1e-4, atol=0.5)


def test_pictures_are_complete_svg_with_labels(tmp_path: Path) -> None:
    part = quarantined(tmp_path, "rows.parquet", timestamp=[0], row=[0], reason=["a <b> & c"])
    dataset = held(tmp_path, source=SourceRecord(sha256="0" * 64, seen=ROWS + 1, quarantined=1, quarantine=(part,)))
    card = build_card(dataset, SPEC)
    pictures = {picture.file.removeprefix(f"{dataset.digest}-"): picture.svg for picture in pictures_of(card)}
    words = {}
    for name, svg in pictures.items():
        root = ElementTree.fromstring(svg)
        words[name] = " | ".join(element.text or "" for element in root.iter() if element.tag.endswith("}text"))
        # The file refers to no other file.
        assert not re.search(r"href|url\(|<script|<image", svg)
    assert list(words) == ["timeline.svg", "response.svg", "histograms.svg"]
    assert "1 control steps lost: a <b> & c" in words["timeline.svg"]
    assert "1970-01-01 08:20" in words["timeline.svg"]  # the end of 30,000 s
    assert "change of level [m]" in words["response.svg"]
    assert "action valve [%]" in words["response.svg"]
    assert "after 10 control steps" in words["response.svg"]
    assert "noise <1>" in words["histograms.svg"]
    page = write_card(dataset, SPEC).page
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    assert [(page.parent / name).read_text() for name in shown] == list(pictures.values())
    (page.parent / shown[0]).unlink()
    write_card(dataset, SPEC)
    assert (page.parent / shown[0]).read_text() == pictures["timeline.svg"]
