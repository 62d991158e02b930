"""Pictures: deterministic, in the right units, and from the right columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neorl_core.plants import PLANTS
from neorl_core.safety.bounds import Interval
from tasks.pictures.curves import plot_curves
from tasks.pictures.estimates import plot_intervals, plot_ope
from tasks.pictures.trajectories import Trajectory, plot_glance, plot_trajectories

REACTOR = PLANTS["chemical_reactor"].spec


def _episode(offset: float) -> Trajectory:
    t = np.arange(12.0)
    rows = np.stack([0.87 + 0 * t, 324 + offset + np.sin(t), 298 + 0 * t, 0.87 + 0 * t], axis=1)
    return Trajectory(rows, 298 + offset + 0 * t[:, None])


def test_svg_of_trajectories_shows_units_limits_and_legend_and_is_deterministic(tmp_path: Path) -> None:
    controllers = {"candidate": _episode(0.0), "plant controller": _episode(1.0)}
    first = plot_trajectories(tmp_path / "a.svg", REACTOR, controllers).read_bytes()
    assert first == plot_trajectories(tmp_path / "b.svg", REACTOR, controllers).read_bytes()
    # Glyphs are drawn as paths; matplotlib keeps what they spell in comments.
    text = first.decode()
    for words in ("temperature [K]", "concentration [mol/L]", "time [min]", "set point", "beyond a limit", "candidate"):
        assert words in text
    assert text.count("#a1121b") >= 8  # two limits and their far sides, for the temperature and for the coolant
    assert first != plot_trajectories(tmp_path / "c.svg", REACTOR, {"candidate": _episode(0.5)}).read_bytes()


def test_a_quantity_that_is_not_measured_is_drawn_where_its_margin_was_kept(tmp_path: Path) -> None:
    robot = PLANTS["robot_assembly"]
    kept = Trajectory(np.zeros((5, 12)), np.zeros((5, 3)), np.full((5, 1), 10.0))
    text = plot_trajectories(tmp_path / "a.svg", robot.spec, {"candidate": kept}, robot.drawn).read_text()
    assert "contact force |f| [N]" in text
    assert "force x" not in text
    lost = {"candidate": kept, "champion": kept._replace(margins=None)}
    assert "contact force" not in plot_trajectories(tmp_path / "b.svg", robot.spec, lost, robot.drawn).read_text()


def test_set_points_that_controllers_move_themselves_are_drawn_for_each(tmp_path: Path) -> None:
    moved = _episode(0.0)
    moved.observations[:, 3] = 0.9
    for other, label in ((_episode(1.0), "set point"), (moved, "set point, champion")):
        episodes = {"candidate": _episode(0.0), "champion": other}
        text = plot_trajectories(tmp_path / "a.svg", REACTOR, episodes).read_text()
        assert f"<!-- {label} -->" in text


def test_many_panels_stand_in_two_columns(tmp_path: Path) -> None:
    grid = PLANTS["power_grid"]
    rows = Trajectory(np.ones((3, 19)), np.zeros((3, 17)))
    text = plot_trajectories(tmp_path / "a.svg", grid.spec, {"candidate": rows}, grid.drawn).read_text()
    # Eighteen panels of 1.6 inches in two columns, and the legend.
    assert f'height="{(1.0 + 1.6 * 9) * 72:g}pt"' in text
    assert text.count("<!-- time [h] -->") == 2


def test_png_is_deterministic_and_whole(tmp_path: Path) -> None:
    nan = float("nan")
    groups = {
        "return": {"candidate": Interval(-1.0, -1.2, -0.8), "champion": Interval(-1.1, nan, nan)},
        "difference of returns": {"rollouts": Interval(0.1, 0.0, 0.2), "logs": Interval(nan, nan, nan)},
    }
    data = plot_intervals(tmp_path / "a.png", groups).read_bytes()
    assert data == plot_intervals(tmp_path / "b.png", groups).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.endswith(b"IEND\xaeB`\x82")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]
    # A quantity of which nothing is known has no panel.
    unknown = {"cost": {"candidate": Interval(nan, nan, nan)}}
    assert plot_intervals(tmp_path / "c.png", groups | unknown).read_bytes() == data
    assert plot_intervals(tmp_path / "d.png", unknown).stat().st_size > 1000


def test_ope_scatter_and_curves_take_one_member_and_lost_values(tmp_path: Path) -> None:
    one = [Interval(1.0, 0.5, 1.5)]
    assert plot_ope(tmp_path / "ope.png", one, one, 0).stat().st_size > 1000
    curves = {"critic_loss": np.array([[1.0, np.nan, 0.5]]), "actor_loss": np.ones((1, 3)), "q": np.ones((1, 3))}
    assert plot_curves(tmp_path / "curves.png", np.arange(3), curves, 0).stat().st_size > 1000


def test_a_glance_says_verdict_reason_and_claim(tmp_path: Path) -> None:
    words = {"verdict": "It is champion", "reason": "It passed every gate.", "claim": "P(a violation) is small"}
    episodes = {"candidate": _episode(0.0)}
    text = plot_glance(tmp_path / "a.svg", REACTOR, episodes, {"candidate": Interval(-1.0, -1.2, -0.8)}, **words)
    for word in (*words.values(), "-1  [-1.2, -0.8]", "temperature [K]"):
        assert word in text.read_text()
