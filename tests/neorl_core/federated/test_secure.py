"""Secure sums: hand-worked shares, exact sums with drop-outs, and messages seen by the server."""

from __future__ import annotations

import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.federated.aggregate import weighted_mean
from neorl_core.federated.secure import FixedPoint, add_masks, decode, encode, remove_masks, secure_mean
from neorl_core.federated.shamir import PRIME, Share, recover_secret, split_secret

SITES, SIZE = 7, 50


def test_published_example_of_shares() -> None:
    """Secret 1234, f(x) = 1234 + 166 x + 94 x^2 modulo 1613: the example of Wikipedia's article on Shamir's scheme."""
    found = split_secret(1234, 6, [166, 94], prime=1613)
    assert found == [Share(1, 1494), Share(2, 329), Share(3, 965), Share(4, 176), Share(5, 1188), Share(6, 775)]
    assert recover_secret([found[1], found[3], found[4]], prime=1613) == 1234
    assert recover_secret(found, prime=1613) == 1234
    assert recover_secret(found[:2], prime=1613) != 1234


def test_invalid_shares_are_rejected() -> None:
    with pytest.raises(ValueError, match="use a larger prime"):
        split_secret(1613, 3, [1], prime=1613)
    with pytest.raises(ValueError, match="sites must be at least 3"):
        split_secret(1, 2, [1, 1])
    with pytest.raises(ValueError, match="shares must be distinct"):
        recover_secret([Share(1, 2), Share(1, 2)])


def seed(number: int) -> jax.Array:
    return jnp.asarray([number >> 32, number & 0xFFFFFFFF], jnp.uint32)


@pytest.mark.parametrize("dropped", [[], [2], [0, 6, 3]])
def test_sums_are_exact_with_drop_outs(dropped: list[int]) -> None:
    fixed, rng = FixedPoint(bound=3.0, sites=SITES), np.random.default_rng(1)
    numbers = [encode(jnp.asarray(rng.normal(size=SIZE), jnp.float32), fixed) for _ in range(SITES)]
    own = [secrets.randbits(64) for _ in range(SITES)]
    pairs = {(i, j): secrets.randbits(64) for i in range(SITES) for j in range(i + 1, SITES)}

    def of_site(i: int) -> list[int]:
        return [0 if i == j else pairs[min(i, j), max(i, j)] for j in range(SITES)]

    sent = [add_masks(numbers[i], i, seed(own[i]), jnp.stack([seed(s) for s in of_site(i)])) for i in range(SITES)]
    threshold = 4
    kept_own = [split_secret(s, SITES, [secrets.randbelow(PRIME) for _ in range(threshold - 1)]) for s in own]
    kept_pairs = {
        pair: split_secret(s, SITES, [secrets.randbelow(PRIME) for _ in range(threshold - 1)])
        for pair, s in pairs.items()
    }

    arrived = [i for i in range(SITES) if i not in dropped]
    helping = arrived[:threshold]
    found_own = jnp.stack([seed(recover_secret([kept_own[i][j] for j in helping])) for i in arrived])
    found_pairs = [
        jnp.stack([seed(recover_secret([kept_pairs[min(d, i), max(d, i)][j] for j in helping])) for i in arrived])
        for d in dropped
    ]
    stacked = jnp.stack(found_pairs) if dropped else jnp.zeros((0, len(arrived), 2), jnp.uint32)
    total = sum((sent[i] for i in arrived[1:]), sent[arrived[0]])
    told = remove_masks(total, jnp.asarray(arrived), found_own, jnp.asarray(dropped, jnp.int32), stacked)
    plain = sum((numbers[i] for i in arrived[1:]), numbers[arrived[0]])
    assert told.tobytes() == plain.tobytes()
    assert total.tobytes() != plain.tobytes()


def test_messages_look_uniform() -> None:
    """Masked constants are uniform: the mean lies within five standard errors of the middle."""
    pairs = jax.random.key_data(jax.random.split(jax.random.key(0), SITES))
    sent = add_masks(jnp.full(20_000, 7, jnp.uint32), 2, seed(99), pairs)
    assert abs(float(np.mean(np.asarray(sent, np.float64))) / 2**32 - 0.5) < 5 / np.sqrt(12 * 20_000)
    assert len(np.unique(sent)) > 19_990


def test_fixed_point_is_accurate_and_cannot_overflow() -> None:
    fixed = FixedPoint(bound=1.5, sites=20)
    x = jnp.linspace(-1.5, 1.5, 33)
    np.testing.assert_allclose(decode(encode(x, fixed), fixed), x, atol=1 / fixed.scale)
    most = sum((encode(jnp.asarray([1e9]), fixed) for _ in range(20)), jnp.zeros(1, jnp.uint32))
    assert decode(most, fixed)[0] == 30.0
    with pytest.raises(ValueError, match="bound times sites must be positive"):
        FixedPoint(0.0, 3).scale  # noqa: B018
    with pytest.raises(ValueError, match=r"got bound 1e\+30 and 3 sites"):
        FixedPoint(1e30, 3).scale  # noqa: B018


def test_a_secure_mean_is_the_weighted_mean() -> None:
    rng = np.random.default_rng(0)
    stacked = {"w": jnp.asarray(rng.normal(size=(5, 3, 4)), jnp.float32), "b": jnp.asarray(rng.normal(size=(5, 2)))}
    weights = jnp.asarray([0.1, 0.3, 0.2, 0.15, 0.25])
    found = jax.jit(lambda tree: secure_mean(tree, weights, 4.0, jax.random.key(3)))(stacked)
    plain = weighted_mean(stacked, weights)
    for name in stacked:
        np.testing.assert_allclose(found[name], plain[name], atol=1e-6)
