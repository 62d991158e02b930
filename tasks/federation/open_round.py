"""A round without secure sums: collect, check and aggregate the changes of the weights from all sites."""

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
from tasks.federation.messages import Question, RoundAnswer, named, read_text, read_weights
from tasks.federation.transport.frames import Arrays
from tasks.federation.transport.network import Message, MissingAnswer, Transport
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import sha256_hex


class RoundRequest(NamedTuple):
    federation: Federation
    learning: Learning
    rows: Mapping[str, int]
    """Number of rows by site."""
    server: Server
    number: int
    question: Question
    offered: Arrays
    transport: Transport


class RoundResult(NamedTuple):
    participants: tuple[ParticipantBody, ...]
    left_out: tuple[LeftOutBody, ...]
    aggregate: tuple[Parameters, Parameters] | None
    """Aggregated change and change of the control variates; None if too few sites answered."""

    @property
    def digest(self) -> str:
        """SHA-256 of the aggregate; empty without one."""
        return change_digest(*self.aggregate) if self.aggregate else ""


class Change(NamedTuple):
    """A site's change of the weights that passed all checks."""

    reply: Reply
    digest: str
    norm: float


def change_digest(change: Parameters, control: Parameters) -> str:
    """Return the SHA-256 of a change of weights and control variates."""
    return sha256_hex(npz_bytes(named("change", change) | named("control", control)))


def run_round(request: RoundRequest) -> RoundResult:
    """Ask all sites for changes and aggregate the accepted ones."""
    federation = request.federation
    message = request.question.message(request.offered)
    answers = request.transport.exchange(dict.fromkeys(request.rows, message), federation.round_seconds)
    accepted, left_out = dict[str, Change](), dict[str, LeftOutBody]()
    for site in sorted(answers):
        answer = answers[site]
        try:
            if isinstance(answer, MissingAnswer):
                left_out[site] = missing(site, answer)
            else:
                accepted[site] = _read_change(request, site, answer)
        except NeoRLError as error:
            left_out[site] = refused(site, str(error))
    if federation.aggregate.largest is not None and accepted:
        limit = federation.aggregate.largest * float(np.median([change.norm for change in accepted.values()]))
        for site in [site for site, change in accepted.items() if change.norm > limit]:
            left_out[site] = refused(site, f"the norm {accepted.pop(site).norm:.4g} of the change exceeds {limit:.4g}")
    shares, aggregate = np.zeros(0), None
    if accepted:
        replies: Reply = jax.tree.map(lambda *each: jnp.stack(each), *(change.reply for change in accepted.values()))
        weights = jax.nn.softmax(replies.log_weight)
        shares = np.asarray(weights)
        if len(accepted) >= federation.minimum_sites:
            rule = request.learning.rule_for(request.number)
            aggregate = rule.aggregate((replies.change, replies.control), weights)
    participants = tuple(
        ParticipantBody(
            site=site,
            update=change.digest,
            weight=float(share),
            norm=change.norm,
            distance=_distance(change, aggregate),
        )
        for (site, change), share in zip(accepted.items(), shares, strict=True)
    )
    return RoundResult(participants, tuple(left_out[site] for site in sorted(left_out)), aggregate)


def _read_change(request: RoundRequest, site: str, message: Message) -> Change:
    """Read and check a site's change.

    Raises:
        BadInput: if the change is not acceptable.
    """
    private = request.federation.privacy
    answer = read_text(RoundAnswer, message)
    change = read_weights("change", message.arrays, request.server.parameters)
    control = read_weights("control", message.arrays, request.server.control)
    if answer.number != request.number:
        raise BadInput(f"the answer is for round {answer.number}, must be for {request.number}: restart the site")
    required = 0.0 if private else float(np.log(request.rows[site]))
    if abs(answer.log_weight) > 1e6:
        raise BadInput(f"the log-weight must be at most 1e6 in size, got {answer.log_weight:g}: check the site")
    if (private or request.federation.method != "fedora") and abs(answer.log_weight - required) > 1e-3:
        raise BadInput(
            f"the log-weight must be {required:.6g} for the {request.rows[site]} rows at the beginning, got "
            f"{answer.log_weight:.6g}: check the site"
        )
    size = float(norm((change, control)))
    if not np.isfinite(size):
        raise BadInput(f"the norm of the change must be finite in float32, got {size}: check the site")
    if private and size > private.clip * 1.001:
        raise BadInput(f"the norm of the change must be at most {private.clip:g}, got {size:.4g}: check the site")
    return Change(Reply(change, control, jnp.asarray(answer.log_weight)), change_digest(change, control), size)


def missing(site: str, answer: MissingAnswer) -> LeftOutBody:
    return LeftOutBody(site=site, why=answer.why, detail=answer.detail[:300])


def refused(site: str, detail: str) -> LeftOutBody:
    return LeftOutBody(site=site, why="refused", detail=detail[:300])


def _distance(change: Change, aggregate: tuple[Parameters, Parameters] | None) -> float:
    sent = (change.reply.change, change.reply.control)
    return float(norm(jax.tree.map(jnp.subtract, sent, aggregate))) if aggregate else change.norm
