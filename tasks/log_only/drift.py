"""Drift detection: compare a plant's newest logs with the data of its champion or shadow.

Each signal is tested for a higher mean, a lower mean and a larger mean square; the errors of a one-step predictor are
tested too. Values are compared with the mean at the same time of the week or day in the reference. The tests compare
means of blocks of L steps, which are long enough to be uncorrelated. The evidence of a test is L times a
Shiryaev-Roberts sum of e-values. Without drift, the evidence of each test and the weighted mean of all tests grow by at
most one per step on average. Therefore the rate of false alarms applies to the whole plant. A season of a year is not
removed. If the reference shows such a season in a signal, the blocks are not independent and the signal is not
monitored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from configs.units import conversion
from neorl_core.safety.drift_detection import (
    LEAST_REFERENCE,
    SLOW,
    YEAR,
    alarm_threshold,
    all_slow,
    block_length,
    detect,
    p_slow,
)
from neorl_core.types import PlantSpec, varies
from neorl_core.world_model.prediction import fit_autoregression
from tasks.data.store.episodes import Logs, action_vectors, new_episodes, read_logs, vector_space
from tasks.data.store.reader import StoredDataset
from tasks.evidence.decisions import shadows
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.files.arrays import read_npz
from tasks.log_only.learned_model import load_model, one_step_scores, set_by_people
from tasks.models.plants.known import plant_of
from tasks.references import CandidateRecord, Dataset, DriftGroup, DriftRecord, LearnedModel, SignalDrift

Floats = npt.NDArray[np.float64]

PLATEAU = 0.9
"""Share of the highest peak of the autocorrelation that the first peak, at the period, must reach."""
AGAIN = 0.1
"""A signal is periodic if its autocorrelation, after the first zero crossing, exceeds this value again."""
MOST_ROWS = 1_300_000
"""Largest number of reference rows; a longer reference is cut to the newest rows. Two weeks of seconds fit."""
DAY = 86_400.0
SEASONS: tuple[tuple[Literal["week", "day"], float], ...] = (("week", 7 * DAY), ("day", DAY))
"""Seasons [s] that are removed from signals, if the reference repeats them often enough."""
REPEATS = 14
"""Smallest number of repetitions in the reference from which the mean at each time of a season is estimated."""
MODEL = "one-step prediction"


class NothingNewer(Refused):
    """The logs contain nothing newer than the champion's data."""


class Watched(NamedTuple):
    """Ledger entry and candidate's record of the champion or shadow."""

    entry: Entry
    record: CandidateRecord


class Season(NamedTuple):
    """Time of the day or week of each row, in steps."""

    name: Literal["week", "day"]
    phases: int
    known: npt.NDArray[np.int64]
    """(n,), of the reference."""
    new: npt.NDArray[np.int64]
    """(N,), of the newer logs."""


class Stream(NamedTuple):
    """Scores of one signal in the reference and in the newer logs. Drift increases the mean of a score."""

    name: str
    group: DriftGroup
    known: tuple[Floats, ...]
    """(n,) each: one number per step of the reference, in chronological order."""
    known_episode: npt.NDArray[np.int64]
    """(n,), index of each step's episode."""
    new: tuple[Floats, ...]
    """(N,) each: one number per step of the newer logs."""
    shift: float


def watched_of(ledger: Ledger, plant: str) -> Watched:
    """Return a plant's champion or shadow, with the candidate's record.

    Raises:
        Refused: if the plant has neither.
    """
    entries = ledger.entries()
    found = champion(entries, plant)
    if found is None and (shadow := shadows.shadow(entries, plant)) is not None:
        found = shadow.entry
    if found is None:
        raise Refused(f"{plant} has neither champion nor shadow to compare new logs with: retrain the plant")
    return Watched(found, record_of(ledger.entry(found.body["candidate"])).at(ledger.home.root))


