"""Network reconfiguration on radial feeders: MATPOWER's losses, Kirchhoff's theorem, and matroids."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.control.behaviour import Behaviour, play
from neorl_core.plants.base import rollout
from neorl_core.plants.power_grid import enumerated, feeder33
from neorl_core.plants.power_grid.feeder import Feeder, feeder_of
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.feeders.case69 import CASE69
from neorl_core.plants.power_grid.feeders.case118zh import CASE118ZH
from neorl_core.plants.power_grid.feeders.case136ma import CASE136MA
from neorl_core.plants.power_grid.power_flow import magnitude, path_matrix, solve
from neorl_core.plants.power_grid.radial import leaving, meshed_current, meshed_of, radial
from neorl_core.plants.power_grid.switching import (
    Grid,
    logged_margins,
    logged_reward,
    split_observation,
    switching_plant,
    topology,
)
from tests.conftest import Truth

FEEDERS = (FEEDER, CASE69, CASE118ZH, CASE136MA)
PLANT = switching_plant(FEEDER)


def ties_open(feeder: Feeder) -> jax.Array:
    return (jnp.arange(len(feeder.ends)) >= len(feeder.ends) - feeder.ties).astype(float)


def test_losses_and_voltages_equal_matpower(truth: Truth) -> None:
    expected = (202.677, 0.91309), (224.992, 0.90919), (1298.09, 0.86880), (320.364, 0.93065)
    with jax.enable_x64(True):
        for feeder, (loss, lowest) in zip(FEEDERS, expected, strict=True):
            path = radial(ties_open(feeder), feeder).path
            impedance = jnp.asarray(np.stack([feeder.resistance, feeder.reactance], -1))
            load = jnp.asarray(feeder.active_load), jnp.asarray(feeder.reactive_load)
            found = solve(path, *load, impedance, 40, 1.0, leaving(feeder))
            source = "MATPOWER"
            truth(f"loss of {feeder.name} [kW]", loss, float(found.loss) * 1e3, 5e-3, source)
            truth(f"lowest voltage of {feeder.name} [pu]", lowest, float(magnitude(found.voltage).min()), 6e-6, source)
            # The substation supplies the loads and the losses.
            np.testing.assert_allclose(found.supplied[0], feeder.active_load.sum() + found.loss, rtol=1e-12)
    assert [feeder.ties for feeder in FEEDERS] == [5, 0, 15, 21]


def is_tree(feeder: Feeder, opened: np.ndarray) -> bool:
    """Whether the closed lines, one fewer than the buses, reach every bus, by union-find."""
    above = list(range(len(feeder.active_load) + 1))

    def root(bus: int) -> int:
        while above[bus] != bus:
            bus = above[bus]
        return bus

    for begin, end in feeder.ends[~opened]:
        one, other = root(int(begin)), root(int(end))
        if one == other:
            return False
        above[one] = other
    return len({root(bus) for bus in range(len(above))}) == 1


@pytest.mark.parametrize("feeder", [FEEDER, CASE118ZH, CASE136MA], ids=lambda feeder: feeder.name)
def test_any_preference_gives_a_tree_with_its_paths(feeder: Feeder) -> None:
    preferences = jax.random.normal(jax.random.key(0), (20, len(feeder.ends)))
    found = jax.jit(jax.vmap(lambda x: radial(x, feeder)))(preferences)
    incidence = np.zeros((len(feeder.active_load) + 1, len(feeder.ends)))
    for line, (begin, end) in enumerate(feeder.ends):
        incidence[begin, line], incidence[end, line] = 1, -1
    for opened, path in zip(np.asarray(found.opened), np.asarray(found.path), strict=True):
        assert opened.sum() == feeder.ties
        assert is_tree(feeder, opened)
        assert not np.any(path[opened])
        # A unit drawn at a bus leaves the substation and arrives there: Kirchhoff's current law.
        flows = incidence @ path
        np.testing.assert_array_equal(flows[0], 1.0)
        np.testing.assert_array_equal(flows[1:], -np.eye(len(feeder.active_load)))


def test_open_lines_agree_with_kruskal() -> None:
    """Opening the most preferred lines gives the spanning tree with the least preference, line by line."""
    preferences = np.random.default_rng(0).normal(size=(20, 37)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda x: radial(x, FEEDER).opened))(preferences)
    for preference, ours in zip(preferences, found, strict=True):
        opened = np.ones(37, bool)
        for line in np.argsort(preference):
            opened[line] = False
            reached = np.arange(33)
            closed = FEEDER.ends[~opened]
            for begin, end in closed:  # in this order, so that a loop closes with the last line
                one, other = reached[begin], reached[end]
                if one == other:
                    opened[line] = True
                    break
                reached[reached == other] = one
        np.testing.assert_array_equal(ours, opened)


def chessboard(side: int) -> Feeder:
    """A mesh with so many loops that a column has two words of bits: the first lines are a tree, row by row."""
    lines = [(row * side, row * side + side, 0.1, 0.1) for row in range(side - 1)]
    lines += [(bus, bus + 1, 0.1, 0.1) for bus in range(side * side) if (bus + 1) % side]
    lines += [(bus, bus + side, 0.1, 0.1) for bus in range(side * (side - 1)) if bus % side]
    return feeder_of("chessboard", 10.0, lines, [(1.0, 0.0)] * (side**2 - 1), ties=(side - 1) ** 2)


def test_more_loops_than_bits_per_word() -> None:
    feeder = chessboard(8)
    assert feeder.ties == 49
    preferences = np.random.default_rng(1).normal(size=(10, len(feeder.ends))).astype(np.float32)
    found = jax.jit(jax.vmap(lambda x: radial(x, feeder).opened))(preferences)
    for preference, opened in zip(preferences, np.asarray(found), strict=True):
        assert opened.sum() == feeder.ties
        assert is_tree(feeder, opened)
        # A best basis cannot be improved by exchanging one line (Edmonds 1971): each closed line against each open one.
        for line in np.flatnonzero(~opened):
            for other in np.flatnonzero(opened & (preference < preference[line])):
                exchanged = opened.copy()
                exchanged[[line, other]] = True, False
                assert not is_tree(feeder, exchanged)


def test_special_preferences_give_trees() -> None:
    opened = jax.jit(lambda x: radial(x, FEEDER).opened)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0], np.float32)
    for seed in range(10):
        assert is_tree(FEEDER, np.asarray(opened(np.random.default_rng(seed).choice(odd, 37))))
    # Zeros of both signs are equal, so the first of them is opened on each loop.
    zeros = np.where(np.arange(37) % 2, 0.0, -0.0).astype(np.float32)
    np.testing.assert_array_equal(opened(zeros), opened(np.zeros(37, np.float32)))
    assert np.asarray(opened(np.full(37, -np.inf, np.float32))).sum() == 5
    with jax.enable_x64(True):
        doubles = np.random.default_rng(0).normal(size=37)
        np.testing.assert_array_equal(opened(doubles), opened(doubles.astype(np.float32)))


def test_paths_equal_path_matrix() -> None:
    positions = enumerated.positions()[::5_000]
    opened = enumerated.opened_by(positions).astype(np.float32)
    ours = jax.jit(jax.vmap(lambda x: radial(x, FEEDER).path))(opened)
    plants = jax.jit(jax.vmap(lambda x: path_matrix(x, jnp.dtype(jnp.float32))))(positions)
    np.testing.assert_array_equal(ours, plants)


def test_line_out_of_service_is_open() -> None:
    grid = Grid(FEEDER, meshed_of(FEEDER), (0,), np.zeros((37, 2)), PLANT.params)
    load = jnp.asarray(FEEDER.active_load), jnp.asarray(FEEDER.reactive_load)
    opened = jax.jit(lambda preference, in_service: topology(grid, preference, in_service).opened)
    for line in (6, 13, 36):
        in_service = jnp.ones(37).at[line].set(0.0)
        assert opened(-jnp.ones(37), in_service)[line]
        current = meshed_current(grid.meshed, *load, jnp.asarray(line))
        assert float(current[line]) < 1e-6
        # Kirchhoff's voltage law around every remaining loop, with resistances only: the least loss.
        around = [loop for loop in FEEDER.loops if not loop[line]]
        matrix = np.asarray(grid.meshed.current)
        drawn = matrix @ np.asarray(FEEDER.active_load)
        drawn = drawn - grid.meshed.loops[:, line] * drawn[line] / grid.meshed.loops[line, line]
        np.testing.assert_allclose([loop @ (FEEDER.resistance * drawn) for loop in around], 0.0, atol=1e-12)


def test_lines_without_tree_are_rejected() -> None:
    lines = ((0, 1, 0.1, 0.1), (1, 2, 0.1, 0.1), (2, 0, 0.1, 0.1))
    assert feeder_of("ring", 10.0, lines, ((1.0, 0.0), (1.0, 0.0)), ties=1).loops.shape == (1, 3)
    with pytest.raises(ValueError, match="lines of feeder ring without ties must be a tree"):
        feeder_of("ring", 10.0, lines, ((1.0, 0.0), (1.0, 0.0)), ties=0)
    # Lines may be listed against the direction from the substation.
    turned = feeder_of("line", 10.0, ((2, 1, 0.1, 0.1), (1, 0, 0.1, 0.1)), ((1.0, 0.0), (1.0, 0.0)), ties=0)
    np.testing.assert_array_equal(turned.base_path, [[0.0, -1.0], [1.0, 1.0]])


def test_day_of_rule_and_logged_signals() -> None:
    drawn = PLANT.sample_params(jax.random.key(1), PLANT.domain)
    played = rollout(PLANT, PLANT.fallback, PLANT.fallback_params, jax.random.key(0), drawn)
    assert all(np.isfinite(np.asarray(x, float)).all() for x in jax.tree.leaves(played))
    params = drawn._replace(meter_noise=0.0, bus_sd=0.0)
    state, first = jax.jit(PLANT.reset)(jax.random.key(2), params)
    action = jax.jit(PLANT.fallback.act)(PLANT.fallback_params, (), first, PLANT.applied(first))[1]
    foreseen, margins = jax.jit(PLANT.predict)(first, action, params)
    state, after = jax.jit(PLANT.step)(jax.random.key(3), state, action, params)
    np.testing.assert_allclose(foreseen, after.observation, atol=2e-5)
    np.testing.assert_allclose(margins, after.margins, atol=2e-5)
    np.testing.assert_allclose(logged_reward(FEEDER, first, action, after.observation), after.reward, rtol=1e-5)
    np.testing.assert_allclose(logged_margins(after.observation), after.margins)
    again, told = PLANT.resume(jax.random.key(4), state, after.observation, params)
    np.testing.assert_allclose(again.deviation, state.deviation, atol=1e-4)
    np.testing.assert_array_equal(again.opened, state.opened)
    assert float(told.outage) == float(params.outage)
    now = split_observation(FEEDER, after.observation)
    # Meshed currents of the loads measured after the step, without the line out of service.
    mesh = meshed_current(meshed_of(FEEDER), now.active, now.reactive, jnp.asarray(params.outage, int))
    np.testing.assert_allclose(now.meshed, mesh, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(now.closed < 0.5, radial(action, FEEDER).opened)


def test_kirchhoff_counts_the_topologies() -> None:
    """The determinant of the reduced Laplacian is the number of spanning trees; each is reached exactly once."""
    laplacian = np.zeros((33, 33))
    for begin, end in FEEDER.ends:
        laplacian[[begin, end], [begin, end]] += 1
        laplacian[[begin, end], [end, begin]] -= 1
    count = round(np.linalg.det(laplacian[1:, 1:]))
    every = np.prod([len(loop) for loop in feeder33.LOOP_LINES])
    found = enumerated.positions()
    assert (count, every, len(found)) == (50_751, 242_550, 50_751)
    opened = enumerated.opened_by(found)
    assert len(np.unique(opened, axis=0)) == count
    assert all(is_tree(FEEDER, one) for one in opened[::2_500])


@pytest.mark.slow
def test_papers_best_topology_is_optimal() -> None:
    load = (jnp.asarray(x[None], jnp.float32) for x in (FEEDER.active_load, FEEDER.reactive_load))
    impedance = jnp.asarray(np.stack([FEEDER.resistance, FEEDER.reactance], -1)[None], jnp.float32)
    positions = enumerated.positions()
    loss, lowest = (np.asarray(x)[:, 0] for x in enumerated.losses(positions, *load, impedance, jnp.asarray(1.0)))
    best = loss.argmin()
    # Baran and Wu 1989: lines 7, 9, 14, 32 and 37 open.
    assert np.flatnonzero(enumerated.opened_by(positions[best][None])[0]).tolist() == [6, 8, 13, 31, 36]
    np.testing.assert_allclose([loss[best] * 1e3, lowest[best]], [139.551, 0.93782], rtol=1e-4)
    assert 0.0012 < np.mean(loss < 1.05 * loss[best]) < 0.0016


def test_all_preferences_of_a_small_mesh() -> None:
    """All preferences over a ladder of two loops open each of the ladder's trees, and nothing else."""
    lines = tuple((a, b, 0.1, 0.1) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (1, 3)))
    feeder = feeder_of("ladder", 10.0, lines, ((1.0, 0.0),) * 3, ties=2)
    orders = np.array(list(itertools.permutations(range(5))), np.float32)
    opened = np.asarray(jax.jit(jax.vmap(lambda x: radial(x, feeder).opened))(orders))
    found = {tuple(np.flatnonzero(one).tolist()) for one in opened}
    trees = {pair for pair in itertools.combinations(range(5), 2) if is_tree(feeder, np.isin(np.arange(5), list(pair)))}
    assert found == trees
    assert len(trees) == 8


