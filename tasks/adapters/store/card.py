"""The dataset card: what a dataset holds, how it was made, and what cannot be learned from it; JSON and Markdown.

It takes one pass over all rows and one over evenly spaced ones, in constant memory, and lies in the folder `cards`
beside that of the manifests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from configs.errors import BadInput
from configs.mapping import HistorianMapping
from neorl_core.types import Constraint, PlantSpec
from tasks.adapters.files.canonical import canonical_json, digest_json, read_json, write_atomic, write_json
from tasks.adapters.store.card_page import card_markdown
from tasks.adapters.store.episodes import vector_space
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.store.records import (
    ActionCard,
    Card,
    CoverageCard,
    EpisodesCard,
    FileCard,
    GapsCard,
    LimitCard,
    MappingCard,
    Provenance,
    SignalCard,
    SourceCard,
)
from tasks.adapters.store.statistics import (
    BLOCK_ROWS,
    Floats,
    Statistics,
    signal_bounds,
    signal_ranges,
    signals_of,
    summarise,
)

SCHEMA = 3
"""2: a signal's covered share lies between its 5 % and 95 % quantiles. 3: where every row and step
went, pictures, and no covered share where no range was given."""
FOLLOWS = 0.99
"""Share of an action's variance that the observation explains, from which on no other action was tried."""
NEARLY_CONSTANT = 0.02
"""Deviation of an action, as a share of its range, below which it is said to be nearly constant."""
SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0)
"""What loggers write where they have no value."""
NARROW = 0.1
"""Covered share of a signal's range below which it is said to be hardly covered."""
ANY_LIMIT = Constraint("any limit, by the log's own cost", "1", -np.inf, 0.0)
"""What stands for the limits of a log that says only whether one was exceeded."""
BINS = 20
"""Bins of a signal's range, by which an action's entropy is taken."""
CELL_BINS = 5
"""Bins of every signal's range, whose product is the grid of cells in which states and actions are counted."""
CELL_BITS = 2**22
"""Bits by which visited cells are counted (linear counting: Whang et al. 1990, ACM TODS 15(2)); 1 % up to millions."""
LOOKED_AT = 2_000_000
"""Rows, evenly spaced, of which cells and entropy are taken."""
RIDGE = 1e-6
"""Regularisation of the behaviour fit, relative to a standardised observation's variance."""


class CardFiles(NamedTuple):
    """A dataset card on disk."""

    record: Path
    """As JSON."""
    page: Path
    """As Markdown, for readers."""


def build_card(dataset: StoredDataset, spec: PlantSpec) -> Card:
    """Describe a dataset.

    Args:
        dataset: opened.
        spec: of its plant.
    """
    found = summarise(dataset, spec, block_rows=BLOCK_ROWS, check_rows=False)
    least, greatest = (np.array([getattr(x, end) for x in found.signals.values()]) for end in ("least", "greatest"))
    low, high = signal_ranges(spec, least, greatest)
    histogram, cells, looked = _visited(dataset, spec, low, high)
    spread = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    # A row's value came from single precision: what it cannot tell apart is no deviation.
    spread[spread < 1e-6 * (1 + np.abs([signal.mean for signal in found.signals.values()]))] = 0.0
    units = (*spec.observation.units, *vector_space(spec).units)
    signals = {
        name: SignalCard(
            unit=unit,
            least=signal.least,
            mean=signal.mean,
            greatest=signal.greatest,
            deviation=float(deviation),
            change=signal.change,
            covered=signal.covered if given else None,
            histogram=tuple(counts),
        )
        for (name, signal), unit, deviation, given, counts in zip(
            found.signals.items(), units, spread, _ranged(spec, least, greatest), histogram.tolist(), strict=True
        )
    }
    covered = [signal.covered for signal in signals.values() if signal.covered is not None]
    actions = {} if spec.choices else _actions(spec, found.covariance, spread, high - low, histogram)
    choices = {name: signals[f"action {name}"].mean for name in spec.choices or ()}
    limits = _limits(spec, found)
    episodes = _episodes(found)
    gaps = GapsCard(
        known="timestamps" in dataset.keys,
        count=len(found.gaps),
        longest_s=float(found.gaps.max(initial=0.0)),
        total_s=float(found.gaps.sum()),
        present=tuple(found.present.tolist()),
    )
    said = _no_variation(signals, actions, found.rewards)
    return Card(
        schema=SCHEMA,
        dataset=dataset.digest,
        plant=spec.name,
        rows=found.rows,
        source=tuple(_source(entry) for entry in dataset.manifest.provenance),
        order=tuple(signals),
        signals=signals,
        actions=actions,
        choices=choices,
        coverage=CoverageCard(
            rows_looked_at=looked,
            bins=CELL_BINS,
            cells=cells,
            rows_per_cell=looked / max(cells, 1),
            mean_covered=float(np.mean(covered)) if covered else None,
        ),
        limits=limits,
        gaps=gaps,
        episodes=episodes,
        cannot_learn=(*_never_violated(limits), *said, *_not_taken(choices), *_cut_short(episodes, gaps, spec)),
    )


