"""Secure sums: the server learns the sum of what sites send and nothing of the terms, to the last bit.

Bonawitz et al. 2017, Practical secure aggregation for privacy-preserving machine learning (CCS), sections 4 and 6.
Sites send integers modulo 2^32. Each adds a mask of its own, and for every other site one that the two share, with
opposite signs, so that these cancel in the sum. Shares of all seeds lie with the other sites (`shamir`): the server
asks them for the own seeds of sites whose masked numbers arrived, and for the shared ones of sites that dropped out,
never for both of one site: that would lay its numbers open, which is why there are two.

How two sites agree on a seed (X25519 by the paper) is above the core. Masks here are of JAX's generator, Threefry with
keys of 64 bits: what is to withstand more than that brings masks of its own to the same additions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

Key = UInt32[Array, "2"]
"""Data of a key: the seed of a mask."""


class FixedPoint(NamedTuple):
    """Numbers as integers, of which sums cannot overflow."""

    bound: float
    """No number exceeds it in size; what does is cut off."""
    sites: int
    """Terms of a sum, at most."""

    @property
    def scale(self) -> float:
        """Steps per unit: the greatest power of two at which `sites` numbers of the bound's size stay below 2^31.

        Raises:
            ValueError: when there is none, or numbers make no sense.
        """
        steps = (2**31 - 1) / (self.bound * self.sites) - 0.5 if self.bound > 0.0 and self.sites >= 1 else 0.0
        if not steps > 0.0:
            raise ValueError(
                f"expected a finite bound above 0 and at least one site, of a product below 2^32, got {self}: "
                "correct the bound."
            )
        return 2.0 ** math.floor(math.log2(steps))


def encoded(x: Float[Array, " D"], fixed: FixedPoint) -> UInt32[Array, " D"]:
    """`round(x scale)` modulo 2^32, after cutting off at the bound.

    Args:
        x: (D,).
        fixed: bound and number of terms.
    """
    whole = jnp.round(jnp.clip(x, -fixed.bound, fixed.bound) * fixed.scale)
    return jax.lax.bitcast_convert_type(whole.astype(jnp.int32), jnp.uint32)


def decoded(total: UInt32[Array, " D"], fixed: FixedPoint) -> Float[Array, " D"]:
    """A sum of encoded numbers as a number.

    Args:
        total: (D,), modulo 2^32.
        fixed: bound and number of terms.
    """
    return jax.lax.bitcast_convert_type(total, jnp.int32).astype(jnp.result_type(float)) / fixed.scale


def mask(seed: Key, size: int) -> UInt32[Array, " D"]:
    """Uniform integers modulo 2^32 by a seed.

    Args:
        seed: data of a key.
        size: D.
    """
    return jax.random.bits(jax.random.wrap_key_data(seed, impl="threefry2x32"), (size,), jnp.uint32)


def masked(
    numbers: UInt32[Array, " D"], site: int | Int[Array, ""], own: Key, pairs: UInt32[Array, "S 2"]
) -> UInt32[Array, " D"]:
    """`x_i + p(b_i) + sum_(j > i) p(s_ij) - sum_(j < i) p(s_ij)` modulo 2^32: what site i sends.

    Args:
        numbers: (D,), encoded.
        site: i.
        own: b_i, the seed that the site has alone.
        pairs: (S, 2), s_ij, the seeds that it shares with every site j; its own place does not count.
    """
    return numbers + mask(own, numbers.shape[0]) + _between(site, jnp.arange(len(pairs)), pairs, numbers.shape[0])


def unmasked(
    total: UInt32[Array, " D"],
    arrived: Int[Array, " A"],
    own: UInt32[Array, "A 2"],
    dropped: Int[Array, " L"],
    pairs: UInt32[Array, "L A 2"],
) -> UInt32[Array, " D"]:
    """The sum of the encoded numbers of the sites that arrived.

    Args:
        total: (D,), sum of what they sent, modulo 2^32.
        arrived: (A,), their numbers.
        own: (A, 2), their own seeds, recovered.
        dropped: (L,), sites with which they share seeds and of which nothing arrived.
        pairs: (L, A, 2), the seeds that each of these shares with those that arrived, recovered.
    """
    size = total.shape[0]

    def without_own(total: UInt32[Array, " D"], seed: Key) -> tuple[UInt32[Array, " D"], None]:
        return total - mask(seed, size), None

    def without_shared(total: UInt32[Array, " D"], given: Any) -> tuple[UInt32[Array, " D"], None]:
        # What the site would have sent cancels what the others added for it.
        site, seeds = given
        return total + _between(site, arrived, seeds, size), None

    total = jax.lax.scan(without_own, total, own)[0]
    return jax.lax.scan(without_shared, total, (dropped, pairs))[0]


def secure_mean(stacked: Any, weights: Float[Array, " S"], bound: float, key: PRNGKeyArray) -> Any:
    """`aggregate.weighted_mean` by a secure sum of which nobody drops out: for simulations, in which one key seeds all.

    A site sends its weighted numbers and its weight, so that the server learns the sum of the weights and no weight.

    Args:
        stacked: arrays (S, ...).
        weights: (S,), of sum 1.
        bound: no number of a site is larger in size; what is, is cut off.
        key: of all seeds.
    """
    sites = weights.shape[0]
    fixed, part = FixedPoint(bound, sites), weights / jnp.max(weights)
    one, shape = ravel_pytree(jax.tree.map(lambda x: x[0], stacked))
    places = jnp.arange(sites)
    own = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(places)

    def seed(i: Int[Array, ""], j: Int[Array, ""]) -> Key:
        return jax.random.key_data(jax.random.fold_in(key, sites + jnp.minimum(i, j) * sites + jnp.maximum(i, j)))

    def sent(i: Int[Array, ""], tree: Any, weight: Float[Array, ""]) -> UInt32[Array, " D"]:
        # What a site counts is in units of the bound, as its numbers are.
        numbers = jnp.append(jnp.clip(ravel_pytree(tree)[0], -bound, bound), bound) * weight.astype(one.dtype)
        return masked(encoded(numbers, fixed), i, own[i], jax.vmap(lambda j: seed(i, j))(places))

    total = jnp.sum(jax.vmap(sent)(places, stacked, part), axis=0, dtype=jnp.uint32)
    nobody = jnp.zeros((0,), places.dtype), jnp.zeros((0, sites, 2), jnp.uint32)
    found = decoded(unmasked(total, places, own, *nobody), fixed)
    return shape((found[:-1] / (found[-1] / bound)).astype(one.dtype))


def _between(
    site: int | Int[Array, ""], others: Int[Array, " J"], seeds: UInt32[Array, "J 2"], size: int
) -> UInt32[Array, " D"]:
    def add(total: UInt32[Array, " D"], given: Any) -> tuple[UInt32[Array, " D"], None]:
        other, seed = given
        drawn = mask(seed, size)
        nothing = jnp.zeros_like(drawn)
        return total + jnp.where(other > site, drawn, jnp.where(other < site, nothing - drawn, nothing)), None

    return jax.lax.scan(add, jnp.zeros(size, jnp.uint32), (others, seeds))[0]
