"""The dataset card: what a dataset holds, how it was made, and what cannot be learned from it; JSON and Markdown.

Two passes over the dataset's blocks, in constant memory. It lies in the folder `cards` beside that of the manifests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.errors import BadInput, Refused
from neorl_core.types import Constraint, PlantSpec
from tasks.adapters.files.canonical import canonical_json, digest_json, read_json, write_atomic, write_json
from tasks.adapters.store.card_counts import (
    BINS,
    CELL_BINS,
    Totals,
    behaviour_fit,
    covariance,
    first_pass,
    ranges_of,
    second_pass,
)
from tasks.adapters.store.card_page import card_markdown
from tasks.adapters.store.reader import StoredDataset
from tasks.adapters.store.records import Provenance

SCHEMA = 1
FOLLOWS = 0.999
"""Share of an action's variance that the observation explains, from which on no other action was tried."""
NARROW = 0.1
"""Share of a signal's bins below which it is said to be hardly covered."""
ANY_LIMIT = Constraint("any limit, by the log's own cost", "1", -np.inf, 0.0)
"""What stands for the limits of a log that says only whether one was exceeded."""


def build_card(dataset: StoredDataset, spec: PlantSpec) -> dict[str, Any]:
    """Look at a dataset.

    Args:
        dataset: opened.
        spec: of its plant.

    Returns:
        The card as JSON: dataset, plant, rows, source, signals, actions, coverage, limits, gaps, episodes, behaviour,
        cannot_learn.
    """
    totals = first_pass(dataset, spec)
    lengths = np.diff(dataset.episodes)
    names = _names(spec)
    low, high = ranges_of(spec, totals)
    histogram, cells, looked = second_pass(dataset, low, high)
    mean = totals.origin + totals.plain / totals.rows
    spread = np.sqrt(np.maximum(np.diag(covariance(totals)), 0.0))
    # A row's value came from single precision: what it cannot tell apart is no deviation.
    spread[spread < 1e-6 * (1 + np.abs(mean))] = 0.0
    fit = behaviour_fit(totals, spec, spread)
    size = spec.observation.size
    signals = {
        name: {
            "unit": unit,
            "least": float(totals.least[i]),
            "mean": float(mean[i]),
            "greatest": float(totals.greatest[i]),
            "deviation": float(spread[i]),
            "change": float(totals.moved[i]),
            "covered": float((histogram[i] > 0).mean()),
        }
        for i, (name, unit) in enumerate(zip(names, (*spec.observation.units, *spec.action.units), strict=True))
    }
    actions = {
        name: {
            "deviation_share": float(spread[size + i] / max(high[size + i] - low[size + i], 1e-300)),
            "entropy_bits": _entropy(histogram[size + i]),
            "most_bits": math.log2(BINS),
            "explained": fit[name],
        }
        for i, name in enumerate(spec.action.names)
    }
    limits = {
        limit.name: {
            "unit": limit.unit,
            "low": _plain(limit.low),
            "high": _plain(limit.high),
            "violated_rows": int(totals.violated[i]),
            "violated_share": float(totals.violated[i] / totals.rows),
            "worst_excess": float(totals.worst[i]),
        }
        for i, limit in enumerate(spec.constraints or (ANY_LIMIT,))
        if i < len(totals.violated)
    }
    card: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": dataset.digest,
        "plant": spec.name,
        "rows": totals.rows,
        "source": [_source(entry) for entry in dataset.manifest.provenance],
        "signals": signals,
        "actions": actions,
        "coverage": {
            "rows_looked_at": looked,
            "bins": CELL_BINS,
            "cells": cells,
            "rows_per_cell": looked / max(cells, 1),
            "mean_covered": float(np.mean([signal["covered"] for signal in signals.values()])),
        },
        "limits": limits,
        "gaps": {
            "known": "timestamps" in dataset.keys,
            "count": len(totals.gaps),
            "longest_s": float(totals.gaps.max(initial=0.0)),
            "total_s": float(totals.gaps.sum()),
        },
        "episodes": {
            "count": len(lengths),
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "longest": int(lengths.max()),
            "terminated": totals.terminated,
            "return_least": float(totals.returns.min()),
            "return_mean": float(totals.returns.mean()),
            "return_greatest": float(totals.returns.max()),
        },
        "behaviour": {"fit": "ridge regression of each action on the observation", "r_squared": fit},
    }
    card["cannot_learn"] = _cannot_learn(card, spec, totals)
    return card


def require_violations(card: Mapping[str, Any], limits: Sequence[str] | None = None) -> None:
    """What training of a safety critic calls before it begins: a limit that was never violated cannot teach one.

    Args:
        card: of the dataset.
        limits: names; all of the plant's when not given.

    Raises:
        Refused: naming the limits that the dataset cannot supervise.
    """
    known = card["limits"]
    for name in limits or ():
        if name not in known:
            raise BadInput(f"expected a limit among {', '.join(known) or 'none'}, got '{name}': correct its name.")
    wanted = list(known) if limits is None else list(limits)
    if not wanted:
        raise Refused("expected limits to learn a safety critic of, got a plant without: train without one.")
    if never := [name for name in wanted if known[name]["violated_rows"] == 0]:
        raise Refused(
            f"expected every limit to be violated somewhere in dataset {card['dataset'][:12]}, got "
            f"{', '.join(never)} never violated: such data cannot supervise a safety critic, so add data that "
            "violate it (a simulator's will do), or rely on a shield that needs none."
        )


