"""Verdicts of every gate, and sets of gates that are incomplete or contradict their evidence."""

from __future__ import annotations

import math

import pytest

from tasks.gates import (
    ABSENT_LOG_ONLY,
    BEFORE_CERTIFICATION,
    REQUIRED,
    REQUIRED_LOG_ONLY,
    judge,
    may_certify,
    may_serve,
)
from tasks.references import (
    Certificate,
    Evaluation,
    Evidence,
    Gate,
    Interval,
    ProcessEvidence,
    SignalError,
    SimulatorErrors,
)
from tasks.versions.versions import current
from tests.judged import SERVED, certificate, evidence, interval, process_evidence, signal

NAN = math.nan


def gate_of(name: str, numbers: Evidence) -> Gate:
    return next(gate for gate in judge(numbers) if gate.name == name)


def test_all_required_gates_are_judged_in_order_of_cost() -> None:
    gates = judge(evidence())
    assert tuple(gate.name for gate in gates) == REQUIRED
    assert all(gate.passed for gate in gates)
    assert BEFORE_CERTIFICATION == ("data", "simulator", "ope", "rollouts", "champion", "fallback")


@pytest.mark.parametrize(
    ("reasons", "passed", "detail"),
    [((), True, "all expectations hold"), (("too few", "too flat"), False, "too few; too flat")],
)
def test_data(reasons: tuple[str, ...], passed: bool, detail: str) -> None:
    assert gate_of("data", evidence(data=reasons)) == Gate(name="data", passed=passed, detail=detail)


@pytest.mark.parametrize(
    ("errors", "passed"),
    [
        # Allowed: 1.25 times the domain's error and a hundredth of the spread.
        ({"T": signal(0.135)}, True),
        ({"T": signal(0.1351)}, False),
        ({"T": signal(0.0, domain=0.0)}, True),
        ({"T": signal(0.02, domain=0.0)}, False),
        ({"T": signal(0.1), "c": signal(0.3)}, False),
        ({"c": signal(0.3), "T": signal(0.1)}, False),
        ({"T": signal(NAN)}, False),
        ({"T": signal(0.1, domain=NAN)}, False),
        ({"T": signal(0.1, spread=NAN)}, False),
        # A finite number does not hide a NaN.
        ({"T": signal(NAN), "c": signal(0.1)}, False),
        ({"c": signal(0.1), "T": signal(NAN)}, False),
        ({"T": signal(math.inf)}, False),
        ({"T": signal(math.inf, domain=math.inf)}, False),
        # A diverging domain would explain any log.
        ({"T": signal(0.1, domain=math.inf)}, False),
        ({"T": signal(0.1, spread=math.inf)}, False),
        ({}, False),
    ],
)
def test_simulator(errors: dict[str, SignalError], passed: bool) -> None:
    gate = gate_of("simulator", evidence(simulator=SimulatorErrors(signals=errors)))
    assert gate.passed is passed
    assert gate.detail


def test_simulator_gate_names_the_worst_signal() -> None:
    errors = SimulatorErrors(signals={"c": signal(0.1), "T": signal(0.3)})
    assert "(T; " in gate_of("simulator", evidence(simulator=errors)).detail


ROLLOUTS = [
    # lower, upper, beat_plant, passed
    (0.1, 0.2, True, True),
    (0.0, 0.2, True, False),
    (-0.1, 0.2, True, False),
    (-0.1, 0.2, False, True),
    (NAN, 0.2, True, False),
    (NAN, NAN, True, False),
    # NaN fails even if no gain is required.
    (NAN, NAN, False, False),
]


@pytest.mark.parametrize(("lower", "upper", "beat_plant", "passed"), ROLLOUTS)
def test_rollouts(lower: float, upper: float, beat_plant: bool, passed: bool) -> None:
    gate = gate_of("rollouts", evidence(rollouts=interval(lower, upper), beat_plant=beat_plant))
    assert gate.passed is passed
    assert f"{lower:+.4g}" in gate.detail


