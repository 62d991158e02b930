"""`neorl learn` on a user's plant: against an independent simulation, and plants without useful gradients."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from flows.cli.main import run
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import composite_controller
from tasks import learning
from tasks.learning import SHIELDED, chosen, learn
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.models.plants.opening import open_run

OWN = Path(__file__).parents[1] / "own_project"
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tests' own project, as the working directory."""
    found = Path(shutil.copytree(OWN, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))
    monkeypatch.chdir(found)
    monkeypatch.setattr(learning, "EPISODES", 256)
    return found


def changed(project: Path, old: str, new: str) -> None:
    path = project / "plants" / "tank.py"
    source = path.read_text()
    assert old in source
    path.write_text(source.replace(old, new))


@pytest.mark.slow
def test_the_learned_policy_gains_in_an_independent_simulation(project: Path) -> None:
    opened, shown = open_run("tank.yaml"), list[int]()
    by = chosen(opened, updates=100)
    found = learn(opened, project / "out", 4, by, lambda done, total, unit: shown.append(int(done)))
    assert shown == [0, 50, 100]
    assert found.better
    assert (project / "out" / "episode.png").read_bytes().startswith(b"\x89PNG")
    plant, composite = load_bundle(project / "out", found.digest, opened.source)
    keys = jax.random.split(jax.random.key(77), 512)
    ours = rollouts(plant, composite_controller(plant), composite, keys, plant.domain)
    theirs = rollouts(plant, plant.fallback, plant.fallback_params, keys, plant.domain)
    low, high = plant.spec.score_range
    gains = 100.0 * (np.asarray(ours.ret, np.float64) - np.asarray(theirs.ret, np.float64)) / (high - low)
    gain = found.controllers[SHIELDED].gain
    assert gain is not None
    error = np.hypot(gains.std() / np.sqrt(512), (gain.upper - gain.lower) / 3.92)
    assert abs(gains.mean() - gain.value) < 3 * error
    assert not np.asarray(ours.violated).any()
    # The same seed gives the same bits, so that a stopped command can be repeated.
    assert learn(opened, project / "again", 4, by).digest == found.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(
            "valve = clip_to(SPEC.action, action)[0]\n    level = advance(state",
            "valve = jnp.round(clip_to(SPEC.action, action)[0])\n    level = advance(state",
            "the gradient of the return of tank by the actions is 0",
            id="rounded",
        ),
        pytest.param(
            "reward=-jnp.abs(level - state.set_point)",
            "reward=-jnp.abs(level - state.set_point) - jnp.sqrt(0.0 * level)",
            "only 0% of the episodes of tank have a finite gradient",
            id="infinite",
        ),
    ],
)
def test_a_simulator_without_useful_gradients_is_refused(project: Path, old: str, new: str, said: str) -> None:
    changed(project, old, new)
    with pytest.raises(Refused, match=said):
        learn((opened := open_run("tank.yaml")), project / "out", 0, chosen(opened, updates=100))
    assert not (project / "out").exists()


def test_an_existing_folder_is_refused(project: Path) -> None:
    with pytest.raises(BadInput, match="plants exists: name another folder"):
        learn((opened := open_run("tank.yaml")), project / "plants", 0, chosen(opened))


def test_the_learner_comes_from_the_file_or_the_options(project: Path) -> None:
    shield = "shield: {buffers: {contact force: 5.0}}\n"
    train = (
        "train:\n  algorithm: bc\n  beside: [{algorithm: ppo, updates: 40, hyperparameters: {lr: 0.01, parts: 3}}]\n"
    )
    (project / "robot.yaml").write_text(f"plant: robot_assembly\n{shield}{train}")
    opened = open_run("robot.yaml")
    found = chosen(opened)
    assert (found.name, found.updates, found.config.lr, found.config.parts) == ("ppo", 40, 0.01, 3)
    found = chosen(opened, "ppo", 20, {"lr": 0.02})
    assert (found.updates, found.config.lr, found.config.parts, found.plan.updates) == (20, 0.02, 3, 20)
    found = chosen(opened, "analytic_gradient")
    assert (found.name, found.updates, found.config.warm_up_updates) == ("analytic_gradient", 600, 300)
    assert chosen(open_run("tank.yaml")).name == "analytic_gradient"
    # The first of two learners counts, also if a third learner stands between them.
    thrice = "train: {algorithm: ppo, updates: 120, beside: [{algorithm: analytic_gradient}, {algorithm: ppo}]}\n"
    (project / "thrice.yaml").write_text(f"plant: robot_assembly\n{shield}{thrice}")
    assert chosen(open_run("thrice.yaml"))[:2] == ("ppo", 120)
    (project / "pumps.yaml").write_text("plant: pumping_station\n")
    assert chosen(open_run("pumps.yaml")).name == "ppo"


@pytest.mark.parametrize(
    ("name", "updates", "overrides", "said"),
    [
        ("td3_bc", None, {}, "td3_bc is no learner that learns in a simulator: choose analytic_gradient or ppo"),
        ("analytic_gradient", None, {}, "cannot learn the discrete actions of pumping_station: choose ppo"),
        ("ppo", None, {"clip": 0.0}, "clip of ppo must be above 0"),
        ("ppo", None, {"parts": 100_000, "copies": 4, "steps": 8}, "parts is 100000, but an update has only 32 rows"),
        ("ppo", 10, {"warm_up_updates": 10}, "the warm-up alone needs 10 updates"),
    ],
)
def test_wrong_settings_are_refused(name: str, updates: int | None, overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        chosen(open_run(CONFIGS / "pumping_station.yaml"), name, updates, overrides)


@pytest.mark.slow
def test_ppo_stores_a_policy_that_corrects_choices(project: Path) -> None:
    opened = open_run(CONFIGS / "pumping_station.yaml")
    by = chosen(opened, updates=4, overrides={"copies": 4, "steps": 8, "warm_up_updates": 2})
    found = learn(opened, project / "out", 1, by)
    plant, composite = load_bundle(project / "out", found.digest, opened.source)
    assert composite.correction is not None
    np.testing.assert_array_equal(composite.correction, [2.0])
    keys = jax.random.split(jax.random.key(77), 16)
    ours = rollouts(plant, composite_controller(plant), composite, keys, plant.domain)
    assert np.isfinite(np.asarray(ours.ret)).all()


@pytest.mark.slow
def test_the_command_prints_gains(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["learn", "tank.yaml", "--updates", "100", "--set", "warm_up_updates=50"]) == 0
    shown = capsys.readouterr().out
    assert "policy behind the shield" in shown
    assert "the fallback took over" in shown
    assert run(["learn", "tank.yaml", "--updates", "100", "--out", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["better"]
    assert plant_of(open_run("tank.yaml")).name == found["plant"]
    assert run(["learn", "tank.yaml", "--set", "margin"]) == 2
    assert "--set must have the form name=value, got 'margin'" in capsys.readouterr().err
