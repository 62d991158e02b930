"""Counting before each entry agrees with `counting` of every prefix."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.voided import VOID, before_each, counting, leaves_service

KEYS = ("k0", "k1", "k2")
DAYS = st.integers(1, 6)
SAID = st.one_of(
    st.tuples(st.just("rotation"), st.sampled_from(KEYS), st.sampled_from(["", "Ada"])),
    st.tuples(st.just("revocation"), st.sampled_from(KEYS), DAYS),
    st.tuples(st.sampled_from(["promotion", "candidate", "attempt", "withdrawal"]), st.none(), st.none()),
    st.tuples(st.just("rollback"), st.integers(0, 9), st.integers(0, 9)),
)


def _entry(number: int, signer: str, day: int, said: tuple[str, object, object]) -> Entry:
    kind, first, second = said
    if kind == "rollback":
        # An entry can name the digests of earlier ones alone.
        first, second = (int(str(each)) % (number - 1) if number > 1 else "" for each in (first, second))
    body = {
        "rotation": {"old": first, "person": second},
        "revocation": {"key": first, "since": f"2026-01-0{second}"},
        "rollback": {"restores": f"d{first}", "candidate": f"d{second}"},
    }.get(kind, {})
    envelope = json.dumps({"signatures": [{"keyid": signer}]}, separators=(",", ":")).encode()
    return Entry(number, "", f"2026-01-0{day}", kind, "tank", body, (), f"d{number - 1}", envelope)


@given(st.lists(st.tuples(st.sampled_from(KEYS), SAID), max_size=12), st.lists(DAYS, min_size=12, max_size=12))
def test_counting_before_each_entry_equals_counting_its_prefix(
    told: list[tuple[str, tuple[str, object, object]]], days: list[int]
) -> None:
    # Ordered as in the ledger, with times that never decrease.
    pairs = zip(told, sorted(days), strict=False)
    entries = [_entry(number, key, day, said) for number, ((key, said), day) in enumerate(pairs, start=1)]
    found = list(before_each(entries))
    assert [entry for _, entry in found] == entries
    for number, (before, _) in enumerate(found):
        assert before == counting(entries[:number])


def test_a_replaced_key_permits_nothing_and_its_rollback_is_ignored() -> None:
    """By hand: k0 is replaced at 2 and signs a promotion at 3; entry 4 rolls back to it."""
    told = (
        ("k0", ("promotion", None, None)),
        ("k0", ("rotation", "k0", "")),
        ("k0", ("promotion", None, None)),
        ("k1", ("rollback", 2, 2)),
        ("k1", ("promotion", None, None)),
    )
    entries = [_entry(number, key, 1, said) for number, (key, said) in enumerate(told, start=1)]
    *_, (before, last) = before_each(entries)
    assert [entry.kind for entry in before] == ["promotion", "rotation", VOID, VOID]
    assert before[2].void == "promotion signed by key k0, which entry 2 replaced"
    assert before[3].void == "rollback to what entry 3 permitted, which does not count"
    assert [leaves_service(entry) for entry in before] == [False, False, False, True]
    assert last.kind == "promotion"
