"""Dataset cards: a summary of a dataset, its sources, and what cannot be learned from it, as JSON and Markdown.

To build a card, all rows are read twice; memory use is constant. Cards are stored in the folder `cards` beside the
folder `manifests`.
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
from neorl_core.types import Constraint, PlantSpec, varies
from tasks.data.store.cards.markdown import card_markdown
from tasks.data.store.cards.pictures import pictures_of
from tasks.data.store.cards.response import responses_of
from tasks.data.store.cards.timeline import timeline_of
from tasks.data.store.episodes import vector_space
from tasks.data.store.reader import StoredDataset
from tasks.data.store.records import (
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
from tasks.data.store.statistics import (
    BLOCK_ROWS,
    Floats,
    Statistics,
    signal_bounds,
    signal_ranges,
    signals_of,
    summarise,
)
from tasks.files.canonical import canonical_json, digest_json, read_json, write_atomic, write_json

SCHEMA = 4
"""Version of the card format. A stored card with another version is built again."""
ANY_LIMIT = Constraint("any limit, by the log's own cost", "1", -np.inf, 0.0)
"""Stands for all limits if the log has only one cost for all limits."""
BINS = 20
"""Bins per signal, for histograms and for the entropy of an action."""
CELL_BINS = 5
"""Bins per signal of a grid; the card counts the cells that rows visit."""
CELL_BITS = 2**22
"""Bits of the table with which visited cells are counted (linear counting, Whang et al. 1990, ACM TODS 15(2))."""
LOOKED_AT = 2_000_000
"""Approximate number of evenly spaced rows for histograms, coverage and entropy."""
RIDGE = 1e-6
"""Regularisation of the linear fit of actions on observations, relative to the variance of an observation."""

FOLLOWS = 0.99
"""Smallest R^2 of an action's linear fit on the observation at which the action counts as determined."""
NEARLY_CONSTANT = 0.02
"""Standard deviation of an action, as a share of its range, below which the action counts as nearly constant."""
SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0)
"""Placeholders that loggers write for missing values."""
NARROW = 0.1
"""Covered share of a signal's range below which the coverage counts as narrow."""


class CardFiles(NamedTuple):
    record: Path
    page: Path
    pictures: tuple[Path, ...]


def build_card(dataset: StoredDataset, spec: PlantSpec) -> Card:
    """Compute the card of an opened dataset; `spec` gives the names, units and limits."""
    found = summarise(dataset, spec, block_rows=BLOCK_ROWS, check_rows=False)
    least, greatest = (np.array([getattr(x, end) for x in found.signals.values()]) for end in ("least", "greatest"))
    low, high = signal_ranges(spec, least, greatest)
    histogram, cells, looked = _visited(dataset, spec, low, high)
    spread = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    spread[~varies(np.array([signal.mean for signal in found.signals.values()]), spread)] = 0.0
    signals = _signals(spec, found, spread, histogram, low, high)
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
    fixed = _no_variation(signals, actions, found.rewards)
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
        timeline=timeline_of(dataset, found),
        responses=responses_of(dataset, spec),
        episodes=episodes,
        cannot_learn=(*_never_violated(limits), *fixed, *_not_taken(choices), *_cut_short(episodes, gaps, spec)),
    )


def write_card(dataset: StoredDataset, spec: PlantSpec) -> CardFiles:
    """Write the card of a dataset unless a valid card exists, and return the card's files."""
    folder = dataset.root / "cards"
    path, page = folder / f"{dataset.digest}.json", folder / f"{dataset.digest}.md"
    card = _recall(path)
    if card is None:
        record = build_card(dataset, spec).model_dump(mode="json", by_alias=True)
        write_json(path, {"card": record, "digest": digest_json(record)})
        # Parse the canonical JSON, so that a new card gives the same page as a stored card.
        card = Card.model_validate_json(canonical_json(record))
    pictures = {folder / picture.file: picture.svg for picture in pictures_of(card)}
    for file, text in (pictures | {page: card_markdown(card)}).items():
        if not file.exists() or file.read_bytes() != text.encode():
            write_atomic(file, text.encode())
    return CardFiles(path, page, tuple(pictures))


def read_card(root: Path, digest: str) -> Card:
    """Return the stored card of a dataset; raise BadInput if the card is missing or altered."""
    card = _recall(root / "cards" / f"{digest}.json")
    if card is None:
        raise BadInput(f"the card of dataset {digest[:12]} in {root / 'cards'} is missing or altered: ingest again.")
    return card


def _recall(path: Path) -> Card | None:
    try:
        stored = read_json(path)
        card = Card.model_validate(stored["card"])
        valid = card.version == SCHEMA and stored["digest"] == digest_json(stored["card"])
    except (BadInput, ValidationError, KeyError, TypeError):
        return None
    return card if valid else None


