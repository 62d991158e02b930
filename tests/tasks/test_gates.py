"""Every gate's verdicts as a table, and the twin's errors on logs of the true plant and of another one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.home import Home
from tasks import gates
from tests.small_data import altered, reactor_dataset, reactor_run

NAN = math.nan


def _difference(lower: float, upper: float) -> dict[str, float]:
    return {"value": (lower + upper) / 2, "lower": lower, "upper": upper}


def _certificate(passed: bool) -> dict[str, Any]:
    return {"passed": passed, "violations": 2, "episodes": 5000, "attempt": 3, "alpha": 0.0125}


def _errors(logs: float, domain: float = 0.1, spread: float = 1.0) -> dict[str, float]:
    return {"logs": logs, "domain": domain, "spread": spread}


@pytest.mark.parametrize(
    ("validation", "passed", "detail"),
    [
        ({"passed": True, "reasons": []}, True, "all expectations hold"),
        ({"passed": False, "reasons": ["too few", "too flat"]}, False, "too few; too flat"),
    ],
)
def test_data(validation: dict[str, Any], passed: bool, detail: str) -> None:
    assert gates.data_gate(validation) == {"name": "data", "passed": passed, "detail": detail}


@pytest.mark.parametrize(
    ("errors", "passed"),
    [
        # Allowed: 1.5 times the domain's error and a hundredth of the spread.
        ({"T": _errors(0.16)}, True),
        ({"T": _errors(0.1601)}, False),
        ({"T": _errors(0.0, domain=0.0)}, True),
        ({"T": _errors(0.02, domain=0.0)}, False),
        ({"T": _errors(0.1), "c": _errors(0.3)}, False),
        ({"c": _errors(0.3), "T": _errors(0.1)}, False),
        ({"T": _errors(NAN)}, False),
        ({"T": _errors(0.1, domain=NAN)}, False),
        ({"T": _errors(0.1, spread=NAN)}, False),
        # A NaN is not hidden by a number beside it, whichever comes first.
        ({"T": _errors(NAN), "c": _errors(0.1)}, False),
        ({"c": _errors(0.1), "T": _errors(NAN)}, False),
        ({"T": _errors(math.inf)}, False),
        ({"T": _errors(math.inf, domain=math.inf)}, False),
        ({}, False),
    ],
)
def test_twin(errors: dict[str, dict[str, float]], passed: bool) -> None:
    found = gates.twin_gate(errors)
    assert (found["name"], found["passed"]) == ("twin", passed)
    assert found["detail"]


def test_the_twin_gate_names_the_worst_signal() -> None:
    assert "(T, " in gates.twin_gate({"c": _errors(0.1), "T": _errors(0.3)})["detail"]


@pytest.mark.parametrize(
    ("lower", "upper", "supported", "beat_plant", "passed"),
    [
        (0.1, 0.2, True, True, True),
        (0.0, 0.2, True, True, False),
        (-0.1, 0.2, True, True, False),
        (0.1, 0.2, False, True, False),
        (0.1, 0.2, False, False, False),
        (-0.1, 0.2, True, False, True),
        (NAN, 0.2, True, True, False),
        (NAN, NAN, True, True, False),
        (NAN, NAN, False, False, False),
        # An estimate that is not a number is no estimate, even where no gain is asked for.
        (NAN, NAN, True, False, False),
    ],
)
def test_ope(lower: float, upper: float, supported: bool, beat_plant: bool, passed: bool) -> None:
    evaluation = {"difference": _difference(lower, upper), "supported": supported}
    found = gates.ope_gate(evaluation, reactor_run(gates={"beat_plant": beat_plant}))
    assert (found["name"], found["passed"]) == ("ope", passed)
    assert f"{lower:+.4g}" in found["detail"]


def test_the_ope_gate_says_what_it_did_not_ask_for() -> None:
    evaluation = {"difference": _difference(-1.0, 1.0), "supported": True}
    run = reactor_run(gates={"beat_plant": False})
    assert "not required by gates.beat_plant" in gates.ope_gate(evaluation, run)["detail"]
    assert "do not support" in gates.ope_gate({**evaluation, "supported": False}, run)["detail"]


@pytest.mark.parametrize(
    ("lower", "upper", "passed"),
    [(0.1, 0.2, True), (-0.1, 0.1, True), (-0.1, 0.0, True), (-0.2, -0.1, False), (NAN, NAN, False)],
)
def test_champion(lower: float, upper: float, passed: bool) -> None:
    found = gates.champion_gate({"champion_difference": _difference(lower, upper), "supported": True})
    assert (found["name"], found["passed"]) == ("champion", passed)


def test_certificates() -> None:
    for passed in (True, False):
        for name, gate in (("fallback", gates.fallback_gate), ("statistical", gates.statistical_gate)):
            found = gate(_certificate(passed))
            assert (found["name"], found["passed"]) == (name, passed)
            assert found["detail"] == "2 violations in 5000 episodes, attempt 3, α = 0.0125"
    left_out = gates.statistical_gate(None)
    assert left_out["passed"] is None
    assert "no error probability was spent" in left_out["detail"]


def test_servability() -> None:
    served = {"passed": True, "reasons": [], "answers": 64, "latency_us": {"p99": 51.6}}
    assert gates.servability_gate(served)["detail"] == "64 answers agree, p99 52 µs"
    assert gates.servability_gate(served)["passed"] is True
    slow = gates.servability_gate({**served, "passed": False, "reasons": ["too slow", "and wrong"]})
    assert (slow["passed"], slow["detail"]) == (False, "too slow; and wrong")
    assert gates.servability_gate(None)["passed"] is None


@pytest.mark.parametrize(
    ("verdicts", "passed"),
    [([True, True], True), ([True, False], False), ([True, None], False), ([None, None], False)],
)
def test_all_gates_have_to_pass(verdicts: list[bool | None], passed: bool) -> None:
    assert gates.all_passed([gates.gate("a", verdict, "") for verdict in verdicts]) is passed


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A dataset of eight hours of the reactor's log."""
    folder = tmp_path_factory.mktemp("gates")
    return reactor_dataset(Home(folder / "home"), folder, 0.05)


