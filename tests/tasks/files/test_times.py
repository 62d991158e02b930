"""Times in the ledger's format."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from configs.errors import BadInput
from tasks.files.canonical import format_time, normalise_time, parse_time


def test_round_trip_in_utc() -> None:
    noon = datetime(2026, 11, 20, 14, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(noon) == "2026-11-20T12:00:00.000000Z"
    assert (parse_time(format_time(noon)), parse_time(format_time(noon)).tzinfo) == (noon, UTC)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2026-11-20", "2026-11-20T00:00:00.000000Z", "2026-11-20T23:59:59.999999Z"),
        ("2026-11-20T14:00:00+02:00", "2026-11-20T12:00:00.000000Z", "2026-11-20T12:00:00.000000Z"),
        ("2026-11-20T14:00:00.5", "2026-11-20T14:00:00.500000Z", "2026-11-20T14:00:00.500000Z"),
    ],
)
def test_dates_and_times_are_converted_to_utc(text: str, first: str, last: str) -> None:
    assert (normalise_time(text, last=False), normalise_time(text, last=True)) == (first, last)


def test_other_text_is_refused() -> None:
    with pytest.raises(BadInput, match="'yesterday' is not a date: write 2026-11-20"):
        normalise_time("yesterday", last=True)
