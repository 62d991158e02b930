"""Validate a stored dataset for training and evaluation, and write Data Docs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from configs.home import Home
from configs.run import Data, OpenedRun
from neorl_core.types import Clock, PlantSpec, varies
from tasks.data.store.cards.card import read_card, write_card
from tasks.data.store.cards.pictures import pictures_of
from tasks.data.store.expectations import Check, check_episode_table, check_tables
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import SourceRecord, by_reason, losses
from tasks.data.store.row_checks import widened
from tasks.data.store.statistics import Signal, Statistics, mean_shift, signal_bounds, stability_index, summarise
from tasks.files.canonical import digest_json, write_json
from tasks.models.plants.known import plant_of
from tasks.models.plants.opening import opened
from tasks.references import Dataset, DriftReference, Validation
from tasks.stages import cached

if TYPE_CHECKING:
    from tasks.progress import Report

NONE_EARLIER = DriftReference()
MIN_EPISODES = 2
"""Smallest number of training and of held-out episodes; a single episode shows no variation."""
MIN_DEVIATION = 1e-3
"""Smallest standard deviation of an action, as a share of the action's range."""
MIN_COVERED = 0.1
"""Smallest distance between an action's 5 % and 95 % quantiles without a warning, as a share of the action's range."""
MAX_VIOLATING = 0.05
MAX_LOST = 0.01
"""Largest share of rows lost without a warning."""
MAX_DOUBLED = 0.001
"""Largest share of time that several episodes cover, without a warning. Jitter of clocks causes small overlaps."""
MAX_SHIFT = 0.5
MAX_STABILITY_INDEX = 0.25


@cached()
def validate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    earlier: DriftReference = NONE_EARLIER,
    progress: Report | None = None,
) -> Validation:
    """Check a dataset for training and evaluation. The caller must refuse a dataset that does not pass.

    Args:
        home: home; summary and Data Docs are written to a folder of `runs/<plant>/`.
        run: names the plant and the share of held-out episodes.
        dataset: dataset from `ingest`.
        earlier: dataset against which drift is measured, usually the champion's.
        progress: called with (done, total, "rows").

    Returns:
        Verdict, reasons for refusal, and warnings.

    Raises:
        Refused: if a file of the dataset does not match its digest.
    """
    spec = plant_of(opened(run)).spec
    store = StoredDataset.open(dataset.store, dataset.digest)
    return validate_dataset(home, store, spec, run.data, run.plant, earlier, progress)


def validate_dataset(
    home: Home,
    store: StoredDataset,
    spec: PlantSpec,
    data: Data,
    plant: str,
    earlier: DriftReference = NONE_EARLIER,
    progress: Report | None = None,
) -> Validation:
    """Validate an opened dataset; see `validate`."""
    before = earlier.dataset
    summary = summarise(store, spec, progress)
    older = None
    if before is not None and before.digest != store.digest:
        older = summarise(StoredDataset.open(before.store, before.digest), spec)
    train, held_out = store.split(data.held_out)
    sources = store.sources
    accounted = [line for source in sources for line in source.lines()]
    table, checks = dataset_checks(summary, older, spec, len(train), len(held_out), sources)
    compared = before.digest if before is not None else None
    depends_on = [compared, data.model_dump(mode="json", exclude={"mapping"})]
    folder = home.folder("runs", plant, f"{store.digest[:12]}-{digest_json(depends_on)[:8]}")
    reasons = [f"{n} rows are faulty, because {why}: ingest the sources again" for why, n in summary.faults.items()]
    reasons += check_episode_table(summary.episodes)
    pictures: dict[str, str] = {}
    # Faulty rows may contain NaN, which a card cannot describe.
    if not summary.faults:
        write_card(store, spec)
        pictures = {picture.title: picture.svg for picture in pictures_of(read_card(store.root, store.digest))}
    failed, docs = check_tables(
        plant=plant,
        digest=store.digest,
        tables={"episodes": summary.episodes, "dataset": {name: np.array([value]) for name, value in table.items()}},
        checks=checks,
        found=reasons,
        accounted=accounted,
        pictures=pictures,
        folder=folder / "data_docs",
    )
    reasons += [check.reason for check in failed if check.refuses]
    warnings = [check.reason for check in failed if not check.refuses]
    path = write_json(
        folder / "summary.json",
        {
            "passed": not reasons,
            "reasons": reasons,
            "warnings": warnings,
            "accounted": accounted,
            "dataset": store.digest,
            "compared_with": compared,
            "table": {name: value for name, value in table.items() if math.isfinite(value)},
            "signals": {
                name: {key: value for key, value in signal._asdict().items() if math.isfinite(value)}
                for name, signal in summary.signals.items()
            },
        },
    )
    return Validation(
        passed=not reasons, reasons=tuple(reasons), warnings=tuple(warnings), summary=path, data_docs=docs
    )


