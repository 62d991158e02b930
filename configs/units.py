"""Conversion of units of measurement, by pint."""

from __future__ import annotations

import difflib
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pint import UnitRegistry
    from pint.util import UnitsContainer

MAX_LENGTH = 40
ALLOWED = re.compile(r"[\w\s%°µΩ./*^()·²³-]+")
"""Characters that a unit may contain."""

POWERS = re.compile(r"\*\*|\^")
POWER = re.compile(r"\s*\(?-?\d(\.\d{1,3})?\)?\s*($|[*/·) ].*)")
"""Text that may follow a power sign: one digit, because pint would compute 9**9**9."""

KINDS = {
    "1": "ratio",
    "K": "temperature",
    "m": "length",
    "kg": "mass",
    "s": "time",
    "A": "current",
    "m/s": "speed",
    "mol/m3": "concentration",
    "Pa": "pressure",
    "m3/s": "volume flow",
    "kg/s": "mass flow",
    "m3": "volume",
    "J": "energy",
    "W": "power",
    "V": "voltage",
    "Hz": "frequency",
}
"""Names of common quantities, by a unit of each."""


SPELLINGS = (
    (r"%\s*RH\b", "percent"),
    (r"\b(bar|mbar|kPa|MPa|Pa)\s*\(?g\)?(?!\w)", r"\1_gauge"),
    (r"\b(bar|mbar|kPa|MPa|Pa)\s*\(?a\)?(?!\w)", r"\1"),
    (r"\bpsi\s*\(?g\)?(?!\w)", "psi_gauge"),
    (r"\bpsi\s*\(?a\)?(?!\w)", "psi"),
    (r"\bmm\s*(WC|WS|H2O)\b", "millimeter_H2O"),
    (r"\b(k?)N\s*(m3|m\^3|m³)(?!\w)", r"\1normal_cubic_meter"),
    (r"\b(k?)S\s*(m3|m\^3|m³)(?!\w)", r"\1standard_cubic_meter"),
    (r"\b(k?)Nm\b(?!\d)", r"\1N*m"),
    (r"\b(gpm|GPM)\b", "gallon/minute"),
    (r"\b(lpm|LPM)\b", "liter/minute"),
)
"""Historians' spellings that pint misreads or does not know: 'bar(g)' would be bar times gram."""
ATMOSPHERE = 101_325.0
"""Pa, standard atmosphere: the reference of gauge pressures."""
DEFINITIONS = (
    "per_unit = 1 = pu",
    *(f"{name}_gauge = {scale} * pascal; offset: {ATMOSPHERE}" for name, scale in (
        ("bar", 1e5), ("mbar", 1e2), ("kPa", 1e3), ("MPa", 1e6), ("Pa", 1.0), ("psi", 6894.757293168361),
    )),
    # Amounts of an ideal gas at 101,325 Pa and 0 and 15 degC.
    "normal_cubic_meter = 44.61503341 * mole",
    "standard_cubic_meter = 42.29254338 * mole",
)  # fmt: skip
TURNS = re.compile(r"(revolutions?|turns?|cycles?)(_per_\w+)?|counts?_per_(second|minute)")
ANGLES = re.compile(r"(milli|micro|nano)?radian|degree|grade|arcminute|arcsecond")
HERTZ = re.compile(r"(kilo|mega|giga|milli)?hertz")
COMMON = {"1", "K", "degC", "m", "s", "kg", "Pa", "kPa", "bar", "%", "m3/h", "L/s", "kW", "W", "V", "A", "Hz", "m/s"}
"""Units that are known without importing pint, which is slow."""


@cache
def registry() -> UnitRegistry[float]:
    """Return pint's units and the units of DEFINITIONS."""
    import pint  # slow, so only at the first conversion

    units: UnitRegistry[float] = pint.UnitRegistry(autoconvert_offset_to_baseunit=True, cache_folder=None)
    for definition in DEFINITIONS:
        units.define(definition)
    return units


def parse(text: str) -> Any:
    """Parse a unit by pint: '1' is dimensionless, 'm3' is m**3.

    Raises:
        ValueError: if pint knows no such unit.
    """
    try:
        if len(text) > MAX_LENGTH or not ALLOWED.fullmatch(text) or not _plain_powers(text):
            raise ValueError(text)
        if text.strip() == "1":
            return registry().dimensionless
        # 'm3' and 'kg/m3' are how historians write powers; pint would look for a unit of that name.
        plain = text
        for written, meant in SPELLINGS:
            plain = re.sub(written, meant, plain)
        powers = re.sub(r"(?<=[A-Za-z])(\d)(?![\w.])", r"**\1", plain)
        return registry().parse_units(powers)
    except Exception as error:  # pint's tokenizer raises many kinds of errors
        near = difflib.get_close_matches(text[:MAX_LENGTH], [*COMMON, *dir(registry())], 1, 0.7)
        hint = f"did you mean '{near[0]}'?" if near else "write the unit as in pint"
        raise ValueError(f"'{text[:MAX_LENGTH]}' is no unit such as degC, kPa, m3/h or 1: {hint}") from error


