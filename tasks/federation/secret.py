"""A round of which the coordinator learns the sum alone: keys, shares, masked numbers, and what takes the masks off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from configs.errors import BadInput, NeoRLError
from neorl_core.federated.secure import FixedPoint, decode
from tasks.evidence.federations import LeftOutBody, ParticipantBody
from tasks.federation.gathering import Gathered, Round, lost, refused
from tasks.federation.masks import Bytes, Numbers, Public, Revealed, points_of, total_of
from tasks.federation.transport.frames import NOTHING, Arrays
from tasks.federation.transport.network import Lost
from tasks.federation.words import answered_of, under
from tasks.files.canonical import sha256_hex

Read = TypeVar("Read")


def gathered_in_secret(of: Round) -> Gathered:
    """Ask sites in four steps; who drops out of one is not asked in the next."""
    steps, least = _Steps(of), of.asked.minimum_sites
    public = steps.ask("keys", dict.fromkeys(of.rows, NOTHING), lambda _, told: Public.read(told["public"]))
    if len(public) < least:
        return steps.failed()
    keys = {f"public/{site}": np.frombuffer(b"".join(key), np.uint8) for site, key in public.items()}
    sealed = steps.ask("shares", dict.fromkeys(public, keys), lambda site, told: _sealed(site, told, public))
    if len(sealed) < least:
        return steps.failed()
    offered = {
        site: {**of.offered, **{f"sealed/{one}": told[site] for one, told in sealed.items() if one != site}}
        for site in sealed
    }
    most = max(of.rows[site] for site in sealed)
    size = ravel_pytree((of.server.parameters, of.server.control))[0].shape[0]
    sent = steps.ask("round", offered, lambda _, told: _numbers(told, size), most_rows=most)
    if len(sent) < least:
        return steps.failed()
    revealed = steps.ask(
        "unmask",
        dict.fromkeys(sent, NOTHING),
        lambda _, told: _revealed(told, sent.keys(), sealed.keys() - sent.keys()),
        sites=tuple(sorted(sent)),
    )
    try:
        total = total_of(sent, {site: public[site] for site in sealed}, revealed, least)
    except NeoRLError:
        return steps.failed()
    return steps.summed(sent, total, FixedPoint(of.asked.secure_bound, len(sealed)), most)


class _Steps:
    """The questions of one round, and who has dropped out."""

    def __init__(self, of: Round) -> None:
        self._of = of
        self._left_out = dict[str, LeftOutBody]()

    def ask(
        self,
        kind: Literal["keys", "shares", "round", "unmask"],
        arrays: Mapping[str, Arrays],
        read: Callable[[str, Arrays], Read],
        **more: object,
    ) -> dict[str, Read]:
        """What some sites tell; who does not answer as it should has dropped out."""
        of, found = self._of, dict[str, Read]()
        question = of.question.model_copy(update={"kind": kind, "threshold": of.asked.minimum_sites, **more})
        messages = {site: question.message(sent) for site, sent in arrays.items()}
        for site, answer in sorted(of.reach.exchange(messages, of.asked.round_seconds).items()):
            if isinstance(answer, Lost):
                self._left_out[site] = lost(site, answer)
                continue
            try:
                if answered_of(answer).number != of.number:
                    raise BadInput(f"expected an answer to round {of.number}, got one to another.")
                found[site] = read(site, answer.arrays)
            except (NeoRLError, KeyError) as error:
                self._left_out[site] = refused(site, f"to '{kind}' it answered {error}")
        return found

    def failed(self) -> Gathered:
        """Too few sites are left for a sum that hides each."""
        detail = "too few others for a secure sum"
        rest = [LeftOutBody(site=s, why="failed", detail=detail) for s in self._of.rows if s not in self._left_out]
        left_out = sorted([*self._left_out.values(), *rest], key=lambda one: one.site)
        return Gathered((), tuple(left_out), None)

    def summed(self, sent: Mapping[str, Numbers], total: Numbers, fixed: FixedPoint, most: int) -> Gathered:
        """The mean of what was sent; who told its numbers is in it, whether or not it helped to take the masks off."""
        of = self._of
        parts = {site: 1.0 if of.asked.privacy else of.rows[site] / most for site in sorted(sent)}
        whole = sum(parts.values())
        flat, shape = ravel_pytree((of.server.parameters, of.server.control))
        mean = decode(jnp.asarray(total), fixed) / whole
        participants = tuple(
            ParticipantBody(
                site=site, update=sha256_hex(sent[site].tobytes()), weight=part / whole, norm=None, distance=None
            )
            for site, part in parts.items()
        )
        left_out = tuple(one for site, one in sorted(self._left_out.items()) if site not in sent)
        return Gathered(participants, left_out, shape(mean.astype(flat.dtype)))


def _numbers(arrays: Arrays, size: int) -> Numbers:
    found = np.asarray(arrays["masked"])
    if found.shape != (size,) or found.dtype != np.uint32:
        raise BadInput(f"expected {size} integers under masks, got {found.dtype} of shape {found.shape}.")
    return found


def _sealed(site: str, arrays: Arrays, public: Mapping[str, Public]) -> dict[str, Bytes]:
    found = under("sealed", arrays)
    if found.keys() != public.keys() - {site}:
        raise BadInput(f"expected shares for {', '.join(sorted(public.keys() - {site}))}, got for others.")
    return found


def _revealed(arrays: Arrays, arrived: Set[str], dropped: Set[str]) -> Revealed:
    own, keys = (
        {site: points_of(site, data) for site, data in under(kind, arrays).items()} for kind in Revealed._fields
    )
    if own.keys() != arrived or keys.keys() != dropped:
        raise BadInput("expected shares of each site of the sum, got those of others.")
    return Revealed(own, keys)
