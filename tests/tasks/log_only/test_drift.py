"""Drift of newer logs from a champion's: what is found, and that the stated rate of false alarms is kept."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from flows.monitor import drift_metrics
from neorl_core.plants import PLANTS
from neorl_core.safety.drift_detection import LEAST_REFERENCE, POWERS
from neorl_core.types import Transition
from tasks.audit_report.findings import _evidence
from tasks.data.store.episodes import Logs
from tasks.log_only import drift
from tasks.log_only.drift import Stream, evidence_of, step_seconds
from tasks.references import DriftGroup
from tests import judged

Floats = npt.NDArray[np.float64]
STEPS = 60
"""Steps of an episode."""


def logs_of(episodes: int, transitions: Transition | None = None) -> Logs:
    episode = np.repeat(np.arange(episodes), STEPS)
    rows = transitions or Transition(*[np.zeros(len(episode))] * 6)
    return Logs(rows, episode, np.arange(episodes) * STEPS, np.ones(len(episode), bool))


def noise(rng: np.random.Generator, episodes: int) -> Floats:
    """A signal that remembers a few steps, with mean 0 and deviation 1."""
    x = np.empty((episodes, STEPS))
    x[:, 0] = rng.normal(size=episodes)
    for t in range(1, STEPS):
        x[:, t] = 0.6 * x[:, t - 1] + 0.8 * rng.normal(size=episodes)
    return x.ravel()


def stream(name: str, known: Floats, new: Floats, group: DriftGroup = "observations") -> Stream:
    episode = np.repeat(np.arange(len(known) // STEPS), STEPS)
    return Stream(name, group, (known, -known, known**2), episode, (new, -new, new**2), 0.0)


def test_the_evidence_of_one_signal_is_that_of_the_formula_worked_by_hand() -> None:
    # Four episodes of one step each are the reference, two new ones lie above all of them.
    known, new = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0])
    one = Stream("x", "model", (known,), np.arange(4), (new,), 0.0)
    logs = Logs(logs_of(1).transitions, np.arange(2), np.arange(2), np.zeros(2, bool))
    evidence, (found,) = evidence_of([one], logs)
    first = [k * (1 / 5) ** (k - 1) for k in POWERS]
    second = [(r + 1) * k * (1 / 6) ** (k - 1) for r, k in zip(first, POWERS, strict=True)]
    np.testing.assert_allclose(evidence, np.log([np.mean(first), np.mean(second)]), rtol=1e-12)
    assert (found.blocks, found.reference_blocks, found.block_steps) == (2, 4, 1)
    assert found.log_evidence == pytest.approx(evidence.max())
    # The same signal in two groups, each with half of the weight, is the same evidence.
    both, _ = evidence_of([one, one._replace(group="rewards")], logs)
    np.testing.assert_allclose(both, evidence, rtol=1e-12)


def test_blocks_are_whole_episodes_and_parts_of_long_ones() -> None:
    # Episodes of 2, 1, 5 and 1 steps in blocks of two: the first; the next two, cut into three; the last is too short.
    means, ends = drift._blocks(np.arange(9.0), np.array([0, 0, 1, 2, 2, 2, 2, 2, 3]), 2)
    assert ends.tolist() == [1, 3, 5, 7]
    assert means.tolist() == [0.5, 2.5, 4.5, 6.5]


@pytest.mark.parametrize("episode", [[0] * 10, [0] * 5 + [1] * 5])
def test_a_window_of_a_single_block_is_watched(episode: list[int]) -> None:
    means, ends = drift._blocks(np.arange(10.0), np.asarray(episode), 7)
    assert (means.tolist(), ends.tolist()) == ([4.5], [9])


def test_no_drift_is_told_only_where_one_could_have_been_found() -> None:
    draw = np.random.default_rng(11)
    calm, far = draw.normal(size=3000), 30.0 + draw.normal(size=6000)
    # All is far away, but ranked among thirty rows, or in a window that ends before the first block does.
    slow = np.repeat(draw.normal(size=60), 50)
    for known, new in ((calm[:30], far), (slow, slow[:4] + 30.0)):
        rows = Logs(logs_of(1).transitions, np.zeros(len(new), np.int64), np.zeros(1, np.int64), new > 0)
        _, (found,) = evidence_of([Stream("level", "rewards", (known,), known.astype(int) * 0, (new,), 30.0)], rows)
        told = judged.drift_record("0", "1", "2", signals=(found,))
        assert not told.watched
        assert told.found.startswith("drift not monitored in 100 steps of 2 episodes: ")
        assert drift_metrics(told).keys() == {"drift/rows", "drift/watched"}
        assert _evidence(told) == "not watched"
        # What raised an alarm was watched, however little there was of it.
        alarmed = told.model_copy(update={"alarm": "episode 1, step 2"})
        assert alarmed.found.startswith("drift at episode 1, step 2 of")
        assert "not monitored" not in alarmed.found
    told = judged.drift_record("0", "1", "2")
    assert told.found.startswith("no drift in")
    assert "not monitored" not in told.found
    unseen = told.signals[0].model_copy(update={"name": "slow", "blocks": 0})
    assert told.model_copy(update={"signals": (*told.signals, unseen)}).found.endswith("; not monitored: slow")


def test_many_newer_logs_leave_the_reference_blocks_enough_to_be_ranked_among() -> None:
    draw = np.random.default_rng(12)
    known, new = draw.normal(size=1000), 30.0 + draw.normal(size=250_000)
    rows = Logs(logs_of(1).transitions, np.zeros(len(new), np.int64), np.zeros(1, np.int64), new > 0)
    evidence, (found,) = evidence_of([Stream("x", "rewards", (known,), np.zeros(1000, np.int64), (new,), 30.0)], rows)
    assert found.reference_blocks >= LEAST_REFERENCE
    assert evidence.max() > math.log(1e7)


def test_blocks_are_as_long_as_a_signals_memory_and_whole_periods() -> None:
    rng = np.random.default_rng(7)
    white = rng.normal(size=20_000)
    assert drift.block_length([white]) <= 8
    # A twentieth of the variance, which keeps for 200 steps: the first correlations hardly tell.
    slow = np.repeat(rng.normal(size=100), 200)
    assert drift.block_length([white + 0.23 * slow]) >= 100
    day = 3.0 * np.sin(2 * np.pi * np.arange(20_000) / 96)
    assert drift.block_length([white + day]) % 96 == 0
    assert drift.block_length([np.zeros(20_000)]) == 1


def test_false_alarms_are_no_more_often_than_stated() -> None:
    """Of `n` steps without drift at most n / A end in an alarm at threshold A, whatever the number of signals."""
    runs, episodes, share = 200, 20, 0.2
    threshold = math.log(episodes * STEPS / share)
    alarms = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        streams = [stream(name, noise(rng, 30), noise(rng, episodes)) for name in "abc"]
        streams.append(stream("r", noise(rng, 30), noise(rng, episodes), "rewards"))
        alarms += int(evidence_of(streams, logs_of(episodes))[0].max() >= threshold)
    # Three deviations of a share of 200 runs; the bound itself is far from tight.
    assert alarms / runs <= share + 3 * math.sqrt(share * (1 - share) / runs)


@pytest.mark.parametrize(("shift", "spread"), [(0.6, 1.0), (-0.6, 1.0), (0.0, 1.5)])
def test_a_signal_that_moves_or_spreads_is_found_and_named(shift: float, spread: float) -> None:
    rng = np.random.default_rng(3)
    calm = [stream(name, noise(rng, 60), noise(rng, 80)) for name in "abcd"]
    moved = stream("moved", noise(rng, 60), shift + spread * noise(rng, 80), "actions")
    evidence, found = evidence_of([*calm, moved], logs_of(80))
    assert evidence.max() > math.log(1e7)
    assert max(found, key=lambda one: one.log_evidence).name == "moved"
    quiet, _ = evidence_of(calm, logs_of(80))
    assert quiet.max() < math.log(1e7)


@pytest.mark.parametrize("unit", [1.0, 1e-18])
def test_a_plant_that_answers_otherwise_is_found_by_a_linear_law(unit: float) -> None:
    spec = PLANTS["double_mass"].spec
    rng = np.random.default_rng(5)
    size, acting = spec.observation.size, spec.action.size
    law, gain = 0.9 * np.eye(size), rng.normal(size=(acting, size))

    def play(episodes: int, strength: float) -> Logs:
        n = episodes * STEPS
        x, u = rng.normal(size=(n, size)), rng.uniform(-1, 1, (n, acting))
        after = x @ law + strength * u @ gain + 0.1 * rng.normal(size=(n, size))
        zero = np.zeros(n)
        return logs_of(episodes, Transition(x * unit, u, zero, zero, after * unit, zero))

    reference, same, worn = play(60, 1.0), play(20, 1.0), play(20, 0.7)
    for new, alarmed in ((same, False), (worn, True)):
        one = drift._model(spec, None, reference, new)
        assert one.known[0].mean() == pytest.approx(1.0)
        assert bool(evidence_of([one], new)[0].max() > math.log(1e7)) is alarmed


def test_a_rate_in_a_year_is_of_seconds_wherever_time_has_a_unit() -> None:
    assert step_seconds(PLANTS["chemical_reactor"].spec) == pytest.approx(26.0)  # docs: one control period is 26 s
    assert step_seconds(PLANTS["industrial_benchmark"].spec) == 1.0