@pytest.mark.parametrize(
    ("lower", "upper", "passed"),
    [(0.1, 0.2, True), (-0.1, 0.2, True), (-0.2, 0.0, True), (-0.2, -0.1, False), (NAN, NAN, False)],
)
def test_logs_are_a_veto(lower: float, upper: float, passed: bool) -> None:
    numbers = evidence(ope=interval(lower, upper))
    gate = gate_of("ope", numbers)
    assert gate.passed is passed
    assert ("the logs contradict the simulator" in gate.detail) is not passed
    # Without a required gain, any number passes, but NaN does not.
    free = gate_of("ope", numbers.model_copy(update={"beat_plant": False}))
    assert free.passed is math.isfinite(upper)
    assert ("not required by gates.beat_plant" in free.detail) is (upper < 0)
    # Logs that support no estimate refuse nothing.
    unknown = gate_of("ope", numbers.model_copy(update={"supported": False, "reason": "too few episodes"}))
    assert unknown.passed is True
    assert unknown.detail == "not supported by the held-out logs: too few episodes; the simulator decides"


def test_a_process_without_a_simulator_needs_a_gain_by_its_logs() -> None:
    for lower, passed in ((0.1, True), (0.0, False), (NAN, False)):
        assert log_only_gate("ope", process_evidence(ope=interval(lower, 0.2))).passed is passed
    assert log_only_gate("ope", process_evidence(supported=False)).passed is False


@pytest.mark.parametrize(
    ("discount", "horizon", "warns"),
    [(0.97, 1_000, True), (0.99, 1_000, False), (0.99, 1_001, True), (0.95, 60, False), (0.97, 0, False)],
)
def test_ope_gate_warns_if_the_discount_covers_few_steps(discount: float, horizon: int, warns: bool) -> None:
    """The estimate covers `1 / (1 - discount)` steps: 33 of 1,000 are less than a tenth, 100 are a tenth."""
    nothing = Interval(value=0.0, lower=0.0, upper=0.0)
    unweighed = Evaluation(
        selected=0,
        members=(),
        behaviour=nothing,
        difference=nothing,
        supported=True,
        discount=discount,
        horizon=horizon,
        episodes=9,
    ).unweighed
    assert bool(unweighed) is warns
    for required in (True, False):
        detail = gate_of("ope", evidence(unweighed=unweighed, ope=interval(-1.0, 1.0), beat_plant=required)).detail
        assert ("covers about" in detail) is warns
    if discount == 0.97 and warns:
        assert "covers about 33 of 1,000 steps" in detail


def test_rollouts_gate_names_a_large_fallback_share() -> None:
    assert "fallback" not in gate_of("rollouts", evidence(fallback_share=0.5)).detail
    assert gate_of("rollouts", evidence(fallback_share=0.97)).detail.endswith("; the fallback decided 97% of its steps")


@pytest.mark.parametrize(
    ("lower", "upper", "passed"),
    [(0.1, 0.2, True), (-0.1, 0.1, True), (-0.1, 0.0, True), (-0.2, -0.1, False), (NAN, NAN, False)],
)
def test_champion(lower: float, upper: float, passed: bool) -> None:
    # Both the logs and the same episodes on the simulator must allow the candidate.
    no_worse = interval(-0.1, 0.1)
    assert gate_of("champion", evidence(champion=no_worse, champion_rollouts=interval(lower, upper))).passed is passed
    assert gate_of("champion", evidence(champion=interval(lower, upper), champion_rollouts=no_worse)).passed is passed


def test_champion_gate_without_comparable_champion_says_why() -> None:
    assert gate_of("champion", evidence()).detail == "no trained champion to compare with"
    other = gate_of("champion", evidence(incomparable=True))
    assert other == Gate(name="champion", passed=True, detail="not compared: the champion was made for other limits")


def test_unsupported_gain_over_champion_has_a_reason() -> None:
    nothing = evidence(champion=interval(NAN, NAN), champion_unsupported="too few", champion_rollouts=interval(1, 2))
    detail = (
        "return per episode on the simulator against the champion +1.5, interval [+1, +2]; not supported by the "
        "held-out logs: too few"
    )
    assert gate_of("champion", nothing) == Gate(name="champion", passed=True, detail=detail)
    worse = nothing.model_copy(update={"champion_rollouts": interval(-2, -1)})
    assert gate_of("champion", worse).passed is False
    assert gate_of("champion", nothing.model_copy(update={"champion_rollouts": None})).passed is False


