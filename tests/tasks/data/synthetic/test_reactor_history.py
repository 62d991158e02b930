"""The generated history of the reactor: contents, faults, and recovery of the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from neorl_core.plants import chemical_reactor as reactor
from tasks.data.historian.resample import BAD, GOOD, UNCERTAIN, Rule, Samples, known_at
from tasks.data.synthetic.reactor_history import HEARTBEAT, KELVIN, PERIOD_NS, START_NS, WEEK_NS, GeneratedLog, generate
from tasks.data.synthetic.reactor_run import AUTO, MAINTENANCE, MANUAL
from tasks.files.canonical import file_sha256

WEEKS = 1.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> GeneratedLog:
    return generate("chemical_reactor", tmp_path_factory.mktemp("log"), seed=7, weeks=WEEKS)


@pytest.fixture(scope="module")
def table(log: GeneratedLog) -> pl.DataFrame:
    return pl.read_parquet(log.path)


@pytest.fixture(scope="module")
def truth(log: GeneratedLog) -> dict[str, np.ndarray]:
    with np.load(log.truth, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def history(table: pl.DataFrame, tag: str) -> Samples:
    rows = table.filter(pl.col("tag") == tag)
    times = rows["timestamp"].dt.epoch("ns").to_numpy()
    return Samples(times, rows["value"].to_numpy(), rows["status"].to_numpy())


def test_table_as_documented(log: GeneratedLog, table: pl.DataFrame) -> None:
    assert table.schema == {
        "tag": pl.String(),
        "timestamp": pl.Datetime("us", "UTC"),
        "value": pl.Float64(),
        "status": pl.UInt32(),
    }
    assert (log.rows, log.steps) == (len(table), round(WEEKS * WEEK_NS / PERIOD_NS))
    assert set(table["tag"].unique()) == set(log.tags)
    assert log.sha256 == file_sha256(log.path)
    assert table["timestamp"].is_sorted()
    assert not table.select("tag", "timestamp").is_duplicated().any()
    assert set(table["status"].unique()) == {GOOD, UNCERTAIN, BAD}
    assert table["value"].is_finite().all()


def test_the_seed_determines_the_bytes(tmp_path: Path) -> None:
    logs = [generate("chemical_reactor", tmp_path / str(i), seed, 0.1) for i, seed in enumerate((3, 3, 4))]
    assert logs[0].sha256 == logs[1].sha256 != logs[2].sha256
    assert logs[0].truth_sha256 == logs[1].truth_sha256 != logs[2].truth_sha256
    table = generate("chemical_reactor", tmp_path / "csv", 3, 0.1, file_format="csv")
    read = pl.read_csv(table.path, schema_overrides={"status": pl.UInt32}).with_columns(
        pl.col("timestamp").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
    )
    assert read.equals(pl.read_parquet(logs[0].path))
    assert {path.name for path in (tmp_path / "csv").iterdir()} == {"historian.csv", "truth.npz"}


def test_interpolation_recovers_the_truth(table: pl.DataFrame, truth: dict[str, np.ndarray]) -> None:
    grid = truth["timestamps"]
    assert grid[0] == START_NS
    assert set(np.diff(grid)) == {PERIOD_NS}
    signals = {
        # tag: truth, offset of the archive's unit, tolerance, stepped
        "AI-101.PV": (truth["observations"][:, 0], 0.0, 2e-4, False),
        # A neighbour has a share of at most 1 % and differs by some tenths of a kelvin, in a pulse by 4 K.
        "TI-101.PV": (truth["observations"][:, 1], KELVIN, 0.04, False),
        "TI-102.PV": (truth["observations"][:, 2], KELVIN, 0.0101, True),
        "AIC-101.SP": (truth["observations"][:, 3], 0.0, 1e-6, True),
        "TIC-102.OP": (truth["actions"][:, 0], KELVIN, 1e-4, True),
        "AIC-101.MODE": (truth["mode"], 0.0, 0.0, True),
    }
    seen = np.diff(history(table, "TIC-102.OP").times, prepend=grid[0] - PERIOD_NS)
    assert (seen >= PERIOD_NS).all()
    archived = np.isin(grid, history(table, "TIC-102.OP").times)
    # Compare instants that were archived like both neighbours, while the reactor was not open.
    sound = archived & np.roll(archived, 1) & np.roll(archived, -1)
    around = np.convolve(truth["mode"] == MAINTENANCE, np.ones(3), "same") > 0
    sound &= ~around
    for tag, (expected, offset, tolerance, stepped) in signals.items():
        found = known_at(history(table, tag), grid, Rule(stepped, max_gap=30 * 10**9), end=int(grid[-1]))
        good = sound & ~np.isnan(found.values) & ~found.across_bad
        assert good.mean() > 0.9
        assert np.abs(found.values + offset - expected)[good].max() <= tolerance, tag


def test_the_truth_follows_the_plants_equations(truth: dict[str, np.ndarray]) -> None:
    # The model without noise and disturbance may be off by their effect in one step.
    running = (truth["mode"] != MAINTENANCE)[:-1]
    observed, actions = truth["observations"], truth["actions"]
    np.testing.assert_array_equal(observed[1:, 2][running], actions[:-1, 0][running])
    import jax

    true = observed.copy()
    true[:, 1] = truth["temperature"]
    predicted, margins = jax.jit(jax.vmap(lambda o, a: reactor.predict(o, a, reactor.NOMINAL)))(true[:-1], actions[:-1])
    error = (np.asarray(predicted)[:, 1] - true[1:, 1])[running]
    # A feed deviation of sd 0.5 K changes the reactor by about 0.5 (26/60) = 0.2 K, drifting constants by as much.
    assert 0.1 < error.std() < 0.5
    assert np.abs(np.asarray(predicted)[:, 0] - true[1:, 0])[running].max() < 0.01
    assert margins.min() > 1.0
    noise = observed[:, 1] - truth["temperature"]
    assert noise[truth["mode"] == AUTO].std() == pytest.approx(0.1, rel=0.03)


def test_the_plant_stays_within_its_limits(truth: dict[str, np.ndarray]) -> None:
    temperature, pulse = truth["temperature"], truth["pulse"]
    plain = truth["actions"][:, 0] - pulse
    assert 317.0 < temperature.min() < temperature.max() < 331.0
    assert 295.0 - 1e-4 <= plain.min() <= plain.max() <= 302.0 + 1e-4
    assert -4.0 <= pulse.min() < -3.0 < 2.0 < pulse.max() <= 3.0
    assert not pulse[(truth["mode"] != AUTO) | (truth["dither"] != 0)].any()
    ends = np.flatnonzero(np.diff(np.r_[0.0, pulse, 0.0]))
    assert set(np.diff(ends)[::2]) == {1, 2}
    low, high = (float(reactor.steady_concentration(t, reactor.NOMINAL)) for t in (326.0, 322.0))
    assert low - 5e-4 <= truth["setpoint"].min() <= truth["setpoint"].max() <= high + 5e-4
    changes = np.diff(np.flatnonzero(np.diff(truth["setpoint"]))) * 26 / 60
    assert changes.min() > 9
    assert np.median(changes) == pytest.approx(35, abs=8)
    assert set(np.unique(truth["mode"])) == {MAINTENANCE, MANUAL, AUTO}
    assert set(np.unique(truth["dither"])) == {-0.5, 0.0, 0.5}
    assert not truth["dither"][truth["mode"] != AUTO].any()
    assert np.count_nonzero(truth["bump"]) > 10
    stop = np.flatnonzero(truth["mode"] == MAINTENANCE)
    assert (np.diff(stop) == 1).all()
    assert len(stop) * 26 / 3600 == pytest.approx(8, abs=0.1)
    for factor in ("reaction", "cooling"):
        assert 0 < np.abs(truth[factor] - 1).max() <= 0.01


def test_the_archive_has_the_usual_faults(table: pl.DataFrame, truth: dict[str, np.ndarray]) -> None:
    steps = len(truth["timestamps"])
    command = history(table, "TIC-102.OP")
    gaps = np.diff(command.times) // PERIOD_NS
    assert (gaps > 1).sum() >= 2
    assert gaps.max() <= 2 * 40 * 60 / 26
    assert 0.95 * steps < len(command.times) < steps
    jitter = history(table, "TI-101.PV").times - truth["timestamps"][np.isin(truth["timestamps"], command.times)]
    assert 0.2e9 < np.abs(jitter).max() <= 0.25e9
    temperature = history(table, "TI-101.PV")
    assert (temperature.values[temperature.statuses == BAD] > 1000).all()
    # While the reactor is open, the thermocouple shows the hall with status Good; only the mode reveals it.
    assert np.median(temperature.values[(temperature.values < 40) & (temperature.statuses == GOOD)]) == 25.0
    analyser = history(table, "AI-101.PV")
    assert 0.02 < (analyser.statuses == BAD).mean() < 0.15
    setpoints = history(table, "AIC-101.SP")
    assert len(setpoints.times) < steps / 10
    silence = np.diff(setpoints.times) / PERIOD_NS
    assert np.median(silence) <= HEARTBEAT
    back = command.times[1:][gaps > 1]
    assert np.isin(back, setpoints.times).all()


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    log = generate("chemical_reactor", tmp_path, 0, 0.25, lambda *news: told.append(news))
    assert told[-1] == (log.steps, log.steps, "steps")
    assert [news[0] for news in told] == sorted(news[0] for news in told)


@pytest.mark.parametrize(
    ("plant", "seed", "weeks", "message"),
    [
        ("double_mass", 0, 1.0, "only chemical_reactor has a historian export, got 'double_mass'"),
        ("chemical_reactor", -1, 1.0, "the seed must not be negative, got -1"),
        ("chemical_reactor", 0, 0.0, "the export must cover an hour to 1000 weeks, got 0.0"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, plant: str, seed: int, weeks: float, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        generate(plant, tmp_path / "log", seed, weeks)
    assert not (tmp_path / "log").exists()
