"""Shares of a secret of which some recover it and fewer tell nothing, in integers modulo a prime.

Shamir 1979, How to share a secret, Communications of the ACM 22 (11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PRIME = 2**521 - 1
"""A Mersenne prime beyond every secret of 64 bytes."""


class Share(NamedTuple):
    """A point of the polynomial whose value at 0 is the secret."""

    x: int
    y: int


def shares(secret: int, sites: int, coefficients: Sequence[int], prime: int = PRIME) -> list[Share]:
    """`f(1), ..., f(sites)` of `f(x) = secret + c_1 x + c_2 x^2 + ...` modulo the prime.

    Args:
        secret: from 0 to below the prime.
        sites: how many shares.
        coefficients: c, one less than the shares that recover the secret: drawn uniformly from 0 to below the prime, by
            a generator that is fit for secrets, and told to nobody.
        prime: modulus.

    Raises:
        ValueError: on a secret or a coefficient outside of the field, or fewer sites than recover the secret.
    """
    polynomial = [secret, *coefficients]
    if not all(0 <= number < prime for number in polynomial):
        raise ValueError("expected a secret and coefficients from 0 to below the prime, got others: take a larger one.")
    if not len(polynomial) <= sites < prime:
        raise ValueError(f"expected at least {len(polynomial)} sites, which recover the secret, got {sites}.")

    def value(x: int) -> int:
        total = 0
        for number in reversed(polynomial):
            total = (total * x + number) % prime
        return total

    return [Share(x, value(x)) for x in range(1, sites + 1)]


def recovered(known: Sequence[Share], prime: int = PRIME) -> int:
    """The secret by Lagrange's interpolation at 0: `sum_i y_i prod_(j != i) x_j / (x_j - x_i)`.

    Too few shares give a wrong number, which cannot be told from the right one.

    Args:
        known: different shares, as many as one more than there were coefficients.
        prime: modulus.

    Raises:
        ValueError: when there is none, or one comes twice.
    """
    places = [share.x for share in known]
    if not known or len(set(places)) < len(places):
        raise ValueError(f"expected different shares, got those at {places}: leave out what came twice.")
    total = 0
    for x, y in known:
        above, below = 1, 1
        for other in places:
            if other != x:
                above, below = above * other % prime, below * (other - x) % prime
        total += y * above * pow(below, -1, prime)
    return total % prime