def write_card(dataset: StoredDataset, spec: PlantSpec) -> CardFiles:
    """Make the card, unless it is there and whole."""
    folder = dataset.root / "cards"
    files = CardFiles(folder / f"{dataset.digest}.json", folder / f"{dataset.digest}.md")
    card = _recall(files.record)
    if card is None:
        record = build_card(dataset, spec).model_dump(mode="json", by_alias=True)
        write_json(files.record, {"card": record, "digest": digest_json(record)})
        # Through its canonical form, so that a card just made and one read again are the same to the last byte.
        card = Card.model_validate_json(canonical_json(record))
    text = card_markdown(card).encode()
    if not files.page.exists() or files.page.read_bytes() != text:
        write_atomic(files.page, text)
    return files


def read_card(root: Path, digest: str) -> Card:
    """The card of a dataset.

    Raises:
        BadInput: when there is none, or it was altered.
    """
    card = _recall(root / "cards" / f"{digest}.json")
    if card is None:
        raise BadInput(f"expected the card of dataset {digest[:12]} in {root / 'cards'}, got none: ingest it again.")
    return card


def _recall(path: Path) -> Card | None:
    try:
        held = read_json(path)
        card = Card.model_validate(held["card"])
        whole = card.version == SCHEMA and held["digest"] == digest_json(held["card"])
    except (BadInput, ValidationError, KeyError, TypeError):
        return None
    return card if whole else None


