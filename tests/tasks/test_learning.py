"""`neorl learn` on a user's plant: against an independent simulation, and plants without useful gradients."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from flows.cli.main import run
from neorl_core.online import LEARNERS
from neorl_core.plants.base import rollouts
from neorl_core.safety.composite import composite_controller
from neorl_core.training.population import configure
from tasks import learning
from tasks.learning import SHIELDED, learn
from tasks.models.bundles.bundle import load_bundle
from tasks.models.plants.known import plant_of
from tasks.models.plants.opening import open_run

OWN = Path(__file__).parents[1] / "own_project"
UPDATES = 100
SHORT = configure(LEARNERS["analytic_gradient"].unbound, {}, UPDATES)


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
    found = learn(opened, project / "out", 4, UPDATES, SHORT, lambda done, total, unit: shown.append(int(done)))
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
    assert learn(opened, project / "again", 4, UPDATES, SHORT).digest == found.digest


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
        learn(open_run("tank.yaml"), project / "out", 0, UPDATES, SHORT)
    assert not (project / "out").exists()


def test_a_discrete_action_and_an_existing_folder_are_refused(project: Path) -> None:
    with pytest.raises(Refused, match="has no gradient"):
        learn(
            open_run(Path(__file__).parents[2] / "configs" / "pumping_station.yaml"), project / "out", 0, UPDATES, SHORT
        )
    with pytest.raises(BadInput, match="plants exists: name another folder"):
        learn(open_run("tank.yaml"), project / "plants", 0, UPDATES, SHORT)


@pytest.mark.slow
def test_the_command_prints_gains(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["learn", "tank.yaml", "--updates", "100", "--protected", "50"]) == 0
    shown = capsys.readouterr().out
    assert "policy behind the shield" in shown
    assert "the fallback took over" in shown
    assert run(["learn", "tank.yaml", "--updates", "100", "--protected", "50", "--out", "other", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["better"]
    assert plant_of(open_run("tank.yaml")).name == found["plant"]
    assert run(["learn", "tank.yaml", "--updates", "50", "--protected", "50"]) == 2
    assert "--protected is 50, but must be less than the 50 --updates" in capsys.readouterr().err
