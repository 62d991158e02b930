"""How the ledger and what is signed write times: UTC to the microsecond, so that texts are in the order of times."""

from __future__ import annotations

from datetime import UTC, datetime, time

from configs.errors import BadInput


def written(instant: datetime) -> str:
    """A time as the ledger writes it.

    Args:
        instant: with a zone.

    Example:
        >>> written(datetime(2026, 11, 20, 14, tzinfo=UTC))
        '2026-11-20T14:00:00.000000Z'
    """
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def read(text: str) -> datetime:
    """The time, in UTC, that a text of the ledger says.

    Raises:
        ValueError: when it is none.
    """
    return datetime.fromisoformat(text).astimezone(UTC)


def moment(text: str, *, last: bool) -> str:
    """A date or an ISO time (UTC where it names no zone) of a person's, as the ledger writes times.

    Args:
        text: what the person wrote.
        last: whether a date is its last microsecond, in place of its first.

    Raises:
        BadInput: when it is neither.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(
            f"expected a date like 2026-11-20 or a time like 2026-11-20T14:00:00Z, got {text!r}: write it so."
        ) from error
    if last and len(text) <= len("2026-11-20"):
        instant = datetime.combine(instant.date(), time.max)
    return written(instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant)