class Expectations:
    """Summary numbers of a dataset, with checks of these numbers and of the table of episodes."""

    def __init__(self) -> None:
        self.table: dict[str, float] = {}
        self.checks: list[Check] = []

    def expect(
        self,
        column: str,
        value: float,
        reason: str,
        low: float | None = None,
        high: float | None = None,
        refuses: bool = True,
    ) -> None:
        """Add a number and the range that it must be in.

        Args:
            column: name of the number.
            value: the number.
            reason: message if the number is out of range, with value and cure.
            low: lower limit.
            high: upper limit.
            refuses: whether a failure refuses the dataset; otherwise it is a warning.
        """
        self.table[column] = value
        self.checks.append(Check("dataset", column, low, high, refuses, reason))


def dataset_checks(
    summary: Statistics,
    older: Statistics | None,
    spec: PlantSpec,
    train: int,
    held_out: int,
    sources: Sequence[SourceRecord] = (),
) -> tuple[dict[str, float], list[Check]]:
    """Return the summary numbers of a dataset by name, and the checks of these numbers and of the episodes.

    Args:
        summary: statistics of the dataset.
        older: statistics of the champion's dataset, for drift.
        spec: spec of the plant.
        train: number of training episodes.
        held_out: number of held-out episodes.
        sources: row counts of the dataset's sources.
    """
    expectations = Expectations()
    _expect_enough(expectations, summary, train, held_out)
    for loss in losses(sources):
        if loss.read:
            why = by_reason(loss.reasons)
            reason = (
                f"{loss.share:.1%} of the {loss.kind} are lost, at most {MAX_LOST:.0%} is usual{why}; repair the source"
            )
            expectations.expect(f"share of {loss.kind} lost", loss.share, reason, high=MAX_LOST, refuses=False)
    low, high = signal_bounds(spec)
    for (name, signal), least, most in zip(summary.signals.items(), low.tolist(), high.tolist(), strict=True):
        expectations.table[f"{name}: mean"] = signal.mean
        if name.startswith("action ") and spec.choices is None:
            _expect_varied(expectations, name, signal, most - least)
        elif not name.startswith("action "):
            expectations.expect(
                f"{name}: deviation",
                signal.deviation if varies(signal.mean, signal.deviation) else 0.0,
                f"{name} is constant at {signal.mean:g}: check the tag and the transmitter",
                low=sys.float_info.min,
                refuses=False,
            )
        expectations.table[f"{name}: distinct values"] = signal.distinct
        expectations.checks += _range_checks(name, signal, least, most)
        if older is not None:
            _expect_no_drift(expectations, name, summary, older)
    if spec.clock is not None:
        _expect_clock(expectations, spec.clock, summary)
    if spec.choices is not None:
        _expect_choices(expectations, {choice: summary.signals[f"action {choice}"].mean for choice in spec.choices})
    expectations.checks.append(_length_check(summary))
    return expectations.table, expectations.checks


def _expect_enough(expectations: Expectations, summary: Statistics, train: int, held_out: int) -> None:
    for column, count in (("training episodes", train), ("held-out episodes", held_out)):
        expectations.expect(
            column,
            count,
            f"at least {MIN_EPISODES} {column} are needed, got {count}: ingest more episodes or change data.held_out",
            low=MIN_EPISODES,
        )
    expectations.table |= {"rows": summary.rows, "episodes": train + held_out}
    violating = float(summary.episodes["rows violating a limit"].sum()) / summary.rows
    expectations.expect(
        "share of rows violating a limit",
        violating,
        f"{violating:.1%} of rows violate a limit, at most {MAX_VIOLATING:.0%} is usual: check the plant's limits and "
        "the units of the logs",
        high=MAX_VIOLATING,
        refuses=False,
    )
    expectations.expect(
        "share of time in several episodes",
        summary.doubled,
        f"several episodes cover {summary.doubled:.1%} of the time, so training and held-out split may share rows: "
        "put the files in one folder and name the folder as one source",
        high=MAX_DOUBLED,
        refuses=False,
    )


