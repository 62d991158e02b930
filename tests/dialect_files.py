"""Small tables in the dialects of public logs, made of the known numbers `VALUES`.

The formats are those of SKAB (waico), BATADAL (Taormina et al. 2018), UCI's appliances energy (Candanedo et al. 2017),
a wind turbine's SCADA export, and the Tennessee Eastman files of Braatz's group (d00.dat: 52 rows, no names, no clock).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]


class DialectFile(NamedTuple):
    """A file and the expected content."""

    path: Path
    columns: tuple[str, ...]
    """Signal names of the mapping."""
    values: Table
    """(rows, signals)"""
    first: str
    """Time of the first row in UTC; '' without a clock."""
    period: float
    """s"""


def numbers(rows: int, signals: int) -> Table:
    """Return values with two decimals that never repeat: 10 k + j + k / 100 for signal j in row k."""
    k = np.arange(rows)[:, None]
    return np.round(10.0 * (k % 7) + np.arange(signals) + k / 100.0, 2)


def skab(folder: Path, rows: int = 40) -> DialectFile:
    """Write `datetime;...;anomaly;changepoint`, one row per second."""
    names = ("Accelerometer1RMS", "Current", "Pressure", "Temperature", "Volume Flow RateRMS")
    values = numbers(rows, len(names))
    lines = [";".join(("datetime", *names, "anomaly", "changepoint"))]
    for k, row in enumerate(values):
        lines.append(";".join([f"2020-03-09 10:14:{k:02d}", *(f"{x}" for x in row), "0.0", "1.0" if k == 9 else "0.0"]))
    path = folder / "valve1.csv"
    path.write_text("\n".join(lines) + "\n")
    return DialectFile(path, names, values, "2020-03-09T10:14:00", 1.0)


def batadal(folder: Path, hours: int = 24 * 9, begin: str = "2014-01-06T00") -> DialectFile:
    """Write `DATETIME` as `06/01/14 00`, with levels, flows and pump states."""
    names = ("L_T1", "L_T2", "F_PU1", "P_J280", "S_PU1")
    values = numbers(hours, len(names))
    values[:, 4] = np.arange(hours) // 6 % 2
    times = np.datetime64(begin, "h") + np.arange(hours)
    lines = [",".join(("DATETIME", *names, "ATT_FLAG"))]
    for time, row in zip(times.astype(object), values, strict=True):
        lines.append(",".join([time.strftime("%d/%m/%y %H"), *(f"{x}" for x in row[:4]), f"{row[4]:.0f}", "0"]))
    path = folder / "BATADAL_dataset03.csv"
    path.write_text("\r\n".join(lines) + "\r\n")
    return DialectFile(path, names, values, f"{begin}:00:00", 3600.0)


def appliances(folder: Path, rows: int = 30) -> DialectFile:
    """Write quoted cells, `2016-01-11 17:00:00`, ten minutes apart, watt-hours in steps of ten."""
    names = ("Appliances", "lights", "T1", "RH_1", "T_out")
    values = numbers(rows, len(names))
    values[:, 0] = 10 * (5 + np.arange(rows) % 4)
    values[:, 1] = 10 * (np.arange(rows) // 10)
    times = np.datetime64("2016-01-11T17:00:00") + 600 * np.arange(rows)
    lines = [",".join(f'"{name}"' for name in ("date", *names))]
    for time, row in zip(times.astype(object), values, strict=True):
        lines.append(",".join([f'"{time:%Y-%m-%d %H:%M:%S}"', *(f'"{x:g}"' for x in row)]))
    path = folder / "energydata_complete.csv"
    path.write_text("\n".join(lines) + "\n")
    return DialectFile(path, names, values, "2016-01-11T17:00:00", 600.0)


def turbine(folder: Path, rows: int = 30, comma: bool = True) -> DialectFile:
    """Write tabs, cp1252, `2014:10:07 00:10:00`, units and degree signs in the header, decimal commas, a preamble."""
    names = ("Wind speed [m/s]", "Pitch angle [°]", "Generator temp. [°C]", "Power SP [kW]", "Power [kW]")
    values = numbers(rows, len(names))
    values[:, 3] = 1500.0 + 100.0 * (np.arange(rows) // 15)
    times = np.datetime64("2014-10-07T00:10:00") + 600 * np.arange(rows)
    lines = ["Turbine 7, exported 2014", "", "\t".join(("Time", *names))]
    for time, row in zip(times.astype(object), values, strict=True):
        cells = "\t".join(f"{x:.2f}" for x in row)
        lines.append(f"{time:%Y:%m:%d %H:%M:%S}\t" + (cells.replace(".", ",") if comma else cells))
    path = folder / "turbine.txt"
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    return DialectFile(path, names, values, "2014-10-07T00:10:00", 600.0)


def eastman(folder: Path, rows: int = 60, signals: int = 8) -> DialectFile:
    """Write one row per variable with blanks between numbers as in Fortran, without names and clock."""
    values = numbers(rows, signals)
    path = folder / "d00.dat"
    path.write_text("".join("".join(f"{x:16.7E}" for x in column) + "\n" for column in values.T))
    return DialectFile(path, tuple(f"row_{i}" for i in range(1, signals + 1)), values, "", 180.0)


MAKERS: dict[str, Callable[[Path], DialectFile]] = {
    "skab": skab,
    "batadal": batadal,
    "appliances": appliances,
    "turbine": turbine,
    "turbine with points": lambda folder: turbine(folder, comma=False),
    "eastman": eastman,
}
