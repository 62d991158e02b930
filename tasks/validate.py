"""Validate: hold a stored dataset against what training and evaluation need of it, and write Data Docs."""

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
from tasks.data.store.losses import losses
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import SourceRecord, by_reason
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
"""Least episodes for training, and least held out: one says nothing of how results vary."""
MIN_DEVIATION = 1e-3
"""Least deviation of an action, as a share of its range."""
MIN_COVERED = 0.1
"""Share of an action's range between its 5 % and 95 % quantiles, below which a warning is due."""
MAX_VIOLATING = 0.05
MAX_LOST = 0.01
"""Share of what was read that may be lost without a warning."""
MAX_DOUBLED = 0.001
"""Share of the time that may be in several episodes without a warning, for clocks jitter."""
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
    """Hold a dataset against what training and evaluation need; the caller refuses it when it does not pass.

    Args:
        home: takes the summary and the Data Docs, under runs/<plant>/<digest's first 12>.
        run: names the plant and the share of episodes held out.
        dataset: from `ingest`.
        earlier: the dataset that drift is measured against, mostly what the champion was trained on.
        progress: called with (done, total, unit); the unit is rows.

    Returns:
        Whether it passed, with one sentence for each reason against it and for each warning, which refuses nothing.

    Raises:
        Refused: when a file of the dataset is not what its digest says.
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
    """Hold a stored dataset against what training and evaluation need.

    Args:
        home: takes the summary and the Data Docs.
        store: the dataset.
        spec: of its plant.
        data: the share of episodes held out.
        plant: how the plant is called.
        earlier: the dataset that drift is measured against.
        progress: called with (done, total, unit); the unit is rows.

    Returns:
        As `validate`.
    """
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
    reasons = [
        f"expected sound rows, got {n} where {why}: ingest its sources again." for why, n in summary.faults.items()
    ]
    reasons += check_episode_table(summary.episodes)
    pictures: dict[str, str] = {}
    # What rows with faults hold may be no numbers, which a card cannot describe; the faults are told instead.
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
    """The table of one line that stands for a dataset, and what is expected of it and of the table of episodes."""

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
        """Put a number into the table and say where it should lie.

        Args:
            column: its name.
            value: the number.
            reason: what to say when it lies elsewhere: expected, got, cure.
            low: least value expected.
            high: greatest value expected.
            refuses: whether the dataset is refused then; otherwise it is a warning.
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
    """The table of one line that stands for the dataset, and what is expected of it and of the table of episodes.

    Args:
        summary: of the dataset.
        older: of the champion's dataset, for drift.
        spec: the plant.
        train: episodes for training.
        held_out: episodes kept from it.
        sources: what became of the rows that the dataset was made of.

    Returns:
        Values by column, and the checks.
    """
    found = Expectations()
    _expect_enough(found, summary, train, held_out)
    for loss in losses(sources):
        if loss.read:
            got = f"got {loss.share:.1%}{by_reason(loss.reasons)}"
            reason = f"expected at most {MAX_LOST:.0%} of the {loss.kind} to be lost, {got}: mend the source."
            found.expect(f"share of {loss.kind} lost", loss.share, reason, high=MAX_LOST, refuses=False)
    low, high = signal_bounds(spec)
    for (name, signal), least, most in zip(summary.signals.items(), low.tolist(), high.tolist(), strict=True):
        found.table[f"{name}: mean"] = signal.mean
        if name.startswith("action ") and spec.choices is None:
            _expect_varied(found, name, signal, most - least)
        elif not name.startswith("action "):
            found.expect(
                f"{name}: deviation",
                signal.deviation if varies(signal.mean, signal.deviation) else 0.0,
                f"expected {name} to move, got one value throughout: check its tag and its transmitter.",
                low=sys.float_info.min,
                refuses=False,
            )
        found.table[f"{name}: distinct values"] = signal.distinct
        found.checks += _range_checks(name, signal, least, most)
        if older is not None:
            _expect_no_drift(found, name, summary, older)
    if spec.clock is not None:
        _expect_clock(found, spec.clock, summary)
    if spec.choices is not None:
        _expect_choices(found, {choice: summary.signals[f"action {choice}"].mean for choice in spec.choices})
    found.checks.append(_length_check(summary))
    return found.table, found.checks


def _expect_enough(found: Expectations, summary: Statistics, train: int, held_out: int) -> None:
    for column, count in (("training episodes", train), ("held-out episodes", held_out)):
        found.expect(
            column,
            count,
            f"expected at least {MIN_EPISODES} {column}, got {count}: ingest more episodes or change data.held_out.",
            low=MIN_EPISODES,
        )
    found.table |= {"rows": summary.rows, "episodes": train + held_out}
    violating = float(summary.episodes["rows violating a limit"].sum()) / summary.rows
    found.expect(
        "share of rows violating a limit",
        violating,
        f"expected at most {MAX_VIOLATING:.0%} of rows to violate a limit, got {violating:.1%}: "
        "find out whether the plant's limits or its logs are wrong.",
        high=MAX_VIOLATING,
        refuses=False,
    )
    found.expect(
        "share of time in several episodes",
        summary.doubled,
        f"expected every moment in one episode, got {summary.doubled:.1%} of the time in several: where logs overlap, "
        "the same rows may be trained on and held out, so name a folder that holds them all as one source.",
        high=MAX_DOUBLED,
        refuses=False,
    )


