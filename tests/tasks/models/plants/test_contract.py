"""What a plant's file must be: each thing that is missing or wrong is one sentence, found when it is loaded."""

from __future__ import annotations

import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from configs.errors import BadInput
from neorl_core.plants import NAMES, PLANTS
from tasks.models.plants.contract import check_set_points
from tasks.models.plants.known import KnownPlant, plant_of_code
from tasks.models.user_code.loading import find_code


def load(project: Path, old: str = "", new: str = "", reference: str = "plants/tank.py") -> KnownPlant:
    path = project / "plants" / "tank.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return plant_of_code(find_code(reference, project))


def test_the_tank_drains_as_torricelli_says(project: Path) -> None:
    """A dh/dt = −a sqrt(2 g h) gives sqrt(h(t)) = sqrt(h0) − a sqrt(g/2) t / A while there is water (1643)."""
    plant = load(project).simulator()
    level = 1.5
    for period in range(1, 4):
        observation, margins = plant.predict(jnp.asarray([level, 0.0, 1.0]), jnp.zeros(1), plant.params)
        level = float(observation[0])
        expected = (math.sqrt(1.5) - 1e-3 / 0.1 * math.sqrt(9.81 / 2) * 5.0 * period) ** 2
        assert level == pytest.approx(expected, rel=1e-5)
        assert float(margins[0]) == pytest.approx(min(level - 0.1, 1.8 - level), abs=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("PLANT = Plant(", "THE_PLANT = Plant(", "PLANT to be a neorl_core.types.Plant, got none"),
        ("PLANT = Plant(", "PLANT = dict(", "PLANT to be a neorl_core.types.Plant, got a dict"),
        ('name="tank"', 'name="double_mass"', "a name that no built-in plant has, got 'double_mass'"),
        ('name="tank"', 'name="../tank"', "a name of lower-case letters"),
        ("(2.0, 1.0, 2.0))", "(2.0, 1.0))", "one unit, low and high per name"),
        ('("1",), (0.0,), (1.0,)', '("1",), (1.0,), (0.0,)', "a low below the high of valve, got 1 and 0"),
        ('("1",), (0.0,), (1.0,)', '("1",), (0.0,), (float("inf"),)', "bounded actions"),
        ("score_range=(-40.0, -2.0)", "score_range=(1.0, 1.0)", "two different returns"),
        ("domain=DOMAIN", "domain={}", r"PLANT\.domain needs .*got a dict"),
        ("margins=two_sided_margin(level, LOWEST, HIGHEST)[None]", "margins=jnp.zeros(2)", r"margins of shape \(1,\)"),
        ("observation=observe(following),", "observation=jnp.zeros(4),", r"observation of shape \(3,\).*got \(4,\)"),
        (
            "return following, Timestep(",
            "return following._replace(step=0.0), Timestep(",
            "the state types and shapes of reset",
        ),
        ("reward=-jnp.abs(level - state.set_point)", "reward=jnp.log(-level)", r"PLANT\.step needs finite numbers"),
        ("return observation[1:2]", "return observation[:2]", r"PLANT\.applied needs .*got \(2,\)"),
        ("return observation[1:2]", "return float(observation[1])", r"PLANT\.applied needs .*got \w+Error"),
        ("fallback=pid(0, 2, DT)", "fallback=None", r"PLANT\.fallback needs .*Controller, got a NoneType"),
        ("fallback=pid", "resume=lambda k, s, o, p: s, fallback=pid", r"PLANT\.resume needs a pair, got a State"),
        (
            "fallback=pid",
            "resume=lambda k, s, o, p: (o, p), fallback=pid",
            r"PLANT\.resume needs the state types",
        ),
        (
            "fallback=pid",
            "resume=lambda k, s, o, p: (s, o), fallback=pid",
            r"PLANT\.resume needs .*the constants of sample_params",
        ),
        ("def logged_reward", "def other", "got no logged_reward: add it"),
        (
            "return two_sided_margin(next_observation[..., :1]",
            "return two_sided_margin(next_observation",
            "logged_margins",
        ),
    ],
)
def test_what_is_wrong_with_a_plants_file_is_one_sentence(project: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        load(project, old, new)
    assert "\n" not in str(caught.value)
    assert str(project) in str(caught.value)


POINTS = 'SetPoints(("most",), ("1",), (0.1,), lambda p, s: p._replace(high=p.high + s[0]))'


def with_set_points(project: Path, points: str) -> KnownPlant:
    load(project, "import Constraint, Plant, PlantSpec,", "import Constraint, Plant, PlantSpec, SetPoints,")
    return load(project, "fallback=pid", f"set_points={points}, fallback=pid")


def test_a_plant_with_set_points_is_loaded(project: Path) -> None:
    found = with_set_points(project, POINTS).simulator().set_points
    assert found is not None
    assert (found.names, found.units, found.reach) == (("most",), ("1",), (0.1,))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("SetPoints(", "dict(a=0) or (", "set_points needs a neorl_core.types.SetPoints, got a dict"),
        ('("1",)', '("1", "1")', "tuples of names, units and reach of one length"),
        ('("most",)', '["most"]', "tuples of names, units and reach of one length"),
        ('("most",)', "(1,)", "names and units as texts"),
        ("(0.1,)", "(0.0,)", r"finite reach above 0, got \(0.0,\)"),
        ("(0.1,)", '(float("inf"),)', "finite reach above 0"),
        ("(0.1,)", "(10**400,)", "finite reach above 0"),
        ("(0.1,)", "(True,)", "finite reach above 0"),
        ("s[0])", "s[0] + 1e-3)", "the given parameters at shift 0, got other numbers"),
        ("p._replace(high=p.high + s[0])", "p.high", "the types of fallback_params"),
        ("p.high + s[0]", "p.high + float(s[0])", "a pure function of JAX arrays"),
        ("p.high + s[0]", "p.high + jnp.log1p(20 * s[0])", "finite actions at the largest shifts"),
    ],
)
def test_wrong_set_points_are_refused_in_one_sentence(project: Path, old: str, new: str, said: str) -> None:
    assert old in POINTS
    with pytest.raises(BadInput, match=said) as caught:
        with_set_points(project, POINTS.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in NAMES if PLANTS[name].set_points is not None])
def test_built_in_set_points_are_sound(name: str) -> None:
    check_set_points(PLANTS[name], name)


def test_a_plant_that_can_be_put_where_a_log_says_is_known_as_one(project: Path) -> None:
    resumes = "resume=lambda k, s, o, p: (s._replace(level=o[0], valve=o[1], set_point=o[2]), p), fallback=pid"
    assert load(project, "fallback=pid", resumes).simulator().resume is not None


def test_a_file_without_formulas_for_logs_is_a_plant_too(project: Path) -> None:
    text = (project / "plants" / "tank.py").read_text()
    found = load(project, text[text.index("def logged_reward") : text.index("PLANT = Plant(")])
    assert found.logged is None
    assert found.simulator().spec.name == "tank"
