"""Fallback and shield of a process as its run's file and its logs say them, and back from a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.fallback import Fallback, Loop
from configs.run import OpenedRun
from neorl_core.control.fallbacks import FALLBACK, Hold, LinearLaw, PIDLoops
from neorl_core.networks import Policy, policy_act
from neorl_core.safety.composite import Composite
from neorl_core.safety.support import inside_support
from neorl_core.types import PlantSpec, Process, Space, Transition
from tasks.data.store.episodes import Logs, halves
from tasks.log_only.protection import calibrated_shield, check_fallback, fallback_in_words, make_fallback
from tasks.models.bundles.bundle import load_bundle, save_bundle
from tasks.models.plants.known import KnownPlant

SPEC = PlantSpec(
    name="vessel",
    observation=Space(("level", "set_point"), ("m", "m"), (-np.inf, -np.inf), (np.inf, np.inf)),
    action=Space(("valve", "pump"), ("1", "1"), (0.0, -2.0), (1.0, 2.0)),
    constraints=(),
    dt=10.0,
    time_unit="s",
    horizon=10,
    score_range=(0.0, 100.0),
)
LOOP = {"action": "valve", "measured": "level", "set_point": "set_point", "kp": 0.5, "ki": 0.01}


def run(fallback: dict[str, Any] | None, **shield: Any) -> OpenedRun:
    return OpenedRun.model_validate({"plant": "vessel", "fallback": fallback, "shield": shield})


def logs(rows: int = 400, seed: int = 0) -> Logs:
    """Two episodes in which the valve follows the level but for noise, and the pump stands."""
    draw = np.random.default_rng(seed)
    x = draw.normal([2.0, 2.0], [0.5, 0.1], (rows, 2)).astype(np.float32)
    u = np.column_stack([np.clip(0.2 * x[:, 0] + 0.02 * draw.normal(size=rows), 0, 1), np.ones(rows)])
    zero, episode = np.zeros(rows, np.float32), np.repeat([0, 1], rows // 2)
    t: Any = Transition(x, u.astype(np.float32), zero, zero, x, zero)
    followed = np.append(episode[1:] == episode[:-1], False)
    return Logs(t, episode, np.asarray([0, rows // 2]), followed)


@pytest.fixture(scope="module")
def shield() -> Any:
    return calibrated_shield(run(None), SPEC, logs(), logs(seed=1))


def test_the_shield_has_the_specs_bounds_and_the_logs_rates(shield: Any) -> None:
    action = np.asarray(logs().transitions.action, np.float64)
    steps = np.abs(np.diff(action, axis=0))
    # The change across the cut between the two episodes is none.
    largest = max(steps[:199, 0].max(), steps[200:, 0].max())
    # An action that never moved may move by a thousandth of its range of 4.
    np.testing.assert_allclose(shield.rate_limit, [largest, 0.004], rtol=1e-5)
    np.testing.assert_array_equal(shield.action_low, [0.0, -2.0])
    np.testing.assert_allclose(shield.rest, np.median(action, axis=0), rtol=1e-5)
    given = calibrated_shield(run(None, rate_limits={"pump": 0.5}), SPEC, logs(), logs(seed=1))
    np.testing.assert_allclose(given.rate_limit, [largest, 0.5], rtol=1e-5)


def test_the_distance_to_the_logs_has_no_unit(shield: Any) -> None:
    def small(seed: int) -> Logs:
        held = logs(seed=seed)
        observation = np.asarray(held.transitions.observation) * np.float32(2.0**-40)
        transitions: Any = held.transitions._replace(observation=observation, next_observation=observation)
        return held._replace(transitions=transitions)

    found = calibrated_shield(run(None), SPEC, small(0), small(1))
    np.testing.assert_allclose(found.radius, shield.radius, rtol=1e-4)
    np.testing.assert_allclose(found.scale[:2], shield.scale[:2] * 2.0**-40, rtol=1e-5)


@pytest.mark.parametrize("opened", [0.9, 90.0])
def test_what_never_moved_in_the_logs_is_outside_them_in_any_unit(opened: float, tmp_path: Path) -> None:
    spec = SPEC._replace(observation=Space((*SPEC.observation.names, "bypass"), ("m", "m", "1"), *2 * ((0.0,) * 3,)))

    def with_bypass(found: Logs, value: float) -> Logs:
        x = np.column_stack([found.transitions.observation, np.full(len(found.episode), value)]).astype(np.float32)
        return found._replace(transitions=found.transitions._replace(observation=x, next_observation=x))

    # It moves in one step of a hundred of those that calibrate, which does not tell what its distance counts for.
    calibrating = with_bypass(logs(seed=1), 0.0)
    calibrating.transitions.observation[::100, 2] = opened
    found = calibrated_shield(run(None), spec, with_bypass(logs(), 0.0), calibrating)
    plain = calibrated_shield(run(None), SPEC, logs(), logs(seed=1))
    x, u = jnp.asarray([2.0, 2.0, 0.0]), jnp.asarray([0.4, 1.0])
    assert inside_support(found, x, u, found.radius)
    assert not inside_support(found, x.at[2].set(opened), u, found.radius)
    assert found.radius <= plain.radius
    # The steps by which a bundle shows that it was loaded rightly are such as were logged.
    hold = make_fallback(run({"kind": "hold"}), spec, with_bypass(logs(), 0.0), found)
    save_bundle(tmp_path / "bundle", Composite(None, found, hold, ()), KnownPlant(spec, None, None))
    recorded = np.load(tmp_path / "bundle" / "examples.npz")
    assert all(np.isfinite(recorded[name]).all() for name in recorded.files)
    assert (recorded["observations"][:, 2] == 0.0).all()


def test_the_radius_holds_the_share_of_further_rows_that_it_was_calibrated_for(shield: Any) -> None:
    from neorl_core.safety.support import support_score

    t = logs(4000, seed=2).transitions
    import jax

    scores = jax.vmap(support_score, (None, 0, 0))(shield, jnp.asarray(t.observation), jnp.asarray(t.action))
    # Of n = 400 calibrating rows the quantile's own deviation is about sqrt(0.01 * 0.99 / 400) = 0.005.
    assert 0.97 < float(np.mean(np.asarray(scores) <= shield.radius)) <= 1.0
    assert shield.return_radius < shield.radius


def test_held_out_episodes_calibrate_or_judge_and_none_does_both() -> None:
    episode = np.asarray([0, 0, 1, 1, 1, 2])
    x = np.arange(6, dtype=np.float32)[:, None]
    zero = np.zeros(6, np.float32)
    t: Any = Transition(x, x, zero, zero, x, zero)
    three = Logs(t, episode, np.asarray([0, 2, 5]), np.append(episode[1:] == episode[:-1], False))
    calibration, judging = halves(three)
    np.testing.assert_array_equal(np.asarray(calibration.transitions.observation)[:, 0], [0, 1, 5])
    np.testing.assert_array_equal(calibration.episode, [0, 0, 1])
    np.testing.assert_array_equal(calibration.starts, [0, 2])
    np.testing.assert_array_equal(calibration.followed, [True, False, False])
    np.testing.assert_array_equal(np.asarray(judging.transitions.observation)[:, 0], [2, 3, 4])
    np.testing.assert_array_equal(judging.starts, [0])
    with pytest.raises(BadInput, match=r"two held-out episodes are needed, .* got 1: add episodes"):
        halves(judging)


def test_loops_of_the_file_and_actions_without_one_that_hold(shield: Any) -> None:
    loops = make_fallback(run({"kind": "pid", "loops": [LOOP]}), SPEC, logs(), shield)
    assert isinstance(loops, PIDLoops)
    applied = jnp.asarray([0.4, 1.5])
    state = FALLBACK.init(loops, jnp.asarray([1.0, 2.0]))
    _, action = FALLBACK.act(loops, state, jnp.asarray([1.0, 2.0]), applied)
    # The error of 1 has not changed: 0.4 + 0.01 * 10 * 1; the pump has no loop.
    np.testing.assert_allclose(action, [0.5, 1.5], rtol=1e-6)
    constant = make_fallback(run({"kind": "pid", "loops": [{**LOOP, "set_point": 3.0}]}), SPEC, logs(), shield)
    _, action = FALLBACK.act(
        constant, FALLBACK.init(constant, jnp.asarray([1.0, 2.0])), jnp.asarray([1.0, 2.0]), applied
    )
    np.testing.assert_allclose(action, [0.6, 1.5], rtol=1e-6)


def test_a_hold_moves_only_what_has_a_safe_value(shield: Any) -> None:
    hold = make_fallback(run({"kind": "hold", "toward": {"pump": 0.0}, "rate": {"pump": 0.25}}), SPEC, logs(), shield)
    assert isinstance(hold, Hold)
    _, action = FALLBACK.act(hold, (), jnp.zeros(2), jnp.asarray([0.7, 1.0]))
    np.testing.assert_allclose(action, [0.7, 0.75])


@pytest.mark.parametrize("law", ["linear", "network"])
def test_a_clone_explains_what_can_be_explained(shield: Any, law: str) -> None:
    found = make_fallback(run({"kind": "cloned", "law": law}), SPEC, logs(), shield)
    t = logs(seed=3).transitions
    x = jnp.asarray(t.observation)
    answer = policy_act(found, x) if isinstance(found, Policy) else FALLBACK.act(found, (), x, jnp.zeros(2))[1]
    assert isinstance(found, LinearLaw if law == "linear" else Policy)
    missed = np.mean((np.asarray(answer)[:, 0] - t.action[:, 0]) ** 2) / np.var(t.action[:, 0])
    # The noise is 0.02 of a spread of about 0.1: R^2 can be at most 0.96.
    assert 0.9 < 1 - missed < 0.98


@pytest.mark.parametrize(
    ("fallback", "shield", "sentence"),
    [
        (None, {}, "the run of log-only plant vessel needs 'fallback'"),
        (
            {"kind": "pid", "loops": [{**LOOP, "measured": "flow"}]},
            {},
            "the unknown signal 'flow': choose from level, set_point",
        ),
        (
            {"kind": "pid", "loops": [{**LOOP, "action": "fan"}]},
            {},
            "the unknown action 'fan': choose from valve, pump",
        ),
        ({"kind": "hold", "toward": {"fan": 1.0}}, {}, "the unknown action 'fan'"),
        ({"kind": "hold"}, {"rate_limits": {"fan": 1.0}}, "the unknown action 'fan'"),
        ({"kind": "hold"}, {"buffers": {"level": 0.1}}, "'shield.buffers' needs a simulator"),
        ({"kind": "hold"}, {"dwell": 100}, "but vessel has continuous actions"),
        # Percent in the place of a fraction, which bounds would have made the end of the range.
        ({"kind": "hold", "toward": {"valve": 20.0}}, {}, "safe value of valve must be within 0 to 1, got 20"),
        (
            {"kind": "pid", "loops": [{**LOOP, "ki": 0.0, "bias": 50.0}]},
            {},
            "bias of valve must be within 0 to 1, got 50",
        ),
    ],
)
def test_what_the_process_has_not_is_refused_before_anything_is_read(
    fallback: dict[str, Any] | None, shield: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        check_fallback(run(fallback, **shield), SPEC)


def test_an_action_needs_bounds() -> None:
    open_ended = SPEC._replace(action=SPEC.action._replace(high=(1.0, np.inf)))
    with pytest.raises(BadInput, match="action pump needs a two-sided 'range'"):
        check_fallback(run({"kind": "hold"}), open_ended)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "pid"},
        {"kind": "hold", "loops": [LOOP]},
        {"kind": "cloned", "toward": {"valve": 0.0}},
        {"kind": "pid", "loops": [LOOP, LOOP]},
        {"kind": "pid", "loops": [{**LOOP, "bias": 0.5}]},
    ],
)
def test_a_fallback_is_of_one_kind(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"of kind|exclude each other|may have one loop"):
        run(wrong)


def test_a_fallback_is_named_for_what_it_is() -> None:
    loops = Fallback(kind="pid", loops=(Loop.model_validate(LOOP),))
    assert fallback_in_words(loops, SPEC).startswith("PID loops of the run's file (valve on level), pump held")
    assert "cloned from the logged actions" in fallback_in_words(Fallback(kind="cloned"), SPEC)
    assert "valve toward 0.2" in fallback_in_words(Fallback(kind="hold", toward={"valve": 0.2}), SPEC)


@pytest.mark.parametrize("kind", ["pid", "hold", "cloned"])
def test_a_bundle_of_a_process_needs_no_code_and_comes_back_as_it_was(shield: Any, kind: str, tmp_path: Path) -> None:
    given = {"kind": kind, "loops": [LOOP]} if kind == "pid" else {"kind": kind}
    composite = Composite(None, shield, make_fallback(run(given), SPEC, logs(), shield), ())
    digest = save_bundle(tmp_path / "bundle", composite, KnownPlant(SPEC, None, None))
    plant, found = load_bundle(tmp_path / "bundle", digest)
    assert plant == Process(SPEC)
    np.testing.assert_array_equal(found.shield.references, shield.references)
    assert type(found.fallback) is type(composite.fallback)


@pytest.mark.parametrize(
    ("part", "changes", "sentence"),
    [
        ("fallback", {"measured": jnp.asarray([2, 0])}, "a loop on an unknown signal"),
        ("fallback", {"set_point": jnp.asarray([-1, 0])}, "a loop on an unknown signal"),
        ("fallback", {"kp": jnp.zeros(3)}, "another fallback"),
        ("shield", {"scale": jnp.ones(3)}, "another shield"),
        ("shield", {"references": jnp.zeros((5, 3))}, "another shield"),
    ],
)
def test_a_bundle_that_does_not_fit_is_refused(
    shield: Any, part: str, changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    from tasks.models.bundles.structure import _misfit

    sound = Composite(None, shield, make_fallback(run({"kind": "pid", "loops": [LOOP]}), SPEC, logs(), shield), ())
    wrong = sound._replace(**{part: getattr(sound, part)._replace(**changes)})
    assert _misfit(sound, Process(SPEC)) is None
    assert _misfit(wrong, Process(SPEC)) == sentence


def test_a_simulated_plant_is_not_loaded_as_a_process(shield: Any, tmp_path: Path) -> None:
    """Nobody puts a process's shield, which predicts nothing, before a plant that has a simulator."""
    disguised = KnownPlant(SPEC._replace(name="chemical_reactor"), None, None)
    composite = Composite(None, shield, make_fallback(run({"kind": "hold"}), SPEC, logs(), shield), ())
    digest = save_bundle(tmp_path / "bundle", composite, disguised)
    with pytest.raises(Refused):
        load_bundle(tmp_path / "bundle", digest)
