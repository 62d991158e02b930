"""Rounds of federated learning: sites learn from the weights they receive, and the server aggregates their replies.

`site_round` and `server_round` are the two halves of a round, for any transport of messages; `make_rounds` simulates
all sites in one program with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.federated.aggregate import Aggregate, weighted_mean
from neorl_core.federated.methods import FEDAVG, OBSERVING, Ended, Method, Offer, Reply, Rows, Site
from neorl_core.federated.privacy import Privacy, add_noise, clip_change
from neorl_core.federated.secure import secure_mean
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.parameters import Parameters, difference, parameters_of, with_parameters
from neorl_core.training.population import Algorithm, Metrics, TrainState, Update, phase, sampled_update
from neorl_core.types import Transition

SAMPLE = 1024
"""Rows in the sample that estimates a site's value at the end of a round."""


class Server(NamedTuple):
    """State of the server between rounds."""

    parameters: Parameters
    control: Parameters
    optimiser: Optimiser
    round: Int[Array, ""]

    @property
    def offer(self) -> Offer:
        """Message to the sites."""
        return Offer(self.parameters, self.control)


class Rule(NamedTuple):
    """Settings of a federation; static, so each rule compiles its own program."""

    algorithm: Algorithm
    method: Method = FEDAVG
    aggregate: Aggregate = weighted_mean
    updates: int = 20
    """Gradient steps per site and round, a multiple of the algorithm's `batches_per_update`."""
    batch_size: int = 256
    server_lr: float = 1.0
    privacy: Privacy | None = None
    """Site-level privacy."""
    secure: float | None = None
    """Largest absolute value of a site's numbers under secure aggregation; None without secure aggregation."""

    @property
    def steps(self) -> int:
        """Calls of the algorithm's `update` per round."""
        return self.updates // self.algorithm.batches_per_update


def check(rule: Rule) -> Rule:
    """Return the rule after checking that its settings can be combined.

    Raises:
        ValueError: if a number is out of range, or two settings exclude each other.
    """
    batches = rule.algorithm.batches_per_update
    if rule.updates < 1 or rule.updates % batches or rule.batch_size < 1:
        raise ValueError(
            f"updates per round must be a positive multiple of {batches} ({rule.algorithm.name}) and batch_size "
            f"positive, got updates {rule.updates} and batch_size {rule.batch_size}"
        )
    if rule.aggregate is not weighted_mean and rule.secure:
        raise ValueError(
            f"secure aggregation (bound {rule.secure:g}) needs the weighted mean, got a robust aggregate, which must "
            "see the change of each site: use only one of them"
        )
    if rule.aggregate is not weighted_mean and rule.privacy:
        raise ValueError(
            f"site-level privacy (noise {rule.privacy.noise:g}) needs the weighted mean, got a robust aggregate, which "
            "the accountant does not cover: use only one of them"
        )
    return rule


def fresh_server(learner: Any, method: Method, recipe: Recipe | None = None) -> Server:
    """Return a server with the weights of a learner.

    Args:
        recipe: optimiser of the server, as in FedAdam (Reddi et al. 2021, arXiv 2003.00295, algorithm 2); None adds the
            aggregate to the weights.
    """
    parameters = parameters_of(learner)
    memory = optimisers.init(recipe or Recipe(method="sgd"), parameters)
    return Server(parameters, method.fresh_control(parameters), memory, jnp.int32(0))


def fresh_site(train: TrainState, method: Method) -> Site:
    """Return a site before its first round; the weights in `train` are replaced by those of the server."""
    return Site(train, method.fresh_control(parameters_of(train.learner)), jnp.ones(()))


def site_round(rule: Rule, offer: Offer, site: Site, rows: Rows) -> tuple[Site, Reply, Metrics]:
    """Run the site's half of a round.

    Returns:
        New state, reply to the server, and mean metrics. The site sends only the reply.
    """
    algorithm, method = rule.algorithm, rule.method
    before = with_parameters(site.train.learner, offer.parameters)

    def corrected(update: Update) -> Update:
        def one(state: Any, batches: Transition, key: PRNGKeyArray) -> tuple[Any, Metrics]:
            after, metrics = update(state, method.rows(algorithm, state, before, batches), key)
            return with_parameters(after, method.step(parameters_of(state), parameters_of(after), offer, site)), metrics

        return one

    def step(train: TrainState, _: None) -> tuple[TrainState, Metrics]:
        return sampled_update(learner, train, rows.transitions, rows.number, rule.batch_size)

    learner = algorithm._replace(update=corrected(algorithm.update))
    train, metrics = jax.lax.scan(step, site.train._replace(learner=before), length=rule.steps)
    change = difference(parameters_of(train.learner), offer.parameters)
    sample_key = jax.random.fold_in(jax.random.wrap_key_data(train.key, impl="threefry2x32"), -1 - train.step)
    indices = jax.random.randint(sample_key, (SAMPLE,), 0, rows.number)
    sample: Transition = jax.tree.map(lambda x: x[indices], rows.transitions)
    kept = site._replace(train=train)
    ended = Ended(algorithm, before, kept, offer, change, rule.steps, sample, rows.number)
    kept, control, log_weight = method.close(ended)
    reply = Reply(change, control, log_weight)
    if rule.privacy:
        change, control = clip_change((change, control), rule.privacy.clip)
        reply = Reply(change, control, jnp.zeros_like(log_weight))
        # Keep the clipped value, so that the server's control variate stays the mean of the sites'.
        kept = kept._replace(control=jax.tree.map(jnp.add, site.control, control))
    return kept, reply, jax.tree.map(jnp.mean, metrics)


