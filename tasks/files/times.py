"""Times of the ledger as text: UTC with microseconds, so that texts sort by time."""

from __future__ import annotations

from datetime import UTC, datetime, time

from configs.errors import BadInput


def format_time(instant: datetime) -> str:
    """Format a time with a zone for the ledger.

    Example:
        >>> format_time(datetime(2026, 11, 20, 14, tzinfo=UTC))
        '2026-11-20T14:00:00.000000Z'
    """
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Parse a time of the ledger; raise ValueError if it is not an ISO time."""
    return datetime.fromisoformat(text).astimezone(UTC)


def normalise_time(text: str, *, last: bool) -> str:
    """Convert a user's date or ISO time to the ledger's format.

    Args:
        text: a date or a time; UTC if it has no zone.
        last: use the last microsecond of a date, not the first.

    Raises:
        BadInput: if it is neither.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a date: write 2026-11-20, or 2026-11-20T14:00:00Z with a time.") from error
    if last and len(text) <= len("2026-11-20"):
        instant = datetime.combine(instant.date(), time.max)
    return format_time(instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant)
