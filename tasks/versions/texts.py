"""Sentences that the audit renders again and compares with stored ones, by version.

An entry, certificate or MLflow page keeps the wording of the version that wrote it. Never change a wording here: add
another `Texts` and a new version in `tasks.versions.versions`.
"""

from __future__ import annotations

from typing import NamedTuple


class Texts(NamedTuple):
    """Templates for `str.format` of one version."""

    claim: str
    """Of a certificate: steps, domain, limits, p0, confidence in percent, composite, simulator."""
    not_shown: str
    """Around the claim of an attempt that was not certified."""
    unwitnessed: str
    """Second line of the claim without a witness."""
    witnessed_locally: str
    """Second line of the claim if every witness runs on the same machine."""
    witnessed: str
    explained: tuple[tuple[str, str], ...]
    """A version's status in MLflow, and a sentence that explains it."""
    needs: str
    """Approvals that a version still needs."""
    approved: str
    heading: tuple[str, ...]
    """Columns of the table of decisions."""
    promoted: str
    in_shadow: str
    extended: str
    rolled_back: str
    signed_by_rule: str
    signed_by_home: str
    signed_by_key: str
    footer: str
    few_approvals: str
    """Approvals by too few persons: wanted, got, expired."""
    few_reviews: str
    stale_approval: str
    missing_role: str
    expired: str
    """Number of expired approvals, put behind the first two."""


V1 = Texts(
    claim="P(an episode of {steps} steps under {domain} violates {limits}) <= {p0} with confidence {confidence:g} %, "
    "for composite {composite} on simulator {simulator}",
    not_shown="Not shown: {claim}",
    unwitnessed="Without a witness: that no seed was tried before, and no entry left out, is its owner's word alone",
    witnessed_locally="Witnessed by {names}, a process on the same machine: one machine is no second party",
    witnessed="Witnessed by {names}: its seed could not be known before its attempt was logged",
    explained=(
        ("was champion", "Another version has taken its place, or a key that this rested on was revoked."),
        ("withdrawn", "It was taken out of service and is not promoted again."),
        ("rolled back from", "An earlier champion took its place again; only `neorl rollback` brings it back."),
        ("rejected", "It is not promoted; the champion stays."),
        ("refused", "It did not pass every gate, and no approval can skip one."),
        ("superseded", "It was compared with what is no longer in force: nothing can be decided about it."),
    ),
    needs="It needs more: {missing}.",
    approved="Approved: the next command promotes it.",
    heading=("when", "what", "who", "note", "signed"),
    promoted="promoted",
    in_shadow="in shadow for {days} days",
    extended="{days} more days in shadow",
    rolled_back="version {version} brought back",
    signed_by_rule="by the rule",
    signed_by_home="in the home's name",
    signed_by_key="key {key}",
    footer="By the ledger: `neorl history`.",
    few_approvals="expected approvals by {wanted} persons, got {got}{expired}",
    few_reviews="expected {wanted} persons who reviewed it besides, got {got}{expired}",
    stale_approval="expected an approval of at most {days} days, got none",
    missing_role="expected an approval as {role}, got none",
    expired=", and {count} expired",
)
"""Written by NeoRL until commit 89a12a2."""

V2 = Texts(
    claim="P(an episode of {steps} steps under {domain} violates {limits}) <= {p0} with confidence {confidence:g} %, "
    "for composite {composite} on simulator {simulator}",
    not_shown="Not certified: {claim}",
    unwitnessed="No witness: only the home's owner says that no other seed was tried and that no entry was left out",
    witnessed_locally="Witness {names} runs on the same machine, so it is not an independent second party",
    witnessed="Witnessed by {names}: the seed could not be known before the attempt was logged",
    explained=(
        ("was champion", "Another version replaced it, or a key that its promotion depended on was revoked."),
        ("withdrawn", "It was taken out of service and is never promoted again."),
        ("rolled back from", "An earlier champion replaced it. Only `neorl rollback` can bring it back."),
        ("rejected", "It is not promoted, and the champion stays in force."),
        ("refused", "It failed a gate. No approval can replace a gate."),
        ("superseded", "It was compared with a version that is no longer in force, so it can no longer be approved."),
    ),
    needs="Missing: {missing}.",
    approved="It is approved. The next command promotes it.",
    heading=("time", "decision", "person", "note", "signed"),
    promoted="promoted",
    in_shadow="in shadow for {days} days",
    extended="shadow extended by {days} days",
    rolled_back="rolled back to version {version}",
    signed_by_rule="by the rule",
    signed_by_home="in the home's name",
    signed_by_key="key {key}",
    footer="This part is copied from the ledger. `neorl history` lists every decision.",
    few_approvals="approvals needed from {wanted} persons, got {got}{expired}",
    few_reviews="further reviews needed from {wanted} persons, got {got}{expired}",
    stale_approval="an approval must be at most {days} days old, got none",
    missing_role="an approval as {role} is needed, got none",
    expired=", and {count} expired",
)
