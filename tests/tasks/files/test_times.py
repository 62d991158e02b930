"""Times as the ledger writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from configs.errors import BadInput
from tasks.files.times import moment, read, written


def test_a_time_of_any_zone_is_written_in_utc_and_read_again() -> None:
    noon = datetime(2026, 11, 20, 14, tzinfo=timezone(timedelta(hours=2)))
    assert written(noon) == "2026-11-20T12:00:00.000000Z"
    assert (read(written(noon)), read(written(noon)).tzinfo) == (noon, UTC)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-11-20", "2026-11-20T00:00:00.000000Z", "2026-11-20T23:59:59.999999Z"),
        ("2026-11-20T14:00:00+02:00", "2026-11-20T12:00:00.000000Z", "2026-11-20T12:00:00.000000Z"),
        ("2026-11-20T14:00:00.5", "2026-11-20T14:00:00.500000Z", "2026-11-20T14:00:00.500000Z"),
    ],
)
def test_what_a_person_writes_is_a_moment_of_utc(text: str, first: str, last: str) -> None:
    assert (moment(text, last=False), moment(text, last=True)) == (first, last)


def test_what_is_no_time_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="expected a date like 2026-11-20 or a time like"):
        moment("yesterday", last=True)
