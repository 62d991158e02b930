"""Secure aggregation: the server learns the exact sum of the sites' messages, and nothing about a single message.

Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning (CCS), sections 4 and 6.
Sites send integers modulo 2^32. Each site adds a mask from its own seed, and one mask per other site from a seed that
both share. The shared masks cancel in the sum. Every seed is split into shares, which the other sites keep (`shamir`).
The server recovers the own seeds of sites that replied, and the shared seeds of sites that dropped out. The server must
never recover both kinds of seeds of one site, because together they reveal the site's numbers.

Callers agree on shared seeds (X25519 in the paper). Masks come from JAX's Threefry generator with 64-bit keys. For
stronger security, add masks from another generator in the same way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

Key = UInt32[Array, "2"]
"""Key data, the seed of a mask."""


class FixedPoint(NamedTuple):
    """Fixed-point format in which sums of all sites cannot overflow."""

    bound: float
    """Largest absolute value; larger numbers are clipped."""
    sites: int
    """Largest number of terms in a sum."""

    @property
    def scale(self) -> float:
        """Integer steps per unit: the largest power of two for which sums of `sites` numbers stay below 2^31.

        Raises:
            ValueError: if no power of two is small enough, or a field is invalid.
        """
        steps = (2**31 - 1) / (self.bound * self.sites) - 0.5 if self.bound > 0.0 and self.sites >= 1 else 0.0
        if not steps > 0.0:
            raise ValueError(
                f"bound times sites must be positive and below 2^32, got bound {self.bound:g} and {self.sites} sites: "
                "correct the bound"
            )
        return 2.0 ** math.floor(math.log2(steps))


def encode(x: Float[Array, " D"], fixed: FixedPoint) -> UInt32[Array, " D"]:
    """Return `round(x scale)` modulo 2^32, with x clipped to the bound."""
    whole = jnp.round(jnp.clip(x, -fixed.bound, fixed.bound) * fixed.scale)
    return jax.lax.bitcast_convert_type(whole.astype(jnp.int32), jnp.uint32)


def decode(total: UInt32[Array, " D"], fixed: FixedPoint) -> Float[Array, " D"]:
    """Return the sum (D,) of the numbers, from a sum (D,) of encoded numbers."""
    return jax.lax.bitcast_convert_type(total, jnp.int32).astype(jnp.result_type(float)) / fixed.scale


def mask(seed: Key, size: int) -> UInt32[Array, " D"]:
    """Return uniform integers (size,) modulo 2^32 from a seed."""
    return jax.random.bits(jax.random.wrap_key_data(seed, impl="threefry2x32"), (size,), jnp.uint32)


def add_masks(
    numbers: UInt32[Array, " D"], site: int | Int[Array, ""], own: Key, pairs: UInt32[Array, "S 2"]
) -> UInt32[Array, " D"]:
    """Return the message of site i, with `p = mask`: `x_i + p(b_i) + sum_(j > i) p(s_ij) - sum_(j < i) p(s_ij)`.

    Args:
        numbers: (D,) x_i, encoded numbers; all sums are modulo 2^32.
        site: index i.
        own: b_i, the site's own seed.
        pairs: (S, 2) s_ij, the seeds shared with every site j; entry i is ignored.
    """
    return numbers + mask(own, numbers.shape[0]) + _pair_masks(site, jnp.arange(len(pairs)), pairs, numbers.shape[0])


def remove_masks(
    total: UInt32[Array, " D"],
    arrived: Int[Array, " A"],
    own: UInt32[Array, "A 2"],
    dropped: Int[Array, " L"],
    pairs: UInt32[Array, "L A 2"],
) -> UInt32[Array, " D"]:
    """Return the sum of the encoded numbers of the sites that replied.

    Args:
        total: (D,) sum of the messages modulo 2^32.
        arrived: (A,) indices of the sites that replied.
        own: (A, 2) recovered own seeds of the sites that replied.
        dropped: (L,) indices of the sites that dropped out.
        pairs: (L, A, 2) recovered seeds that a dropped and an arrived site share.
    """
    size = total.shape[0]

    def without_own(total: UInt32[Array, " D"], seed: Key) -> tuple[UInt32[Array, " D"], None]:
        return total - mask(seed, size), None

    def without_shared(total: UInt32[Array, " D"], pair: Any) -> tuple[UInt32[Array, " D"], None]:
        # Cancel the masks that the others added for the dropped site.
        site, seeds = pair
        return total + _pair_masks(site, arrived, seeds, size), None

    total = jax.lax.scan(without_own, total, own)[0]
    return jax.lax.scan(without_shared, total, (dropped, pairs))[0]


def secure_mean(stacked: Any, weights: Float[Array, " S"], bound: float, key: PRNGKeyArray) -> Any:
    """Return `aggregate.weighted_mean`, computed by a secure sum; for simulations in which no site drops out.

    A site's message contains its weighted numbers and its weight, so the server learns only the sum of the weights.

    Args:
        stacked: arrays (S, ...).
        weights: (S,) that sum to 1.
        bound: largest absolute value of a site's numbers; larger ones are clipped.
        key: PRNG key from which the seeds of all sites are derived.
    """
    sites = weights.shape[0]
    fixed, part = FixedPoint(bound, sites), weights / jnp.max(weights)
    one, shape = ravel_pytree(jax.tree.map(lambda x: x[0], stacked))
    places = jnp.arange(sites)
    own = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(places)

    def seed(i: Int[Array, ""], j: Int[Array, ""]) -> Key:
        return jax.random.key_data(jax.random.fold_in(key, sites + jnp.minimum(i, j) * sites + jnp.maximum(i, j)))

    def sent(i: Int[Array, ""], tree: Any, weight: Float[Array, ""]) -> UInt32[Array, " D"]:
        # The weight is sent in units of the bound, like the numbers.
        numbers = jnp.append(jnp.clip(ravel_pytree(tree)[0], -bound, bound), bound) * weight.astype(one.dtype)
        return add_masks(encode(numbers, fixed), i, own[i], jax.vmap(lambda j: seed(i, j))(places))

    total = jnp.sum(jax.vmap(sent)(places, stacked, part), axis=0, dtype=jnp.uint32)
    no_drop_outs = jnp.zeros((0,), places.dtype), jnp.zeros((0, sites, 2), jnp.uint32)
    sums = decode(remove_masks(total, places, own, *no_drop_outs), fixed)
    return shape((sums[:-1] / (sums[-1] / bound)).astype(one.dtype))


def _pair_masks(
    site: int | Int[Array, ""], others: Int[Array, " J"], seeds: UInt32[Array, "J 2"], size: int
) -> UInt32[Array, " D"]:
    def add(total: UInt32[Array, " D"], pair: Any) -> tuple[UInt32[Array, " D"], None]:
        other, seed = pair
        term = mask(seed, size)
        zero = jnp.zeros_like(term)
        return total + jnp.where(other > site, term, jnp.where(other < site, zero - term, zero)), None

    return jax.lax.scan(add, jnp.zeros(size, jnp.uint32), (others, seeds))[0]
