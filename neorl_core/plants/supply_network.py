"""The supply chain as a graph with links that fail.

Stages and the maker are nodes; supply links are edges that carry the goods under way. While a link is out, no goods are
shipped over the link, goods under way still arrive, and orders wait at the supplier. A working link fails with
probability `outage` per period and a failed link is repaired with probability `repair`, so in the long run a link is
out for a share `outage / (outage + repair)` of the time. Without outages this plant equals `supply_chain` (or-gym).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.layout import Layout
from neorl_core.plants import supply_chain as chain
from neorl_core.plants.base import AnyArray, Scalar
from neorl_core.types import Controller, Plant, Space, Timestep

SIZE = chain.SPEC.observation.size
FOLD = 8_191
"""Folded into the random keys for links, so that the demand is the same with and without outages."""
SUPPLIERS = (*chain.STAGES[1:], "maker")
"""Supplier of each stage."""


def layout_of() -> Layout:
    """Return the graph layout: nodes have stock and unmet orders; edges have goods by the periods until arrival."""
    stages, longest = len(chain.STAGES), max(chain.LEAD_TIMES)
    # Shipments are ordered latest first; columns are aligned by waiting time across links of any length.
    arriving = tuple(
        tuple(last - wait if wait < lead else -1 for last, lead in zip(chain.LAST, chain.LEAD_TIMES, strict=True))
        for wait in range(longest)
    )
    up = tuple(range(SIZE, SIZE + stages))
    return Layout(
        nodes=stages + 1,
        edges=tuple((i + 1, i) for i in range(stages)),
        node_observation=((*range(stages), -1), tuple(range(chain.UNMET, chain.PERIOD))),
        edge_observation=arriving,
        context=(chain.PERIOD,),
        node_action=((*range(stages), -1),),
        node_constants=((*(most / max(chain.STORAGE) for most in chain.STORAGE), 0.0), (*(0.0,) * stages, 1.0)),
        edge_constants=(
            tuple(lead / longest for lead in chain.LEAD_TIMES),
            tuple(most / max(chain.CAPACITIES) for most in chain.CAPACITIES),
        ),
        flags=up,
        present=up,
    )


_OWN = chain.SPEC.observation
SPEC = chain.SPEC._replace(
    name="supply_network",
    observation=Space(
        (*_OWN.names, *(f"link_{supplier}_{stage}" for supplier, stage in zip(SUPPLIERS, chain.STAGES, strict=True))),
        (*_OWN.units, *("1",) * 3),
        (*_OWN.low, *(0.0,) * 3),
        (*_OWN.high, *(1.0,) * 3),
    ),
    # 0: the chain's best constant orders; 100: its tuned base stock, which orders nothing over failed links (2,000
    # episodes each).
    score_range=(380.0, 519.7),
    layout=layout_of(),
)


class Params(NamedTuple):
    """Constants of the chain, and failure rates of the links."""

    chain: chain.Params = chain.NOMINAL
    outage: Scalar = 0.0
    """Probability per period that a working link fails [1]."""
    repair: Scalar = 0.5
    """Probability per period that a failed link is repaired [1]."""


class Domain(NamedTuple):
    """The operating domain: or-gym's task with backlog, plus links that fail."""

    mean_demand: float = 20.0
    demand_spread: float = 0.0
    randomness: float = 1.0
    backlog: float = 1.0
    outage: float = 0.02
    repair: float = 0.5


class State(NamedTuple):
    """State of the chain, and of the links in the next period."""

    chain: chain.State
    up: Float[Array, " 3"]
    """1 if the supplier of a stage can ship, else 0."""


NOMINAL = Params()


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    return Params(chain.sample_params(key, chain.Domain(*domain[:4])), domain.outage, domain.repair)


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 29"]]:
    """Return the initial state of `supply_chain`, with all links up."""
    state, observation = chain.reset(key, params.chain)
    up = jnp.ones(3, observation.dtype)
    return State(state, up), jnp.concatenate([observation, up])


def step(key: PRNGKeyArray, state: State, action: Float[Array, " 3"], params: Params) -> tuple[State, Timestep]:
    """Simulate one period under three orders; links fail and are repaired at the end of the period."""
    next_state, timestep = chain.step(key, state.chain, action, params.chain, state.up)
    changed = jnp.where(state.up > 0.5, jnp.asarray(params.outage, float), jnp.asarray(params.repair, float))
    up = jnp.abs(state.up - (jax.random.uniform(jax.random.fold_in(key, FOLD), (3,)) < changed))
    return State(next_state, up), timestep._replace(observation=jnp.concatenate([timestep.observation, up]))


def predict(
    observation: Float[Array, " 29"], action: Float[Array, " 3"], params: Params
) -> tuple[Float[Array, " 29"], Float[Array, " 4"]]:
    """Predict the next observation and margins at the mean demand, if the links keep their present state."""
    up = observation[SIZE:]
    next_observation, margins = chain.predict(observation[:SIZE], action, params.chain, up)
    return jnp.concatenate([next_observation, up]), margins


def resume(key: PRNGKeyArray, state: State, observation: Float[Array, " 29"], params: Params) -> tuple[State, Params]:
    assert chain.PLANT.resume is not None
    own, constants = chain.PLANT.resume(key, state.chain, observation[:SIZE], params.chain)
    return State(own, observation[SIZE:]), params._replace(chain=constants)


def logged_margins(next_observation: Float[AnyArray, "*n 29"]) -> Float[Array, "*n 4"]:
    return chain.logged_margins(next_observation[..., :SIZE])


def logged_reward(
    observation: Float[AnyArray, "*n 29"], action: Float[AnyArray, "*n 3"], next_observation: Float[AnyArray, "*n 29"]
) -> Float[Array, "*n"]:
    return chain.logged_reward(observation[..., :SIZE], action, next_observation[..., :SIZE])


def _order(
    params: chain.BaseStockParams, state: tuple[()], observation: Float[Array, " 29"], applied: Float[Array, " 3"]
) -> tuple[tuple[()], Float[Array, " 3"]]:
    state, wanted = chain.base_stock.act(params, state, observation[:SIZE], applied)
    # Orders over a failed link are placed again in the next period.
    return state, wanted * observation[SIZE:]


PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=Domain(),
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=lambda observation: chain.applied(observation[:SIZE]),
    resume=resume,
    fallback=Controller(lambda params, observation: (), _order),
    fallback_params=chain.TUNED,
    found_params=chain.BACKLOG,
    idle=chain.PLANT.idle,
    agents=chain.PLANT.agents,
)
