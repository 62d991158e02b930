"""Generate a historian export of the reactor with the usual faults of real logs, reproducible from a seed.

The export is a long table (tag String, timestamp Datetime[us, UTC], value Float64, status UInt32), sorted by time:

| tag          | role                    | unit  | archived                                                     |
|--------------|-------------------------|-------|--------------------------------------------------------------|
| AI-101.PV    | concentration           | mol/L | sloped, once per period, within 0.25 s of a control instant  |
| TI-101.PV    | reactor temperature     | degC  | sloped, once per period, within 0.25 s of a control instant  |
| TI-102.PV    | measured coolant        | degC  | stepped, when changed by 0.01 K, about 1 s after the command |
| TIC-102.OP   | coolant command: action | degC  | stepped, at every control instant                            |
| AIC-101.SP   | concentration set point | mol/L | stepped, when changed                                        |
| AIC-101.MODE | mode                    |       | stepped, when changed: 2 auto, 1 manual, 0 maintenance       |

Between samples, a sloped value follows a straight line and a stepped value stays constant. Control instants are every
26 s from the first row of TIC-102.OP on. At a control instant, command and set point belong to the step that begins;
the coolant belongs to the step before, as in the plant's observation. Tags that are archived when changed are also
archived every ten minutes and after an outage of the archive. Statuses are OPC UA's (Good 0x00000000, Uncertain
0x40000000, Bad 0x80000000).

`truth.npz` contains the true values at every control instant, including values that are not in the export. Values that
are interpolated from the export differ by a few 1e-3 K.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput
from neorl_core.plants.chemical_reactor import NOMINAL, Params
from tasks.data.historian.resample import BAD, GOOD, UNCERTAIN
from tasks.data.store.records import Record
from tasks.data.synthetic.reactor_run import DAY, HOUR, MAINTENANCE, Floats, Run, Schedule, draw_schedule, simulate
from tasks.files.canonical import SHARED, file_sha256, make_folder, writing

Times = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HISTORIES = ("chemical_reactor",)
START_NS = 1_767_571_200_000_000_000
"""2026-01-05T00:00:00Z, a Monday."""
PERIOD_NS = 26_000_000_000
WEEK_NS = 7 * 86_400 * 1_000_000_000
JITTER_NS = 250_000_000
HEARTBEAT = 23
"""Steps (about ten minutes) after which an unchanged value is archived again."""
COOLANT_DEADBAND = 0.01
"""Smallest change of the coolant that is archived, in K."""
KELVIN = 273.15
BURNT_OUT = 1372.0
"""Reading of a broken thermocouple in degC: the upper end of its range."""
AMBIENT = 25.0
"""Ambient temperature in degC."""


class Reports(NamedTuple):
    """Archived rows of one tag."""

    times: Times
    values: Floats
    statuses: npt.NDArray[np.uint32]


class GeneratedLog(Record):
    plant: str
    path: Path
    truth: Path
    sha256: str
    truth_sha256: str
    rows: int
    steps: int
    weeks: float
    seed: int
    tags: tuple[str, ...]


def generate(
    plant_name: str,
    folder: Path,
    seed: int,
    weeks: float = 3.0,
    progress: Callable[[int, int, str], None] | None = None,
    file_format: Literal["parquet", "csv"] = "parquet",
    nominal: Params = NOMINAL,
) -> GeneratedLog:
    """Simulate the reactor and write `historian.parquet` (or `.csv`) and `truth.npz`; equal seeds give equal bytes.

    Args:
        plant_name: chemical_reactor, the only plant with a historian export.
        folder: created if missing; existing files with these names are replaced.
        nominal: constants of the reactor; the sites of a fleet have different constants.

    Raises:
        BadInput: the plant is not the reactor, `weeks` or `seed` is out of range, or the disk is full.
    """
    if plant_name not in HISTORIES:
        raise BadInput(
            f"only chemical_reactor has a historian export, got '{plant_name}': give --behaviour to generate episodes."
        )
    steps = round(weeks * WEEK_NS / PERIOD_NS)
    if not HOUR <= steps <= 1000 * 7 * DAY:
        raise BadInput(f"the export must cover an hour to 1000 weeks, got {weeks} weeks: change --weeks.")
    if seed < 0:
        raise BadInput(f"the seed must not be negative, got {seed}: choose a positive seed.")
    plan = draw_schedule(np.random.default_rng([seed, 0]), steps)
    run = simulate(seed, plan, progress, nominal)
    archive = archive_of(np.random.default_rng([seed, 1]), plan, run)
    make_folder(folder)
    path, truth = folder / f"historian.{file_format}", folder / "truth.npz"
    rows = _write_table(path, archive)
    _write_truth(truth, plan, run)
    return GeneratedLog(
        plant=plant_name,
        path=path,
        truth=truth,
        sha256=file_sha256(path),
        truth_sha256=file_sha256(truth),
        rows=rows,
        steps=steps,
        weeks=weeks,
        seed=seed,
        tags=tuple(sorted(archive)),
    )


def archive_of(rng: np.random.Generator, plan: Schedule, run: Run) -> dict[str, Reports]:
    """Return the archived rows of each tag for a simulated run, in order of time, with jitter and faults."""
    steps = len(plan.mode)
    grid = START_NS + PERIOD_NS * np.arange(steps, dtype=np.int64)
    lost = _windows(rng, steps, per_day=0.8, shortest=2 * 60 // 26, longest=40 * 60 // 26)
    lost[:HEARTBEAT] = False
    still = plan.mode == MAINTENANCE
    # During a stop the analyser reports Bad; the thermocouple measures the open reactor with status Good.
    opened = still & np.roll(still, 10) & np.roll(still, -10)
    concentration = _sampled(rng, grid, run.observations[:, 0])
    temperature = _sampled(rng, grid, run.observations[:, 1] - KELVIN)
    _set(temperature, opened, AMBIENT, GOOD)
    _set(concentration, rng.random(steps) < 0.001, None, UNCERTAIN)
    _set(concentration, _windows(rng, steps, per_day=0.5, shortest=10, longest=25), None, BAD)
    _set(concentration, opened, 0.0, BAD)
    _set(temperature, rng.random(steps) < 0.001, None, UNCERTAIN)
    _set(temperature, rng.random(steps) < 0.0005, BURNT_OUT, BAD)
    coolant = run.observations[:, 2]
    in_force = Reports(
        grid - PERIOD_NS + rng.integers(500_000_000, 1_500_000_000, steps), coolant - KELVIN, _good(steps)
    )
    command = Reports(grid, run.actions[:, 0] - KELVIN, _good(steps))
    setpoint = Reports(grid, plan.setpoint, _good(steps))
    mode = Reports(grid, plan.mode.astype(float), _good(steps))
    keep = ~lost
    tags = {
        "AI-101.PV": (concentration, keep),
        "TI-101.PV": (temperature, keep),
        "TI-102.PV": (in_force, _by_exception(coolant, COOLANT_DEADBAND, lost)),
        "TIC-102.OP": (command, keep),
        "AIC-101.SP": (setpoint, _by_exception(plan.setpoint, 0.0, lost)),
        "AIC-101.MODE": (mode, _by_exception(mode.values, 0.0, lost)),
    }
    return {tag: Reports._make(column[kept] for column in reports) for tag, (reports, kept) in tags.items()}


def _good(steps: int) -> npt.NDArray[np.uint32]:
    return np.full(steps, GOOD, np.uint32)


def _set(reports: Reports, where: Mask, value: float | None, status: np.uint32) -> None:
    if value is not None:
        reports.values[where] = value
    reports.statuses[where] = status


def _windows(rng: np.random.Generator, steps: int, per_day: float, shortest: int, longest: int) -> Mask:
    """Mark random intervals of `shortest` to `longest` steps; on average, `per_day` intervals begin in a day."""
    inside = np.zeros(steps, bool)
    for begin in np.flatnonzero(rng.random(steps) < per_day / DAY):
        inside[begin : begin + int(rng.integers(shortest, longest + 1))] = True
    return inside


def _sampled(rng: np.random.Generator, grid: Times, values: Floats) -> Reports:
    """Sample a signal once per period, within `JITTER_NS` of a control instant, by linear interpolation."""
    times = grid + rng.integers(-JITTER_NS, JITTER_NS + 1, len(grid))
    times[0] = grid[0]
    return Reports(times, np.interp(times - grid[0], grid - grid[0], values), _good(len(grid)))


def _by_exception(values: Floats, deadband: float, lost: Mask) -> Mask:
    """Mark values to archive: changes beyond the deadband, repeats every `HEARTBEAT` steps, and after an outage."""
    keep = np.zeros(len(values), bool)
    last, age = np.inf, 0
    for i, value in enumerate(values.tolist()):
        age += 1
        returned = i > 0 and lost[i - 1]
        if not lost[i] and (abs(value - last) > deadband or age >= HEARTBEAT or returned):
            keep[i] = True
            last, age = value, 0
    return keep


def _write_table(path: Path, archive: dict[str, Reports]) -> int:
    import polars as pl

    frames = [
        pl.DataFrame({"timestamp": rows.times // 1000, "value": rows.values, "status": rows.statuses}).select(
            pl.lit(tag).alias("tag"), pl.col("timestamp").cast(pl.Datetime("us", "UTC")), "value", "status"
        )
        for tag, rows in archive.items()
    ]
    table = pl.concat(frames).sort("timestamp", "tag")
    with writing(path, SHARED) as temporary:
        if path.suffix == ".csv":
            table.write_csv(temporary, datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ")
        else:
            table.write_parquet(temporary, compression="zstd")
    return len(table)


def _write_truth(path: Path, plan: Schedule, run: Run) -> None:
    # NumPy would append .npz to the name of a path.
    with writing(path, SHARED) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            allow_pickle=False,
            timestamps=START_NS + PERIOD_NS * np.arange(len(plan.mode), dtype=np.int64),
            **run._asdict(),
            **plan._asdict(),
        )