def _expect_clock(found: Expectations, clock: Clock, summary: Statistics) -> None:
    """Expect the clock to read its end after the last steps of episodes, and after no others."""
    ends, others = summary.over
    found.expect(
        "episodes that end by the clock",
        ends,
        f"expected episodes after which {clock.name} reads {clock.end:g}, got none: the end of the task is not "
        "learned, so correct the clock ('ends' in a mapping or a spec's file), or log whole episodes.",
        low=1,
        refuses=False,
    )
    found.expect(
        "steps within an episode after which the clock reads its end",
        others,
        f"expected {clock.name} to read {clock.end:g} after an episode's last step alone, got {others:,} others: "
        "learners take nothing to follow them, so correct the clock ('ends' in a mapping or a spec's file).",
        high=0,
        refuses=False,
    )


def _expect_varied(found: Expectations, name: str, signal: Signal, span: float) -> None:
    """Expect an action to vary; its range is `span` wide, which may be infinite."""
    size = span if math.isfinite(span) else max(abs(signal.least), abs(signal.greatest))
    deviation = signal.deviation / size if size else 0.0
    found.expect(
        f"{name}: deviation / range",
        deviation,
        f"expected {name} to deviate by at least {MIN_DEVIATION:.1%} of its range, got {deviation:.2%}: constant "
        "actions teach nothing of their effect, so log step tests or a small dither first.",
        low=MIN_DEVIATION,
    )
    if math.isfinite(span):
        found.expect(
            f"{name}: share of range covered",
            signal.covered,
            f"expected {name} to cover at least {MIN_COVERED:.0%} of its range, got {signal.covered:.1%}: "
            "a policy will be kept close to what was logged.",
            low=MIN_COVERED,
            refuses=False,
        )
    found.table[f"{name}: share at bounds"] = signal.at_bounds


def _expect_choices(found: Expectations, shares: Mapping[str, float]) -> None:
    """Expect a discrete action to vary, from the share of rows that take each choice."""
    commonest = max(shares, key=lambda choice: shares[choice])
    found.expect(
        "share of the commonest choice",
        shares[commonest],
        f"expected other choices than '{commonest}' in at least {MIN_DEVIATION:.1%} of the rows, got "
        f"{1 - shares[commonest]:.2%}: a constant action teaches nothing of its effect, so log other choices first.",
        high=1.0 - MIN_DEVIATION,
    )
    for choice, share in shares.items():
        found.expect(
            f"choice {choice}: share",
            share,
            f"expected choice '{choice}' in some rows, got none: nothing can be learned of it.",
            low=1e-12,
            refuses=False,
        )


def _range_checks(name: str, signal: Signal, low: float, high: float) -> list[Check]:
    """What is expected of a signal in every episode, whose bounds may be infinite."""
    least, greatest = widened(low, high)
    cure = "correct its unit or its bounds in the mapping."
    checks = []
    if math.isfinite(low):
        reason = f"expected {name} within {low:g}..{high:g}, got {signal.least:g}: {cure}"
        checks.append(Check("episodes", f"{name} min", least, None, True, reason))
    if math.isfinite(high):
        reason = f"expected {name} within {low:g}..{high:g}, got {signal.greatest:g}: {cure}"
        checks.append(Check("episodes", f"{name} max", None, greatest, True, reason))
    return checks


def _expect_no_drift(found: Expectations, name: str, summary: Statistics, older: Statistics) -> None:
    shift = mean_shift(summary, older, name)
    found.expect(
        f"{name}: shift from champion's data",
        shift,
        f"expected the mean of {name} within {MAX_SHIFT:g} deviations of the champion's data, got {shift:.2f}: "
        "find out what changed in the plant.",
        high=MAX_SHIFT,
        refuses=False,
    )
    index = stability_index(summary.sample[name], older.sample[name])
    found.expect(
        f"{name}: stability index",
        index,
        f"expected {name} distributed as in the champion's data (stability index at most "
        f"{MAX_STABILITY_INDEX:g}), got {index:.2f}: find out what changed in the plant.",
        high=MAX_STABILITY_INDEX,
        refuses=False,
    )


def _length_check(summary: Statistics) -> Check:
    short = float(np.median(summary.episodes["length"]))
    reason = f"expected episodes of two or more steps, got a median of {short:g}: check sampling period and gaps."
    return Check("episodes", "length", 2.0, None, True, reason, of="median")
