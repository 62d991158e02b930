"""Rounds of federated learning: sites learn from the weights that they are sent, and a server steps by what they reply.

`at_site` and `at_server` are the two halves of a round, for whoever carries messages between them; `make_rounds` is a
simulation of the same functions, all sites in one program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.federated.aggregate import Aggregate, weighted_mean
from neorl_core.federated.methods import FEDAVG, LOOKING, Ended, Method, Offer, Reply, Rows, Site
from neorl_core.federated.privacy import Privacy, clipped, noised
from neorl_core.federated.secure import secure_mean
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.parameters import Parameters, difference, parameters_of, with_parameters
from neorl_core.training.population import Algorithm, Metrics, TrainState, Update, drawn_update, phase
from neorl_core.types import Transition

SAMPLE = 1024
"""Rows that a site's own worth is estimated on at a round's end."""


class Server(NamedTuple):
    """What the server keeps between two rounds."""

    parameters: Parameters
    control: Parameters
    optimiser: Optimiser
    round: Int[Array, ""]

    @property
    def offer(self) -> Offer:
        """What it sends."""
        return Offer(self.parameters, self.control)


class Rule(NamedTuple):
    """How a federation works; static, so that each is a program of its own."""

    algorithm: Algorithm
    method: Method = FEDAVG
    aggregate: Aggregate = weighted_mean
    updates: int = 20
    """Gradient steps of a site in a round, a multiple of the algorithm's `batches_per_update`."""
    batch_size: int = 256
    server_lr: float = 1.0
    privacy: Privacy | None = None
    """Of whole sites."""
    secure: float | None = None
    """Bound of a site's numbers where the server is to see their sum alone (`secure`)."""

    @property
    def steps(self) -> int:
        """Calls of the algorithm's `update` in a round."""
        return self.updates // self.algorithm.batches_per_update


def check(rule: Rule) -> Rule:
    """The rule itself, where its parts go together.

    Raises:
        ValueError: when they do not.
    """
    batches = rule.algorithm.batches_per_update
    if rule.updates < 1 or rule.updates % batches or rule.batch_size < 1:
        raise ValueError(
            f"expected updates of a round that are a multiple of {batches} ({rule.algorithm.name}) and a batch of at "
            f"least one row, got {rule.updates} and {rule.batch_size}."
        )
    if rule.aggregate is not weighted_mean and rule.secure:
        raise ValueError(
            "expected a mean where sums are secure, got a robust aggregate, which has to see each site's change: "
            "choose one of the two."
        )
    if rule.aggregate is not weighted_mean and rule.privacy:
        raise ValueError(
            "expected a mean where sites are private, got a robust aggregate, of which the accountant knows nothing: "
            "choose one of the two."
        )
    return rule


def fresh_server(learner: Any, method: Method, recipe: Recipe | None = None) -> Server:
    """A server that begins with a learner's weights.

    Args:
        learner: an algorithm's state.
        method: gives the control variate.
        recipe: how the server follows the aggregate: by it alone, or by an optimiser of its own (FedAdam and the like;
            Reddi et al. 2021, arXiv 2003.00295, algorithm 2).
    """
    parameters = parameters_of(learner)
    memory = optimisers.init(recipe or Recipe(method="sgd"), parameters)
    return Server(parameters, method.fresh_control(parameters), memory, jnp.int32(0))


def fresh_site(train: TrainState, method: Method) -> Site:
    """A site that has not taken part in a round.

    Args:
        train: its learner, key and step; the weights in it do not count, for the server sends others.
        method: gives the control variate.
    """
    return Site(train, method.fresh_control(parameters_of(train.learner)), jnp.ones(()))


