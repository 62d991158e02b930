"""Units against values that are known, and formulas: what they compute, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from configs.expression import compile_expression
from configs.units import conversion

UNITS = {"temperature": "degC", "setpoint": "K", "valve": "1", "level": "cm", "next.temperature": "degC"}
VALUES: dict[str, Any] = {
    "temperature": np.array([20.0, 25.0]),
    "setpoint": np.array([293.15, 293.15]),
    "valve": np.array([0.0, 0.5]),
    "level": np.array([100.0, 250.0]),
    "next.temperature": np.array([21.0, 26.0]),
}


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        # By hand: water freezes and boils; 1 kmol/m3 is 1 mol/L.
        (0.0, "degC", "K", 273.15),
        (32.0, "degF", "K", 273.15),
        (212.0, "degF", "degC", 100.0),
        (300.0, "K", "degC", 26.85),
        (9.0, "delta_degF", "K", 5.0),
        (0.9, "kmol/m3", "mol/L", 0.9),
        (900.0, "mol/m3", "mol/L", 0.9),
        (50.0, "%", "1", 0.5),
        (5.0, "cm", "m", 0.05),
        # NIST SP 811: 1 bar = 100 kPa, 1 psi = 6.894757 kPa, 1 hp (550 ft lbf/s) = 745.6999 W.
        (1.0, "bar", "kPa", 100.0),
        (1.0, "psi", "kPa", 6.894757),
        (1.0, "horsepower", "W", 745.6999),
        (3.6, "m3/h", "L/s", 1.0),
        (60.0, "rpm", "Hz", 1.0),
        (1.0, "Hz", "rpm", 60.0),
        (60.0, "rpm", "1/s", 1.0),
        (60.0, "rpm", "rad/s", 2 * np.pi),
        (2 * np.pi, "rad/s", "Hz", 1.0),
        (1.0, "rad/s", "1/s", 1.0),
        (180.0, "deg", "rad", np.pi),
        (6.0, "deg/s", "rpm", 1.0),
        # A motor that gains 600 rpm in a second gains 10 Hz; powers of a unit drop 2 pi as often.
        (600.0, "rpm/s", "Hz/s", 10.0),
        (1.0, "Hz/min", "rpm/s", 1.0),
        (60.0, "rpm**2", "Hz**2", 60.0 / 3600.0),
        (1.0, "1/rpm", "s", 60.0),
        (3.0, "rpm min", "1", 3.0),
        # One W at one rpm is a torque of 60 / 2 pi Nm, for a power is torque times rad/s.
        (1.0, "W/rpm", "N m", 60.0 / (2 * np.pi)),
        (1.0, "N m rpm", "W", 2 * np.pi / 60.0),
        # Gauges stand in the standard atmosphere, 101.325 kPa.
        (1.0, "barg", "kPa", 201.325),
        (1.0, "bar(g)", "bar", 2.01325),
        (0.0, "psig", "psi", 14.695949),
        (101.325, "kPa", "barg", 0.0),
        (2.5, "bara", "bar", 2.5),
        # NIST SP 811: a gallon (US) is 3.785412 L, a millimetre of water 9.80665 Pa.
        (1.0, "gpm", "L/min", 3.785412),
        (1.0, "mmWC", "Pa", 9.80665),
        (40.0, "%RH", "1", 0.4),
        # 22.41397 L/mol at 0 degC, 23.64483 L/mol at 15 degC, both at 101.325 kPa (CODATA's R).
        (22.41397e-3, "Nm3/h", "mol/h", 1.0),
        (23.64483e-3, "Sm3/h", "mol/h", 1.0),
        (1000.0, "Nm3/h", "kNm3/h", 1.0),
        (2.0, "Nm", "J", 2.0),
        (1.0, "kW h", "MJ", 3.6),
        (1.02, "pu", "1", 1.02),
    ],
)
def test_units(value: float, source: str, target: str, expected: float) -> None:
    scale, offset = conversion(source, target)
    assert scale * value + offset == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("bar", "K", "'bar' is a unit of pressure, but must be a unit of temperature, such as 'K'"),
        ("baar", "K", "'baar' is no unit such as degC, kPa, m3/h or 1: did you mean 'bar'?"),
        ("baar", "baar", "did you mean 'bar'?"),
        ("Nm3/h", "m3/h", "'Nm3/h' is a unit of [substance] / [time], but must be a unit of volume flow"),
        ("dBm", "W", "'dBm' is logarithmic"),
        ("__import__('os').system('true')", "K", "is no unit such as"),
        ("", "K", "is no unit such as"),
        ("m" * 1000, "m", "is no unit such as"),
    ],
)
def test_units_that_do_not_fit_are_named(source: str, target: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        conversion(source, target)
    assert says in str(caught.value)


def test_a_unit_needs_no_library_where_it_stays_what_it_is() -> None:
    code = "import sys; from configs.units import conversion; conversion('K', 'K'); sys.exit('pint' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        # By hand.
        ("-(next.temperature - setpoint) ** 2 / quantity(1, 'K') ** 2", "1", [-1.0, -36.0]),
        ("temperature", "K", [293.15, 298.15]),
        ("temperature", "degC", [20.0, 25.0]),
        ("next.temperature - temperature", "K", [1.0, 1.0]),
        ("level * level", "m**2", [1.0, 6.25]),
        ("level * quantity(2, 'kN')", "J", [2000.0, 5000.0]),
        ("sqrt(level * level)", "m", [1.0, 2.5]),
        ("min(valve, 0.25) + max(valve, 0.25) - clip(valve, 0.1, 0.2)", "1", [0.15, 0.55]),
        ("where(level > quantity(2, 'm'), 10, -valve)", "1", [0.0, 10.0]),
        ("exp(valve) - log(1 + valve) + abs(-valve)", "%", [100.0, (np.exp(0.5) - np.log(1.5) + 0.5) * 100]),
        ("quantity(-1, 'degC') - quantity(0, 'degC')", "K", [-1.0, -1.0]),
        ("2 ** -1 * +valve", "1", [0.0, 0.25]),
    ],
)
def test_formulas_by_hand(text: str, unit: str, expected: list[float]) -> None:
    found = compile_expression(text, UNITS, unit).compute(VALUES)
    np.testing.assert_allclose(np.broadcast_to(found, (2,)), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        # By hand: 1,500 rpm are 25 Hz and 50 pi rad/s, 3,000 rpm twice that.
        ("speed", "Hz", [25.0, 50.0]),
        ("speed", "rpm", [1500.0, 3000.0]),
        ("speed", "rad/s", [50 * np.pi, 100 * np.pi]),
        ("speed - quantity(25, 'Hz')", "Hz", [0.0, 25.0]),
        ("quantity(25, 'Hz') - speed", "rpm", [0.0, -1500.0]),
        ("frequency", "rpm", [600.0, 3000.0]),
        ("frequency - speed", "Hz", [-15.0, 0.0]),
        ("max(speed, frequency)", "Hz", [25.0, 50.0]),
        ("clip(frequency, quantity(900, 'rpm'), speed)", "Hz", [15.0, 50.0]),
        ("where(speed > quantity(26, 'Hz'), frequency, speed)", "rpm", [1500.0, 3000.0]),
        ("speed / frequency", "1", [2.5, 1.0]),
        ("speed / quantity(1500, 'rpm')", "1", [1.0, 2.0]),
        ("speed * quantity(2, 's')", "1", [50.0, 100.0]),
        ("(next.speed - speed) / quantity(2, 's')", "Hz/s", [12.5, 25.0]),
        ("gain * quantity(3, 's')", "Hz", [5.0, 10.0]),
        ("sqrt(speed ** 2)", "Hz", [25.0, 50.0]),
        ("1 / speed", "s", [0.04, 0.02]),
        ("-abs(-speed)", "Hz", [-25.0, -50.0]),
        # Elsewhere angles are radians: power is torque times rad/s, and the rim of a wheel moves at radius times rad/s.
        ("torque * speed", "W", [100 * np.pi, 200 * np.pi]),
        ("speed * quantity(50, 'cm')", "m/s", [25 * np.pi, 50 * np.pi]),
    ],
)
def test_turns_and_cycles_in_formulas_by_hand(text: str, unit: str, expected: list[float]) -> None:
    units = {"speed": "rpm", "next.speed": "rpm", "frequency": "Hz", "gain": "rpm/s", "torque": "N m"}
    values: dict[str, Any] = {
        "speed": np.array([1500.0, 3000.0]),
        "next.speed": np.array([3000.0, 6000.0]),
        "frequency": np.array([10.0, 50.0]),
        "gain": np.array([100.0, 200.0]),
        "torque": np.array([2.0, 2.0]),
    }
    found = compile_expression(text, units, unit).compute(values)
    np.testing.assert_allclose(np.broadcast_to(found, (2,)), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("__import__('os').system('true')", "'__import__('os').system('true')' is not allowed"),
        ("valve.__class__", "'valve.__class__' is not allowed"),
        ("next.next.temperature", "'next.next.temperature' is not allowed"),
        ("[valve for valve in (1, 2)]", "use numbers, signals"),
        ("(lambda: 1)()", "use numbers, signals"),
        ("valve if 1 else 2", "use numbers, signals"),
        ("valve and valve", "use numbers, signals"),
        ("valve[0]", "use numbers, signals"),
        ("f'{valve}'", "use numbers, signals"),
        ("(valve := 1)", "use numbers, signals"),
        ("valve % 2", "use + - * / or **"),
        ("'a' * 3", "'a' must be a finite number"),
        ("True", "True must be a finite number"),
        ("1e999", "inf must be a finite number"),
        ("9 ** 9 ** 9", "must be a number"),
        ("9 ** 99", "an exponent must be at most 8"),
        ("valve ** valve", "must be a number"),
        ("temperature + valve", "mixes a temperature and a ratio"),
        ("exp(temperature)", "exp needs a ratio"),
        ("temperature", "must be a ratio in '1', got a temperature"),
        ("pressure", "unknown signal 'pressure': choose from temperature"),
        ("next.valve", "unknown signal 'next.valve'"),
        ("min(valve)", "'min(valve)' is no known call"),
        ("abs(valve, key=1)", "use numbers, signals"),
        ("where(valve, 1, 2)", "must be a comparison"),
        ("where(valve < temperature, 1, 2)", "mixes a "),
        ("quantity(valve, 'K')", "must have the form quantity(number, 'unit')"),
        ("quantity(1, 'furlongs per')", "is no unit such as"),
        ("(((", "is no formula"),
        ("", "is no formula"),
        ("1" + " + 1" * 300, "the formula has"),
        ("(" * 400 + "1" + ")" * 400, "is no formula"),
        ("valve\0", "is no formula"),
    ],
)
def test_what_is_no_formula_is_named_and_nothing_is_run(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        compile_expression(text, UNITS, "1")
    assert says in str(caught.value)
