"""Secure sums: exact totals, sites that drop out at each step, and refused questions."""

from __future__ import annotations

import numpy as np
import pytest

from configs.errors import BadInput, Refused
from tasks.federation.secure_sum import Bytes, Numbers, PublicKeys, RevealedShares, SecureSumSite, unmask_total

NAMES = ("a", "b", "c", "d", "e")
LEAST = 3


def exchanged(
    names: tuple[str, ...] = NAMES,
) -> tuple[dict[str, SecureSumSite], dict[str, PublicKeys], dict[str, dict[str, Bytes]]]:
    sites = {name: SecureSumSite(name, "f 1") for name in names}
    public = {name: PublicKeys.read(site.public) for name, site in sites.items()}
    return sites, public, {name: site.seal_shares(public, LEAST) for name, site in sites.items()}


def received(sealed: dict[str, dict[str, Bytes]], to: str, of: tuple[str, ...]) -> dict[str, Bytes]:
    return {name: sealed[name][to] for name in of if name != to}


def numbers(seed: int) -> Numbers:
    return np.random.default_rng(seed).integers(0, 2**32, 100, np.uint32)


@pytest.mark.parametrize("sent_by", [NAMES, ("a", "c", "e"), ("b", "c", "d")])
def test_sum_is_of_the_numbers_that_arrived(sent_by: tuple[str, ...]) -> None:
    sites, public, sealed = exchanged()
    sent = {
        n: sites[n].mask_numbers(numbers(i), received(sealed, n, NAMES)) for i, n in enumerate(NAMES) if n in sent_by
    }
    revealed = {name: sites[name].reveal(list(sent)) for name in list(sent)[:LEAST]}
    with pytest.raises(Refused, match="shares of 3 sites"):
        unmask_total(sent, public, dict(list(revealed.items())[1:]), LEAST)
    expected = np.sum([numbers(i) for i, n in enumerate(NAMES) if n in sent_by], axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(unmask_total(sent, public, revealed, LEAST), expected)
    for i, name in enumerate(NAMES):
        if name in sent:
            assert not np.any(sent[name] == numbers(i)), "a number has no mask"


def test_site_that_drops_out_before_the_numbers_has_no_mask() -> None:
    sites, public, sealed = exchanged()
    left = ("a", "b", "c", "d")
    sent = {name: sites[name].mask_numbers(numbers(i), received(sealed, name, left)) for i, name in enumerate(left)}
    revealed = {name: sites[name].reveal(left) for name in left}
    expected = np.sum([numbers(i) for i in range(4)], axis=0, dtype=np.uint32)
    total = unmask_total(sent, {name: public[name] for name in left}, revealed, LEAST)
    np.testing.assert_array_equal(total, expected)


def test_site_refuses_questions_that_would_reveal_numbers() -> None:
    sites, _, sealed = exchanged()
    for name in NAMES:
        sites[name].mask_numbers(numbers(0), received(sealed, name, NAMES))
    revealed: RevealedShares = sites["a"].reveal(("a", "b", "c"))
    assert revealed.own.keys() == {"a", "b", "c"}
    assert revealed.keys.keys() == {"d", "e"}, "never both of one site"
    with pytest.raises(Refused, match="shares are revealed once"):
        sites["a"].reveal(("a", "d", "e"))
    with pytest.raises(Refused, match="shares are revealed once"):
        sites["b"].reveal(("a", "b"))
    with pytest.raises(Refused, match="shares are revealed once"):
        sites["b"].reveal(("a", "b", "z"))
    # Two sets of numbers under the same masks would reveal their difference.
    with pytest.raises(Refused, match="repeat the round with new keys"):
        sites["b"].mask_numbers(numbers(1), received(sealed, "b", NAMES))


def test_altered_shares_and_replaced_keys_are_refused() -> None:
    sites, public, sealed = exchanged()
    altered = received(sealed, "a", NAMES)
    altered["b"] = np.bitwise_xor(altered["b"], np.uint8(1))
    with pytest.raises(Refused, match="that b encrypted for a"):
        sites["a"].mask_numbers(numbers(0), altered)
    # Shares for a different site cannot be decrypted.
    with pytest.raises(Refused, match="that c encrypted for d"):
        sites["d"].mask_numbers(numbers(0), {"c": sealed["c"]["b"]})
    with pytest.raises(Refused, match="not this site's keys"):
        SecureSumSite("a", "f 2").seal_shares(public, LEAST)
    with pytest.raises(Refused, match="more than half"):
        sites["b"].seal_shares(public, 2)


def test_public_key_of_low_order_is_refused() -> None:
    """RFC 7748, section 6.1: points of low order give an all-zero output."""
    for raw in (
        np.zeros(64, np.uint8),
        np.concatenate([SecureSumSite("a", "f 1").public[:32], np.zeros(32, np.uint8)]),
    ):
        with pytest.raises(BadInput, match="is of low order"):
            PublicKeys.read(raw)