def _visited(
    dataset: StoredDataset, spec: PlantSpec, low: Floats, high: Floats
) -> tuple[npt.NDArray[np.int64], int, int]:
    """Counts per bin of each signal's range (F, `BINS`), visited cells of the grid, and how many rows were looked at.

    Args:
        dataset: rows in order.
        spec: the plant.
        low: lower ends of the signals' ranges (F,).
        high: upper ends (F,).
    """
    stride = max(-(-dataset.rows // LOOKED_AT), 1)
    histogram = np.zeros((len(low), BINS), np.int64)
    weights = np.random.default_rng(0).integers(1, 2**63, len(low), dtype=np.uint64) | np.uint64(1)
    seen = np.zeros(CELL_BITS, bool)
    first = looked = 0
    for block in dataset.blocks(("observations", "actions"), rows=BLOCK_ROWS):
        some = slice((-first) % stride, None, stride)
        chosen = signals_of({key: values[some] for key, values in block.items()}, spec)
        first, looked = first + len(block["actions"]), looked + len(chosen)
        share = np.clip((chosen - low) / (high - low), 0.0, 1.0)
        for i in range(len(low)):
            histogram[i] += np.bincount(np.minimum((share[:, i] * BINS).astype(int), BINS - 1), minlength=BINS)
        cell = np.minimum((share * CELL_BINS).astype(np.uint64), CELL_BINS - 1)
        mixed = (cell * weights).sum(axis=1, dtype=np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
        seen[(mixed >> np.uint64(42)).astype(np.int64)] = True
    empty = CELL_BITS - int(seen.sum())
    return histogram, round(-CELL_BITS * math.log(max(empty, 1) / CELL_BITS)), looked


def _actions(
    spec: PlantSpec, covariance: Floats, spread: Floats, width: Floats, histogram: npt.NDArray[np.int64]
) -> dict[str, ActionCard]:
    """How each action was varied.

    Args:
        spec: O observations and A actions, F signals together.
        covariance: of the signals (F, F).
        spread: their standard deviations (F,).
        width: of their ranges (F,).
        histogram: counts per bin of their ranges (F, `BINS`).
    """
    scale = np.where(spread > 0, spread, np.inf)
    fit = _explained(covariance / np.outer(scale, scale), spec.observation.size)
    return {
        name: ActionCard(
            deviation_share=float(spread[i] / max(width[i], 1e-300)),
            entropy_bits=_entropy(histogram[i]),
            most_bits=math.log2(BINS),
            explained=None if spread[i] == 0 else explained,
        )
        for i, (name, explained) in enumerate(zip(spec.action.names, fit, strict=True), spec.observation.size)
    }


def _explained(correlation: Floats, observations: int) -> list[float]:
    """R^2 of each action's linear fit on the observation, from the correlations alone.

    R^2 = 1 - (c - 2 b^T s + b^T S b) / c with b = (S + lambda I)^-1 s, S the correlation of the observation, s its
    correlation with the action and c = 1.

    Args:
        correlation: of observations and actions (F, F).
        observations: how many of the signals are observations.
    """
    within, found = correlation[:observations, :observations], []
    for across in correlation[:observations, observations:].T:
        b = np.linalg.solve(within + RIDGE * np.eye(observations), across)
        left = 1 - 2 * b @ across + b @ within @ b
        found.append(float(np.clip(1 - left, 0.0, 1.0)))
    return found


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(max(-(share * np.log2(share)).sum(), 0.0))


def _limits(spec: PlantSpec, found: Statistics) -> dict[str, LimitCard]:
    return {
        limit.name: LimitCard(
            unit=limit.unit,
            low=_finite(limit.low),
            high=_finite(limit.high),
            violated_rows=int(violated),
            violated_share=float(violated / found.rows),
            worst_excess=float(worst),
        )
        for limit, violated, worst in zip(spec.constraints or (ANY_LIMIT,), found.violated, found.worst, strict=False)
    }


def _finite(bound: float) -> float | None:
    return float(bound) if math.isfinite(bound) else None


def _episodes(found: Statistics) -> EpisodesCard:
    lengths, returns = found.episodes["length"], found.episodes["return"]
    return EpisodesCard(
        count=len(lengths),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        longest=int(lengths.max()),
        terminated=found.terminated,
        return_least=float(returns.min()),
        return_mean=float(returns.mean()),
        return_greatest=float(returns.max()),
    )


def _source(entry: Provenance) -> SourceCard:
    """What a provenance entry says of where rows came from."""
    files = tuple(
        FileCard(
            account=source.lines(),
            sha256=source.sha256,
            reasons=source.reasons,
            steps=source.account.model_dump(exclude={"samples", "raw", "alarms"}) if source.account else {},
            raw=source.account.raw if source.account else None,
            samples=source.account.samples if source.account else {},
        )
        for source in entry.sources
    )
    return SourceCard(format=entry.format, mapping=_mapping(entry), code=entry.code, files=files)


def _mapping(entry: Provenance) -> MappingCard | None:
    if entry.mapping is None:
        return None
    try:
        mapping = HistorianMapping.model_validate(entry.mapping)
    except ValidationError:
        return None  # rows of an append may have been read by a mapping of an earlier version
    return MappingCard(
        sha256=digest_json(entry.mapping),
        tags=len(mapping.tags),
        period_s=mapping.period_seconds,
        causal=mapping.causal,
        reward=mapping.reward.expression if mapping.reward else None,
    )


def _ranged(spec: PlantSpec, least: Floats, greatest: Floats) -> list[bool]:
    """Whether the range of each signal was given, and not made of what was seen (F,)."""
    low, high = signal_bounds(spec)
    made = np.isclose(low, least, rtol=1e-6, atol=0) & np.isclose(high, greatest, rtol=1e-6, atol=0)
    made[spec.observation.size :] = False  # a policy that acts at its bounds is no sign that they were made
    return list(map(bool, np.isfinite(high - low) & ~made))


def _never_violated(limits: dict[str, LimitCard]) -> list[str]:
    if not limits:
        return ["No limit is known: nothing here shows what must not happen, so give the plant's limits."]
    return [
        f"Limit '{name}' is never violated: what a violation is like, and so a safety critic of it, cannot be "
        "learned from these data."
        for name, limit in limits.items()
        if limit.violated_rows == 0
    ]


def _no_variation(
    signals: dict[str, SignalCard], actions: dict[str, ActionCard], rewards: tuple[float, float]
) -> list[str]:
    said = []
    for name, action in actions.items():
        if action.explained is None:
            said.append(f"Action '{name}' is constant: its effect cannot be learned.")
        elif action.explained >= FOLLOWS:
            said.append(
                f"Action '{name}' follows from the observation (R^2 {action.explained:.4f}): what any other action "
                "would have done cannot be learned."
            )
        if action.explained is not None and action.deviation_share < NEARLY_CONSTANT:
            said.append(
                f"Action '{name}' is nearly constant (deviation {action.deviation_share:.1%} of its range): little can "
                "be learned of its effect."
            )
    for name, signal in signals.items():
        if sentinel := next((x for x in (signal.least, signal.greatest) if x in SENTINELS), None):
            said.append(f"{name} goes to {sentinel:g}, as loggers write where they have no value: give its 'range'.")
        if signal.covered is not None and signal.covered < NARROW and signal.deviation > 0:
            said.append(f"{name} covers {signal.covered:.0%} of its range: nothing is known of the rest.")
        elif signal.deviation == 0 and name.startswith("observation"):
            said.append(f"{name} never moves: what depends on it cannot be learned.")
    if rewards[0] == rewards[1]:
        said.append("The reward is constant: nothing tells a better action from a worse one.")
    return said


def _not_taken(choices: Mapping[str, float]) -> list[str]:
    return [
        f"Choice '{name}' is never taken: its effect cannot be learned."
        if share == 0
        else f"Choice '{name}' is always taken: the effect of any other cannot be learned."
        for name, share in choices.items()
        if share in (0, 1)
    ]


def _cut_short(episodes: EpisodesCard, gaps: GapsCard, spec: PlantSpec) -> list[str]:
    said = []
    if episodes.longest < spec.horizon:
        said.append(
            f"The longest episode has {episodes.longest} steps of {spec.horizon}: returns over a whole "
            "episode are extrapolated."
        )
    if episodes.terminated == 0:
        said.append("No episode terminates: what a trip costs cannot be learned.")
    if not gaps.known:
        said.append("There are no timestamps: gaps in the record cannot be found.")
    return said
