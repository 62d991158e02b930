"""The run's `shield`: numbers by name, defaults beside them, and what is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.run import OpenedRun, Shield
from neorl_core.plants import PLANTS
from neorl_core.safety.shield import default_shield
from tasks.training.shielding import shield_of
from tasks.training.train import fallback_composite
from tests.small_data import reactor_run

MASS = PLANTS["double_mass"].spec
ROBOT = PLANTS["robot_assembly"].spec


def test_a_run_that_says_nothing_has_the_default_shield() -> None:
    for found, usual in zip(shield_of(MASS, Shield()), default_shield(MASS), strict=True):
        np.testing.assert_array_equal(found, usual)


def test_numbers_belong_to_the_names_they_stand_beside() -> None:
    settings = Shield(
        look_ahead=3,
        hold=7,
        buffers={"travel of mass 2": 0.5},
        return_buffers={"travel of mass 1": 0.1},
        rate_limits={"force_2": 0.25},
    )
    found = shield_of(MASS, settings, envelope=(np.full(6, -1.0), np.full(6, 2.0)))
    # The default buffer is an eighth of 5.6 m, and what comes on top for the way back is half of the buffer.
    np.testing.assert_allclose(found.margin_buffer, [[0.7, 0.5]] * 3, rtol=1e-6)
    np.testing.assert_allclose(found.return_buffer, [0.1, 0.25])
    np.testing.assert_allclose(found.rate_limit, [2.0, 0.25])
    assert int(found.hold) == 7
    np.testing.assert_allclose([found.observation_low[0], found.observation_high[0]], [-1.0, 2.0])


def test_a_limit_on_one_side_wants_a_buffer() -> None:
    with pytest.raises(BadInput, match=r"'contact force' is a one-sided limit.*shield\.buffers, in N"):
        shield_of(ROBOT, Shield())
    found = shield_of(ROBOT, Shield(buffers={"contact force": 5.0}))
    np.testing.assert_allclose(found.margin_buffer, np.full((12, 1), 5.0))
    assert np.isfinite(found.return_buffer).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"buffers": {"travel of mass 3": 0.1}},
            r"shield\.buffers has the unknown name 'travel of mass 3'.*did you mean",
        ),
        ({"return_buffers": {"force_1": 0.1}}, r"shield\.return_buffers has the unknown name 'force_1'"),
        (
            {"rate_limits": {"force_3": 0.1}},
            r"shield\.rate_limits has the unknown name 'force_3'.*did you mean 'force_",
        ),
    ],
)
def test_a_name_that_the_plant_does_not_have_is_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        shield_of(MASS, Shield.model_validate(settings))


def test_the_shield_is_part_of_the_composites_digest(tmp_path: Path) -> None:
    usual, slow = (
        fallback_composite(Home(tmp_path), reactor_run(**settings).part("shield"))
        for settings in ({}, {"shield": {"rate_limits": {"coolant_temperature": 0.5}}})
    )
    assert usual.digest != slow.digest


def test_members_depend_on_the_shield_and_their_training_does_not() -> None:
    usual, other = OpenedRun(plant="double_mass"), OpenedRun(plant="double_mass", shield=Shield(hold=9))
    assert usual.for_training() != other.for_training()
    assert usual.part("evaluate", "data.held_out", "certify", "gates") == other.part(
        "evaluate", "data.held_out", "certify", "gates"
    )
