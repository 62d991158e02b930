"""A round with secure sums, in which the coordinator learns only the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from configs.errors import BadInput, NeoRLError
from neorl_core.federated.secure import FixedPoint, decode
from tasks.evidence.federations import LeftOutBody, ParticipantBody
from tasks.federation.messages import RoundAnswer, read_text, under
from tasks.federation.open_round import RoundRequest, RoundResult, missing, refused
from tasks.federation.secure_sum import Bytes, Numbers, PublicKeys, RevealedShares, read_share, unmask_total
from tasks.federation.transport.frames import NOTHING, Arrays
from tasks.federation.transport.network import MissingAnswer
from tasks.files.canonical import sha256_hex

Answer = TypeVar("Answer")


def run_secure_round(request: RoundRequest) -> RoundResult:
    """Run the four steps of a round: keys, shares, numbers, unmasking. A site that fails is not asked again."""
    steps, least = _Steps(request), request.federation.minimum_sites
    keys = steps.ask("keys", dict.fromkeys(request.rows, NOTHING), lambda _, arrays: PublicKeys.read(arrays["public"]))
    if len(keys) < least:
        return steps.failed()
    sent_keys = {f"public/{site}": np.frombuffer(b"".join(key), np.uint8) for site, key in keys.items()}
    sealed = steps.ask("shares", dict.fromkeys(keys, sent_keys), lambda site, arrays: _read_sealed(site, arrays, keys))
    if len(sealed) < least:
        return steps.failed()
    offered = {
        site: {
            **request.offered,
            **{f"sealed/{sender}": shares[site] for sender, shares in sealed.items() if sender != site},
        }
        for site in sealed
    }
    most = max(request.rows[site] for site in sealed)
    size = ravel_pytree((request.server.parameters, request.server.control))[0].shape[0]
    masked = steps.ask("round", offered, lambda _, arrays: _read_masked(arrays, size), most_rows=most)
    if len(masked) < least:
        return steps.failed()
    revealed = steps.ask(
        "unmask",
        dict.fromkeys(masked, NOTHING),
        lambda _, arrays: _read_revealed(arrays, masked.keys(), sealed.keys() - masked.keys()),
        sites=tuple(sorted(masked)),
    )
    try:
        total = unmask_total(masked, {site: keys[site] for site in sealed}, revealed, least)
    except NeoRLError:
        return steps.failed()
    return steps.finished(masked, total, FixedPoint(request.federation.secure_bound, len(sealed)), most)


class _Steps:
    """The steps of one round, and the sites that dropped out."""

    def __init__(self, request: RoundRequest) -> None:
        self._request = request
        self._left_out = dict[str, LeftOutBody]()

    def ask(
        self,
        kind: Literal["keys", "shares", "round", "unmask"],
        arrays: Mapping[str, Arrays],
        read: Callable[[str, Arrays], Answer],
        **fields: object,
    ) -> dict[str, Answer]:
        """Send a question and return the valid answers by site; sites without a valid answer drop out."""
        request, answers = self._request, dict[str, Answer]()
        federation = request.federation
        question = request.question.model_copy(update={"kind": kind, "threshold": federation.minimum_sites, **fields})
        messages = {site: question.message(sent) for site, sent in arrays.items()}
        for site, answer in sorted(request.transport.exchange(messages, federation.round_seconds).items()):
            if isinstance(answer, MissingAnswer):
                self._left_out[site] = missing(site, answer)
                continue
            try:
                if (number := read_text(RoundAnswer, answer).number) != request.number:
                    raise BadInput(f"the answer is for round {number}, must be for {request.number}: restart the site")
                answers[site] = read(site, answer.arrays)
            except (NeoRLError, KeyError) as error:
                self._left_out[site] = refused(site, f"the answer to '{kind}' is invalid: {error}")
        return answers

    def failed(self) -> RoundResult:
        """Return a round without aggregate, because too few sites are left to hide each other's numbers."""
        detail = "too few others for a secure sum"
        rest = [LeftOutBody(site=s, why="failed", detail=detail) for s in self._request.rows if s not in self._left_out]
        left_out = sorted([*self._left_out.values(), *rest], key=lambda body: body.site)
        return RoundResult((), tuple(left_out), None)

    def finished(self, masked: Mapping[str, Numbers], total: Numbers, fixed: FixedPoint, most: int) -> RoundResult:
        """Return the mean over all sites that sent numbers, including sites that did not help to unmask the sum."""
        request = self._request
        weights = {site: 1.0 if request.federation.privacy else request.rows[site] / most for site in sorted(masked)}
        whole = sum(weights.values())
        flat, unflatten = ravel_pytree((request.server.parameters, request.server.control))
        mean = decode(jnp.asarray(total), fixed) / whole
        participants = tuple(
            ParticipantBody(
                site=site, update=sha256_hex(masked[site].tobytes()), weight=weight / whole, norm=None, distance=None
            )
            for site, weight in weights.items()
        )
        left_out = tuple(body for site, body in sorted(self._left_out.items()) if site not in masked)
        return RoundResult(participants, left_out, unflatten(mean.astype(flat.dtype)))


def _read_masked(arrays: Arrays, size: int) -> Numbers:
    masked = np.asarray(arrays["masked"])
    if masked.shape != (size,) or masked.dtype != np.uint32:
        raise BadInput(
            f"masked numbers must be {size} of type uint32, got {masked.dtype} of shape {masked.shape}: run the same "
            "version of NeoRL everywhere"
        )
    return masked


def _read_sealed(site: str, arrays: Arrays, keys: Mapping[str, PublicKeys]) -> dict[str, Bytes]:
    sealed = under("sealed", arrays)
    if sealed.keys() != (others := keys.keys() - {site}):
        raise BadInput(
            f"shares must be for {', '.join(sorted(others))}, got shares for {', '.join(sorted(sealed))[:200]}: "
            "restart the site"
        )
    return sealed


def _read_revealed(arrays: Arrays, arrived: Set[str], dropped: Set[str]) -> RevealedShares:
    own, keys = (
        {site: read_share(site, data) for site, data in under(kind, arrays).items()} for kind in RevealedShares._fields
    )
    if own.keys() != arrived or keys.keys() != dropped:
        raise BadInput(
            f"shares must be of seeds for {', '.join(sorted(arrived))} and of keys for {', '.join(sorted(dropped))}, "
            f"got {', '.join(sorted(own))[:200]} and {', '.join(sorted(keys))[:200]}: restart the site"
        )
    return RevealedShares(own, keys)
