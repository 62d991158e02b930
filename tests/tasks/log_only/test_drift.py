"""Drift of newer logs from a champion's: what is found, and that the stated rate of false alarms is kept."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from flows.monitor import drift_metrics
from neorl_core.plants import PLANTS
from neorl_core.safety.drift_detection import LEAST_REFERENCE, SHIFT
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
    # Two new blocks lie above all blocks of the reference.
    known, new = np.random.default_rng(1).normal(size=600), np.arange(9.0, 21.0)
    one = Stream("x", "model", (known,), np.zeros(600, np.int64), (new,), 0.0)
    logs = Logs(logs_of(1).transitions, np.zeros(12, np.int64), np.zeros(1, np.int64), np.zeros(12, bool))
    evidence, (found,) = evidence_of([one], logs)
    length, count = found.block_steps, found.reference_blocks
    assert (length, count, found.blocks, found.needs_days) == (6, 100, 2, 0.0)
    z = [NormalDist().inv_cdf(1 - 0.5 / (count + k)) for k in (1, 2)]
    first, second = (math.exp(SHIFT * each - SHIFT**2 / 2) for each in z)
    by_hand = np.log([length * first, length * (first + 1) * second])
    np.testing.assert_allclose(evidence[[5, 11]], by_hand, rtol=1e-12)
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
    # All is far away, but the reference has three blocks, or the newer logs have less than one.
    for known, new, why in (
        (calm[:30], far, "drift not monitored: needs 1 more day"),
        (calm, far[:4], "drift not monitored in 100 steps of 2 episodes: level has 0 blocks of"),
    ):
        rows = Logs(logs_of(1).transitions, np.zeros(len(new), np.int64), np.zeros(1, np.int64), new > 0)
        _, (found,) = evidence_of([Stream("level", "rewards", (known,), known.astype(int) * 0, (new,), 30.0)], rows)
        told = judged.drift_record("0", "1", "2", signals=(found,))
        assert not told.watched
        assert told.found.startswith(why)
        assert "false alarms" not in told.found
        assert drift_metrics(told).keys() == {"drift/rows", "drift/watched"}
        assert _evidence(told) == "not monitored"
        # What raised an alarm was watched, however little there was of it.
        alarmed = told.model_copy(update={"alarm": "episode 1, step 2"})
        assert alarmed.found.startswith("drift at episode 1, step 2 of")
        assert "not monitored" not in alarmed.found
    told = judged.drift_record("0", "1", "2", season="none")
    assert told.found.startswith("no drift in")
    assert "at most 0.1 false alarms a year" in told.found
    assert "not monitored" not in told.found
    unseen = told.signals[0].model_copy(update={"name": "slow", "blocks": 0, "needs_days": 12.3})
    assert told.model_copy(update={"signals": (*told.signals, unseen)}).found.endswith(
        "; not monitored: slow (needs 13 more days)"
    )


def test_a_record_of_an_earlier_test_states_no_rate() -> None:
    told = judged.drift_record("0", "1", "2")
    assert told.found.endswith("by an earlier test, whose rate of false alarms is unknown")
    assert told.watched


@pytest.mark.parametrize(("days", "season"), [(3.5, None), (14, "day"), (97, "day"), (98, "week")])
def test_a_daily_cycle_is_monitored_after_two_weeks(days: float, season: str | None) -> None:
    rng, step = np.random.default_rng(12), 600.0
    size, new = int(days * 144), 30 * 144
    t = np.arange(size + new)
    x = rng.normal(size=size + new) + 3.0 * np.sin(2 * np.pi * t / 144)
    stamps = (t * 600 + 50_000) * 10**9
    found = drift.season_of(stamps[:size], stamps[size:], step)
    assert (found.name if found else None) == season
    episode = np.zeros(size, np.int64)
    one = drift.three_scores("x", "observations", x[:size], episode, x[size:], found)
    rows = Logs(logs_of(1).transitions, np.zeros(new, np.int64), np.zeros(1, np.int64), np.ones(new, bool))
    evidence, (told,) = evidence_of([one], rows, step, drift.season_rows(step))
    if season is None:
        assert told.needs_days == pytest.approx(10.5)
        assert judged.drift_record("0", "1", "2", signals=(told,)).found == "drift not monitored: needs 11 more days"
        return
    assert (told.needs_days, told.block_steps < 20) == (0.0, True)
    assert evidence.max() < math.log(31_557_600 / 600 / 0.1)
    late = one._replace(new=tuple(score + sign * 0.5 for score, sign in zip(one.new, (1, -1, 0), strict=True)))
    assert evidence_of([late], rows, step)[0].max() > math.log(31_557_600 / 600 / 0.1)


def test_seasonal_means_leave_the_reference_as_wide_as_newer_logs() -> None:
    """The error of n - 1 other steps widens both: variance 1 + 1 / (n - 1), and 1 + 1 / n for newer logs."""
    rng, n, phases = np.random.default_rng(13), 14, 1000
    phase = np.tile(np.arange(phases), n)
    season = drift.Season("day", phases, phase, phase)
    known, new = drift.deseasonalised(rng.normal(size=n * phases), rng.normal(size=n * phases), season)
    assert known.var() == pytest.approx(1 + 1 / (n - 1), rel=0.03)
    assert new.var() == pytest.approx(1 + 1 / n, rel=0.03)
    wave = np.sin(phase / 100.0)
    np.testing.assert_allclose(drift.deseasonalised(wave, wave, season), 0.0, atol=1e-12)


def test_weak_slow_changes_of_all_signals_are_not_monitored() -> None:
    rng, size = np.random.default_rng(14), 26_000
    wave = 0.07 * np.sin(np.pi * np.arange(size) / size)
    new = logs_of(100)

    def streams(slow: float) -> list[Stream]:
        episode = np.zeros(size, np.int64)
        return [
            drift.three_scores(
                f"x{i}", "observations", rng.normal(size=size) + slow * wave, episode, np.zeros(6000), None
            )
            for i in range(12)
        ]

    evidence, found = evidence_of(streams(1.0), new)
    assert all(one.needs_days for one in found)
    # Alone, most signals would be monitored.
    assert sum(one.reference_blocks >= LEAST_REFERENCE for one in found) > 5
    assert not np.isfinite(evidence).any()
    _, found = evidence_of(streams(0.0), new)
    assert not any(one.needs_days for one in found)


def test_blocks_are_whole_periods() -> None:
    rng = np.random.default_rng(7)
    white = rng.normal(size=60_000)
    day = 3.0 * np.sin(2 * np.pi * np.arange(60_000) / 96)
    assert drift.stream_length([0.1 * white + day]) % 96 == 0
    assert drift.stream_length([np.zeros(20_000)]) == 6


def test_false_alarms_are_no_more_often_than_stated() -> None:
    """Of `n` steps without drift at most n / A end in an alarm at threshold A, whatever the number of signals."""
    runs, episodes, share = 60, 20, 0.2
    threshold = math.log(episodes * STEPS / share)
    alarms = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        streams = [stream(name, noise(rng, 80), noise(rng, episodes)) for name in "abc"]
        streams.append(stream("r", noise(rng, 80), noise(rng, episodes), "rewards"))
        evidence, found = evidence_of(streams, logs_of(episodes), signals=4)
        assert not any(signal.needs_days for signal in found)
        alarms += int(evidence.max() >= threshold)
    # Three deviations of a share of 60 runs; the bound itself is far from tight.
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
