"""Site of a federation: sends moments of rows, trains on the rows, and sends the change of the weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from configs.errors import BadInput, Refused
from configs.federation import Site as SiteFile
from configs.federation import Terms
from neorl_core.federated.methods import Offer, Reply, Rows, Site
from neorl_core.federated.rounds import Rule, fresh_site, observing, site_round
from neorl_core.federated.secure import FixedPoint, encode
from neorl_core.networks import Policy
from neorl_core.training.parameters import parameters_of, with_parameters
from neorl_core.training.population import Metrics
from neorl_core.training.preparation import Scaling, make_scaling, moments, scale_rows
from neorl_core.types import Transition
from tasks.data.store.episodes import read_logs
from tasks.data.store.reader import StoredDataset
from tasks.federation.learning import Learning, make_learning, site_key
from tasks.federation.messages import (
    Question,
    RoundAnswer,
    RowSummary,
    check_moments,
    moment_arrays,
    named,
    read_pooled_moments,
    read_text,
    read_weights,
    under,
)
from tasks.federation.secure_sum import Numbers, PublicKeys, SecureSumSite, share_bytes
from tasks.federation.state_files import read_tree, tree_arrays
from tasks.federation.transport.frames import Arrays
from tasks.federation.transport.network import HELLO, Message
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import canonical_json, sha256_hex, write_atomic
from tasks.files.spec import spec_record
from tasks.models.bundles.policy_file import MadeBy, save_policy

Round = Callable[[Offer, Site, Rows], tuple[Site, Reply, Metrics]]


class Work(NamedTuple):
    """Learner and scaled rows of one federation, ready for training."""

    learning: Learning
    scaling: Scaling
    rows: Rows


class Participant:
    """A site that answers questions of the coordinator. The rows never leave the site.

    Args:
        folder: folder for states between rounds and for the final policy.
    """

    def __init__(self, terms: SiteFile, store: StoredDataset, folder: Path, say: Callable[[str], None] = print) -> None:
        self.terms, self.folder, self._say = terms, folder, say
        self.spec = store.spec
        self.transitions: Transition = read_logs(store, store.split(terms.held_out)[0]).transitions
        self._works: dict[str, Work] = {}
        self._sum: tuple[str, SecureSumSite] | None = None

    def answer(self, message: Message) -> Message:
        """Answer a question of the coordinator.

        Raises:
            Refused: if the question violates the site's terms.
            BadInput: if the question is invalid.
        """
        if message.text == HELLO:
            return Message(self.terms.site)
        question = read_text(Question, message)
        self._check(question.terms)
        answers = {
            "moments": self._moments,
            "keys": self._keys,
            "shares": self._shares,
            "round": self._round,
            "unmask": self._unmask,
            "finish": self._finish,
        }
        return answers[question.kind](question, message)

    def _check(self, asked: Terms) -> None:
        """Refuse terms of the coordinator that the site's file does not allow."""
        own, rows = self.terms, len(self.transitions.reward)
        if asked.plant != own.plant:
            raise Refused(
                f"the federation is for plant {asked.plant}, the site's file for {own.plant}: change one of the files"
            )
        if rows < own.least_rows:
            raise Refused(
                f"the site has {rows} rows, but least_rows is {own.least_rows}: ingest more rows, or lower least_rows"
            )
        if own.secure_sums and not asked.secure_sums:
            raise Refused(
                "the site's file requires secure sums, but secure_sums is false in the federation: set it to true"
            )
        if own.private and (asked.privacy is None or asked.privacy.noise == 0.0):
            raise Refused(
                f"the site's file requires noise, but the federation has privacy {asked.privacy}: set privacy.noise > 0"
            )

    def _moments(self, question: Question, message: Message) -> Message:
        own = moments(self.transitions)
        spec = canonical_json(spec_record(self.spec)).decode()
        summary = RowSummary(rows=own.rows, terminates=own.terminates, spec=spec)
        self._say(f"sent the moments of {own.rows} rows")
        return Message(summary.model_dump_json(), moment_arrays(own))

    def _round(self, question: Question, message: Message) -> Message:
        work = self._work(question, message)
        site = self._load_state(question, work)
        offer = Offer(
            read_weights("offer", message.arrays, parameters_of(site.train.learner)),
            read_weights("control", message.arrays, site.control),
        )
        if 0 < work.learning.warm_up < question.number and not int(site.train.step):
            # A site that missed the warm-up first computes its model's signal ranges from its rows.
            site = compiled(observing(work.learning.rule))(offer, site, work.rows)[0]
        site, reply, metrics = compiled(work.learning.rule_for(question.number))(offer, site, work.rows)
        self._save_state(question, site)
        shown = ", ".join(f"{name} {float(value):.4g}" for name, value in sorted(metrics.items())[:4])
        self._say(f"round {question.number} of {question.terms.rounds}: {shown}")
        if question.terms.secure_sums:
            return self._reply(question, {"masked": self._masked_numbers(question, reply, message)})
        sent = named("change", reply.change) | named("control", reply.control)
        return self._reply(question, sent, float(reply.log_weight))

    def _keys(self, question: Question, message: Message) -> Message:
        """Start a secure sum; an unfinished sum is discarded."""
        label = f"{question.federation} {question.number}"
        self._sum = label, SecureSumSite(self.terms.site, label)
        return self._reply(question, {"public": self._sum[1].public})

    def _shares(self, question: Question, message: Message) -> Message:
        public = {name: PublicKeys.read(data) for name, data in under("public", message.arrays).items()}
        sealed = self._secure_sum_of(question).seal_shares(public, question.threshold)
        return self._reply(question, {f"sealed/{name}": data for name, data in sealed.items()})

    def _masked_numbers(self, question: Question, reply: Reply, message: Message) -> Numbers:
        """Return the site's term of the weighted sum as masked integers."""
        rows = len(self.transitions.reward)
        if question.terms.privacy is None and not rows <= question.most_rows:
            raise BadInput(
                f"most_rows must be at least this site's {rows} rows, got {question.most_rows}: check the coordinator"
            )
        sealed = under("sealed", message.arrays)
        part = 1.0 if question.terms.privacy else rows / question.most_rows
        fixed = FixedPoint(question.terms.secure_bound, len(sealed) + 1)
        flat = ravel_pytree((reply.change, reply.control))[0]
        # The coordinator cannot check masked numbers, so the site checks them.
        if not bool(jnp.all(jnp.isfinite(flat))):
            raise Refused(
                f"the training at {self.terms.site} diverged in round {question.number}: check the rows of this site"
            )
        numbers = encode(part * flat, fixed)
        return self._secure_sum_of(question).mask_numbers(np.asarray(numbers), sealed)

    def _unmask(self, question: Question, message: Message) -> Message:
        revealed = self._secure_sum_of(question).reveal(question.sites)
        sent = {
            f"{kind}/{name}": share_bytes(share)
            for kind, shares in revealed._asdict().items()
            for name, share in shares.items()
        }
        return self._reply(question, sent)

    def _secure_sum_of(self, question: Question) -> SecureSumSite:
        label, secure_sum = self._sum or ("", None)
        if secure_sum is None or label != f"{question.federation} {question.number}":
            raise Refused(
                f"in round {question.number}, '{question.kind}' was asked before 'keys': restart the coordinator"
            )
        return secure_sum

    @staticmethod
    def _reply(question: Question, arrays: Arrays, log_weight: float = 0.0) -> Message:
        return Message(RoundAnswer(number=question.number, log_weight=log_weight).model_dump_json(), arrays)

    def _finish(self, question: Question, message: Message) -> Message:
        work = self._work(question, message)
        learner = work.learning.train.learner
        weights = read_weights("offer", message.arrays, parameters_of(learner))
        policy = Policy(work.learning.algorithm.actor(with_parameters(learner, weights)), work.scaling.normaliser)
        path = self._folder(question) / "policy.npz"
        terms = question.terms
        made_by = MadeBy(
            algorithm=terms.algorithm,
            hyperparameters=work.learning.config._asdict(),
            updates=terms.rounds * terms.updates,
        )
        digest = save_policy(path, policy, self.spec, made_by)
        self._say(f"the policy {digest[:12]} is in {path}")
        return self._reply(question, {})

    def _work(self, question: Question, message: Message) -> Work:
        """Return learner and scaled rows of a federation; they are prepared again only if the moments change."""
        pooled = check_moments(read_pooled_moments(message.arrays), self.spec)
        key = sha256_hex(f"{question.federation}/{sha256_hex(npz_bytes(moment_arrays(pooled)))}".encode())
        if key not in self._works:
            scaling = make_scaling(pooled, self.spec)
            rows = Rows(scale_rows(scaling, self.transitions), jnp.int32(len(self.transitions.reward)))
            # Keep one federation only, because each has a copy of the rows.
            self._works = {key: Work(make_learning(question.terms, self.spec), scaling, rows)}
        return self._works[key]

    def _folder(self, question: Question) -> Path:
        return self.folder / question.federation[:16]

    def _load_state(self, question: Question, work: Work) -> Site:
        """Return the site's state before this round, so that a repeated round gives the same result."""
        train = work.learning.train
        fresh = fresh_site(train._replace(key=site_key(train, self.terms.site)), work.learning.rule.method)
        earlier = [path for number, path in self._state_files(question) if number < question.number]
        return read_tree(earlier[-1], fresh) if earlier else fresh

    def _save_state(self, question: Question, site: Site) -> None:
        write_atomic(self._folder(question) / f"site-{question.number:06d}.npz", npz_bytes(tree_arrays(site)))
        for number, path in self._state_files(question):
            if number < question.number - 1:
                path.unlink(missing_ok=True)

    def _state_files(self, question: Question) -> list[tuple[int, Path]]:
        paths = sorted(self._folder(question).glob("site-*.npz"))
        return [(int(path.stem.removeprefix("site-")), path) for path in paths]


@lru_cache(maxsize=16)
def compiled(rule: Rule) -> Round:
    """Compile a site's training in a round. Several sites in one process use the same compiled program."""
    return jax.jit(partial(site_round, rule))
