"""Which episodes are held out: the share asked for, and the same ones whatever else is in the dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.adapters.store.reader import spaced
from tests.tasks.adapters.store.test_store import make_rows, write


def test_splits_survive_appends_and_hold_out_the_share_asked_for(tmp_path: Path) -> None:
    old = write(tmp_path, make_rows(200, steps=5))
    new = write(tmp_path, make_rows(203, steps=5, seed=1), parent=old)
    train, held_out = new.split(0.2)
    assert sorted([*train, *held_out]) == list(range(403))
    np.testing.assert_array_equal(held_out[held_out < 200], old.split(0.2)[1])
    # Gaps of 3 to 7, each as likely: 4 standard deviations of a renewal process around its mean.
    assert set(np.diff(held_out)) == {3, 4, 5, 6, 7}
    assert abs(len(held_out) - 403 / 5) < 4 * np.sqrt(403 * 2 / 5**3)
    rare, often = new.split(0.9)
    assert len(rare) + len(often) == 403
    assert abs(len(rare) - 403 / 10) < 4 * np.sqrt(403 * 8.25 / 10**3)


@pytest.mark.parametrize("gone", [1, 2, 3, 100])
def test_a_split_is_the_same_again_soon_after_earlier_episodes_went(tmp_path: Path, gone: int) -> None:
    rows = make_rows(403, steps=5)
    held_out = write(tmp_path / "all", rows).split(0.2)[1]
    later = write(tmp_path / "later", {key: values[5 * gone :] for key, values in rows.items()}).split(0.2)[1] + gone
    differ = np.setxor1d(held_out[held_out >= gone], later)
    assert differ.max(initial=0) < gone + 40


def test_equal_episodes_are_on_one_side(tmp_path: Path) -> None:
    rows = make_rows(60, steps=5)
    train, held_out = write(tmp_path, rows, make_rows(7, steps=5, seed=1), rows).split(0.2)
    assert len(train) + len(held_out) == 127
    np.testing.assert_array_equal(held_out[held_out >= 67] - 67, held_out[held_out < 60])


@pytest.mark.parametrize("seed", range(5))
def test_a_split_of_few_episodes_leaves_no_side_empty(tmp_path: Path, seed: int) -> None:
    train, held_out = write(tmp_path, make_rows(2, seed=seed)).split(0.01)
    assert (len(train), len(held_out)) == (1, 1)


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=80), st.floats(0.01, 0.5), st.integers(0, 80))
def test_what_comes_later_changes_no_choice_and_gaps_are_half_to_one_and_a_half_of_their_mean(
    drawn: list[float], share: float, count: int
) -> None:
    position = np.array(drawn, np.float64)
    found = spaced(position, share)
    np.testing.assert_array_equal(spaced(position[:count], share), found[:count])
    gaps = np.diff(np.flatnonzero(found))
    assert ((0.5 / share - 0.5 <= gaps) & (gaps <= 1.5 / share + 0.5)).all()


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3, 0.5])
def test_of_few_items_nearly_the_share_is_chosen_and_of_many_the_share(share: float) -> None:
    rng = np.random.default_rng(7)
    few = np.array([spaced(rng.random(50), share).sum() for _ in range(400)])
    # Chosen independently their deviation would be that of a binomial.
    assert few.std() < np.sqrt(50 * share * (1 - share)) / 2
    assert abs(few.mean() - 50 * share) < 0.5
    # A mean gap that is no whole number is met within one in a hundred.
    assert abs(spaced(rng.random(100_000), share).mean() / share - 1) < 0.015


def test_the_first_items_are_chosen_as_if_one_had_been_chosen_half_of_a_gap_before() -> None:
    rng = np.random.default_rng(3)
    first = np.array([np.flatnonzero(spaced(rng.random(20), 0.2))[0] for _ in range(500)])
    # Gaps are 3 to 7, and the two before the first item count: 5 standard deviations of 500 draws around a fifth.
    counts = np.bincount(first, minlength=5)
    assert len(counts) == 5
    assert np.abs(counts - 100).max() < 5 * np.sqrt(500 * 0.2 * 0.8)
