"""The rules of federations: rounds follow one another, every site is told of, and what is spent is the accountant's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from configs.errors import Refused
from tasks.evidence.federations.bodies import WEIGHTS, FederationBody, RoundBody, rounds_of, spent
from tasks.evidence.ledger.ledger import Entry


def check_federation(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a federation whose sites are too few or named twice, or that asks for what excludes each other.

    Args:
        history: all entries before it.
        entry: the federation.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(FederationBody)
    names = [site.site for site in body.sites]
    if len(set(names)) < len(names) or not 2 <= body.minimum_sites <= len(names):
        raise Refused(f"expected sites of different names, at least {max(body.minimum_sites, 2)}, got {len(names)}.")
    if (body.secure_sums or body.privacy) and body.aggregate != "mean":
        raise Refused(f"expected a mean where sums are secure or sites private, got a {body.aggregate}: choose one.")
    if body.rounds < 1 or any(site.rows < 1 for site in body.sites):
        raise Refused("expected at least one round, and rows at each site, got none.")
    if any(e.kind == "federation" and (e.plant, e.body["terms"]) == (entry.plant, body.terms) for e in history):
        raise Refused(
            "expected a federation of new terms, got those of an earlier entry: it goes on, or change its seed."
        )


def check_round(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a round that does not follow the one before, or whose sites, weights or privacy do not add up.

    Args:
        history: all entries before the round.
        entry: the round.

    Raises:
        Refused: naming what is wrong.
    """
    body = entry.read(RoundBody)
    opened = next(
        (e for e in history if (e.kind, e.digest, e.plant) == ("federation", body.federation, entry.plant)), None
    )
    if opened is None:
        raise Refused(f"expected a round of a logged federation of {entry.plant}, got another.")
    agreed = opened.read(FederationBody)
    done = [one for one in rounds_of(history, body.federation) if one.completed]
    weights = done[-1].after if done else agreed.weights
    if body.number != len(done) + 1 or body.number > agreed.rounds:
        raise Refused(f"expected round {len(done) + 1} of {agreed.rounds}, got {body.number}.")
    if body.before != weights:
        raise Refused(f"expected a round that begins with the weights {weights[:12]}, got {body.before[:12]}.")
    _check_sites(agreed, body)
    _check_outcome(agreed, body)
    _check_spent(agreed, body, len(done) + body.completed)
    last = body.completed and body.number == agreed.rounds
    held = [file.sha256 for file in entry.artefacts if file.name == WEIGHTS]
    if held != ([body.after] if last else []):
        raise Refused("expected the file of the weights after the last round and after no other, got another.")


def _check_sites(agreed: FederationBody, body: RoundBody) -> None:
    """Every site of the federation is told of, once."""
    told = sorted([one.site for one in body.participants] + [one.site for one in body.left_out])
    if told != sorted(site.site for site in agreed.sites):
        raise Refused(f"expected every site of the federation once, got {', '.join(told) or 'none'}.")
    if body.completed is not (len(body.participants) >= agreed.minimum_sites):
        raise Refused(
            f"expected a round to be completed by {agreed.minimum_sites} sites or more and by no fewer, got "
            f"{len(body.participants)}."
        )


def _check_outcome(agreed: FederationBody, body: RoundBody) -> None:
    """Weights move with an aggregate and by nothing else, and what is said of changes can be known."""
    if not body.completed and (body.after != body.before or body.aggregate):
        raise Refused("expected the weights of before where too few sites answered, got others.")
    if body.completed and not body.aggregate:
        raise Refused("expected the digest of the aggregate, got none.")
    shares = [one.weight for one in body.participants]
    if shares and not (all(0 <= share <= 1 for share in shares) and math.isclose(sum(shares), 1.0, rel_tol=1e-4)):
        raise Refused("expected shares of a mean that add up to 1, got others.")
    for one in body.participants:
        if agreed.secure_sums is not (one.norm is None) or (one.norm is None) is not (one.distance is None):
            raise Refused("expected norms of changes where the coordinator sees them and nowhere else, got another.")


def _check_spent(agreed: FederationBody, body: RoundBody, rounds: int) -> None:
    """What was spent is what the accountant says of that many rounds."""
    expected = spent(agreed.privacy, rounds)
    if (expected is None) is not (body.epsilon is None) or (
        expected is not None and body.epsilon is not None and not math.isclose(expected, body.epsilon, rel_tol=1e-6)
    ):
        raise Refused(
            f"expected {expected} as the epsilon that {rounds} rounds spend, got {body.epsilon}: run it again."
        )
