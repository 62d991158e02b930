"""A round as the coordinator gathers it: what sites tell, what of it is taken, and the aggregate of that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput, NeoRLError
from configs.federation import Federation
from neorl_core.federated.methods import Reply
from neorl_core.federated.privacy import norm
from neorl_core.federated.rounds import Server
from neorl_core.training.parameters import Parameters
from tasks.evidence.federations import LeftOutBody, ParticipantBody
from tasks.federation.learning import Learning
from tasks.federation.transport.frames import Arrays
from tasks.federation.transport.network import Lost, Message, Reach
from tasks.federation.words import Question, answered_of, named, weights_of
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import sha256_hex


class Round(NamedTuple):
    """A round that is to be gathered."""

    asked: Federation
    learning: Learning
    rows: Mapping[str, int]
    """By site."""
    server: Server
    number: int
    question: Question
    offered: Arrays
    reach: Reach


class Gathered(NamedTuple):
    """What a round came to."""

    participants: tuple[ParticipantBody, ...]
    left_out: tuple[LeftOutBody, ...]
    found: tuple[Parameters, Parameters] | None
    """Aggregate of the changes and of those of control variates; None where too few sites answered."""

    @property
    def digest(self) -> str:
        """SHA-256 of the aggregate, or nothing."""
        return digest_of(*self.found) if self.found else ""


class Change(NamedTuple):
    """A site's change that was taken."""

    reply: Reply
    digest: str
    norm: float


def digest_of(change: Parameters, control: Parameters) -> str:
    """SHA-256 of a change."""
    return sha256_hex(npz_bytes(named("change", change) | named("control", control)))


def gathered(of: Round) -> Gathered:
    """Ask all sites for their changes, and aggregate the answers without masks."""
    message = of.question.message(of.offered)
    answers = of.reach.exchange(dict.fromkeys(of.rows, message), of.asked.round_seconds)
    taken, left_out = dict[str, Change](), dict[str, LeftOutBody]()
    for site in sorted(answers):
        answer = answers[site]
        try:
            if isinstance(answer, Lost):
                left_out[site] = lost(site, answer)
            else:
                taken[site] = _change(of, site, answer)
        except NeoRLError as error:
            left_out[site] = refused(site, str(error))
    if of.asked.aggregate.largest is not None and taken:
        limit = of.asked.aggregate.largest * float(np.median([one.norm for one in taken.values()]))
        for site in [site for site, one in taken.items() if one.norm > limit]:
            left_out[site] = refused(site, f"a change of norm {taken.pop(site).norm:.4g}, beyond {limit:.4g}")
    shares, found = np.zeros(0), None
    if taken:
        replies: Reply = jax.tree.map(lambda *each: jnp.stack(each), *(one.reply for one in taken.values()))
        weights = jax.nn.softmax(replies.log_weight)
        shares = np.asarray(weights)
        if len(taken) >= of.asked.minimum_sites:
            found = of.learning.rule_of(of.number).aggregate((replies.change, replies.control), weights)
    participants = tuple(
        ParticipantBody(site=site, update=one.digest, weight=float(share), norm=one.norm, distance=_apart(one, found))
        for (site, one), share in zip(taken.items(), shares, strict=True)
    )
    return Gathered(participants, tuple(left_out[site] for site in sorted(left_out)), found)


def _change(of: Round, site: str, answer: Message) -> Change:
    """A site's change, where it can be taken.

    Raises:
        BadInput: saying why not.
    """
    private = of.asked.privacy
    said = answered_of(answer)
    change = weights_of("change", answer.arrays, of.server.parameters)
    control = weights_of("control", answer.arrays, of.server.control)
    if said.number != of.number:
        raise BadInput(f"expected an answer to round {of.number}, got one to {said.number}.")
    expected = 0.0 if private else float(np.log(of.rows[site]))
    if abs(said.log_weight) > 1e6:
        raise BadInput(f"expected a finite weight, got {said.log_weight:g} as its logarithm.")
    if (private or of.asked.method != "fedora") and abs(said.log_weight - expected) > 1e-3:
        raise BadInput(f"expected the weight of {of.rows[site]} rows, as the site said at the beginning, got another.")
    size = float(norm((change, control)))
    if not np.isfinite(size):
        raise BadInput("expected a change whose norm is finite, got one that float32 cannot tell.")
    if private and size > private.clip * 1.001:
        raise BadInput(f"expected a change of norm {private.clip:g} at most, got {size:.4g}.")
    return Change(Reply(change, control, jnp.asarray(said.log_weight)), digest_of(change, control), size)


def lost(site: str, answer: Lost) -> LeftOutBody:
    """A site without an answer, as the ledger has it."""
    return LeftOutBody(site=site, why=answer.why, detail=answer.detail[:300])


def refused(site: str, detail: str) -> LeftOutBody:
    """A site whose answer was not taken, as the ledger has it."""
    return LeftOutBody(site=site, why="refused", detail=detail[:300])


def _apart(one: Change, found: tuple[Parameters, Parameters] | None) -> float:
    """How far a site's change is from the aggregate; from none where there is no aggregate."""
    sent = (one.reply.change, one.reply.control)
    return float(norm(jax.tree.map(jnp.subtract, sent, found))) if found else one.norm