class CardFiles(NamedTuple):
    """A dataset card on disk."""

    record: Path
    """As JSON."""
    page: Path
    """As Markdown, for readers."""


def write_card(dataset: StoredDataset, spec: PlantSpec) -> CardFiles:
    """Make the card, unless it is there and whole."""
    folder = dataset.root / "cards"
    files = CardFiles(folder / f"{dataset.digest}.json", folder / f"{dataset.digest}.md")
    held = _recall(files.record)
    if held is None:
        # Through its canonical form, so that a card just made and one read again are the same to the last byte.
        card = json.loads(canonical_json(build_card(dataset, spec)))
        write_json(files.record, {"card": card, "digest": digest_json(card)})
        held = card
    text = card_markdown(held).encode()
    if not files.page.exists() or files.page.read_bytes() != text:
        write_atomic(files.page, text)
    return files


def read_card(root: Path, digest: str) -> dict[str, Any]:
    """The card of a dataset.

    Raises:
        BadInput: when there is none, or it was altered.
    """
    card = _recall(root / "cards" / f"{digest}.json")
    if card is None:
        raise BadInput(f"expected the card of dataset {digest[:12]} in {root / 'cards'}, got none: ingest it again.")
    return card


def _recall(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        held = read_json(path)
    except BadInput:
        return None
    card = held.get("card") if isinstance(held, dict) else None
    whole = isinstance(card, dict) and card.get("schema") == SCHEMA and held.get("digest") == digest_json(card)
    return card if whole else None


def _names(spec: PlantSpec) -> list[str]:
    return [f"observation {n}" for n in spec.observation.names] + [f"action {n}" for n in spec.action.names]


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    share = counts[counts > 0] / max(counts.sum(), 1)
    return float(max(-(share * np.log2(share)).sum(), 0.0))


def _plain(bound: float) -> float | None:
    return float(bound) if math.isfinite(bound) else None


def _source(entry: Provenance) -> dict[str, Any]:
    """What a provenance entry says of where rows came from."""
    mapping = entry.mapping
    shown = None
    if mapping is not None:
        tags, reward = mapping.get("tags"), mapping.get("reward")
        shown = {
            "sha256": digest_json(mapping),
            "tags": len(tags) if isinstance(tags, dict) else 0,
            "period_s": mapping.get("period_seconds"),
            "causal": mapping.get("causal"),
            "lags": mapping.get("lags"),
            "reward": reward.get("expression") if isinstance(reward, dict) else None,
        }
    files = []
    for source in entry.sources:
        account = source.account
        files.append(
            {
                "sha256": source.sha256,
                "rows_seen": source.seen,
                "rows_quarantined": source.quarantined,
                "reasons": source.reasons,
                "steps": account.model_dump(exclude={"samples", "raw"}) if account else {},
                "raw": account.raw.model_dump() if account else None,
            }
        )
    return {"format": entry.format, "mapping": shown, "code": entry.code, "files": files}


def _cannot_learn(card: Mapping[str, Any], spec: PlantSpec, totals: Totals) -> list[str]:
    said = []
    for name, limit in card["limits"].items():
        if limit["violated_rows"] == 0:
            said.append(
                f"Limit '{name}' is never violated: what a violation is like, and so a safety critic of it, cannot be "
                "learned from these data, and such training is refused."
            )
    for name, action in card["actions"].items():
        if action["explained"] is None:
            said.append(f"Action '{name}' is constant: its effect cannot be learned.")
        elif action["explained"] >= FOLLOWS:
            said.append(
                f"Action '{name}' follows from the observation (R^2 {action['explained']:.4f}): what any other action "
                "would have done cannot be learned."
            )
    for name, signal in card["signals"].items():
        if signal["covered"] < NARROW and signal["deviation"] > 0:
            said.append(f"{name} covers {signal['covered']:.0%} of its range: nothing is known of the rest.")
        elif signal["deviation"] == 0 and name.startswith("observation"):
            said.append(f"{name} never moves: what depends on it cannot be learned.")
    if totals.reward[0] == totals.reward[1]:
        said.append("The reward is constant: nothing tells a better action from a worse one.")
    if card["episodes"]["longest"] < spec.horizon:
        said.append(
            f"The longest episode has {card['episodes']['longest']} steps of {spec.horizon}: returns over a whole "
            "episode are extrapolated."
        )
    if card["episodes"]["terminated"] == 0:
        said.append("No episode terminates: what a trip costs cannot be learned.")
    if not card["gaps"]["known"]:
        said.append("There are no timestamps: gaps in the record cannot be told.")
    return said
