"""Units of measurement that a historian may use, and how they become a plant's."""

from __future__ import annotations

UNITS: dict[str, tuple[str, float, float]] = {
    # unit: (quantity, scale, offset); value in the quantity's base unit = scale * value + offset.
    "K": ("temperature", 1.0, 0.0),
    "degC": ("temperature", 1.0, 273.15),
    "degF": ("temperature", 5.0 / 9.0, 273.15 - 32.0 * 5.0 / 9.0),
    "mol/L": ("concentration", 1.0, 0.0),
    "kmol/m3": ("concentration", 1.0, 0.0),
    "mmol/L": ("concentration", 1e-3, 0.0),
    "mol/m3": ("concentration", 1e-3, 0.0),
    "1": ("ratio", 1.0, 0.0),
    "%": ("ratio", 1e-2, 0.0),
    "m": ("length", 1.0, 0.0),
    "cm": ("length", 1e-2, 0.0),
    "mm": ("length", 1e-3, 0.0),
    "m/s": ("speed", 1.0, 0.0),
    "cm/s": ("speed", 1e-2, 0.0),
    "mm/s": ("speed", 1e-3, 0.0),
    "V": ("voltage", 1.0, 0.0),
    "mV": ("voltage", 1e-3, 0.0),
}


def conversion(source: str, target: str) -> tuple[float, float]:
    """Scale and offset with which a value in unit `source` becomes one in unit `target`.

    Returns:
        (a, b) of target = a source + b.

    Raises:
        ValueError: when a unit is unknown, or the two measure different quantities.

    Example:
        >>> conversion("degC", "K")
        (1.0, 273.15)
    """
    for unit in (source, target):
        if unit not in UNITS:
            raise ValueError(f"expected a unit among {', '.join(UNITS)}, got '{unit}'")
    (quantity, a, b), (wanted, c, d) = UNITS[source], UNITS[target]
    if quantity != wanted:
        raise ValueError(f"expected a unit of {wanted} such as '{target}', got '{source}', a unit of {quantity}")
    return a / c, (b - d) / c
