"""Generate a historian export of the reactor with the usual faults of real logs, reproducible from a seed.

The export is a long table (tag String, timestamp Datetime[us, UTC], value Float64, status UInt32), sorted by time:

| tag          | role                    | unit  | archived                                                     |
|--------------|-------------------------|-------|--------------------------------------------------------------|
| AI-101.PV    | concentration           | mol/L | sloped, once per control period, up to 0.25 s off the grid   |
| TI-101.PV    | reactor temperature     | degC  | sloped, likewise                                             |
| TI-102.PV    | coolant in force        | degC  | stepped, when moved by 0.01 K, some 1 s after the command    |
| TIC-102.OP   | coolant command: action | degC  | stepped, at every control instant                            |
| AIC-101.SP   | concentration set point | mol/L | stepped, when changed                                        |
| AIC-101.MODE | mode                    |       | stepped, when changed: 2 auto, 1 manual, 0 maintenance       |

Control instants are START + k · 26 s, and the first row of TIC-102.OP is the first of them. At an instant, command and
set point are those of the step that begins, and the coolant is that of the step before, as in the plant's observation.
Tags archived by exception repeat every ten minutes and after an outage of the archive. Statuses are OPC UA's
(Good 0x00000000, Uncertain 0x40000000, Bad 0x80000000).

`truth.npz` contains every control instant: the values an ideal import would find, and hidden ones. Interpolating
jittered samples at an instant mixes in about 1 % of a neighbour: a few 1e-3 K, most of it noise.
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
"""Steps, nearly ten minutes, after which a tag archived by exception is repeated."""
COOLANT_DEADBAND = 0.01
"""K"""
KELVIN = 273.15
BURNT_OUT = 1372.0
"""degC, the top of the thermocouple's range, shown when it is broken."""
AMBIENT = 25.0
"""degC"""


class Reports(NamedTuple):
    """Archived rows of one tag."""

    times: Times
    values: Floats
    statuses: npt.NDArray[np.uint32]


class GeneratedLog(Record):
    """A generated historian export, with the truth."""

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
    """Write `historian.parquet` (or `.csv`) and `truth.npz`; the same seed gives the same bytes.

    Args:
        plant_name: chemical_reactor, the only plant with a history.
        folder: made if absent; files of the same names are replaced atomically.
        seed: for schedule, disturbances, noise and faults of the archive.
        weeks: length of the record.
        progress: called with (done, total, unit).
        file_format: of the export.
        nominal: the reactor's constants, which differ between sites of a fleet.

    Raises:
        BadInput: if the plant is not the reactor, the record is shorter than an hour, or the disk is full.
    """
    if plant_name not in HISTORIES:
        raise BadInput(
            f"only chemical_reactor has a generated history, not '{plant_name}': give --behaviour to generate episodes."
        )
    steps = round(weeks * WEEK_NS / PERIOD_NS)
    if not HOUR <= steps <= 1000 * 7 * DAY:
        raise BadInput(f"a record must be between an hour and 1000 weeks, got {weeks} weeks: change --weeks.")
    if seed < 0:
        raise BadInput(f"the seed must not be negative, got {seed}: choose another.")
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
    """Return the archive of a run (N,) under a schedule: each tag's rows, in order of time, with jitter and faults."""
    steps = len(plan.mode)
    grid = START_NS + PERIOD_NS * np.arange(steps, dtype=np.int64)
    lost = _windows(rng, steps, per_day=0.8, shortest=2 * 60 // 26, longest=40 * 60 // 26)
    lost[:HEARTBEAT] = False
    still = plan.mode == MAINTENANCE
    # During a stop the analyser reports Bad; the thermocouple shows the open reactor with status Good.
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
    """Mark random stretches of `shortest` to `longest` steps, `per_day` of them on average."""
    inside = np.zeros(steps, bool)
    for begin in np.flatnonzero(rng.random(steps) < per_day / DAY):
        inside[begin : begin + int(rng.integers(shortest, longest + 1))] = True
    return inside


def _sampled(rng: np.random.Generator, grid: Times, values: Floats) -> Reports:
    """Sample a signal once per period near the control instants, on the chord between them."""
    times = grid + rng.integers(-JITTER_NS, JITTER_NS + 1, len(grid))
    times[0] = grid[0]
    return Reports(times, np.interp(times - grid[0], grid - grid[0], values), _good(len(grid)))


def _by_exception(values: Floats, deadband: float, lost: Mask) -> Mask:
    """Mark the archived values: those outside the deadband, heartbeats, and the first after an outage."""
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