def test_certificates() -> None:
    for passed in (True, False):
        for name in ("fallback", "statistical"):
            numbers = evidence(fallback=certificate(passed), certificate=certificate(passed))
            gate = next(gate for gate in judge(numbers) if gate.name == name)
            assert gate.passed is passed
            assert gate.detail == "2 violations in 5000 episodes, attempt 3, α = 0.0125"
    left_out = gate_of("statistical", evidence(certificate=None))
    assert left_out.passed is None
    assert "no error probability was spent" in left_out.detail


def test_servability() -> None:
    gate = gate_of("servability", evidence())
    assert (gate.passed, gate.detail) == (True, "64 answers agree, p99 52 µs")
    slow = gate_of(
        "servability", evidence(servability=SERVED.model_copy(update={"reasons": ("too slow", "and wrong")}))
    )
    assert (slow.passed, slow.detail) == (False, "too slow; and wrong")
    assert gate_of("servability", evidence(servability=None)).passed is None


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({"certificate": None, "servability": None}, True),
        ({"data": ("too few",)}, False),
        ({"fallback": certificate(False)}, False),
        ({"champion": interval(-0.2, -0.1)}, False),
    ],
)
def test_attempt_needs_all_earlier_gates(changes: dict[str, Certificate | None], may: bool) -> None:
    assert may_certify(judge(evidence(**changes))) is may


def test_gates_that_follow_from_evidence_are_accepted() -> None:
    numbers = evidence(ope=interval(-1.0, 1.0), certificate=None, servability=None)
    gates = judge(numbers)
    assert current().fault(gates, numbers, fallback=False) is None
    assert current().fault(tuple(gate for gate in gates if gate.name == "fallback"), numbers, fallback=True) is None


@pytest.mark.parametrize("name", REQUIRED)
def test_missing_gate_and_contradicted_verdict_are_named(name: str) -> None:
    numbers = evidence()
    gates = judge(numbers)
    fewer = tuple(gate for gate in gates if gate.name != name)
    fault = current().fault(fewer, numbers, fallback=False)
    assert fault is not None
    assert fault.startswith(f"the gates must be {', '.join(REQUIRED)}, got ")
    for verdict, word in ((False, "failed"), (None, "not run")):
        turned = tuple(gate.model_copy(update={"passed": verdict}) if gate.name == name else gate for gate in gates)
        fault = current().fault(turned, numbers, fallback=False)
        assert fault == f"gate {name} must be passed by its evidence, got {word}"
    assert current().fault((), numbers, fallback=False) is not None
    assert current().fault(gates, numbers, fallback=True) is not None


def log_only_gate(name: str, numbers: ProcessEvidence) -> Gate:
    return next(gate for gate in judge(numbers) if gate.name == name)


def test_log_only_plant_has_its_own_gates() -> None:
    gates = judge(process_evidence())
    assert tuple(gate.name for gate in gates) == REQUIRED_LOG_ONLY
    assert all(gate.passed for gate in gates)
    assert set(ABSENT_LOG_ONLY) == set(REQUIRED) - set(REQUIRED_LOG_ONLY)
    assert may_serve(gates)
    assert current().fault(gates, process_evidence(), fallback=False) is None


@pytest.mark.parametrize(
    ("ratios", "passed"),
    [
        ({"persistence": interval(0.2, 0.3), "linear autoregression": interval(0.9, 0.999)}, True),
        # Not better than one predictor, or not shown to be.
        ({"persistence": interval(0.2, 0.3), "linear autoregression": interval(0.9, 1.0)}, False),
        ({"persistence": interval(1.1, 1.2), "linear autoregression": interval(0.5, 0.6)}, False),
        ({"persistence": interval(0.2, 0.3), "linear autoregression": interval(NAN, NAN)}, False),
        # Both predictors are required by name.
        ({"persistence": interval(0.2, 0.3)}, False),
        ({"persistence": interval(0.2, 0.3), "the mean": interval(0.2, 0.3)}, False),
        ({}, False),
    ],
)
def test_learned_model_must_beat_naive_predictors(ratios: dict[str, Interval], passed: bool) -> None:
    model = process_evidence().model.model_copy(update={"ratios": ratios})
    assert log_only_gate("learned_model", process_evidence(model=model)).passed is passed