def test_the_twin_explains_logs_of_the_true_plant(reference: dict[str, Any], tmp_path: Path) -> None:
    errors = gates.twin_errors(Home(tmp_path), reactor_run(), reference)
    # The set point, which operators move, is left out.
    assert set(errors) == {"concentration", "temperature", "coolant_temperature"}
    assert all(found["logs"] < 0.25 * found["spread"] for found in errors.values())
    assert gates.twin_gate(errors)["passed"] is True


def test_the_twin_misses_logs_of_another_plant(reference: dict[str, Any], tmp_path: Path) -> None:
    true = gates.twin_errors(Home(tmp_path / "home"), reactor_run(), reference)
    hotter = altered(reference, tmp_path / "hotter", next_observations=lambda x: np.add(x, [0.0, 3.0, 0.0, 0.0]))
    errors = gates.twin_errors(Home(tmp_path / "home"), reactor_run(), hotter)
    assert errors["temperature"]["logs"] == pytest.approx(3.0, rel=0.1)
    assert errors["temperature"]["domain"] == true["temperature"]["domain"]
    assert errors["concentration"]["logs"] < 2 * true["concentration"]["logs"]
    found = gates.twin_gate(errors)
    assert found["passed"] is False
    assert "(temperature, " in found["detail"]


def test_logs_that_hold_a_nan_are_not_explained(reference: dict[str, Any], tmp_path: Path) -> None:
    spoilt = altered(reference, tmp_path / "spoilt", next_observations=lambda x: x * [1.0, NAN, 1.0, 1.0])
    errors = gates.twin_errors(Home(tmp_path / "home"), reactor_run(), spoilt)
    assert gates.twin_gate(errors)["passed"] is False
