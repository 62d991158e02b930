"""What docs/studies/plants.md says of each plant: sources of its constants, convergence, and what its record owes to them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.plants import constants, sensitivity, steps
from benchmarks.plants.kept import own
from neorl_core.plants import NAMES, PLANTS


@pytest.mark.parametrize("name", NAMES)
def test_every_constant_has_a_source_or_is_said_to_be_ours(name: str) -> None:
    found = constants.constants(name)
    assert len({each.name for each in found}) == len(found)
    assert [each.name for each in found if not each.source] == []
    # A constant that the domain draws from a range lies in that range.
    for each in found:
        if each.drawn and each.drawn[0] < each.drawn[1]:
            assert each.drawn[0] <= float(each.value) * (1 + 1e-3), each.name
            assert float(each.value) <= each.drawn[1] * (1 + 1e-3), each.name


def test_constants_are_those_of_the_code() -> None:
    steel = {each.name: each for each in constants.constants("steel_annealing")}
    assert steel["density"][:2] == ("density", "7850")
    assert steel["POWER"].value == "8"
    assert steel["POWER"].about == "Full power of a zone's burners [MW]."
    least, most = steel["emissivity"].drawn or (0.0, 0.0)
    assert (least, most) == (pytest.approx(0.7 * 0.95, rel=1e-3), pytest.approx(0.7 * 1.05, rel=1e-3))
    assert steel["noise_sd"].drawn == (2.0, 2.0)
    house = {each.name: each for each in constants.constants("hvac_control")}
    assert house["weather.outdoor_sd"].source == "fitted to the same record"
    said = "\n".join(constants.lines_of("steel_annealing"))
    assert "ρ ∂H/∂t = ∂/∂y (k ∂T/∂y)" in said
    assert "Valid for carbon steel plate up to 1200 °C" in said


@pytest.mark.slow
def test_a_fourth_order_rule_is_sixteen_times_closer_with_half_the_step() -> None:
    # Without its set points' changes the reactor is smooth; margins are least ones over substeps, of order two.
    found = steps.measure("chemical_reactor")
    assert found is not None
    own, half = (found["rows"][factor] for factor in ("1", "2"))
    assert own["points"] < 1e-3
    assert own["points"] / half["points"] > 12.0
    # The plant is itself again.
    again = steps.measure("chemical_reactor")
    assert again == found
    assert steps.measure("double_mass") is None


def test_a_moved_constant_moves_what_it_should() -> None:
    # Masses that the same springs hold, half as heavy: the fallback's travel differs, and unmoved it does not.
    plant = PLANTS["double_mass"]
    keys = jax.random.split(jax.random.key(0), 4)
    one, other = (
        sensitivity.moved(plant, plant.domain, {"mass": jnp.asarray(factor)}, plant.fallback_params, keys)
        for factor in (1.0, 0.5)
    )
    assert float(jnp.abs(one.ret - other.ret).min()) > 1.0


def test_a_range_moves_by_a_part_of_itself_and_a_number_by_a_part_of_its_value() -> None:
    domain = PLANTS["steel_annealing"].domain
    assert sensitivity._width(domain, "target_low") == pytest.approx(40.0)
    assert sensitivity._width(domain, "noise_sd") == pytest.approx(2.0)


def test_a_line_names_the_limit_that_came_nearest() -> None:
    least = {"violated": 0, "least": [4.0, 1.0, 100.0]}
    base = {"violated": 0, "least": [8.0, 4.0, 100.0]}
    found = {"episodes": 16, "base": base, "rows": {"convection": {"down": least, "up": base}}, "left": ["POWER"]}
    lines = sensitivity.lines_of("steel_annealing", found)
    row = next(line for line in lines if line.startswith("| convection"))
    assert row.startswith("| convection | 0 | 1 K, temperature difference across half the thickness | 0 | 8 K,")
    assert lines[-1].endswith("layout: POWER.")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_of_a_plant_is_of_its_constants(name: str) -> None:
    # Where it is missing, run `python -m benchmarks.plants sensitivity`.
    found = own(name)["sensitivity"]
    ours = {each for each, source in constants.sources(name).items() if source.startswith(constants.OURS)}
    assert {*found["rows"], *found["left"]} == ours
    assert found["base"]["violated"] <= 1e-3 * found["episodes"]
