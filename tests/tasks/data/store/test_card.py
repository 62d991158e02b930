"""The dataset card, checked by hand calculations and second implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import BadInput
from neorl_core.types import Constraint, PlantSpec, Space
from tasks.data.store.cards import card as cards
from tasks.data.store.cards.card import build_card, read_card, write_card
from tasks.data.store.cards.markdown import bars, card_markdown
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import GapsCard, Provenance, SourceRecord
from tasks.data.store.schema import Rows
from tasks.data.store.writer import DatasetWriter

SPEC = PlantSpec(
    name="kettle",
    observation=Space(("temperature", "level", "idle"), ("K", "m", "1"), (0.0, 0.0, 0.0), (10.0, float("inf"), 1.0)),
    action=Space(("valve", "pump", "fixed"), ("1", "1", "1"), (0.0, -5.0, 0.0), (1.0, 5.0, 1.0)),
    constraints=(Constraint("temperature", "K", 0.0, 9.0), Constraint("level", "m", -1.0, 99.0)),
    dt=10.0,
    time_unit="s",
    horizon=50,
    score_range=(0.0, 1.0),
)
ROWS, LENGTH = 400, 20


def rows() -> Rows:
    rng = np.random.default_rng(0)
    observations = np.stack([rng.uniform(0, 10, ROWS), rng.normal(50, 3, ROWS), np.full(ROWS, 0.5)], axis=1)
    pump = 0.3 * observations[:, 0] - 0.2 * (observations[:, 1] - 50)
    excess = np.zeros((ROWS, 2))
    excess[[3, 17, 200], 0] = (0.5, 2.0, 1.0)
    ends = np.arange(ROWS) % LENGTH == LENGTH - 1
    terminals = ends & (np.arange(ROWS) == LENGTH - 1)
    steps = np.full(ROWS, 10)
    steps[[40, 200]] = (70, 3610)  # 60 s and 3600 s more than the period, each before an episode begins
    arrays = {
        "observations": observations,
        "actions": np.stack([rng.uniform(0, 1, ROWS), pump, np.full(ROWS, 0.25)], axis=1),
        "rewards": rng.normal(size=ROWS),
        "next_observations": observations,
        "costs": (excess > 0).any(axis=1),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
        "constraint_costs": excess,
        "timestamps": np.cumsum(steps) * 10**9,
    }
    return {key: values.astype(cards_dtype(key)) for key, values in arrays.items()}


def cards_dtype(key: str) -> Any:
    return {"terminals": bool, "timeouts": bool, "timestamps": np.int64}.get(key, np.float32)


@pytest.fixture
def dataset(tmp_path: Path) -> StoredDataset:
    with DatasetWriter(tmp_path, SPEC) as writer:
        writer.append(rows())
        digest = writer.commit(
            Provenance(format="test", sources=(SourceRecord(sha256="0" * 64, seen=402, quarantined=2),))
        )
    return StoredDataset.open(tmp_path, digest)


def test_counts_by_hand(dataset: StoredDataset) -> None:
    held, card = rows(), build_card(dataset, SPEC)
    assert (card.rows, card.episodes.count, card.episodes.terminated) == (ROWS, 20, 1)
    assert (card.episodes.shortest, card.episodes.longest) == (LENGTH, LENGTH)
    returns = held["rewards"].astype(float).reshape(20, LENGTH).sum(axis=1)
    assert card.episodes.return_mean == pytest.approx(returns.mean())
    assert card.episodes.return_least == pytest.approx(returns.min())
    assert card.limits["temperature"].violated_rows == 3
    assert card.limits["temperature"].worst_excess == 2.0
    assert card.limits["level"].violated_rows == 0
    assert card.gaps.model_copy(update={"present": ()}) == GapsCard(
        known=True, count=2, longest_s=3600.0, total_s=3660.0, present=()
    )
    # 400 rows of 10 s and 3660 s of gaps: 7660 s. The missing hour begins at row 200.
    assert sum(card.gaps.present) / len(card.gaps.present) == pytest.approx(4000 / 7660, abs=1e-6)
    assert card.gaps.present[40] == 0.0
    assert card.gaps.present[-1] == pytest.approx(1.0)
    level = held["observations"][:, 1].astype(float)
    signal = card.signals["observation level"]
    assert signal.mean == pytest.approx(level.mean())
    assert signal.deviation == pytest.approx(level.std())
    assert (signal.least, signal.greatest) == (level.min(), level.max())
    inside = np.abs(np.diff(level)).reshape(-1)[np.arange(ROWS - 1) % LENGTH != LENGTH - 1]
    assert signal.change == pytest.approx(inside.mean())
    # The level has no upper bound and so no covered share.
    low, high = np.quantile(held["observations"][:, 0].astype(float), [0.05, 0.95])
    assert card.signals["observation temperature"].covered == pytest.approx((high - low) / 10.0)
    assert card.signals["observation level"].covered is None
    histogram, _ = np.histogram(held["observations"][:, 0], bins=cards.BINS, range=(0, 10))
    assert card.signals["observation temperature"].histogram == tuple(histogram)
    assert card.signals["observation temperature"].covered == pytest.approx(0.9, abs=0.02)
    cells = np.floor(
        np.stack(
            [
                held["observations"][:, 0] / 10,
                level / level.max(),  # from its bound to the greatest value, because it has no upper bound
                held["observations"][:, 2],
                held["actions"][:, 0],
                (held["actions"][:, 1] + 5) / 10,
                held["actions"][:, 2],
            ],
            axis=1,
        )
        * cards.CELL_BINS
    )
    # Linear counting in 2^22 bits: collisions of a few hundred cells are rare.
    assert card.coverage.cells == pytest.approx(len(np.unique(np.minimum(cells, 4), axis=0)), abs=2)


def test_behaviour_fit_agrees_with_least_squares(dataset: StoredDataset) -> None:
    held = rows()
    fit = {name: action.explained for name, action in build_card(dataset, SPEC).actions.items()}
    x = np.column_stack([held["observations"].astype(float), np.ones(ROWS)])
    y = held["actions"][:, 0].astype(float)
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    assert fit["valve"] == pytest.approx(1 - left.var() / y.var(), abs=1e-5)
    assert fit["pump"] == pytest.approx(1.0, abs=1e-5)
    assert fit["fixed"] is None


def test_limitations_are_listed(dataset: StoredDataset) -> None:
    card = build_card(dataset, SPEC)
    text = " ".join(card.cannot_learn)
    for sentence in (
        "Limit 'level' is never violated",
        "Action 'pump' follows from the observation",
        "Action 'fixed' is constant",
        "observation idle never changes",
        "The longest episode has 20 steps of 50",
    ):
        assert sentence in text
    assert "'temperature' is never" not in text
    assert "'valve'" not in text


def test_small_units_do_not_make_a_signal_constant(tmp_path: Path) -> None:
    small = rows()
    for key in ("observations", "next_observations"):
        small[key] = small[key] * np.float32(1e-12)
    with DatasetWriter(tmp_path, SPEC) as writer:
        writer.append(small)
        digest = writer.commit(
            Provenance(format="test", sources=(SourceRecord(sha256="0" * 64, seen=ROWS, quarantined=0),))
        )
    text = " ".join(build_card(StoredDataset.open(tmp_path, digest), SPEC).cannot_learn)
    assert "observation idle never changes" in text
    assert "Action 'pump' follows from the observation" in text


def test_limitations_of_a_poor_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    held = rows()
    line = 0.9 * (held["observations"][:, 0] - 5)
    # An action within 1 % of its range, an action linear with R^2 0.998, and a placeholder for a missing value.
    held["actions"][:, 0] = 0.5 + rng.uniform(-0.01, 0.01, ROWS)
    held["actions"][:, 1] = line + rng.normal(0, 0.0447 * line.std(), ROWS)
    held["observations"][7, 1] = -999.0
    del held["constraint_costs"], held["costs"]
    spec = SPEC._replace(constraints=(), observation=SPEC.observation._replace(low=(-np.inf,) * 3, high=(np.inf,) * 3))
    with DatasetWriter(tmp_path, spec) as writer:
        writer.append(held)
        digest = writer.commit(Provenance(format="test"))
    card = build_card(StoredDataset.open(tmp_path, digest), spec)
    text = " ".join(card.cannot_learn)
    for sentence in (
        "No limit is known",
        "Action 'pump' follows from the observation (R^2 0.9978)",
        "Action 'valve' is nearly constant (deviation 0.6% of its range)",
        "observation level contains -999, a common placeholder",
    ):
        assert sentence in text
    assert all(card.signals[f"observation {name}"].covered is None for name in SPEC.observation.names)
    assert "| no range given |" in card_markdown(card)


def test_bars_by_hand() -> None:
    assert bars([0, 1, 4, 8]) == "·▁▄█"
    assert bars([0.0, 0.5, 1.0], 1.0) == "·▄█"
    assert bars([]) == ""
    assert bars([0, 0]) == "··"


def test_block_size_does_not_change_the_card(dataset: StoredDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_card(dataset, SPEC)
    monkeypatch.setattr(cards, "BLOCK_ROWS", 7)
    parts = build_card(dataset, SPEC)
    assert parts.gaps == whole.gaps
    assert parts.limits == whole.limits
    assert parts.coverage == whole.coverage
    for name, signal in whole.signals.items():
        assert parts.signals[name].unit == signal.unit
        assert parts.signals[name].histogram == signal.histogram
        texts = {"unit", "histogram"}
        assert parts.signals[name].model_dump(exclude=texts) == pytest.approx(signal.model_dump(exclude=texts))


def test_damaged_cards_are_written_again(dataset: StoredDataset) -> None:
    path = write_card(dataset, SPEC).page
    text, record = path.read_text(), path.with_suffix(".json").read_bytes()
    assert path == dataset.root / "cards" / f"{dataset.digest}.md"
    assert text == card_markdown(read_card(dataset.root, dataset.digest))
    assert "- Limit 'level' is never violated" in text
    path.with_suffix(".json").write_bytes(record.replace(b'"violated_rows":0', b'"violated_rows":9'))
    with pytest.raises(BadInput, match="missing or altered"):
        read_card(dataset.root, dataset.digest)
    path.write_text("spoilt")
    assert write_card(dataset, SPEC).page.read_text() == text
    assert path.with_suffix(".json").read_bytes() == record


def test_signals_keep_the_plants_order(tmp_path: Path, dataset: StoredDataset) -> None:
    page = write_card(dataset, SPEC).page.read_text()
    shown = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| observation ")]
    assert shown == [f"observation {name}" for name in SPEC.observation.names]
    actions = page[page.index("## Actions and logged controller") :]
    places = [actions.index(f"| {name} |") for name in SPEC.action.names]
    assert places == sorted(places)