def at_site(rule: Rule, offer: Offer, site: Site, rows: Rows) -> tuple[Site, Reply, Metrics]:
    """A site's half of a round.

    Args:
        rule: how the federation works.
        offer: what the server sent.
        site: what the site kept.
        rows: its own.

    Returns:
        What it keeps, what leaves it, and the mean of its metrics, which stay, too.
    """
    algorithm, method = rule.algorithm, rule.method
    before = with_parameters(site.train.learner, offer.parameters)

    def corrected(update: Update) -> Update:
        def one(state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            after, metrics = update(state, method.rows(algorithm, state, before, batches), key)
            return with_parameters(after, method.step(parameters_of(state), parameters_of(after), offer, site)), metrics

        return one

    def step(train: TrainState, _: None) -> tuple[TrainState, Metrics]:
        return drawn_update(learner, train, rows.transitions, rows.number, rule.batch_size)

    learner = algorithm._replace(update=corrected(algorithm.update))
    train, metrics = jax.lax.scan(step, site.train._replace(learner=before), length=rule.steps)
    change = difference(parameters_of(train.learner), offer.parameters)
    of_sample = jax.random.fold_in(jax.random.wrap_key_data(train.key, impl="threefry2x32"), -1 - train.step)
    drawn = jax.random.randint(of_sample, (SAMPLE,), 0, rows.number)
    sample: Transition = jax.tree.map(lambda x: x[drawn], rows.transitions)
    kept = site._replace(train=train)
    ended = Ended(algorithm, before, kept, offer, change, rule.steps, sample, rows.number)
    kept, control, log_weight = method.close(ended)
    reply = Reply(change, control, log_weight)
    if rule.privacy:
        change, control = clipped((change, control), rule.privacy.clip)
        reply = Reply(change, control, jnp.zeros_like(log_weight))
        # The site keeps what it tells, or the server's control variate were no longer the mean of the sites'.
        kept = kept._replace(control=jax.tree.map(jnp.add, site.control, control))
    return kept, reply, jax.tree.map(jnp.mean, metrics)


def looking(rule: Rule) -> Rule:
    """How a site whose learned model has seen none of its rows looks at them, before it learns from rollouts.

    The range, the support and the errors that hold rollouts near the rows are never sent: a site that took part in no
    round of the warm-up has none, though the shared model is trained.

    Args:
        rule: of the federation, with the algorithm as it is after its warm-up.
    """
    return Rule(phase(rule.algorithm, True), LOOKING, updates=rule.updates, batch_size=rule.batch_size)


def at_server(
    rule: Rule, server: Server, replies: Reply, share: float | Float[Array, ""] = 1.0, key: PRNGKeyArray | None = None
) -> Server:
    """The server's half of a round.

    `x <- x + server_lr aggregate_i(y_i - x)`, or a step of the server's own optimiser by it; of control variates
    `h <- h + share aggregate_i(h_i' - h_i)`.

    Args:
        rule: how the federation works.
        server: what it kept.
        replies: arrays with a leading axis of the sites that replied.
        share: of all sites that they are.
        key: randomness of noise and masks, where sites are private or sums secure.

    Raises:
        ValueError: when there is none, but one is needed.
    """
    weights, sent = jax.nn.softmax(replies.log_weight), (replies.change, replies.control)
    if not (rule.privacy or rule.secure):
        return stepped(rule, server, rule.aggregate(sent, weights), share)
    if key is None:
        raise ValueError("expected a key for noise and masks, got none: give one that nobody else has.")
    masks, noise = jax.random.split(jax.random.fold_in(key, server.round))
    found = secure_mean(sent, weights, rule.secure, masks) if rule.secure else rule.aggregate(sent, weights)
    if rule.privacy:
        found = noised(found, rule.privacy, weights.shape[0], noise)
    return stepped(rule, server, found, share)


def stepped(
    rule: Rule, server: Server, aggregates: tuple[Parameters, Parameters], share: float | Float[Array, ""] = 1.0
) -> Server:
    """The server after an aggregate, which may be made elsewhere: by secure sums of several machines, for one.

    Args:
        rule: how the federation works.
        server: what it kept.
        aggregates: of the sites' changes, and of their control variates' changes.
        share: of all sites that they are of.
    """
    change, control = aggregates
    gradient = jax.tree.map(jnp.negative, change)
    parameters, memory = optimisers.step(
        server.parameters, gradient, server.optimiser, jnp.asarray(rule.server_lr, jnp.result_type(float))
    )
    controls = jax.tree.map(lambda h, moved: h + share * moved, server.control, control)
    return Server(parameters, controls, memory, server.round + 1)


Rounds = Callable[[Server, Site, Rows, PRNGKeyArray], tuple[Server, Site, Metrics]]
"""(server, sites, rows, key) -> (server, sites, metrics (rounds, participants)); sites and rows have a leading axis."""


@lru_cache(maxsize=16)
def make_rounds(rule: Rule, rounds: int, sites: int, participants: int | None = None) -> Rounds:
    """Compile rounds of all sites as one program.

    Args:
        rule: how the federation works.
        rounds: how many.
        sites: S.
        participants: sites of a round, drawn anew for each; all by default.

    Raises:
        ValueError: on a rule whose parts do not go together, or more participants than sites.
    """
    check(rule)
    some = sites if participants is None else participants
    if rounds < 1 or not 1 <= some <= sites:
        raise ValueError(f"expected at least one round, and 1 to {sites} sites in each, got {rounds} and {some}.")

    def one(carry: tuple[Server, Site], key: PRNGKeyArray, rows: Rows) -> tuple[tuple[Server, Site], Metrics]:
        server, every = carry
        draw_key, noise_key = jax.random.split(key)
        if some == sites:
            drawn, theirs, those = None, rows, every
        else:
            drawn = jax.random.choice(draw_key, sites, (some,), replace=False)
            theirs, those = jax.tree.map(lambda x: x[drawn], (rows, every))
        those, replies, metrics = jax.vmap(partial(at_site, rule, server.offer))(those, theirs)
        server = at_server(rule, server, replies, some / sites, noise_key)
        every = those if drawn is None else jax.tree.map(lambda x, new: x.at[drawn].set(new), every, those)
        return (server, every), metrics

    def run(server: Server, every: Site, rows: Rows, key: PRNGKeyArray) -> tuple[Server, Site, Metrics]:
        (server, every), metrics = jax.lax.scan(
            lambda carry, key: one(carry, key, rows), (server, every), jax.random.split(key, rounds)
        )
        return server, every, metrics

    return jax.jit(run)
