"""The rules of writing, one per kind of entry: the signer applies them before it signs, and the audit once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from configs.errors import Refused
from tasks.adapters.ledger.attempts import check_attempt, check_result, check_seed
from tasks.adapters.ledger.candidates import check_candidate, check_decision
from tasks.adapters.ledger.champions import check_approval, check_promotion, check_rejection
from tasks.adapters.ledger.ledger import Body, Entry

Rule = Callable[[Sequence[Entry], Entry], None]
"""(all entries before it, the entry) -> nothing, or Refused: it reads nothing else, so that it can be repeated."""


class RefusalBody(Body):
    """A run was refused."""

    reason: str
    sources: tuple[str, ...] = ()
    """Digests of the logs that it was given."""


class NoteBody(Body):
    """A remark, which decides nothing."""

    text: str = ""


def check_refusal(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a refusal that gives no reason."""
    entry.read(RefusalBody)


def check_note(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a note that is more than a text."""
    entry.read(NoteBody)


GROUPS = {
    "attempts": ("attempt", "seed", "result"),
    "decisions": ("candidate", "approval", "rejection", "decision"),
    "promotions": ("promotion",),
}
"""Kinds as an audit sums them up; the others decide nothing."""

RULES: dict[str, Rule] = {
    "attempt": check_attempt,
    "seed": check_seed,
    "result": check_result,
    "candidate": check_candidate,
    "decision": check_decision,
    "approval": check_approval,
    "rejection": check_rejection,
    "promotion": check_promotion,
    "refusal": check_refusal,
    "note": check_note,
}


def check(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an entry that breaks the rule of its kind.

    Args:
        history: all entries before this one.
        entry: signed already, or about to be.

    Raises:
        Refused: naming what is wrong with it.
    """
    rule = RULES.get(entry.kind)
    if rule is None:
        raise Refused(f"expected an entry of one of the kinds {', '.join(RULES)}, got {entry.kind!r}: correct it.")
    try:
        rule(history, entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Refused(f"expected the body of a {entry.kind}, got {field!r}: {first['msg']}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"expected the body of a {entry.kind}, got one that cannot be read ({error!r}).") from error
