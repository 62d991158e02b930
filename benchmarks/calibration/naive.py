"""Naive certification methods that NeoRL does not use, at a true violation probability of p0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neorl_core.safety.bounds import clopper_pearson_upper, rollouts_needed

P0, ALPHA = 1e-3, 0.05
LONGEST = 20_000


def _violations(chance: np.random.Generator, episodes: int) -> np.ndarray:
    """Draw the numbers of the violated episodes, counted from 1."""
    gaps = chance.geometric(P0, size=int(episodes * P0 * 3) + 60)
    found = np.cumsum(gaps)
    return found[found <= episodes]


def t_test(chance: np.random.Generator) -> bool:
    """Return whether the upper end of a one-sided t interval over 1,000 episodes is below p0."""
    k, n = len(_violations(chance, 1000)), 1000
    mean = k / n
    deviation = np.sqrt(mean * (1 - mean) * n / (n - 1))
    return bool(mean + 1.6464 * deviation / np.sqrt(n) < P0)


def peeking(chance: np.random.Generator) -> bool:
    """Return whether a Clopper-Pearson bound certifies if it is computed after every episode, up to 20,000 times."""
    found = _violations(chance, LONGEST)
    return any(
        (found[k] if k < len(found) else LONGEST + 1) > needed
        for k, needed in enumerate(_NEEDED)
        if k <= len(found) and needed <= LONGEST
    )


_NEEDED = [rollouts_needed(P0, k, ALPHA) for k in range(15)]
"""Element k: number of episodes that certify with k violations."""


def best_of_ten(chance: np.random.Generator) -> bool:
    """Return whether any of ten composites certifies, each with the full error probability."""
    n = _NEEDED[0]
    return any(clopper_pearson_upper(len(_violations(chance, n)), n, ALPHA) <= P0 for _ in range(10))


NAIVE: dict[str, Callable[[np.random.Generator], bool]] = {
    "t-test of 1,000 episodes": t_test,
    "Clopper-Pearson, looked at after every episode": peeking,
    "Clopper-Pearson, best of ten": best_of_ten,
}