@pytest.mark.parametrize(
    ("name", "part", "changes", "passed"),
    [
        ("bounds", "bounds", {"beyond_bounds": 1e-9}, False),
        ("bounds", "bounds", {"beyond_rates": 1e-6}, True),
        ("bounds", "bounds", {"beyond_rates": 1e-4}, False),
        ("bounds", "bounds", {"beyond_rates": NAN}, False),
        ("bounds", "bounds", {"inputs": 0}, False),
        ("shield", "support", {"radius": math.inf}, False),
        ("shield", "support", {"outside": 0.039}, True),
        ("shield", "support", {"outside": 0.05}, False),
        ("shield", "support", {"handed_over": 0.51}, False),
        ("fallback", "fallback", {"explained": {"valve": 0.49}}, False),
        ("fallback", "fallback", {"explained": {"valve": 0.9, "pump": NAN}}, False),
        ("fallback", "fallback", {"explained": {}, "kind": "pid"}, True),
        ("fallback", "fallback", {"unsound": 1}, False),
        ("fallback", "fallback", {"rows": 0}, False),
    ],
)
def test_gates_of_bounds_shield_and_fallback(name: str, part: str, changes: dict[str, object], passed: bool) -> None:
    numbers = process_evidence()
    changed = getattr(numbers, part).model_copy(update=changes)
    assert log_only_gate(name, process_evidence(**{part: changed})).passed is passed


@pytest.mark.parametrize(
    ("name", "changes", "cure"),
    [
        ("learned_model", {"persistence": interval(0.9, 1.1)}, "signals move more"),
        ("learned_model", {"linear autoregression": interval(0.9, 1.1)}, "more of the operating range"),
        ("learned_model", {"linear autoregression": interval(0.9, math.inf)}, "use more logs"),
        ("shield", {"radius": math.inf}, "logs of more days"),
        ("shield", {"outside": 0.3}, "logs of more days"),
        ("shield", {"handed_over": 0.7}, "in which the actions vary more"),
        ("fallback", {"explained": {"valve": 0.1}}, "(kind: pid), or hold (kind: hold)"),
    ],
)
def test_log_only_refusal_names_a_cure(name: str, changes: dict[str, object], cure: str) -> None:
    part = {"learned_model": "model", "shield": "support"}.get(name, name)
    numbers = process_evidence()
    if part == "model":
        changes = {"ratios": {**numbers.model.ratios, **changes}}
    changed = numbers.model_copy(update={part: getattr(numbers, part).model_copy(update=changes)})
    gate = log_only_gate(name, changed)
    assert (gate.passed, cure in gate.detail) == (False, True), gate.detail
    assert "use " not in log_only_gate(name, numbers).detail
    # More episodes help only if the interval includes 0.
    for ope, advised in ((interval(-0.1, 0.2), True), (interval(-0.2, -0.1), False)):
        assert ("more episodes" in log_only_gate("ope", process_evidence(ope=ope)).detail) is advised
    unknown = log_only_gate("ope", process_evidence(supported=False, reason="no finite estimate")).detail
    assert "an estimate of this policy: no finite estimate; use logs" in unknown
    assert "actions vary more" in unknown
    # Old entries have no reason; their text must stay the same.
    assert "an estimate of this policy; use logs" in log_only_gate("ope", process_evidence(supported=False)).detail


def test_a_certificate_is_about_the_simulator_that_predicts_the_logs() -> None:
    other = evidence(certificate=certificate(step="6" * 64))
    gate = gate_of("statistical", other)
    assert gate.passed is False
    assert "certified on simulator 666666666666, but simulator 555555555555 predicts the logs" in gate.detail
    assert (
        gate_of("statistical", evidence(certificate=certificate(step=""), simulator=SimulatorErrors(signals={}))).passed
        is False
    )


def test_rollouts_can_contradict_a_certificate() -> None:
    # P(K >= k) for n = 256 at 0.002: 0.4010 for k = 1, 0.0145 for k = 3, 0.00017 for k = 5 (binomial law).
    for violated, passed in ((0, True), (1, True), (3, True), (5, False), (256, False)):
        gate = gate_of("statistical", evidence(rollout_violations=violated, rollout_episodes=256))
        assert gate.passed is passed, violated
    assert "contradicted by 256 of 256 rollouts" in gate.detail
