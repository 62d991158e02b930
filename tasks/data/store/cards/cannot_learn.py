"""Sentences of a card about things that cannot be learned from a dataset."""

from __future__ import annotations

from collections.abc import Mapping

from neorl_core.types import PlantSpec
from tasks.data.store.records import ActionCard, EpisodesCard, GapsCard, LimitCard, SignalCard

FOLLOWS = 0.99
"""R^2 of an action given the observation from which the action counts as determined by it."""
NEARLY_CONSTANT = 0.02
"""Deviation of an action, as a share of the range, below which the action counts as nearly constant."""
SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0)
"""Placeholders that loggers write for missing values."""
NARROW = 0.1
"""Covered share of a signal's range below which the coverage counts as narrow."""


def never_violated(limits: dict[str, LimitCard]) -> list[str]:
    """Limits without a violation."""
    if not limits:
        return ["No limit is known, so violations cannot be recognised: give the plant's limits."]
    return [
        f"Limit '{name}' is never violated: neither violations nor a safety critic for them can be learned from these "
        "data."
        for name, limit in limits.items()
        if limit.violated_rows == 0
    ]


def no_variation(
    signals: dict[str, SignalCard], actions: dict[str, ActionCard], rewards: tuple[float, float]
) -> list[str]:
    """Constant, determined or narrow actions, signals and rewards; `rewards` are the least and the greatest."""
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


def not_taken(choices: Mapping[str, float]) -> list[str]:
    """Choices of a discrete action that are taken never or always, from the share of rows of each."""
    return [
        f"Choice '{name}' is never taken: its effect cannot be learned."
        if share == 0
        else f"Choice '{name}' is always taken: the effect of other choices cannot be learned."
        for name, share in choices.items()
        if share in (0, 1)
    ]


def cut_short(episodes: EpisodesCard, gaps: GapsCard, spec: PlantSpec) -> list[str]:
    """Unknown horizons, terminations and gaps."""
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
