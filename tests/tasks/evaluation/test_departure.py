"""Departure from the logs: by hand in two dimensions, and for steps that are the logs themselves."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants.base import Trajectory
from neorl_core.types import PlantSpec, Space, Transition
from tasks.data.store.episodes import Logs
from tasks.evaluation.departure import QUANTILE, departure, distances
from tasks.evaluation.support import logged_support, thinned
from tasks.files.arrays import read_npz
from tasks.pictures.departure import plot_departure
from tasks.references import Departure

SPEC = PlantSpec(
    name="line",
    observation=Space(("x",), ("m",), (-50.0,), (50.0,)),
    action=Space(("u",), ("N",), (-4.0,), (4.0,)),
    constraints=(),
    dt=1.0,
    time_unit="s",
    horizon=10,
    score_range=(-100.0, 0.0),
)


def logs(x: np.ndarray, u: np.ndarray) -> Logs:
    nothing = np.zeros(len(x), np.float32)
    rows = Transition(x[:, None], u[:, None], nothing, nothing, x[:, None], nothing)
    return Logs(rows, nothing.astype(int), np.array([0]), nothing > 0)


def trajectory(x: np.ndarray, u: np.ndarray, alive: np.ndarray) -> Trajectory:
    nothing = jnp.zeros(x.shape)
    fields = dict.fromkeys(Trajectory._fields, nothing)
    fields |= {"observations": x[..., None], "actions": u[..., None], "alive": alive}
    return Trajectory(**fields)


def found(tmp_path: Path, x: list[float], u: list[float], alive: list[bool]) -> Departure:
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21)), -1).reshape(-1, 2)
    training, held_out = logs(*grid.T), logs(*(grid + 0.01).T)
    steps = {"candidate": trajectory(np.array([x]), np.array([u]), np.array([alive]))}
    return departure(SPEC, training, held_out, steps, 0, tmp_path)


def test_shares_by_hand(tmp_path: Path) -> None:
    # Of four steps, one is in the middle of the grid, one is far away in x, one in u, one after the episode's end.
    made = found(tmp_path, [0.0, 3.0, 0.0, 9.0], [0.0, 0.0, 3.0, 9.0], [True, True, True, False])
    assert made.steps == 3
    assert made.unlike == {"candidate": pytest.approx(2 / 3)}
    assert made.beyond == {"candidate": {"x": pytest.approx(1 / 3), "action u": pytest.approx(1 / 3)}}
    histograms = read_npz(made.histograms)
    assert set(histograms) == {"edges", "logs", "candidate"}
    for name in ("logs", "candidate"):
        np.testing.assert_allclose(histograms[name].sum(axis=1), 1.0)
    assert histograms["edges"][0, 0] == -1.0
    assert histograms["edges"][0, -1] == 3.0


def test_steps_that_are_not_numbers_are_unlike_the_logs(tmp_path: Path) -> None:
    made = found(tmp_path, [0.0, np.nan, np.inf], [0.0, 0.0, 0.0], [True, True, True])
    assert made.unlike["candidate"] == pytest.approx(2 / 3)
    assert made.beyond["candidate"] == {"x": pytest.approx(2 / 3), "action u": 0.0}
    picture = plot_departure(tmp_path / "departure.png", SPEC, read_npz(made.histograms))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_too_few_held_out_steps_give_no_number(tmp_path: Path) -> None:
    few = logs(np.zeros(90), np.zeros(90))
    steps = {"candidate": trajectory(np.array([[50.0]]), np.array([[0.0]]), np.array([[True]]))}
    made = departure(SPEC, logs(*np.random.default_rng(0).normal(size=(2, 500))), few, steps, 0, tmp_path)
    assert np.isnan(made.unlike["candidate"])
    assert Departure.model_validate_json(made.model_dump_json()).beyond == made.beyond


def test_new_steps_of_the_same_distribution_are_like_the_logs(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    training, held_out, new = (draw.normal(size=(4_000, 2)) for _ in range(3))
    steps = trajectory(new[None, :, 0], new[None, :, 1], np.ones((1, len(new)), bool))
    made = departure(SPEC, logs(*training.T), logs(*held_out.T), {"candidate": steps}, 0, tmp_path)
    assert made.unlike["candidate"] == pytest.approx(1 - QUANTILE, abs=0.005)


def test_distances_are_in_standard_deviations() -> None:
    # One reference is (0, 0), another is (10, 2); deviations are 5 and 1, and D = 2.
    support = logged_support(SPEC, logs(np.array([0.0, 10.0]), np.array([0.0, 2.0])), 0)
    np.testing.assert_allclose(support.scale, [5.0, 1.0])
    np.testing.assert_allclose(distances(support, np.array([[5.0, 0.0], [0.0, 0.0]])), [np.sqrt(0.5), 0.0], atol=1e-6)
    np.testing.assert_array_equal(thinned(np.arange(10.0), 4), [0, 3, 6, 9])