def _expect_clock(expectations: Expectations, clock: Clock, summary: Statistics) -> None:
    """Check that the clock shows the end after the last step of an episode and nowhere else."""
    ends, others = summary.over
    expectations.expect(
        "episodes that end by the clock",
        ends,
        f"{clock.name} reaches its end {clock.end:g} in no episode, so the end of the task cannot be learned: correct "
        "'ends' in the mapping or spec, or log whole episodes",
        low=1,
        refuses=False,
    )
    expectations.expect(
        "steps within an episode after which the clock reads its end",
        others,
        f"{clock.name} reaches its end {clock.end:g} within an episode {others:,} times, and learners treat "
        "these steps as final: correct 'ends' in the mapping or spec",
        high=0,
        refuses=False,
    )


def _expect_varied(expectations: Expectations, name: str, signal: Signal, span: float) -> None:
    """Check that an action varies; `span` is the width of the range, possibly infinite."""
    size = span if math.isfinite(span) else max(abs(signal.least), abs(signal.greatest))
    deviation = signal.deviation / size if size else 0.0
    expectations.expect(
        f"{name}: deviation / range",
        deviation,
        f"the standard deviation of {name} is {deviation:.2%} of the range, at least {MIN_DEVIATION:.1%} is needed: "
        "log step tests or a small dither, because constant actions do not show their effect",
        low=MIN_DEVIATION,
    )
    if math.isfinite(span):
        expectations.expect(
            f"{name}: share of range covered",
            signal.covered,
            f"{name} covers {signal.covered:.1%} of the range, less than {MIN_COVERED:.0%}: the policy will stay near "
            "these actions; log step tests for a wider range",
            low=MIN_COVERED,
            refuses=False,
        )
    expectations.table[f"{name}: share at bounds"] = signal.at_bounds


def _expect_choices(expectations: Expectations, shares: Mapping[str, float]) -> None:
    """Check that a discrete action varies; `shares` is the share of rows per choice."""
    commonest = max(shares, key=lambda choice: shares[choice])
    expectations.expect(
        "share of the commonest choice",
        shares[commonest],
        f"{1 - shares[commonest]:.2%} of the rows have a choice other than '{commonest}', at least {MIN_DEVIATION:.1%} "
        "is needed: log other choices, because a constant action does not show its effect",
        high=1.0 - MIN_DEVIATION,
    )
    for choice, share in shares.items():
        expectations.expect(
            f"choice {choice}: share",
            share,
            f"choice '{choice}' is in none of the rows: log it, or remove it from the spec",
            low=1e-12,
            refuses=False,
        )


def _range_checks(name: str, signal: Signal, low: float, high: float) -> list[Check]:
    """Return the checks of a signal's range in every episode; infinite bounds are not checked."""
    least, greatest = widened(low, high)
    cure = "correct the unit or the bounds in the mapping"
    checks = []
    if math.isfinite(low):
        reason = f"{name} must be within {low:g}..{high:g}, got {signal.least:g}: {cure}"
        checks.append(Check("episodes", f"{name} min", least, None, True, reason))
    if math.isfinite(high):
        reason = f"{name} must be within {low:g}..{high:g}, got {signal.greatest:g}: {cure}"
        checks.append(Check("episodes", f"{name} max", None, greatest, True, reason))
    return checks


def _expect_no_drift(expectations: Expectations, name: str, summary: Statistics, older: Statistics) -> None:
    shift = mean_shift(summary, older, name)
    expectations.expect(
        f"{name}: shift from champion's data",
        shift,
        f"the mean of {name} is {shift:.2f} standard deviations from the champion's data, at most {MAX_SHIFT:g} is "
        "usual: find out what changed in the plant",
        high=MAX_SHIFT,
        refuses=False,
    )
    index = stability_index(summary.sample[name], older.sample[name])
    expectations.expect(
        f"{name}: stability index",
        index,
        f"the distribution of {name} differs from the champion's data, stability index {index:.2f}, at most "
        f"{MAX_STABILITY_INDEX:g} is usual: find out what changed in the plant",
        high=MAX_STABILITY_INDEX,
        refuses=False,
    )


def _length_check(summary: Statistics) -> Check:
    short = float(np.median(summary.episodes["length"]))
    reason = f"the median episode has {short:g} steps, at least 2 are needed: check the sampling period and gaps"
    return Check("episodes", "length", 2.0, None, True, reason, of="median")