def _signals(
    spec: PlantSpec, found: Statistics, spread: Floats, histogram: npt.NDArray[np.int64], low: Floats, high: Floats
) -> dict[str, SignalCard]:
    """Return the card of each of F signals from standard deviations (F,), histograms (F, `BINS`) and ranges (F,)."""
    least, greatest = (np.array([getattr(x, end) for x in found.signals.values()]) for end in ("least", "greatest"))
    units = (*spec.observation.units, *vector_space(spec).units)
    return {
        name: SignalCard(
            unit=unit,
            least=signal.least,
            mean=signal.mean,
            greatest=signal.greatest,
            deviation=float(deviation),
            change=signal.change,
            covered=signal.covered if given else None,
            histogram=tuple(counts),
            low=ends[0],
            high=ends[1],
        )
        for (name, signal), unit, deviation, given, counts, *ends in zip(
            found.signals.items(),
            units,
            spread,
            _ranged(spec, least, greatest),
            histogram.tolist(),
            low.tolist(),
            high.tolist(),
            strict=True,
        )
    }


def _visited(
    dataset: StoredDataset, spec: PlantSpec, low: Floats, high: Floats
) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return a histogram of each signal over its range (F, `BINS`), and the numbers of visited cells and of rows."""
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
    """Return each action's card from the signals' covariance (F, F), deviations, range widths (F,) and histograms."""
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
    """Return R^2 of each action's linear fit on the observation, from the correlation (F, F) of all signals.

    R^2 = 2 b^T s - b^T S b with b = (S + `RIDGE` I)^-1 s. S is the correlation matrix of the observations, and s their
    correlation with the action.
    """
    within, fits = correlation[:observations, :observations], []
    for across in correlation[:observations, observations:].T:
        b = np.linalg.solve(within + RIDGE * np.eye(observations), across)
        left = 1 - 2 * b @ across + b @ within @ b
        fits.append(float(np.clip(1 - left, 0.0, 1.0)))
    return fits


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
        return None  # the mapping of an appended dataset may be from an earlier version
    return MappingCard(
        sha256=digest_json(entry.mapping),
        tags=len(mapping.tags),
        period_s=mapping.period_seconds,
        causal=mapping.causal,
        reward=mapping.reward.expression if mapping.reward else None,
    )


def _ranged(spec: PlantSpec, least: Floats, greatest: Floats) -> list[bool]:
    """Return for each signal whether the range was given, that is, not derived from the data (F,)."""
    low, high = signal_bounds(spec)
    made = np.isclose(low, least, rtol=1e-6, atol=0) & np.isclose(high, greatest, rtol=1e-6, atol=0)
    made[spec.observation.size :] = False  # actions often reach given bounds, so equal values are no sign
    return list(map(bool, np.isfinite(high - low) & ~made))


def _never_violated(limits: dict[str, LimitCard]) -> list[str]:
    if not limits:
        return ["No limit is known, so violations cannot be recognised: give the plant's limits."]
    return [
        f"Limit '{name}' is never violated: neither violations nor a safety critic for them can be learned from these "
        "data."
        for name, limit in limits.items()
        if limit.violated_rows == 0
    ]


def _no_variation(
    signals: dict[str, SignalCard], actions: dict[str, ActionCard], rewards: tuple[float, float]
) -> list[str]:
    """Return sentences about actions, signals and rewards that vary too little; `rewards` has the extreme values."""
    messages = []
    for name, action in actions.items():
        if action.explained is None:
            messages.append(f"Action '{name}' is constant: its effect cannot be learned.")
        elif action.explained >= FOLLOWS:
            messages.append(
                f"Action '{name}' follows from the observation (R^2 {action.explained:.4f}): the effect of other "
                "actions cannot be learned."
            )
        if action.explained is not None and action.deviation_share < NEARLY_CONSTANT:
            messages.append(
                f"Action '{name}' is nearly constant (deviation {action.deviation_share:.1%} of its range): little can "
                "be learned of its effect."
            )
    for name, signal in signals.items():
        if sentinel := next((x for x in (signal.least, signal.greatest) if x in SENTINELS), None):
            messages.append(f"{name} contains {sentinel:g}, a common placeholder for missing values: give its 'range'.")
        if signal.covered is not None and signal.covered < NARROW and signal.deviation > 0:
            messages.append(f"{name} covers {signal.covered:.0%} of its range: the rest is unknown.")
        elif signal.deviation == 0 and name.startswith("observation"):
            messages.append(f"{name} never changes: effects of it cannot be learned.")
    if rewards[0] == rewards[1]:
        messages.append("The reward is constant: it does not distinguish good actions from bad ones.")
    return messages


def _not_taken(choices: Mapping[str, float]) -> list[str]:
    return [
        f"Choice '{name}' is never taken: its effect cannot be learned."
        if share == 0
        else f"Choice '{name}' is always taken: the effect of other choices cannot be learned."
        for name, share in choices.items()
        if share in (0, 1)
    ]


def _cut_short(episodes: EpisodesCard, gaps: GapsCard, spec: PlantSpec) -> list[str]:
    messages = []
    if episodes.longest < spec.horizon:
        messages.append(
            f"The longest episode has {episodes.longest} steps of {spec.horizon}: returns over a whole "
            "episode are extrapolated."
        )
    if episodes.terminated == 0:
        messages.append("No episode terminates: the cost of a trip cannot be learned.")
    if not gaps.known:
        messages.append("There are no timestamps: gaps in the record cannot be found.")
    return messages
