"""`neorl tune` on a user's plant: against an independent simulation, and with wrong declarations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.errors import BadInput, NeoRLError, Refused
from flows.cli.main import run
from neorl_core.control.pid import PIDParams
from neorl_core.control.search import Effort, episodes_of
from neorl_core.plants.base import rollouts
from neorl_core.safety.bounds import Interval
from tasks.models.plants.known import KnownPlant, plant_named, plant_of_code
from tasks.models.user_code.loading import find_code
from tasks.tuning import as_written, declared_space, draw_tuned, prefers, tune

OWN = Path(__file__).parents[1] / "own_project"
SMALL = Effort(starts=64, episodes=4, finalists=8, rounds=6, draws=32, draw_episodes=16, fresh=128)
DECLARED = 'TUNABLE = {"kp": (0.3, 10.0), "ki": (0.0, 0.1), "kd": (0.0, 20.0)}'


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tests' own project, as the working directory."""
    found = Path(shutil.copytree(OWN, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))
    monkeypatch.chdir(found)
    return found


def declaring(project: Path, text: str) -> KnownPlant:
    """The tank with another declaration."""
    path = project / "plants" / "tank.py"
    source = path.read_text()
    assert DECLARED in source
    path.write_text(source.replace(DECLARED, text))
    return plant_of_code(find_code("plants/tank.py", project))


def test_tuned_parameters_gain_in_an_independent_simulation(project: Path) -> None:
    known, shown = plant_of_code(find_code("plants/tank.py", project)), list[tuple[int, int]]()
    found = tune(known, 3, lambda done, total, unit: shown.append((done, total)), SMALL)
    assert found.better
    assert shown[-1] == (episodes_of(SMALL), episodes_of(SMALL))
    # Hand-counted: 64 and 32 starts by 4 and 8 episodes, 16 by 16, then 6 rounds of 32 draws by 16 episodes.
    assert shown[0][0] == 256
    assert episodes_of(SMALL) == 256 + 256 + 256 + 6 * 32 * 16
    # `rollouts`, with other seeds, gives the same gain within three standard errors.
    plant = known.simulator()
    keys = jax.random.split(jax.random.key(77), 512)
    before, after = (
        rollouts(plant, plant.fallback, params, keys, plant.domain) for params in (plant.fallback_params, found.params)
    )
    low, high = plant.spec.score_range
    gains = 100.0 * (np.asarray(after.ret, np.float64) - np.asarray(before.ret, np.float64)) / (high - low)
    error = np.hypot(gains.std() / np.sqrt(512), (found.gain.upper - found.gain.lower) / 3.92)
    assert abs(gains.mean() - found.gain.value) < 3 * error
    assert not np.asarray(after.violated).any()
    # The text for the plant's file has the numbers that were compared.
    own = {each.name: each.tuned for each in found.parameters}
    assert as_written(found.params) == repr(PIDParams(**own, low=0.0, high=1.0))


def test_the_best_parameters_already(project: Path) -> None:
    """A range that contains only the present gain, to four digits, gives no gain."""
    found = tune(declaring(project, 'TUNABLE = {"kp": (1.49999, 1.50001)}'), 0, effort=SMALL)
    assert [each.tuned for each in found.parameters] == [1.5]
    assert found.scores[0] == found.scores[1]
    assert not found.better


TABLE = """
class Table(NamedTuple):
    gain: tuple = ((1.5, 0.02),)
    high: float = float("inf")
    steps: int = 3


PLANT = PLANT._replace(
    fallback_params=Table(),
    fallback=PLANT.fallback._replace(
        init=lambda params, observation: jnp.zeros(()),
        act=lambda params, total, observation, applied: (
            total + params.gain[0][1] * (observation[2] - observation[0]),
            jnp.clip(total + params.gain[0][0] * (observation[2:] - observation[:1]), 0.0, 1.0),
        ),
    ),
)
"""


def test_numbers_of_nested_tuples_have_names(project: Path, tmp_path: Path) -> None:
    path = project / "plants" / "tank.py"
    path.write_text(path.read_text().replace(DECLARED, 'TUNABLE = {"gain[0]": (0.01, 9.0)}') + TABLE)
    known = plant_of_code(find_code("plants/tank.py", project))
    space, now = declared_space(known)
    assert space.names == ("gain[0][0]", "gain[0][1]")
    assert (space.low, space.high) == ((0.01, 0.01), (9.0, 9.0))
    assert now.tolist() == [1.5, 0.02]
    built = space.params(np.asarray([2.0, 3.0]).tolist())
    assert as_written(built) == 'Table(gain=((2.0, 3.0),), high=float("inf"), steps=3)'
    found = tune(known, 0, effort=SMALL)
    assert found.scores[0] != found.scores[1]
    draw_tuned(known, found, tmp_path / "tuned.png", 0)