def _plain_powers(text: str) -> bool:
    """Whether each exponent is one digit, and no power has a power."""
    _, *exponents = POWERS.split(text)
    return all(POWER.fullmatch(part) for part in exponents) and all(
        any(character.isalpha() for character in part) for part in exponents[:-1]
    )


def dimensions(unit: str) -> UnitsContainer:
    """Return the physical dimension of a unit, which supports *, / and **."""
    found: UnitsContainer = parse(unit).dimensionality
    return found


def kind(dimension: UnitsContainer) -> str:
    """Return the name of a dimension, such as 'temperature', or pint's formula."""
    return next((name for unit, name in KINDS.items() if dimensions(unit) == dimension), str(dimension))


@cache
def conversion(source: str, target: str) -> tuple[float, float]:
    """Return the scale a and offset b that convert units: target = a * source + b.

    Raises:
        ValueError: if a unit is unknown or logarithmic, or the dimensions differ.

    Example:
        >>> conversion("degC", "K")
        (1.0, 273.15)
    """
    if source == target:
        if source not in COMMON:
            parse(source)
        return 1.0, 0.0
    given, wanted = parse(source), parse(target)
    if given.dimensionality != wanted.dimensionality:
        raise ValueError(
            f"'{source}' is a unit of {kind(given.dimensionality)}, but must be a unit of "
            f"{kind(wanted.dimensionality)}, such as '{target}': correct it"
        )
    scale, offset = _affine(source, given, wanted, target)
    return scale * cycles(rotation(source), rotation(target), wanted.dimensionality), offset


class Rotation(NamedTuple):
    """Exponents of rotation in a unit: rpm has `turns` 1, rad/s has `angles` 1, Hz has `cycles` 1."""

    turns: float = 0.0
    angles: float = 0.0
    cycles: float = 0.0

    def times(self, other: Rotation, power: float = 1.0) -> Rotation:
        """Return the exponents of this unit times `other**power`."""
        return Rotation(*(mine + power * theirs for mine, theirs in zip(self, other, strict=True)))


@cache
def rotation(unit: str) -> Rotation:
    """Return the exponents of turns, angles and cycles in a unit."""
    powers = parse(unit)._units.items()
    kinds = (TURNS, ANGLES, HERTZ)
    return Rotation(*(float(sum(power for name, power in powers if kind.fullmatch(name))) for kind in kinds))


def cycles(one: Rotation, other: Rotation, dimension: UnitsContainer) -> float:
    """Return the factor by which pint's conversion from rotation `one` to rotation `other` must be multiplied.

    pint always treats a revolution as 2 pi. This factor removes 2 pi if `dimension` is a power of time, so that rpm
    converts to Hz and rpm/s to Hz/s. Otherwise 2 pi stays, so that torque times rpm is a power.
    """
    if set(dimension) - {"[time]"}:
        return 1.0
    return _dropped(one, other) / _dropped(other, one)


def _dropped(one: Rotation, other: Rotation) -> float:
    """Return the factor that removes 2 pi from `one` if `other` counts neither turns nor angles."""
    if other.turns or other.angles:
        return 1.0
    return math.pow(math.tau, -(one.turns or (one.angles if other.cycles else 0.0)))


@cache
def to_base(unit: str) -> tuple[float, float]:
    """Return the scale and offset that convert a value into SI base units: kelvin, not degC.

    Raises:
        ValueError: if the unit is unknown or logarithmic.
    """
    given = parse(unit)
    return _affine(unit, given, registry().get_base_units(given)[1], "its base unit")


def _affine(source: str, given: Any, wanted: Any, target: str) -> tuple[float, float]:
    at = [float(registry().Quantity(x, given).to(wanted).magnitude) for x in (0.0, 1000.0, 2000.0)]
    scale, offset = (at[1] - at[0]) / 1000.0, at[0]
    if abs(at[2] - at[1] - (at[1] - at[0])) > 1e-9 * max(abs(at[1] - at[0]), 1e-300):
        raise ValueError(
            f"'{source}' is logarithmic, so no factor and offset convert it to '{target}': convert it in the historian"
        )
    return scale, offset
