"""Validate: hold a stored dataset against what training and evaluation need of it, and write Data Docs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from configs.home import Home
from configs.run import RunConfig
from neorl_core.types import PlantSpec
from tasks.adapters.files.canonical import digest_json, write_json
from tasks.adapters.store.expectations import Check, check_episode_table, judge
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.store.row_checks import RANGE_TOLERANCE
from tasks.adapters.store.statistics import Summary, mean_shift, signal_bounds, signal_names, stability_index, summarise
from tasks.ingest import mapping_of, plant_spec
from tasks.references import Dataset, DriftReference, Validation
from tasks.stages import cached

NONE_EARLIER = DriftReference()
MIN_EPISODES = 2
"""Least episodes for training, and least held out: one says nothing of how results vary."""
MIN_DEVIATION = 1e-3
"""Least deviation of an action, as a share of its range."""
MIN_COVERED = 0.1
"""Share of an action's range between its 5 % and 95 % quantiles, below which a warning is due."""
MAX_VIOLATING = 0.05
MAX_SHIFT = 0.5
MAX_STABILITY_INDEX = 0.25

Progress = Callable[[int, int, str], None]


@cached()
def validate(
    home: Home,
    run: RunConfig,
    dataset: Dataset,
    earlier: DriftReference = NONE_EARLIER,
    progress: Progress | None = None,
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
    spec = plant_spec(run.plant, mapping_of(run))
    store, before = StoredDataset.open(dataset.store, dataset.digest), earlier.dataset
    summary = summarise(store, spec, progress)
    older = None
    if before is not None and before.digest != store.digest:
        older = summarise(StoredDataset.open(before.store, before.digest), spec)
    train, held_out = store.split(run.data.held_out)
    table, checks = dataset_checks(summary, older, spec, len(train), len(held_out))
    compared = before.digest if before is not None else None
    depends_on = [compared, run.data.model_dump(mode="json", exclude={"mapping"})]
    folder = home.folder("runs", run.plant, f"{store.digest[:12]}-{digest_json(depends_on)[:8]}")
    reasons = [
        f"expected sound rows, got {n} where {why}: ingest its sources again." for why, n in summary.faults.items()
    ]
    reasons += check_episode_table(summary.episodes)
    failed, docs = judge(
        plant=run.plant,
        digest=store.digest,
        tables={"episodes": summary.episodes, "dataset": {name: np.array([value]) for name, value in table.items()}},
        checks=checks,
        found=reasons,
        folder=folder / "data_docs",
    )
    reasons += [check.reason for check in failed if check.refuses]
    warnings = [check.reason for check in failed if not check.refuses]
    signals = {
        name: {key: value for key, value in record.items() if math.isfinite(value)}
        for name, record in summary.signals.items()
    }
    path = write_json(
        folder / "summary.json",
        {
            "passed": not reasons,
            "reasons": reasons,
            "warnings": warnings,
            "dataset": store.digest,
            "compared_with": compared,
            "table": {name: value for name, value in table.items() if math.isfinite(value)},
            "signals": signals,
        },
    )
    return Validation(
        passed=not reasons, reasons=tuple(reasons), warnings=tuple(warnings), summary=path, data_docs=docs
    )


def dataset_checks(
    summary: Summary, older: Summary | None, spec: PlantSpec, train: int, held_out: int
) -> tuple[dict[str, float], list[Check]]:
    """The table of one row that stands for the dataset, and what is expected of it and of the episodes' table.

    Args:
        summary: of the dataset.
        older: of the champion's dataset, for drift.
        spec: the plant.
        train: episodes for training.
        held_out: episodes kept from it.

    Returns:
        Values by column, and the checks.
    """
    table: dict[str, float] = {}
    checks: list[Check] = []

    def expect(
        column: str,
        value: float,
        reason: str,
        low: float | None = None,
        high: float | None = None,
        refuses: bool = True,
    ) -> None:
        table[column] = value
        checks.append(Check("dataset", column, low, high, refuses, reason))

    for column, count in (("training episodes", train), ("held-out episodes", held_out)):
        expect(
            column,
            count,
            f"expected at least {MIN_EPISODES} {column}, got {count}: ingest more episodes or change data.held_out.",
            low=MIN_EPISODES,
        )
    table |= {"rows": summary.rows, "episodes": train + held_out}
    violating = float(summary.episodes["rows violating a limit"].sum()) / summary.rows
    expect(
        "share of rows violating a limit",
        violating,
        f"expected at most {MAX_VIOLATING:.0%} of rows to violate a limit, got {violating:.1%}: "
        "find out whether the plant's limits or its logs are wrong.",
        high=MAX_VIOLATING,
        refuses=False,
    )
    low, high = signal_bounds(spec)
    for i, name in enumerate(signal_names(spec)):
        signal, span = summary.signals[name], high[i] - low[i]
        table[f"{name}: mean"] = signal["mean"]
        if name.startswith("action "):
            scale = span if math.isfinite(span) else 1.0 + abs(signal["mean"])
            expect(
                f"{name}: deviation / range",
                signal["deviation"] / scale,
                f"expected {name} to deviate by at least {MIN_DEVIATION:.1%} of its range, got "
                f"{signal['deviation'] / scale:.2%}: constant actions teach nothing of their effect, so log step "
                "tests or a small dither first.",
                low=MIN_DEVIATION,
            )
            if math.isfinite(span):
                expect(
                    f"{name}: share of range covered",
                    signal["covered"],
                    f"expected {name} to cover at least {MIN_COVERED:.0%} of its range, got {signal['covered']:.1%}: "
                    "a policy will be kept close to what was logged.",
                    low=MIN_COVERED,
                    refuses=False,
                )
            table[f"{name}: share at bounds"] = signal["at_bounds"]
        else:
            expect(
                f"{name}: deviation",
                signal["deviation"],
                f"expected {name} to move, got one value throughout: check its tag and its transmitter.",
                low=1e-9,
                refuses=False,
            )
        table[f"{name}: distinct values"] = signal["distinct"]
        slack = RANGE_TOLERANCE * span if math.isfinite(span) else 0.0
        for what, edge, bound in (("min", low[i] - slack, "least"), ("max", high[i] + slack, "greatest")):
            if math.isfinite(edge):
                limits = (float(edge), None) if what == "min" else (None, float(edge))
                reason = (
                    f"expected {name} within {low[i]:g}..{high[i]:g}, got {signal[bound]:g}: "
                    "correct its unit or its bounds in the mapping."
                )
                checks.append(Check("episodes", f"{name} {what}", *limits, True, reason))
        if older is not None:
            shift = mean_shift(summary, older, name)
            expect(
                f"{name}: shift from champion's data",
                shift,
                f"expected the mean of {name} within {MAX_SHIFT:g} deviations of the champion's data, got {shift:.2f}: "
                "find out what changed in the plant.",
                high=MAX_SHIFT,
                refuses=False,
            )
            index = stability_index(summary.sample[name], older.sample[name])
            expect(
                f"{name}: stability index",
                index,
                f"expected {name} distributed as in the champion's data (stability index at most "
                f"{MAX_STABILITY_INDEX:g}), got {index:.2f}: find out what changed in the plant.",
                high=MAX_STABILITY_INDEX,
                refuses=False,
            )
    short = float(np.median(summary.episodes["length"]))
    checks.append(
        Check(
            "episodes",
            "length",
            2.0,
            None,
            True,
            f"expected episodes of two or more steps, got a median of {short:g}: check sampling period and gaps.",
            of="median",
        )
    )
    return table, checks