def test_arrays_as_parameters_are_refused(project: Path) -> None:
    path = project / "plants" / "tank.py"
    path.write_text(path.read_text() + "\nPLANT = PLANT._replace(fallback_params=(jnp.ones(2),))\n")
    with pytest.raises(BadInput, match="write arrays as nested tuples"):
        plant_of_code(find_code("plants/tank.py", project))


def test_rounding_stays_within_the_range(project: Path) -> None:
    found = tune(declaring(project, 'TUNABLE = {"ki": (0.234561, 0.234569)}'), 0, effort=SMALL)
    assert 0.234561 <= found.parameters[0].tuned <= 0.234569
    assert found.parameters[0].remark.startswith("now outside the range")


def test_returns_that_are_not_finite_are_refused_before_the_search(project: Path) -> None:
    path = project / "plants" / "tank.py"
    old = "reward=-jnp.abs(level - state.set_point),"
    assert old in path.read_text()
    path.write_text(
        path.read_text().replace(old, "reward=jnp.where((following.step == 30) & (level > 0.9), jnp.nan, -1.0),")
    )
    with pytest.raises(Refused, match=r"[\d,]+ of 2,048 episodes of tank have a return that is not finite"):
        tune(plant_of_code(find_code("plants/tank.py", project)), 0, effort=SMALL)


@pytest.mark.parametrize(
    ("ours", "theirs", "lower", "better"),
    [(0, 0, 0.1, True), (0, 0, -0.1, False), (1, 0, 0.1, False), (9, 1280, -60.0, True), (9, 12, -60.0, False)],
)
def test_fewer_violations_count_more_than_points(ours: int, theirs: int, lower: float, better: bool) -> None:
    assert prefers(Interval(lower + 1.0, lower, lower + 2.0), ours, theirs, 2_048) is better


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        (
            "",
            "must declare the ranges of its controller's parameters, got none: add, for example, TUNABLE = {'kp': (0.",
        ),
        ("TUNABLE = ['kp']", "got ['kp']: add, for example, TUNABLE = {"),
        ('TUNABLE = {"k_p": (0.3, 10.0)}', "names no parameter with 'k_p': did you mean 'kp'"),
        ('TUNABLE = {"kp": (10.0, 0.3)}', "TUNABLE['kp'] of "),
        ('TUNABLE = {"kp": 1.0}', "must be a lower and a higher number, got 1.0"),
        ('TUNABLE = {"kp": (0.3, float("nan"))}', "must be a lower and a higher number, got (0.3, nan)"),
        ('TUNABLE = {"kp": (0.3, 10**400)}', "must be a lower and a higher number, got (0.3, 1000"),
        ('TUNABLE = {"kp": "12"}', "must be a lower and a higher number, got '12'"),
        ('TUNABLE = {"kp": [0.0] * 3000}', "got [0.0, 0.0, 0.0"),
    ],
)
def test_wrong_declarations_are_refused_in_one_sentence(project: Path, declaration: str, said: str) -> None:
    known = declaring(project, declaration)
    with pytest.raises(BadInput) as caught:
        declared_space(known)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_built_in_plants_are_refused() -> None:
    with pytest.raises(Refused, match="not in a file of your own") as caught:
        declared_space(plant_named("double_mass"))
    assert isinstance(caught.value, NeoRLError)


@pytest.mark.slow
def test_the_command_names_the_next_step(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "plants/tank.py", "--out", "tuned.png"]) == 0
    shown = capsys.readouterr().out
    assert "next: in plants/tank.py, set fallback_params=PIDParams(kp=" in shown
    assert "found_params=PIDParams(kp=1.5, ki=0.02, kd=0.0, low=0.0, high=1.0)" in shown
    assert (project / "tuned.png").read_bytes().startswith(b"\x89PNG")
    for wrong in ("tuned.pdf", "plants/none/tuned.png", "plants"):
        assert run(["tune", "plants/tank.py", "--out", wrong]) == 2
    capsys.readouterr()
    assert run(["tune", "plants/tank.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["better"]
    assert found["gain"]["lower"] > 0
