"""Reactors identified from logs of PI control, a short version of `make identify`."""

from __future__ import annotations

import jax
import pytest

from benchmarks.identify import reactors as benchmark


@pytest.fixture(scope="module")
def logged() -> benchmark.Logged:
    return benchmark.log_reactors(jax.random.key(0), 24)


@pytest.fixture(scope="module")
def posterior(logged: benchmark.Logged) -> benchmark.Posterior:
    return benchmark.in_parts(logged.episodes, 24)


@pytest.mark.slow
def test_reactors_are_identified_from_pi_logs(logged: benchmark.Logged, posterior: benchmark.Posterior) -> None:
    # Truth 5: five-step segments with a prior of 3 % leave 0.61 % of UA; one step without a prior 19.5 %.
    found = benchmark.accuracy(logged.true, posterior)
    assert found["converged"] == 24
    assert found["UA"]["rms_percent"] <= 0.61
    assert found["k0"]["rms_percent"] <= 0.11
    assert found["UA"]["worse_than_prior"] <= 0.1
    assert found["UA"]["covered"] >= 0.8


@pytest.mark.slow
def test_gate_passes_identified_and_rejects_wrong_simulators(
    logged: benchmark.Logged, posterior: benchmark.Posterior
) -> None:
    found = benchmark.gates(logged, posterior, jax.random.key(1))
    assert found["passed"] >= 0.9
    assert found["refused"] >= 0.95


@pytest.mark.slow
def test_risky_composites_fail_over_the_posterior() -> None:
    found = benchmark.trials(40, 3)
    assert found["unsafe"] >= 4
    assert found["falsely_certified"] <= 2
    assert found["certified_of_safe"] > 0.2
