"""Approvals as the ledger has them: what a decision says, and which approvals of a composite count."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import Refused
from configs.safety_policy import RULE
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.signing import keyid_of
from tasks.evidence.people.keyring import counts, keyring
from tasks.evidence.people.statement import Meaning, read_payload
from tasks.versions.texts import Texts
from tasks.versions.versions import current, version_of

RULED_OUT = {"rejection": "rejected", "withdrawal": "withdrew"}
"""Kinds after which a composite of the plant is never promoted again, with what their persons did."""


class VerdictBody(Body):
    """A person, or the rule, approves or rejects a composite."""

    composite: str
    by: str
    role: str = ""
    """As what they decide, where the plant's policy asks for roles."""
    note: str = ""
    candidate: str
    """Digest of the candidate's entry."""
    version: str = ""
    """Version in the registry."""
    meaning: Meaning = ""
    """`reviewed` is no approval by itself."""
    signed: str = ""
    """When the person signed, by their own clock."""
    signature: str = ""
    """Envelope of the person's statement; without one the decision is in the home's name."""


def check_signed_time(signature: str, signed: str) -> None:
    """The time beside a signature is the one that was signed, for approvals expire by it."""
    told = read_payload(signature)["signed"] if signature else ""
    if told != signed:
        raise Refused(f"expected the time {told or 'of no signature'} that was signed, got {signed!r}: sign again.")


def check_version(candidate: Entry, version: str) -> None:
    """Refuse an entry that names another version than its candidate: aliases, pages and reports go by that name."""
    if version not in ("", candidate.body["version"]):
        raise Refused(
            f"expected version {candidate.body['version']} of {candidate.plant}, as its candidate has it, got "
            f"{version!r}: name that one."
        )


def check_all_gates(candidate: Entry, rules: int) -> None:
    """Refuse a candidate that an earlier version of the rules judged by fewer gates than this one has.

    Args:
        candidate: its entry.
        rules: version by which it is to be approved, promoted or run in shadow.
    """
    required = version_of(rules).required(of_process(candidate), candidate.body["role"] == "fallback")
    passed = {gate["name"] for gate in candidate.body["gates"] if gate["passed"] is True}
    if missing := [name for name in required if name not in passed]:
        raise Refused(
            f"version {candidate.body['version']} of {candidate.plant} was judged by rules version {candidate.rules}, "
            f"without the gate {missing[0]} of rules version {rules}: retrain it."
        )


def ruled_out(history: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """The first rejection or withdrawal of a composite, or None."""
    return next(
        (e for e in history if e.plant == plant and e.kind in RULED_OUT and e.body["composite"] == composite), None
    )


def why_ruled_out(gone: Entry) -> str:
    """Who ruled a composite out, and why, in words."""
    why = gone.body.get("why") or gone.body.get("note") or "no reason given"
    return f"{gone.body['by']} {RULED_OUT[gone.kind]} ({why})"


def check_not_ruled_out(history: Sequence[Entry], plant: str, composite: str) -> None:
    """Refuse a composite that was rejected or withdrawn, whoever has approved it since.

    Args:
        history: all entries before the promotion or shadow.
        plant: the plant's name.
        composite: digest of what is to serve.
    """
    if (gone := ruled_out(history, plant, composite)) is not None:
        done = "rejected" if gone.kind == "rejection" else "withdrawn"
        raise Refused(
            f"expected a composite of {plant} that was not {done}, got {composite[:12]}, which {why_ruled_out(gone)}: "
            "retrain on other data or with another configuration."
        )


def open_approvals(history: Sequence[Entry], plant: str, composite: str) -> list[Entry]:
    """The approvals of a composite that count still.

    A promotion, rollback, shadow or withdrawal of the plant ends all that came before it, for they are of a comparison
    with what was in force then; a rejection ends those of its composite. What a key signed after its
    revocation does not count.
    """
    found: list[Entry] = []
    for entry in history:
        if entry.plant != plant:
            continue
        if entry.kind == "approval" and entry.body["composite"] == composite:
            found.append(entry)
        elif entry.kind in ("promotion", "rollback", "shadow", "withdrawal") or (
            entry.kind == "rejection" and entry.body["composite"] == composite
        ):
            found = []
    keys = keyring(history) if any(entry.body.get("signature") for entry in found) else {}
    return [entry for entry in found if counts(keys, entry)]


def open_approval(history: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """The last of these approvals."""
    return next(reversed(open_approvals(history, plant, composite)), None)


def approvers(history: Sequence[Entry], promotion: Entry) -> str:
    """Who approved what a promotion promoted, or what a shadow lets run: the last one first; a review is no approval.

    Args:
        history: all verified entries.
        promotion: one of them, a rollback's or a shadow's.
    """
    body = promotion.body
    if promotion.kind == "rollback":
        restored = {entry.digest: entry for entry in history}[body["restores"]]
        return f"{approvers(history, restored)}, brought back by {body['by'].strip()}"
    given = open_approvals(history[: promotion.sequence - 1], promotion.plant, body["composite"])
    given = [e for e in given if e.body["candidate"] == body["candidate"] and e.body.get("meaning") != "reviewed"]
    names = [entry.body["by"].strip() for entry in given]
    return ", ".join({name.casefold(): name for name in reversed(names)}.values())


def of_process(candidate: Entry) -> bool:
    """Whether a candidate's evidence is that of a process without a simulator: it may run in shadow, no more."""
    return "simulator" not in candidate.body["evidence"]


def signed_how(decision: Entry, texts: Texts | None = None) -> str:
    """Name the key that signed a decision, in the newest wording by default."""
    texts = texts or current().texts
    signature = decision.body.get("signature")
    if signature:
        return texts.signed_by_key.format(key=keyid_of(signature.encode()))
    return texts.signed_by_rule if decision.body.get("by") == RULE else texts.signed_by_home
