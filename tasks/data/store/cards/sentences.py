"""What cannot be learned from a dataset, one sentence for each thing."""

from __future__ import annotations

from collections.abc import Mapping

from neorl_core.types import PlantSpec
from tasks.data.store.records import ActionCard, EpisodesCard, GapsCard, LimitCard, SignalCard

FOLLOWS = 0.99
"""Share of an action's variance that the observation explains, from which on no other action was tried."""
NEARLY_CONSTANT = 0.02
"""Deviation of an action, as a share of its range, below which it is said to be nearly constant."""
SENTINELS = (-99.0, -999.0, -9999.0, -99999.0, 9999.0, 99999.0)
"""What loggers write where they have no value."""
NARROW = 0.1
"""Covered share of a signal's range below which it is said to be hardly covered."""


def never_violated(limits: dict[str, LimitCard]) -> list[str]:
    """What limits teach nothing of a violation."""
    if not limits:
        return ["No limit is known: nothing here shows what must not happen, so give the plant's limits."]
    return [
        f"Limit '{name}' is never violated: what a violation is like, and so a safety critic of it, cannot be "
        "learned from these data."
        for name, limit in limits.items()
        if limit.violated_rows == 0
    ]


def no_variation(
    signals: dict[str, SignalCard], actions: dict[str, ActionCard], rewards: tuple[float, float]
) -> list[str]:
    """What does not vary enough, or not by itself; `rewards` are the least and the greatest."""
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


def not_taken(choices: Mapping[str, float]) -> list[str]:
    """What choices of a discrete action teach nothing, from the share of rows that take each."""
    return [
        f"Choice '{name}' is never taken: its effect cannot be learned."
        if share == 0
        else f"Choice '{name}' is always taken: the effect of any other cannot be learned."
        for name, share in choices.items()
        if share in (0, 1)
    ]


def cut_short(episodes: EpisodesCard, gaps: GapsCard, spec: PlantSpec) -> list[str]:
    """What episodes do not show: their whole length, their ends, and the time between them."""
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
