"""Shamir's secret sharing in integers modulo a prime: enough shares recover the secret, fewer reveal nothing.

Shamir 1979, How to share a secret, Communications of the ACM 22 (11).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PRIME = 2**521 - 1
"""A Mersenne prime larger than every secret of 64 bytes."""


class Share(NamedTuple):
    """A point of the polynomial; the secret is the value at 0."""

    x: int
    y: int


def split_secret(secret: int, sites: int, coefficients: Sequence[int], prime: int = PRIME) -> list[Share]:
    """Return `f(1), ..., f(sites)` of `f(x) = secret + c_1 x + c_2 x^2 + ...` modulo the prime.

    Args:
        secret: in [0, prime).
        sites: number of shares.
        coefficients: c, one fewer than the shares that recover the secret. Draw them uniformly in [0, prime) with a
            cryptographic generator, and keep them secret.
        prime: modulus.

    Raises:
        ValueError: if a number is outside [0, prime), or there are fewer sites than shares that recover the secret.
    """
    polynomial = [secret, *coefficients]
    if outside := sum(not 0 <= number < prime for number in polynomial):
        raise ValueError(
            f"secret and coefficients must be in [0, prime), got {outside} outside for a prime of {prime.bit_length()} "
            "bits: use a larger prime"
        )
    if not len(polynomial) <= sites < prime:
        raise ValueError(f"sites must be at least {len(polynomial)} to recover the secret, got {sites}: add sites")

    def value(x: int) -> int:
        total = 0
        for number in reversed(polynomial):
            total = (total * x + number) % prime
        return total

    return [Share(x, value(x)) for x in range(1, sites + 1)]


def recover_secret(given: Sequence[Share], prime: int = PRIME) -> int:
    """Return the secret by Lagrange interpolation at 0: `sum_i y_i prod_(j != i) x_j / (x_j - x_i)`.

    Too few shares give a wrong number without an error.

    Args:
        given: distinct shares; their number must exceed the number of coefficients.
        prime: modulus.

    Raises:
        ValueError: if there are no shares, or two equal shares.
    """
    places = [share.x for share in given]
    if not given or len(set(places)) < len(places):
        raise ValueError(f"shares must be distinct and at least one, got shares number {places}: correct the list")
    total = 0
    for x, y in given:
        above, below = 1, 1
        for other in places:
            if other != x:
                above, below = above * other % prime, below * (other - x) % prime
        total += y * above * pow(below, -1, prime)
    return total % prime
