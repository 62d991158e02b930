"""What a site does when it is asked: it tells moments of its rows, learns from them, and tells of its change."""

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
from neorl_core.training.preparation import Moments, Scaling, make_scaling, moments, scale_rows
from neorl_core.types import Transition
from tasks.data.store.episodes import read_logs
from tasks.data.store.reader import StoredDataset
from tasks.federation.learning import Learning, learning_of, site_key
from tasks.federation.masks import Masks, Numbers, Public, point_bytes
from tasks.federation.transport.frames import Arrays
from tasks.federation.transport.network import HELLO, Message
from tasks.federation.trees import arrays_of, read_tree
from tasks.federation.words import (
    Answered,
    Question,
    Told,
    arrays_of_moments,
    check_sizes,
    moments_of,
    named,
    question_of,
    under,
    weights_of,
)
from tasks.files.arrays import npz_bytes
from tasks.files.canonical import canonical_json, sha256_hex, write_atomic
from tasks.files.spec import spec_record
from tasks.models.bundles.policy_file import MadeBy, save_policy

Round = Callable[[Offer, Site, Rows], tuple[Site, Reply, Metrics]]


class Work(NamedTuple):
    """What a site has ready for one federation."""

    learning: Learning
    scaling: Scaling
    rows: Rows


class Participant:
    """A site that answers: it holds the rows, which never leave it.

    Args:
        terms: the site's own file.
        store: its dataset.
        folder: for what it keeps between rounds, and the policy in the end.
        say: where a line about each answer goes.
    """

    def __init__(self, terms: SiteFile, store: StoredDataset, folder: Path, say: Callable[[str], None] = print) -> None:
        self.terms, self.folder, self._say = terms, folder, say
        self.spec = store.spec
        self.transitions: Transition = read_logs(store, store.split(terms.held_out)[0]).transitions
        self._works: dict[str, Work] = {}
        self._sum: tuple[str, Masks] | None = None

    def answer(self, message: Message) -> Message:
        """Answer a question of the coordinator.

        Raises:
            Refused: when it is against the site's own terms.
            BadInput: when it cannot be understood.
        """
        if message.text == HELLO:
            return Message(self.terms.site)
        question = question_of(message)
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
        """Hold the coordinator's terms against the site's."""
        own, rows = self.terms, len(self.transitions.reward)
        if asked.plant != own.plant:
            raise Refused(f"expected a federation of {own.plant}, got one of {asked.plant}.")
        if rows < own.least_rows:
            raise Refused(f"expected at least {own.least_rows} rows to tell sums of, got {rows}: the site keeps them.")
        if own.secure_sums and not asked.secure_sums:
            raise Refused("expected sums that are secure, as the site's file asks, got changes in the open.")
        if own.private and (asked.privacy is None or asked.privacy.noise == 0.0):
            raise Refused("expected changes that get noise, as the site's file asks, got none.")

    def _moments(self, question: Question, message: Message) -> Message:
        known = moments(self.transitions)
        told = Told(rows=known.rows, terminates=known.terminates, spec=canonical_json(spec_record(self.spec)).decode())
        self._say(f"told the moments of {known.rows} rows")
        return Message(told.model_dump_json(), arrays_of_moments(known))

    def _round(self, question: Question, message: Message) -> Message:
        work = self._work(question, message)
        site = self._kept(question, work)
        offer = Offer(
            weights_of("offer", message.arrays, parameters_of(site.train.learner)),
            weights_of("control", message.arrays, site.control),
        )
        if 0 < work.learning.warm_up < question.number and not int(site.train.step):
            # It was not there in the warm-up, and its model knows no range of its rows.
            site = compiled(observing(work.learning.rule))(offer, site, work.rows)[0]
        site, reply, metrics = compiled(work.learning.rule_of(question.number))(offer, site, work.rows)
        self._keep(question, site)
        told = ", ".join(f"{name} {float(value):.4g}" for name, value in sorted(metrics.items())[:4])
        self._say(f"round {question.number} of {question.terms.rounds}: {told}")
        if question.terms.secure_sums:
            return self._said(question, {"masked": self._masked(question, reply, message)})
        sent = named("change", reply.change) | named("control", reply.control)
        return self._said(question, sent, float(reply.log_weight))

    def _keys(self, question: Question, message: Message) -> Message:
        """Begin a secure sum; what was left of another one is forgotten."""
        label = f"{question.federation} {question.number}"
        self._sum = label, Masks(self.terms.site, label)
        return self._said(question, {"public": self._sum[1].public})

    def _shares(self, question: Question, message: Message) -> Message:
        public = {name: Public.read(data) for name, data in under("public", message.arrays).items()}
        sealed = self._masks(question).sealed(public, question.threshold)
        return self._said(question, {f"sealed/{name}": data for name, data in sealed.items()})

    def _masked(self, question: Question, reply: Reply, message: Message) -> Numbers:
        """The site's share of the weighted sum, as integers under masks."""
        rows = len(self.transitions.reward)
        if question.terms.privacy is None and not rows <= question.most_rows:
            raise BadInput(f"expected the rows of the largest site, {rows} at least, got {question.most_rows}.")
        sealed = under("sealed", message.arrays)
        part = 1.0 if question.terms.privacy else rows / question.most_rows
        fixed = FixedPoint(question.terms.secure_bound, len(sealed) + 1)
        flat = ravel_pytree((reply.change, reply.control))[0]
        # Behind a mask nobody else can see it.
        if not bool(jnp.all(jnp.isfinite(flat))):
            raise Refused("expected a change of finite numbers, got others: the training at this site diverged.")
        numbers = encode(part * flat, fixed)
        return self._masks(question).add(np.asarray(numbers), sealed)

    def _unmask(self, question: Question, message: Message) -> Message:
        told = self._masks(question).reveal(question.sites)
        sent = {f"{kind}/{name}": point_bytes(one) for kind, of in told._asdict().items() for name, one in of.items()}
        return self._said(question, sent)

    def _masks(self, question: Question) -> Masks:
        label, masks = self._sum or ("", None)
        if masks is None or label != f"{question.federation} {question.number}":
            raise Refused(f"expected keys to be asked for before round {question.number}, got none of it.")
        return masks

    @staticmethod
    def _said(question: Question, arrays: Arrays, log_weight: float = 0.0) -> Message:
        return Message(Answered(number=question.number, log_weight=log_weight).model_dump_json(), arrays)

    def _finish(self, question: Question, message: Message) -> Message:
        """Keep the policy that all of them made."""
        work = self._work(question, message)
        learner = work.learning.train.learner
        weights = weights_of("offer", message.arrays, parameters_of(learner))
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
        return self._said(question, {})

    def _work(self, question: Question, message: Message) -> Work:
        """Rows and learner of a federation, prepared once; the moments of all sites come with every question."""
        known = check_sizes(all_moments(message), self.spec)
        key = sha256_hex(f"{question.federation}/{sha256_hex(npz_bytes(arrays_of_moments(known)))}".encode())
        if key not in self._works:
            how = make_scaling(known, self.spec)
            rows = Rows(scale_rows(how, self.transitions), jnp.int32(len(self.transitions.reward)))
            # One at a time: another federation's rows would double the memory.
            self._works = {key: Work(learning_of(question.terms, self.spec), how, rows)}
        return self._works[key]

    def _folder(self, question: Question) -> Path:
        return self.folder / question.federation[:16]

    def _kept(self, question: Question, work: Work) -> Site:
        """What the site kept of an earlier round: optimisers' memory, control variate, influence, and its step.

        A round that is asked for again begins where it began before.
        """
        train = work.learning.train
        fresh = fresh_site(train._replace(key=site_key(train, self.terms.site)), work.learning.rule.method)
        earlier = [path for number, path in self._files(question) if number < question.number]
        return read_tree(earlier[-1], fresh) if earlier else fresh

    def _keep(self, question: Question, site: Site) -> None:
        write_atomic(self._folder(question) / f"site-{question.number:06d}.npz", npz_bytes(arrays_of(site)))
        for number, path in self._files(question):
            if number < question.number - 1:
                path.unlink(missing_ok=True)

    def _files(self, question: Question) -> list[tuple[int, Path]]:
        paths = sorted(self._folder(question).glob("site-*.npz"))
        return [(int(path.stem.removeprefix("site-")), path) for path in paths]


@lru_cache(maxsize=16)
def compiled(rule: Rule) -> Round:
    """A site's half of a round as one program; sites within one process share it."""
    return jax.jit(partial(site_round, rule))


def all_moments(message: Message) -> Moments:
    """The moments of all sites' rows together, as a round's question brings them."""
    try:
        rows, terminates = (int(message.arrays[f"moments/{name}"]) for name in ("rows", "terminates"))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"expected the moments of all sites, got {error}: run the same version everywhere.") from error
    return moments_of(message.arrays, rows, bool(terminates))