def test_score_range_of_feeders() -> None:
    """A day of the default domain scores about 0 without switching, and about 100 with the reference."""
    worst, best = PLANT.spec.score_range
    keys = jax.random.split(jax.random.key(5), 64)
    each = Behaviour(*(jnp.zeros(64, jnp.float32) for _ in range(3)))
    by_rule = play(PLANT, PLANT.reference, PLANT.reference_params, each, keys).ret
    left = play(PLANT, PLANT.reference, PLANT.reference_params, each._replace(detuned=jnp.ones(64)), keys).ret
    # Days differ by their loads: four standard errors of the mean of as many days.
    for mean, returns in ((best, by_rule), (worst, left)):
        assert abs(float(jnp.mean(returns)) - mean) < 4 * float(jnp.std(returns)) / 8


def test_keep_reduces_switching_and_score_range_is_required() -> None:
    stays = switching_plant(FEEDER, keep=1.0)
    _, first = jax.jit(stays.reset)(jax.random.key(2), stays.params._replace(start_spread=2.0))
    applied = stays.applied(first)
    held, moved = (p.fallback.act(p.fallback_params, (), first, applied)[1] for p in (stays, PLANT))
    np.testing.assert_array_equal(radial(held, FEEDER).opened, applied > 0)
    assert np.any(np.asarray(radial(moved, FEEDER).opened) != np.asarray(applied > 0))
    ring = feeder_of("ring", 10.0, ((0, 1, 0.1, 0.1), (1, 2, 0.1, 0.1), (2, 0, 0.1, 0.1)), ((1.0, 0.0),) * 2, ties=1)
    with pytest.raises(ValueError, match="feeder ring needs a score_range, because only case33bw"):
        switching_plant(ring)
    assert switching_plant(ring, score_range=(-2.0, -1.0)).spec.score_range == (-2.0, -1.0)