def watch(home: Home, run: OpenedRun, dataset: Dataset, alarms_per_year: float) -> tuple[Entry, DriftRecord]:
    """Compare newer logs with the champion's data and log the result, or return the entry of an equal comparison.

    Args:
        dataset: the newer logs; episodes of the champion's dataset are left out.
        alarms_per_year: accepted false alarms per year.

    Raises:
        BadInput: if the rate is not positive.
        NothingNewer: if the logs contain nothing new.
        Refused: if there is neither champion nor shadow.
    """
    if not alarms_per_year > 0:
        raise BadInput(
            f"the number of false alarms per year must be positive, got {alarms_per_year:g}: use for example 0.1"
        )
    ledger = Ledger.open(home)
    watched = watched_of(ledger, run.plant)
    wanted = (watched.entry.digest, dataset.digest, alarms_per_year)
    for entry in ledger.entries("drift", run.plant):
        found = entry.read(DriftRecord)
        if (found.against, found.dataset, found.alarms_per_year) == wanted:
            return entry, found
    finding = _finding(run, watched, dataset, alarms_per_year)
    files = [artefact(home, dataset.manifest, "dataset manifest")]
    return ledger.append("drift", finding, plant=run.plant, artefacts=files), finding


def step_seconds(spec: PlantSpec) -> float:
    """Return the seconds per step; 1 if the plant's time has no unit."""
    try:
        return spec.dt * conversion(spec.time_unit, "s")[0]
    except ValueError:
        return 1.0


def evidence_of(
    streams: Iterable[Stream], new: Logs, step: float = 1.0, least_rows: int = 0, signals: int = 1
) -> tuple[Floats, list[SignalDrift]]:
    """Test the scores of all signals for drift in the newer logs.

    Args:
        new: the newer logs, N steps.
        step: length of a step [s].
        least_rows: smallest number of reference rows; `LEAST_REFERENCE` blocks are needed too.
        signals: number of streams.

    Returns:
        The log of the mean evidence after each step, (N,), which is -inf before the end of the first block. Also the
        result of each signal.
    """
    groups, counts = dict[DriftGroup, Floats](), Counter[DriftGroup]()
    found, slow, total = list[SignalDrift](), list[float](), np.full(len(new.episode), -np.inf)
    for stream in streams:
        own, one, p = _watch_stream(stream, new, step, least_rows, SLOW / signals)
        found.append(one)
        slow.append(p)
        if not one.needs_days:
            counts[stream.group] += 1
            groups[stream.group] = np.logaddexp(groups.get(stream.group, -np.inf), own)
    if all_slow(slow):
        # The slow change of each signal may be too weak to show in the signal alone. Its length is unknown.
        return total, [
            one.model_copy(
                update={
                    "needs_days": one.needs_days or one.reference_blocks * one.block_steps * step / DAY,
                    "log_evidence": 0.0,
                    "blocks": 0,
                }
            )
            for one in found
        ]
    for group, sums in groups.items():
        total = np.logaddexp(total, sums - math.log(len(groups) * counts[group]))
    return total, found