def observing(rule: Rule) -> Rule:
    """Return the rule for sites that took no part in the warm-up: they observe their rows without changing weights.

    A learned model limits its rollouts by range, support and errors on the site's rows. The server never receives these
    statistics, so each site must compute them.
    """
    return Rule(phase(rule.algorithm, True), OBSERVING, updates=rule.updates, batch_size=rule.batch_size)


def server_round(
    rule: Rule, server: Server, replies: Reply, share: float | Float[Array, ""] = 1.0, key: PRNGKeyArray | None = None
) -> Server:
    """Run the server's half of a round.

    Weights x with replies y_i: `x <- x + server_lr aggregate_i(y_i - x)`, or a step of the server's optimiser along the
    aggregate. Control variates: `h <- h + share aggregate_i(h_i' - h_i)`.

    Args:
        replies: replies, with a leading axis of the sites that replied.
        share: share of all sites that replied.
        key: PRNG key of noise and masks, needed with privacy or secure aggregation.

    Raises:
        ValueError: if a key is needed and missing.
    """
    weights, sent = jax.nn.softmax(replies.log_weight), (replies.change, replies.control)
    if not (rule.privacy or rule.secure):
        return step_server(rule, server, rule.aggregate(sent, weights), share)
    if key is None:
        raise ValueError("noise and masks need a PRNG key, got key=None: pass a secret key")
    masks, noise = jax.random.split(jax.random.fold_in(key, server.round))
    mean = secure_mean(sent, weights, rule.secure, masks) if rule.secure else rule.aggregate(sent, weights)
    if rule.privacy:
        mean = add_noise(mean, rule.privacy, weights.shape[0], noise)
    return step_server(rule, server, mean, share)


def step_server(
    rule: Rule, server: Server, aggregates: tuple[Parameters, Parameters], share: float | Float[Array, ""] = 1.0
) -> Server:
    """Return the server after a step along an aggregate, for example from a secure sum over several machines.

    Args:
        aggregates: aggregated changes of weights and of control variates.
        share: share of all sites in the aggregate.
    """
    change, control = aggregates
    gradient = jax.tree.map(jnp.negative, change)
    parameters, memory = optimisers.step(
        server.parameters, gradient, server.optimiser, jnp.asarray(rule.server_lr, jnp.result_type(float))
    )
    controls = jax.tree.map(lambda h, change: h + share * change, server.control, control)
    return Server(parameters, controls, memory, server.round + 1)


Rounds = Callable[[Server, Site, Rows, PRNGKeyArray], tuple[Server, Site, Metrics]]
"""(server, sites, rows, key) -> (server, sites, metrics (rounds, participants)); sites and rows have a leading axis."""


@lru_cache(maxsize=16)
def make_rounds(rule: Rule, rounds: int, sites: int, participants: int | None = None) -> Rounds:
    """Compile rounds of all sites as one program.

    Args:
        participants: random participants per round; all sites by default.

    Raises:
        ValueError: on an inconsistent rule, or more participants than sites.
    """
    check(rule)
    some = sites if participants is None else participants
    if rounds < 1 or not 1 <= some <= sites:
        raise ValueError(
            f"rounds must be positive, and participants 1 to {sites}, got {rounds} and {some}: correct them"
        )

    def one(carry: tuple[Server, Site], key: PRNGKeyArray, rows: Rows) -> tuple[tuple[Server, Site], Metrics]:
        server, states = carry
        draw_key, noise_key = jax.random.split(key)
        if some == sites:
            chosen, their_rows, active = None, rows, states
        else:
            chosen = jax.random.choice(draw_key, sites, (some,), replace=False)
            their_rows, active = jax.tree.map(lambda x: x[chosen], (rows, states))
        active, replies, metrics = jax.vmap(partial(site_round, rule, server.offer))(active, their_rows)
        server = server_round(rule, server, replies, some / sites, noise_key)
        states = active if chosen is None else jax.tree.map(lambda x, new: x.at[chosen].set(new), states, active)
        return (server, states), metrics

    def run(server: Server, states: Site, rows: Rows, key: PRNGKeyArray) -> tuple[Server, Site, Metrics]:
        (server, states), metrics = jax.lax.scan(
            lambda carry, key: one(carry, key, rows), (server, states), jax.random.split(key, rounds)
        )
        return server, states, metrics

    return jax.jit(run)
