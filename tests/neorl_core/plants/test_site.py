"""A site of a plant: steady state with the site's constants, draws, and margins."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.identify import drawing_plant
from neorl_core.identify.unknowns import Unknown
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants.base import rollouts
from neorl_core.plants.chemical_reactor import steady_concentration, steady_coolant
from neorl_core.plants.site import site_plant, site_signals, site_spec, varied_constants
from neorl_core.types import Plant

REACTOR = PLANTS["chemical_reactor"]
CONSTANTS = {"reaction_rate": 7.3e10, "cooling_rate": 2.03}
LIMIT = "reactor temperature"


def site(limits: dict[str, tuple[float | None, float | None]] | None = None) -> Plant:
    return site_plant(REACTOR, "reactors_east", CONSTANTS, limits or {})


def test_site_steady_state_by_hand() -> None:
    # dCa/dt = dT/dt = 0, solved by hand for T = 324 K with the site's k0 and UA/(rho cp V).
    east, temperature = site(), 324.0
    rate = 7.3e10 * np.exp(-8750.0 / temperature)
    concentration = 1.0 / (1.0 + rate)
    heat = (5e4 / 239.0) * (1.0 - concentration)
    coolant = temperature - (350.0 - temperature + heat) / 2.03
    assert float(steady_concentration(temperature, east.params)) == pytest.approx(concentration, rel=1e-4)
    assert float(steady_coolant(temperature, east.params)) == pytest.approx(coolant, rel=1e-4)
    rest = jnp.asarray([concentration, temperature, coolant, concentration])
    after, _ = east.predict(rest, jnp.asarray([coolant]), east.params)
    assert float(after[1]) == pytest.approx(temperature, abs=0.02)
    # The plant's own constants are not in balance there.
    assert abs(float(REACTOR.predict(rest, jnp.asarray([coolant]), REACTOR.params)[0][1]) - temperature) > 0.3


def test_domain_draws_scale_with_site_constants() -> None:
    key, east = jax.random.key(5), site()
    mine, theirs = east.sample_params(key, east.domain), REACTOR.sample_params(key, REACTOR.domain)
    for name, value in CONSTANTS.items():
        share = float(getattr(theirs, name)) / float(getattr(REACTOR.params, name))
        assert share != 1.0
        assert float(getattr(mine, name)) == pytest.approx(value * share, rel=1e-6)
    assert float(mine.feed_sd) == float(theirs.feed_sd)
    # A claim about the domain names the constants, so another domain is another site.
    moved = east.sample_params(key, east.domain._replace(site_cooling_rate=2.03 * 1.1))
    assert float(moved.cooling_rate) == pytest.approx(1.1 * float(mine.cooling_rate), rel=1e-6)


def test_margins_use_site_limits() -> None:
    low, high = REACTOR.spec.constraints[0].low, REACTOR.spec.constraints[0].high
    east = site({LIMIT: (low + 1.5, high - 1.5)})
    key, action = jax.random.key(1), jnp.asarray([299.0])
    params = site().params
    state, observation = east.reset(key, params)
    step = east.step(key, state, action, params)[1]
    assert step.margins[0] == site().step(key, state, action, params)[1].margins[0] - 1.5
    assert east.predict(observation, action, params)[1][0] == site().predict(observation, action, params)[1][0] - 1.5
    logged = site_signals(LOGGED["chemical_reactor"], REACTOR.spec, east.spec)
    rows = np.array([[0.9, low + 2.0, 300.0, 0.9], [0.9, high - 1.0, 300.0, 0.9]])
    assert np.asarray(logged.margins(rows))[:, 0] == pytest.approx([0.5, -0.5], abs=1e-4)
    # An unmentioned side does not move if both sides are at the plant's limits.
    assert site_spec(REACTOR.spec, "east", {LIMIT: (None, None)}).constraints == REACTOR.spec.constraints


def test_site_without_constants_equals_plant() -> None:
    same = site_plant(REACTOR, "reactors_west", {}, {})
    assert same.spec == REACTOR.spec._replace(name="reactors_west")
    assert same._replace(spec=REACTOR.spec) == REACTOR


def test_sites_share_compiled_programs() -> None:
    other = site_plant(REACTOR, "reactors_west", {"reaction_rate": 7.0e10, "cooling_rate": 2.1}, {})
    assert other.sample_params is site().sample_params
    assert type(other.domain) is type(site().domain)


def test_site_planner_uses_site_constants() -> None:
    assert site().reference_params[0] == site().params


def test_posterior_over_site_constants() -> None:
    fields = {"identified_cooling_rate": 2.0, "identified_cooling_rate_1": 0.0}
    drawn = drawing_plant(site(), [Unknown("cooling_rate", 1.0)], fields)
    params = drawn.sample_params(jax.random.key(0), drawn.domain)
    assert float(params.cooling_rate) == pytest.approx(2.0)
    assert abs(float(params.reaction_rate) / 7.3e10 - 1.0) < 0.011


def test_vector_entries_are_constants() -> None:
    plant, label = next(
        (plant, f"{name}[0]")
        for plant in PLANTS.values()
        for name, value in plant.params._asdict().items()
        if not hasattr(value, "_fields") and np.ndim(value) == 1 and float(value[0]) != 0.0
    )
    name = label.partition("[")[0]
    before = float(getattr(plant.params, name)[0])
    east = site_plant(plant, "east", {label: 1.02 * before}, {})
    drawn = (p.sample_params(jax.random.key(2), p.domain) for p in (east, plant))
    mine, theirs = (np.asarray(getattr(params, name)) for params in drawn)
    assert mine[0] == pytest.approx(1.02 * theirs[0], rel=1e-5)
    assert mine[1:] == pytest.approx(theirs[1:])


def test_site_episodes_equal_plant_with_exchanged_constants() -> None:
    # Second method: the plant with exchanged nominal constants in the draws.
    east = site()

    def exchanged(key: jax.Array, domain: object) -> object:
        drawn = REACTOR.sample_params(key, REACTOR.domain)
        scaled = {name: getattr(drawn, name) * (v / getattr(REACTOR.params, name)) for name, v in CONSTANTS.items()}
        return drawn._replace(**scaled)

    by_hand = REACTOR._replace(sample_params=exchanged)
    keys = jax.random.split(jax.random.key(7), 2)
    mine = rollouts(east, east.fallback, east.fallback_params, keys, east.domain)
    theirs = rollouts(by_hand, REACTOR.fallback, REACTOR.fallback_params, keys, REACTOR.domain)
    assert np.asarray(mine.ret) == pytest.approx(np.asarray(theirs.ret), rel=1e-3)


@pytest.mark.parametrize(
    ("constants", "limits", "words"),
    [
        ({"cooling": 2.0}, {}, "'cooling' is not a constant of the plant: use one of flow_rate"),
        ({"cooling_rate[0]": 2.0}, {}, "has the shape \\(\\): leave the entry out"),
        ({"noise_sd": 0.1}, {}, "because it is 0 in the plant.*set it under certify.domain"),
        ({}, {"pressure": (0.0, 1.0)}, "unknown constraint 'pressure': use reactor temperature"),
        ({}, {LIMIT: (300.0, 340.0)}, "inside the plant's limit of 316 to 332 K, got 300 to 340"),
        ({}, {LIMIT: (320.0, None)}, "by the same amount from 316 to 332 K, got 320 to 332"),
        ({}, {LIMIT: (324.0, 324.0)}, "inside the plant's"),
    ],
)
def test_invalid_site_is_rejected(
    constants: dict[str, float], limits: dict[str, tuple[float | None, float | None]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        site_plant(REACTOR, "east", constants, limits)


def test_varied_constants_are_drawn_ones() -> None:
    assert varied_constants(REACTOR) == ("reaction_rate", "cooling_rate")
    assert varied_constants(PLANTS["double_mass"]) == ()


def test_open_side_of_a_limit_stays_open() -> None:
    """A reserve there would be zero, and a claim would name a limit that was never tested."""
    furnace, name = PLANTS["steel_annealing"], "steel surface temperature"
    for low, high in ((1000.0, None), (1000.0, 1200.0)):
        with pytest.raises(ValueError, match="limit of steel surface temperature must stay open"):
            site_plant(furnace, "line_east", {}, {name: (low, high)})
    moved = site_plant(furnace, "line_east", {}, {name: (None, 1200.0)})
    assert moved.spec.constraints[0].high == 1200.0
