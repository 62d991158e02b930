"""Recordings: account, derived spec, limit on bad rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from configs.errors import BadInput
from neorl_core.plants import PLANTS
from tasks.data.formats.recordings import PerEpisode, read
from tests.benchmark_files import walk, write_d4rl, write_dsrl
from tests.tasks.data.formats.test_hdf5_formats import by_hand


def test_account_by_hand(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "toy-v0.hdf5", by_hand())
    calls: list[tuple[int, int, str]] = []
    log = read(path, progress=lambda *args: calls.append(args))
    assert calls == [(8, 8, "rows")]
    # Episodes: rewards 0+1+2, 3+4, 5, 6+7.
    about = {name: value for name, value in asdict(log.about).items() if name not in ("sha256", "cost")}
    assert about == {
        **{"file": "toy-v0.hdf5", "format": "D4RL", "rows": 8, "transitions": 6, "observations": 1, "actions": 1},
        **{"next_observations": "made", "ends_by_time": "file", "cost_key": None, "dataset": None},
        **{"left_out": {"no next observation": 2}, "episodes": 4, "terminated": 2, "cut": 1, "longest": 3},
        "returns": {"mean": 7.0, "least": 3.0, "most": 13.0},
    }
    assert log.about.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert json.loads(json.dumps(asdict(log.about))) == asdict(log.about)
    kept = [0, 1, 2, 3, 5, 6]
    np.testing.assert_array_equal(log.transitions.observation, by_hand()["observations"][kept])
    np.testing.assert_array_equal(log.transitions.next_observation[:, 0], [2, 3, 3, 11, 20, 31])
    np.testing.assert_array_equal(log.transitions.terminated, [0, 0, 1, 0, 1, 0])
    assert str(log) == (
        "toy-v0.hdf5: D4RL layout, 8 rows in 4 episode(s)\n"
        "  episodes: 2 terminated, 1 cut by time, 1 unfinished; the longest has 3 steps\n"
        "  return per episode: mean 7 (from 3 to 13)\n"
        "  costs: none in the file\n"
        "  next observations: derived within episodes\n"
        "  left out: 2 row(s), no next observation\n"
        "  6 transitions of 1 observations, 1 actions"
    )


def test_costs_are_read(tmp_path: Path) -> None:
    arrays = walk(200)
    log = read(write_dsrl(tmp_path / "a.hdf5", arrays))
    unsafe = arrays["observations"][:, 0] > 1
    np.testing.assert_array_equal(log.transitions.cost, unsafe)
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    each = [part.sum() for part in np.split(unsafe, ends)]
    assert log.about.cost == PerEpisode(mean=float(np.mean(each)), least=float(min(each)), most=float(max(each)))
    assert "DSRL layout" in str(log)
    assert "costs: read from 'costs', per episode" in str(log)
    assert "next observations: in the file" in str(log)


def test_unknown_time_limits_are_shown(tmp_path: Path) -> None:
    partial = write_d4rl(tmp_path / "a.hdf5", walk(100), timeouts=None)
    assert "the file does not say which were cut by time" in str(read(partial))
    bare = write_d4rl(tmp_path / "b.hdf5", walk(100), timeouts=None, next_observations=None)
    assert "cut every 7 steps, as given" in str(read(bare, horizon=7))


def test_spec_derived_from_the_data(tmp_path: Path) -> None:
    arrays = walk(300, actions=2)
    spec = read(write_d4rl(tmp_path / "a.hdf5", arrays)).spec
    assert spec.observation.names == ("obs_0", "obs_1", "obs_2")
    assert spec.action.names == ("action_0", "action_1")
    both = np.concatenate([arrays["observations"], arrays["next_observations"]])
    np.testing.assert_array_equal(spec.observation.low, both.min(axis=0))
    np.testing.assert_array_equal(spec.observation.high, both.max(axis=0))
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"])
    assert spec.horizon == max(np.diff([-1, *ends, 299]))
    # Bounds of actions: [-1, 1] if all values are inside up to rounding, otherwise the range seen, widened if constant.
    assert (spec.action.low, spec.action.high) == ((-1.0, -1.0), (1.0, 1.0))
    rounded = arrays["actions"].copy()
    rounded[0, 0] = np.nextafter(np.float32(1), np.float32(2))
    assert read(write_d4rl(tmp_path / "b.hdf5", arrays, actions=rounded)).spec.action == spec.action
    valve = np.float32([0, 5]) + np.float32([50, 0]) * rounded
    found = read(write_d4rl(tmp_path / "c.hdf5", arrays, actions=valve)).spec.action
    assert found.low == (float(valve[:, 0].min()), 4.0)
    assert found.high == (float(valve[:, 0].max()), 6.0)


def test_many_bad_rows_refuse_the_file(tmp_path: Path) -> None:
    arrays = walk(100)
    rewards = arrays["rewards"].copy()
    rewards[[3, 40, 41, 42, 99]] = np.nan
    path = write_d4rl(tmp_path / "a.hdf5", arrays, rewards=rewards)
    log = read(path)
    assert log.about.left_out == {"NaN or infinity in rewards": 5}
    assert "left out: 5 row(s), NaN or infinity in rewards" in str(log)
    np.testing.assert_array_equal(log.transitions.reward, np.delete(arrays["rewards"], [3, 40, 41, 42, 99]))
    rewards[50] = np.inf
    with pytest.raises(
        BadInput, match=r"at most 5% of the 100 rows of a\.hdf5 may be unusable, got 6 with NaN or infinity in rew"
    ):
        read(write_d4rl(path, arrays, rewards=rewards))


def test_episodes_of_one_step_are_refused(tmp_path: Path) -> None:
    lone = {**by_hand(), "terminals": np.zeros(8, bool), "timeouts": np.ones(8, bool)}
    with pytest.raises(BadInput, match=r"no row of a\.hdf5 has a next observation"):
        read(write_d4rl(tmp_path / "a.hdf5", lone))


def test_official_data_have_the_published_score(dmsd_train: Path, tmp_path: Path) -> None:
    # NeoRL-2 (arXiv 2503.19267): the DMSD data score 56.6 in episodes of 100 steps.
    with np.load(dmsd_train) as data:
        arrays = {
            "observations": data["obs"],
            "actions": data["action"],
            "rewards": data["reward"].ravel(),
            "next_observations": data["next_obs"],
            "terminals": data["done"].ravel().astype(bool),
            "timeouts": data["truncated"].ravel().astype(bool),
        }
    log = read(write_d4rl(tmp_path / "dmsd.hdf5", arrays))
    worst, best = PLANTS["double_mass"].spec.score_range
    assert 100 * (log.about.returns.mean - worst) / (best - worst) == pytest.approx(56.6, abs=0.05)
    assert (log.about.episodes, log.about.longest, log.about.cut) == (1000, 100, 1000)
    # Derived next observations are the same except for each episode's last row.
    made = read(write_d4rl(tmp_path / "bare.hdf5", arrays, next_observations=None))
    last = np.arange(99, 100_000, 100)
    assert made.about.left_out == {"no next observation": 1000}
    np.testing.assert_array_equal(
        made.transitions.next_observation, np.delete(log.transitions.next_observation, last, axis=0)
    )
