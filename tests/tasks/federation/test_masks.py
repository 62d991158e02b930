"""Secure sums between sites: to the last bit, with sites that drop out at every step, and against wrong questions."""

from __future__ import annotations

import numpy as np
import pytest

from configs.errors import BadInput, Refused
from tasks.federation.masks import Bytes, Masks, Numbers, Public, Revealed, total_of

NAMES = ("a", "b", "c", "d", "e")
LEAST = 3


def exchanged(
    names: tuple[str, ...] = NAMES,
) -> tuple[dict[str, Masks], dict[str, Public], dict[str, dict[str, Bytes]]]:
    sites = {name: Masks(name, "f 1") for name in names}
    public = {name: Public.read(site.public) for name, site in sites.items()}
    return sites, public, {name: site.sealed(public, LEAST) for name, site in sites.items()}


def given(sealed: dict[str, dict[str, Bytes]], to: str, of: tuple[str, ...]) -> dict[str, Bytes]:
    return {name: sealed[name][to] for name in of if name != to}


def numbers(seed: int) -> Numbers:
    return np.random.default_rng(seed).integers(0, 2**32, 100, np.uint32)


@pytest.mark.parametrize("sent_by", [NAMES, ("a", "c", "e"), ("b", "c", "d")])
def test_the_sum_is_that_of_those_whose_numbers_arrived(sent_by: tuple[str, ...]) -> None:
    sites, public, sealed = exchanged()
    sent = {n: sites[n].add(numbers(i), given(sealed, n, NAMES)) for i, n in enumerate(NAMES) if n in sent_by}
    revealed = {name: sites[name].reveal(list(sent)) for name in list(sent)[:LEAST]}
    with pytest.raises(Refused, match="shares of 3 sites"):
        total_of(sent, public, dict(list(revealed.items())[1:]), LEAST)
    expected = np.sum([numbers(i) for i, n in enumerate(NAMES) if n in sent_by], axis=0, dtype=np.uint32)
    np.testing.assert_array_equal(total_of(sent, public, revealed, LEAST), expected)
    for i, name in enumerate(NAMES):
        if name in sent:
            assert not np.any(sent[name] == numbers(i)), "a number went without a mask"


def test_a_site_that_drops_out_before_the_numbers_is_in_no_mask() -> None:
    sites, public, sealed = exchanged()
    left = ("a", "b", "c", "d")
    sent = {name: sites[name].add(numbers(i), given(sealed, name, left)) for i, name in enumerate(left)}
    revealed = {name: sites[name].reveal(left) for name in left}
    expected = np.sum([numbers(i) for i in range(4)], axis=0, dtype=np.uint32)
    total = total_of(sent, {name: public[name] for name in left}, revealed, LEAST)
    np.testing.assert_array_equal(total, expected)


def test_a_site_answers_no_question_that_would_lay_another_open() -> None:
    sites, _, sealed = exchanged()
    for name in NAMES:
        sites[name].add(numbers(0), given(sealed, name, NAMES))
    told: Revealed = sites["a"].reveal(("a", "b", "c"))
    assert told.own.keys() == {"a", "b", "c"}
    assert told.keys.keys() == {"d", "e"}, "never both of one site"
    with pytest.raises(Refused, match="asked once"):
        sites["a"].reveal(("a", "d", "e"))
    with pytest.raises(Refused, match="asked once"):
        sites["b"].reveal(("a", "b"))
    with pytest.raises(Refused, match="asked once"):
        sites["b"].reveal(("a", "b", "z"))
    # Other numbers under the same masks would tell what they differ by.
    with pytest.raises(Refused, match="numbers once"):
        sites["b"].add(numbers(1), given(sealed, "b", NAMES))


def test_altered_shares_and_replaced_keys_are_refused() -> None:
    sites, public, sealed = exchanged()
    altered = given(sealed, "a", NAMES)
    altered["b"] = np.bitwise_xor(altered["b"], np.uint8(1))
    with pytest.raises(Refused, match="that b sealed"):
        sites["a"].add(numbers(0), altered)
    # What was sealed for another site cannot be handed to this one.
    with pytest.raises(Refused, match="that c sealed"):
        sites["d"].add(numbers(0), {"c": sealed["c"]["b"]})
    with pytest.raises(Refused, match="own keys"):
        Masks("a", "f 2").sealed(public, LEAST)
    with pytest.raises(Refused, match="more than half"):
        sites["b"].sealed(public, 2)


def test_a_public_key_of_low_order_is_refused_where_it_arrives() -> None:
    """Source: RFC 7748, section 6.1: the all-zero output that a point of low order gives is no secret."""
    for raw in (np.zeros(64, np.uint8), np.concatenate([Masks("a", "f 1").public[:32], np.zeros(32, np.uint8)])):
        with pytest.raises(BadInput, match="expected public keys that share a secret"):
            Public.read(raw)
