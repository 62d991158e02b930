"""Units of measurement, by pint: how a value in a historian's unit becomes one in a plant's."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pint import UnitRegistry
    from pint.util import UnitsContainer

MAX_LENGTH = 40
ALLOWED = re.compile(r"[\w\s%°µΩ./*^()·²³-]+")
"""What a unit may be written with; pint reads it with a tokenizer of its own and evaluates nothing."""

POWERS = re.compile(r"\*\*|\^")
POWER = re.compile(r"\s*\(?-?\d(\.\d{1,3})?\)?\s*($|[*/·) ].*)")
"""What may stand behind a sign of power: one digit, for pint would compute 9**9**9."""

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
"""Names of the commonest quantities, by a unit of each."""


@cache
def registry() -> UnitRegistry[float]:
    """pint's units, and per unit of the base (pu) besides; imported when the first conversion is asked for."""
    import pint

    units: UnitRegistry[float] = pint.UnitRegistry(autoconvert_offset_to_baseunit=True, cache_folder=None)
    units.define("per_unit = 1 = pu")
    return units


def parse(text: str) -> Any:
    """A unit as pint has it: '1' is no unit, 'm3' is m**3.

    Raises:
        ValueError: when pint knows no such unit.
    """
    try:
        if len(text) > MAX_LENGTH or not ALLOWED.fullmatch(text) or not _plain_powers(text):
            raise ValueError(text)
        if text.strip() == "1":
            return registry().dimensionless
        # 'm3' and 'kg/m3' are how historians write powers; pint would look for a unit of that name.
        powers = re.sub(r"(?<=[A-Za-z])(\d)(?![\w.])", r"**\1", text)
        return registry().parse_units(powers)
    except Exception as error:  # pint's tokenizer lets Python's own errors through, of many kinds
        raise ValueError(
            f"expected a unit such as degC, kPa, m3/h or 1, got '{text[:MAX_LENGTH]}': write it as pint does"
        ) from error


def _plain_powers(text: str) -> bool:
    """Whether each exponent is one digit, and none is raised to a power itself."""
    _, *exponents = POWERS.split(text)
    return all(POWER.fullmatch(part) for part in exponents) and all(
        any(character.isalpha() for character in part) for part in exponents[:-1]
    )


def dimensions(unit: str) -> UnitsContainer:
    """The physical dimension of a unit, which can be multiplied, divided and raised to powers."""
    found: UnitsContainer = parse(unit).dimensionality
    return found


def kind(dimension: UnitsContainer) -> str:
    """What a dimension is called: 'temperature', or pint's own formula."""
    return next((name for unit, name in KINDS.items() if dimensions(unit) == dimension), str(dimension))


@cache
def conversion(source: str, target: str) -> tuple[float, float]:
    """Scale and offset with which a value in unit `source` becomes one in unit `target`.

    Returns:
        (a, b) of target = a source + b.

    Raises:
        ValueError: when a unit is unknown, the two measure different quantities, or one is logarithmic.

    Example:
        >>> conversion("degC", "K")
        (1.0, 273.15)
    """
    if source == target:
        return 1.0, 0.0
    given, wanted = parse(source), parse(target)
    if given.dimensionality != wanted.dimensionality:
        raise ValueError(
            f"expected a unit of {kind(wanted.dimensionality)} such as '{target}', got '{source}', a unit of "
            f"{kind(given.dimensionality)}"
        )
    return _affine(source, given, wanted, target)


@cache
def to_base(unit: str) -> tuple[float, float]:
    """Scale and offset with which a value becomes one in SI base units: kelvin, not degC.

    Raises:
        ValueError: when the unit is unknown or logarithmic.
    """
    given = parse(unit)
    return _affine(unit, given, registry().get_base_units(given)[1], "its base unit")


def _affine(source: str, given: Any, wanted: Any, target: str) -> tuple[float, float]:
    at = [float(registry().Quantity(x, given).to(wanted).magnitude) for x in (0.0, 1000.0, 2000.0)]
    scale, offset = (at[1] - at[0]) / 1000.0, at[0]
    if abs(at[2] - at[1] - (at[1] - at[0])) > 1e-9 * max(abs(at[1] - at[0]), 1e-300):
        raise ValueError(
            f"expected a unit that becomes '{target}' by a factor and an offset, got the logarithmic '{source}': "
            "convert it in the historian"
        )
    return scale, offset