def stream_length(scores: Iterable[Floats], level: float = SLOW) -> int:
    """Return the block length of a signal: the longest of its scores (n,), in whole periods of a periodic signal."""
    needed, period = 1, 1
    for score in scores:
        needed = max(needed, block_length(score, level))
        period = max(period, _period(score, max(len(score) // LEAST_REFERENCE, 1)))
    return math.ceil(needed / period) * period


def _period(score: Floats, longest: int) -> int:
    """Return the period of a signal in steps, such as a day; 1 if it is not periodic.

    Blocks shorter than a period are not exchangeable, even if they are uncorrelated.
    """
    x = score - score.mean()
    if longest < 2 or not (variance := float(x @ x)) > 0:
        return 1
    transformed = np.fft.rfft(x, 2 * x.size)
    rho = np.fft.irfft(transformed * np.conj(transformed))[: longest + 1] / variance
    later = np.arange(longest + 1) >= int(np.argmax(rho <= 0)) if (rho <= 0).any() else np.zeros(longest + 1, bool)
    most = float(rho[later].max()) if later.any() else 0.0
    if most < AGAIN:
        return 1
    # Take the first peak that is about as high as the highest.
    first = int(np.argmax(later & (rho >= PLATEAU * most)))
    return first + int(np.argmax(rho[first : first + first // 2 + 1]))


def days_needed(rows: int, blocks: int, length: int, step: float, least_rows: int = 0) -> float:
    """Return the days of further reference that a signal needs; 0 if the reference is long enough.

    Args:
        rows: reference rows.
        blocks: blocks of `length` steps in these rows.
        length: block length in steps.
        step: length of a step [s].
        least_rows: smallest number of reference rows; `LEAST_REFERENCE` blocks are needed too.
    """
    if rows < least_rows:
        # Blocks with a daily season say nothing about the length of blocks without this season.
        return (least_rows - rows) * step / DAY
    return max(LEAST_REFERENCE - blocks, 0) * (max(length, rows / blocks) if blocks else length) * step / DAY


def season_rows(step: float) -> int:
    """Return the smallest number of reference rows from which a daily season can be removed."""
    return math.ceil(REPEATS * DAY / step)


def _watch_stream(
    stream: Stream, new: Logs, step: float, least_rows: int, level: float
) -> tuple[Floats, SignalDrift, float]:
    """Return the log evidence of one signal after each step, (N,), its result, and its p-value of `p_slow`."""
    rows = len(new.episode)
    # The second score is the first with the other sign.
    scores = [score for i, score in enumerate(stream.known) if i != 1]
    length = stream_length(scores, level / len(scores))
    known = len(_blocks(stream.known[0], stream.known_episode, length)[0])
    needs = days_needed(len(stream.known_episode), known, length, step, least_rows)
    own, blocks = np.full(rows, -np.inf), 0
    for before, after in zip(stream.known, stream.new, strict=True) if not needs else ():
        reference, _ = _blocks(before, stream.known_episode, length)
        means, ends = _blocks(after, new.episode, length)
        blocks = len(means)
        if blocks:
            log_sums = detect(reference, means, math.inf).log_evidence + math.log(length)
            held = np.repeat(log_sums, np.diff(np.append(ends, rows)))
            own[ends[0] :] = np.logaddexp(own[ends[0] :], held - math.log(len(stream.known)))
    finding = SignalDrift(
        name=stream.name,
        group=stream.group,
        shift=stream.shift,
        # Without a block the evidence has its initial value, 1.
        log_evidence=float(own.max()) if blocks else 0.0,
        blocks=blocks,
        reference_blocks=known,
        block_steps=length,
        needs_days=needs,
    )
    # Blocks of a signal that needs more days are as long as the reference allows.
    tested = max(min(length, len(scores[0]) // LEAST_REFERENCE), 1)
    return own, finding, min(1.0, len(scores) * min(p_slow(score, tested) for score in scores))


def _blocks(scores: Floats, episode: npt.NDArray[np.int64], length: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the means of blocks with at least `length` steps, and the last step of each.

    A block consists of whole episodes, because the beginnings of episodes are alike. Longer episodes are cut.
    """
    lasts = np.flatnonzero(np.diff(episode, append=episode[-1] + 1)).tolist()
    ends, begin = list[int](), 0
    for last in lasts:
        parts = (last + 1 - begin) // length
        if parts:
            ends += [begin + length * part - 1 for part in range(1, parts)] + [last]
            begin = last + 1
    if not ends:
        return np.empty(0), np.empty(0, np.int64)
    starts = np.asarray([0, *(end + 1 for end in ends[:-1])])
    sums = np.add.reduceat(scores[: ends[-1] + 1], starts)
    return sums / np.diff(np.append(starts, ends[-1] + 1)), np.asarray(ends)


def _finding(run: OpenedRun, watched: Watched, dataset: Dataset, alarms_per_year: float) -> DriftRecord:
    spec, record = plant_of(run).spec, watched.record
    own = StoredDataset.open(record.dataset.store, record.dataset.digest)
    store = StoredDataset.open(dataset.store, dataset.digest)
    unseen = new_episodes(store, own)
    # Monitoring also reads the files of the champion's data. Their episodes may look new if the mapping has changed.
    same = {source.sha256 for source in dataset.sources} <= {source.sha256 for source in record.dataset.sources}
    if same or not unseen.size:
        raise NothingNewer(f"version {record.version} of {run.plant} was trained on all of these logs: name newer logs")
    newest, step = _newest(own), step_seconds(spec)
    known, new = read_logs(own, newest), read_logs(store, unseen)
    stamps = [_stamps(own, newest), _stamps(store, unseen)]
    season = season_of(stamps[0], stamps[1], step)
    streams = chain(signal_streams(spec, known, new, season), (_model(spec, record.model, known, new, season),))
    # Without timestamps, episodes are of a simulator, which has no time of day.
    least_rows = season_rows(step) if len(stamps[0]) and step < DAY else 0
    signals = len(spec.observation.names) + len(vector_space(spec).names) + 2  # the reward and the model's errors
    evidence, found = evidence_of(streams, new, step, least_rows, signals)
    bar = math.log(alarm_threshold(YEAR / step, alarms_per_year))
    reached = np.flatnonzero(evidence >= bar)
    most = float(evidence.max())
    return DriftRecord(
        against=watched.entry.digest,
        reference=own.digest,
        dataset=store.digest,
        rows=len(new.episode),
        episodes=len(new.starts),
        left_out=len(store.episode_digests) - len(unseen),
        model="linear model" if record.model is None else "learned model",
        step_seconds=step,
        season=season.name if season else "none",
        alarms_per_year=alarms_per_year,
        log_evidence=most if math.isfinite(most) else 0.0,
        log_threshold=bar,
        alarm=_place(int(reached[0]), new) if reached.size else None,
        signals=tuple(found),
    )


def _newest(store: StoredDataset) -> npt.NDArray[np.int64]:
    """Return the numbers of a dataset's newest episodes, up to the limit of rows."""
    lengths = np.diff(store.episodes)
    behind = np.cumsum(lengths[::-1])[::-1]
    return np.flatnonzero((behind <= MOST_ROWS) | (np.arange(len(lengths)) == len(lengths) - 1))


def _stamps(store: StoredDataset, episodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the time of each row of episodes in ns since 1970; empty without timestamps."""
    if "timestamps" not in store.keys:
        return np.empty(0, np.int64)
    return np.concatenate([block["timestamps"] for block in store.episode_blocks(episodes, ("timestamps",))])


def season_of(known: npt.NDArray[np.int64], new: npt.NDArray[np.int64], step: float) -> Season | None:
    """Return the longest season that the reference repeats `REPEATS` times; None without such a season.

    Args:
        known: (n,), time of each step of the reference in ns since 1970; may be empty.
        new: (N,), time of each step of the newer logs.
        step: length of a step [s].
    """
    for name, seconds in SEASONS:
        if len(known) * step >= REPEATS * seconds > 2 * REPEATS * step and len(new):
            phases = math.ceil(seconds / step)
            since = [np.minimum(stamps % round(seconds * 1e9) / (step * 1e9), phases - 1) for stamps in (known, new)]
            return Season(name, phases, since[0].astype(np.int64), since[1].astype(np.int64))
    return None


def deseasonalised(known: Floats, new: Floats, season: Season | None) -> tuple[Floats, Floats]:
    """Subtract the mean of the reference at the same time of the season.

    A step of the reference is compared with the mean of the other steps of its phase. So the errors of the means
    have nearly equal effects on the reference and on newer logs.

    Args:
        known: (n,), the reference.
        new: (N,), the newer logs.
    """
    if season is None:
        return known, new
    counts = np.bincount(season.known, minlength=season.phases)
    means = np.bincount(season.known, known, season.phases) / np.maximum(counts, 1)
    means = np.where(counts > 1, means, known.mean())
    scale = np.where(counts > 1, counts / np.maximum(counts - 1, 1), 1.0)
    return (known - means[season.known]) * scale[season.known], new - means[season.new]


def signal_streams(spec: PlantSpec, known: Logs, new: Logs, season: Season | None = None) -> Iterator[Stream]:
    """Yield three scores of each signal: standardised by the reference, for a higher and a lower mean, and squared."""
    groups: tuple[tuple[DriftGroup, tuple[str, ...]], ...] = (
        ("observations", spec.observation.names),
        ("actions", vector_space(spec).names),
        ("rewards", ("reward",)),
    )
    before, after = _columns(spec, known), _columns(spec, new)
    for group, names in groups:
        mean, deviation = before[group].mean(axis=0), before[group].std(axis=0)
        # A signal that is constant in the reference gets a tiny scale, so that small changes count.
        deviation = np.where(varies(mean, deviation), deviation, 1e-6 * np.abs(mean) + 1e-9)
        for i, name in enumerate(names):
            z, z_new = ((columns[group][:, i] - mean[i]) / deviation[i] for columns in (before, after))
            yield three_scores(name, group, z, known.episode, z_new, season)


def three_scores(
    name: str, group: DriftGroup, known: Floats, episode: npt.NDArray[np.int64], new: Floats, season: Season | None
) -> Stream:
    """Return the scores of a standardised signal: for a higher mean, a lower mean and a larger mean square."""
    z, z_new = deseasonalised(known, new, season)
    square, square_new = deseasonalised(z**2, z_new**2, season)
    shift = float(z_new.mean() - z.mean())
    return Stream(name, group, (z, -z, square), episode, (z_new, -z_new, square_new), shift)


def _columns(spec: PlantSpec, logs: Logs) -> dict[DriftGroup, Floats]:
    """Return the logged values of each group, (N, ...)."""
    t = logs.transitions
    return {
        "observations": np.asarray(t.observation, np.float64),
        "actions": np.asarray(action_vectors(np.asarray(t.action), spec), np.float64),
        "rewards": np.asarray(t.reward, np.float64)[:, None],
    }


def _model(spec: PlantSpec, model: LearnedModel | None, known: Logs, new: Logs, season: Season | None = None) -> Stream:
    """Return squared one-step errors of the learned model, or of a linear law, scaled to mean 1 in the reference."""
    if model is not None:
        # Errors on episodes that the model was not fitted to.
        reference = read_npz(model.residuals)
        before, episode = np.asarray(reference["scores"], np.float64), np.asarray(reference["episode"])
        after = one_step_scores(load_model(model, spec), new)
    else:
        (before, after), episode = _linear_scores(spec, known, new), known.episode
    shift = float(after.mean() / max(before.mean(), 1e-12) - 1.0)
    if model is None:
        before, after = deseasonalised(before, after, season)
    return Stream(MODEL, "model", (before,), episode, (after,), shift)


def _linear_scores(spec: PlantSpec, known: Logs, new: Logs) -> tuple[Floats, Floats]:
    """Return squared errors of a linear law fitted to the reference, averaged over signals except set points.

    The law has so few parameters that its errors are not smaller on the rows to which it was fitted.
    """
    fitted = _columns(spec, known)
    (mean, deviation), (centre, spread) = (_mean_and_scale(fitted[group]) for group in ("observations", "actions"))

    def scaled(logs: Logs) -> tuple[Floats, Floats, Floats]:
        columns, after = _columns(spec, logs), np.asarray(logs.transitions.next_observation, np.float64)
        x = (columns["observations"] - mean) / deviation
        return x, (columns["actions"] - centre) / spread, (after - mean) / deviation

    law = fit_autoregression(*scaled(known))
    weights, offset = np.asarray(law.weights, np.float64), np.asarray(law.offset, np.float64)

    def squares(logs: Logs) -> Floats:
        x, u, after = scaled(logs)
        found: Floats = (after - x - np.concatenate([x, u], axis=1) @ weights - offset) ** 2
        return found

    before = squares(known)
    counted = ~set_by_people(known.transitions) & (before.mean(axis=0) > 0)
    weight = counted / np.maximum(before.mean(axis=0), 1e-12) / max(int(counted.sum()), 1)
    return before @ weight, squares(new) @ weight


def _mean_and_scale(columns: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of columns; 1 for a constant column."""
    mean, deviation = columns.mean(axis=0), columns.std(axis=0)
    return mean, np.where(varies(mean, deviation), deviation, 1.0)


def _place(row: int, logs: Logs) -> str:
    """Describe a row by episode and step, counted from 1."""
    episode = int(logs.episode[row])
    return f"episode {episode + 1}, step {row - int(logs.starts[episode]) + 1}"
