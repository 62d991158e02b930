"""`make calibration` at a small scale: the rate of false certificates, and resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration.__main__ import BEGIN, Results, Row, measure, planned, table
from benchmarks.calibration.naive import NAIVE
from benchmarks.calibration.trials import FREE, WATCHED, Bench, benches, ground
from benchmarks.calibration.worlds import World, coin
from neorl_core.safety.bounds import betting_episodes
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.witness.seeds import derive_seed
from tasks.files.canonical import read_json
from tests.neorl_core.safety.exact import certification_probability

# truth.md 2: false certificates at true p = p0 = 1e-3 of others' ways.
PUBLISHED = {
    "t-test of 1,000 episodes": 0.368,
    "Clopper-Pearson, looked at after every episode": 0.169,
    "Clopper-Pearson, best of ten": 0.401,
}


@pytest.fixture(scope="module")
def draws() -> World:
    return coin(0.05, 640)


@pytest.mark.parametrize("way", NAIVE)
def test_naive_certifiers_fail_at_the_known_rate(way: str) -> None:
    chance, trials = np.random.default_rng(7), 2000
    found = sum(NAIVE[way](chance) for _ in range(trials)) / trials
    expected = PUBLISHED[way]
    assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / trials)


def test_a_single_attempt_fails_with_the_exact_probability(draws: World) -> None:
    alpha, trials = attempt_alpha(0.95, 1), 400
    exact = certification_probability(0.05, [betting_episodes(0.05, k, alpha) for k in range(11)])
    assert exact < alpha
    found = sum(FREE["single"](draws) for _ in range(trials))
    assert abs(found - trials * exact) < 5 * np.sqrt(trials * exact)


@pytest.mark.slow
@pytest.mark.parametrize("way", WATCHED)
def test_attacks_through_the_ledger_gain_nothing(draws: World, way: str, tmp_path: Path) -> None:
    """A few of ten thousand trials: at 5 %, more than four of twelve occur once in 100,000 times."""
    chance = np.random.default_rng(3)
    with benches(tmp_path) as found:
        false = sum(WATCHED[way](draws, next(found), chance) for _ in range(12))
    assert false <= 4


@pytest.mark.parametrize("way", WATCHED)
def test_a_successful_attack_is_counted(way: str, tmp_path: Path) -> None:
    """The claim is true here: nearly all trials must certify, or they show nothing."""
    safe = coin(1e-6, 640)._replace(p=0.05)
    chance = np.random.default_rng(3)
    with benches(tmp_path) as found:
        assert all(WATCHED[way](safe, next(found), chance) for _ in range(3))


def test_without_a_witness_seeds_can_be_chosen(draws: World, tmp_path: Path) -> None:
    """Baseline of the attacks: the same attack without the nonce."""
    alpha = attempt_alpha(0.95, 1)
    worth = sum(draws.test(derive_seed(ground(draws, alpha), ()), alpha).certified for _ in range(40))
    assert worth > 3

    def ledger_of(bench: Bench) -> int:
        return len(bench.ledger().entries())

    with benches(tmp_path) as found:
        assert [ledger_of(next(found)) for _ in range(2)] == [0, 0]


def test_trials_resume(tmp_path: Path) -> None:
    rows, worlds = planned()
    wanted = [row for row in rows if row.naive and row.way in NAIVE]
    keep = tmp_path / "calibration.json"
    some = measure(list(wanted), worlds, 300, "t-test", keep, tmp_path)
    assert [row.trials for row in some] == [300, 0, 0]
    kept = Results.model_validate(read_json(keep)).rows
    assert kept == some
    more = measure(kept, worlds, 500, "t-test", keep, tmp_path)
    assert more[0].trials == 500
    assert more[0].false >= some[0].false
    text = table([*more, Row(way="a", world="b")])
    assert text.startswith(BEGIN)
    assert "| *t-test of 1,000 episodes* | draws with p = 0.001 | 500 | " in text
    assert "| a |" not in text
