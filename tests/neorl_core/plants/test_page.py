"""Sources of the plants' constants, integration errors and sensitivities on docs/studies/plants.md."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.plants import constants, sensitivity, steps
from benchmarks.plants.kept import own
from neorl_core.plants import NAMES, PLANTS


@pytest.mark.parametrize("name", NAMES)
def test_every_constant_has_a_source_or_is_marked_ours(name: str) -> None:
    found = constants.constants(name)
    assert len({each.name for each in found}) == len(found)
    assert [each.name for each in found if not each.source] == []
    # A nominal constant lies in the range of the operating domain.
    for each in found:
        if each.drawn and each.drawn[0] < each.drawn[1]:
            assert each.drawn[0] <= float(each.value) * (1 + 1e-3), each.name
            assert float(each.value) <= each.drawn[1] * (1 + 1e-3), each.name


def test_constants_have_values_ranges_and_sources_of_the_code() -> None:
    steel = {each.name: each for each in constants.constants("steel_annealing")}
    assert steel["density"][:2] == ("density", "7850")
    assert steel["POWER"].value == "8"
    assert steel["POWER"].about == "Full power of a zone's burners [MW]."
    least, most = steel["emissivity"].drawn or (0.0, 0.0)
    assert (least, most) == (pytest.approx(0.7 * 0.95, rel=1e-3), pytest.approx(0.7 * 1.05, rel=1e-3))
    assert steel["noise_sd"].drawn == (2.0, 2.0)
    house = {each.name: each for each in constants.constants("hvac_control")}
    assert house["weather.outdoor_sd"].source == "fitted to the same record"


@pytest.mark.slow
def test_half_the_step_reduces_a_fourth_order_error_sixteenfold() -> None:
    # Scores converge with order four; margins are minima over substeps and converge with order two.
    found = steps.measure("chemical_reactor")
    assert found is not None
    own, half = (found["rows"][factor] for factor in ("1", "2"))
    assert own["points"] < 1e-3
    assert own["points"] / half["points"] > 12.0
    # The number of substeps is restored afterwards.
    again = steps.measure("chemical_reactor")
    assert again == found
    assert steps.measure("double_mass") is None


def test_changed_constant_changes_the_return() -> None:
    # Half the mass on the same springs changes the tuned controller's return.
    plant = PLANTS["double_mass"]
    keys = jax.random.split(jax.random.key(0), 4)
    one, other = (
        sensitivity.moved(plant, plant.domain, {"mass": jnp.asarray(factor)}, plant.fallback_params, keys)
        for factor in (1.0, 0.5)
    )
    assert float(jnp.abs(one.ret - other.ret).min()) > 1.0


def test_ranges_and_numbers_change_by_shares() -> None:
    domain = PLANTS["steel_annealing"].domain
    assert sensitivity._width(domain, "target_low") == pytest.approx(40.0)
    assert sensitivity._width(domain, "noise_sd") == pytest.approx(2.0)


def test_row_names_the_worst_change_and_nearest_limit() -> None:
    least = {"violated": 0, "least": [4.0, 1.0, 100.0]}
    base = {"violated": 0, "least": [8.0, 4.0, 100.0]}
    found = {"episodes": 16, "base": base, "rows": {"convection": {"down": least, "up": base}}, "left": ["POWER"]}
    row = sensitivity.row("steel_annealing", found)
    assert row[1] == "0 of 16"
    assert row[2:] == ("convection lower", "0", "1 K (temperature difference across half the thickness)")


@pytest.mark.parametrize("name", NAMES)
def test_kept_sensitivity_covers_all_our_constants(name: str) -> None:
    # If this fails, run `python -m benchmarks.plants sensitivity`.
    found = own(name)["sensitivity"]
    ours = {each for each, source in constants.sources(name).items() if source.startswith(constants.OURS)}
    assert {*found["rows"], *found["left"]} == ours
    assert found["base"]["violated"] <= 1e-3 * found["episodes"]
