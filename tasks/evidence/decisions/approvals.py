"""Approvals and rejections in the ledger: their bodies, and which approvals still count."""

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
"""Kinds of entries after which a composite is never promoted on its plant again, each with a verb for messages."""


class VerdictBody(Body):
    """Body of an `approval` or `rejection` entry: a person or the automatic rule decides on a composite."""

    composite: str
    by: str
    role: str = ""
    """Role in which the person decides, if the plant's policy requires roles."""
    note: str = ""
    candidate: str
    """Digest of the candidate's entry."""
    version: str = ""
    """Number of the version in MLflow."""
    meaning: Meaning = ""
    """Declared meaning. A review alone is not an approval."""
    signed: str = ""
    """Time of signing by the person's clock."""
    signature: str = ""
    """The person's signed statement (DSSE envelope); empty if no person signed."""


def check_signed_time(signature: str, signed: str) -> None:
    """Check that an entry states the time that its person signed, because approvals expire after this time."""
    stated = read_payload(signature)["signed"] if signature else ""
    if stated != signed:
        raise Refused(
            f"the time of signing must be {stated or 'empty without a signature'}, got {signed!r}: sign again"
        )


def check_version(candidate: Entry, version: str) -> None:
    """Check that an entry names its candidate's version, or no version."""
    if version not in ("", candidate.body["version"]):
        raise Refused(
            f"the candidate of {candidate.plant} has version {candidate.body['version']}, got {version!r}: name the "
            "candidate's version"
        )


def check_all_gates(candidate: Entry, rules: int) -> None:
    """Check that a candidate passed every gate that a version of the rules requires."""
    required = version_of(rules).required(of_process(candidate), candidate.body["role"] == "fallback")
    passed = {gate["name"] for gate in candidate.body["gates"] if gate["passed"] is True}
    if missing := [name for name in required if name not in passed]:
        raise Refused(
            f"version {candidate.body['version']} of {candidate.plant} was judged by rules version {candidate.rules}, "
            f"but rules version {rules} requires the gate {missing[0]} too: retrain it"
        )


def ruled_out(history: Sequence[Entry], plant: str, composite: str) -> Entry | None:
    """Return the first rejection or withdrawal of a composite, or None."""
    return next(
        (e for e in history if e.plant == plant and e.kind in RULED_OUT and e.body["composite"] == composite), None
    )


def why_ruled_out(gone: Entry) -> str:
    why = gone.body.get("why") or gone.body.get("note") or "no reason given"
    return f"{gone.body['by']} {RULED_OUT[gone.kind]} ({why})"


def check_not_ruled_out(history: Sequence[Entry], plant: str, composite: str) -> None:
    """Check that a composite was never rejected or withdrawn; a later approval changes nothing."""
    if (gone := ruled_out(history, plant, composite)) is not None:
        raise Refused(
            f"composite {composite[:12]} of {plant} was ruled out: {why_ruled_out(gone)}; retrain on other data or "
            "with another configuration"
        )


def open_approvals(history: Sequence[Entry], plant: str, composite: str) -> list[Entry]:
    """Return the approvals of a composite that still count.

    A promotion, rollback, shadow or withdrawal on the plant ends all earlier approvals, because approvers compared the
    composite with the previous champion. A rejection of the composite ends them too. An approval signed after its key
    was revoked never counts.
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
    """Return the last approval of a composite that still counts, or None."""
    return next(reversed(open_approvals(history, plant, composite)), None)


def approvers(history: Sequence[Entry], promotion: Entry) -> str:
    """Return the approvers of a promotion, rollback or shadow, latest first. Reviews are excluded."""
    body = promotion.body
    if promotion.kind == "rollback":
        restored = {entry.digest: entry for entry in history}[body["restores"]]
        return f"{approvers(history, restored)}, brought back by {body['by'].strip()}"
    given = open_approvals(history[: promotion.sequence - 1], promotion.plant, body["composite"])
    given = [e for e in given if e.body["candidate"] == body["candidate"] and e.body.get("meaning") != "reviewed"]
    names = [entry.body["by"].strip() for entry in given]
    return ", ".join({name.casefold(): name for name in reversed(names)}.values())


def of_process(candidate: Entry) -> bool:
    """Return whether a candidate belongs to a log-only plant. Such a candidate can only run in shadow."""
    return "simulator" not in candidate.body["evidence"]


def signed_how(decision: Entry, texts: Texts | None = None) -> str:
    """Describe who signed a decision: a person's key, the rule or the home. `texts` defaults to the newest wording."""
    texts = texts or current().texts
    signature = decision.body.get("signature")
    if signature:
        return texts.signed_by_key.format(key=keyid_of(signature.encode()))
    return texts.signed_by_rule if decision.body.get("by") == RULE else texts.signed_by_home
