"""A serial supply chain of four stages: who orders how much, when goods take long and demand is random.

InvManagement of or-gym 0.5.0 (Hubbs et al., arXiv 2008.06319), after Glasserman and Tayur (1995). The retailer sells to
customers and orders from the distributor, who orders from the producer, who orders from a maker with unlimited
material. In a period orders are shipped, as far as the supplier's capacity and its stock at the beginning allow, goods
shipped 3, 5 and 10 periods ago arrive, and customers are served; what is left unmet waits (backlog) or is lost.

| constant | source |
|---|---|
| mean_demand, randomness, backlog, price, production_cost, unmet_cost, holding_cost, discount | or-gym 0.5.0 |
| lead times, capacities, stock at the start | or-gym 0.5.0, whose goods are counted, so without noise |
| demand_spread | ours, and none by default |
| STORAGE, UNMET_LIMIT | ours |

Valid as the game that or-gym defines: orders are rounded down to whole goods, lead times never vary, and demand is
independent from one period to the next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray, clip_to, two_sided_margin
from neorl_core.types import AgentView, Clock, Constraint, Controller, Plant, PlantSpec, Space, Timestep

HORIZON = 30
STAGES = ("retailer", "distributor", "producer")
LEAD_TIMES = (3, 5, 10)
"""Periods from shipping to arrival at each stage."""
CAPACITIES = (100.0, 90.0, 80.0)
"""Most that each stage's supplier ships in a period."""
START = (100.0, 100.0, 200.0)
"""Stock at each stage; nothing is under way."""
MOST_DEMAND = 100
"""Demands are drawn by inverting the Poisson distribution up to here, which at a mean of 20 is out of reach."""
STORAGE = (150.0, 150.0, 300.0)
UNMET_LIMIT = 80.0
"""Ours: or-gym has no limits. Each store holds half as much again as at the start, and at most four periods' demand may
be left unmet: a full order that arrives too late breaks the first, waiting too long the second."""

UNMET = 3
"""Where unmet demand and orders begin in the observation."""
PERIOD = 7
UNDER_WAY = 8
FIRST = tuple(UNDER_WAY + sum(LEAD_TIMES[:i]) for i in range(3))
"""Where each stage's goods under way begin in the observation, the latest shipment first."""
LAST = tuple(first + lead - 1 for first, lead in zip(FIRST, LEAD_TIMES, strict=True))

_UNDER_WAY = tuple(
    f"{name}_shipped_{age}" for name, lead in zip(STAGES, LEAD_TIMES, strict=True) for age in range(lead)
)
_ORDERS = tuple(f"{name}_unmet_order" for name in STAGES)
SPEC = PlantSpec(
    name="supply_chain",
    observation=Space(
        names=(*(f"{name}_stock" for name in STAGES), "unmet_demand", *_ORDERS, "period", *_UNDER_WAY),
        units=("1",) * (UNDER_WAY + len(_UNDER_WAY)),
        low=(0.0,) * (UNDER_WAY + len(_UNDER_WAY)),
        high=(
            *(3000.0,) * PERIOD,
            float(HORIZON),
            *(c for c, lead in zip(CAPACITIES, LEAD_TIMES, strict=True) for _ in range(lead)),
        ),
    ),
    action=Space(names=tuple(f"{name}_order" for name in STAGES), units=("1",) * 3, low=(0.0,) * 3, high=CAPACITIES),
    constraints=(
        *(Constraint(f"{name} stock", "1", -most, most) for name, most in zip(STAGES, STORAGE, strict=True)),
        Constraint("unmet demand", "1", -UNMET_LIMIT, UNMET_LIMIT),
    ),
    dt=1.0,
    time_unit="period",
    horizon=HORIZON,
    # 0: the best constant orders; 100: the tuned base stock; both over 4,000 episodes with backlog.
    score_range=(394.0, 529.5),
    clock=Clock("period", float(HORIZON)),
)


class Params(NamedTuple):
    """Prices, costs and demand."""

    mean_demand: float | Float[Array, ""] = 20.0
    """Units per period."""
    randomness: float | Float[Array, ""] = 0.0
    """1: demand is Poisson distributed; 0: it is its mean, which the shield's model takes."""
    backlog: float | Float[Array, ""] = 1.0
    """1: unmet demand and orders wait and come first in the next period; 0: they are lost."""
    price: float | Float[Array, ""] = 2.0
    """Paid by customers per unit."""
    production_cost: float | Float[Array, ""] = 0.5
    """Per unit that the maker ships; what the stages pay each other cancels."""
    unmet_cost: tuple[float | Float[Array, ""], ...] = (0.1, 0.075, 0.05, 0.025)
    """Per unit of demand, and of each stage's orders, not met in a period."""
    holding_cost: tuple[float | Float[Array, ""], ...] = (0.15, 0.1, 0.05)
    """Per unit on stock at each stage at a period's end."""
    discount: float | Float[Array, ""] = 0.97
    """Discount of money per period; part of the reward as in or-gym."""


class Domain(NamedTuple):
    """Or-gym's own task with backlog; `backlog=0` is its other mode."""

    mean_demand: float = 20.0
    demand_spread: float = 0.0
    """Relative half range of the mean demand."""
    randomness: float = 1.0
    backlog: float = 1.0


class State(NamedTuple):
    """The true state: stocks, shipments and what is owed."""

    stock: Float[Array, " 3"]
    under_way: Float[Array, " 18"]
    """Shipments to each stage, the latest first, as they stand in the observation."""
    unmet: Float[Array, " 4"]
    """Demand, and each stage's orders, not met in the last period: waiting or lost, by mode."""
    step: Int[Array, ""]


NOMINAL = Params()


def shipped(under_way: Float[AnyArray, "*n 18"]) -> Float[Array, "*n 3"]:
    """The latest shipment to each stage."""
    return jnp.stack([under_way[..., first - UNDER_WAY] for first in FIRST], axis=-1)


def arriving(under_way: Float[AnyArray, "*n 18"]) -> Float[Array, "*n 3"]:
    """What arrives at each stage in the coming period."""
    return jnp.stack([under_way[..., last - UNDER_WAY] for last in LAST], axis=-1)


Up = float | Float[Array, " 3"]
"""0 where a stage's supplier cannot ship to it in a period, else 1."""


def advance(state: State, orders: Float[Array, " 3"], demand: Float[Array, ""], params: Params, up: Up = 1.0) -> State:
    """One period with a given demand.

    Args:
        state: the state.
        orders: (3,) ordered by each stage, cut to whole units; the suppliers' capacity and stock bound what is shipped.
        demand: whole units that customers want in this period.
        params: the mode.
        up: which suppliers ship.
    """
    waiting = params.backlog * state.unmet
    ordered = jnp.floor(jnp.maximum(orders, 0.0)) + waiting[1:]
    # What the producer orders is bounded by the maker's capacity alone.
    available = jnp.append(state.stock[1:], jnp.inf)
    shipment = up * jnp.minimum(jnp.minimum(ordered, jnp.asarray(CAPACITIES, ordered.dtype)), available)
    stock = state.stock + arriving(state.under_way)
    wanted = demand + waiting[0]
    sold = jnp.minimum(stock[0], wanted)
    queues = []
    for i in range(3):
        queues += [shipment[i : i + 1], state.under_way[FIRST[i] - UNDER_WAY : LAST[i] - UNDER_WAY]]
    return State(
        stock=stock - jnp.append(sold, shipment[:2]),
        under_way=jnp.concatenate(queues),
        unmet=jnp.append(wanted - sold, ordered - shipment),
        step=state.step + 1,
    )


def profit(
    sold: Float[Array, "*n"],
    made: Float[Array, "*n"],
    unmet: Float[AnyArray, "*n 4"],
    stock: Float[AnyArray, "*n 3"],
    period: Float[Array, "*n"],
    params: Params,
) -> Float[Array, "*n"]:
    """0.97ⁿ (2 sold − 0.5 made − Σ k unmet − Σ h stock)

    Args:
        sold: units sold to customers in the period.
        made: units shipped by the maker.
        unmet: (..., 4) demand and orders left unmet at the period's end.
        stock: (..., 3) at the period's end.
        period: its number n, from 0.
        params: prices and costs.
    """
    stock = jnp.asarray(stock)
    unmet = jnp.asarray(unmet)
    holding = sum(stock[..., i] * params.holding_cost[i] for i in range(3))
    regret = sum(unmet[..., i] * params.unmet_cost[i] for i in range(4))
    earned = params.price * sold - params.production_cost * made - regret - holding
    return jnp.asarray(params.discount**period * earned)


def margins_of(stock: Float[AnyArray, "*n 3"], unmet: Float[AnyArray, "*n"]) -> Float[Array, "*n 4"]:
    """What stocks and customers' unmet demand leave to their limits, in units."""
    columns = [jnp.asarray(stock)[..., i] for i in range(3)] + [jnp.asarray(unmet)]
    return jnp.stack(
        [two_sided_margin(x, c.low, c.high) for x, c in zip(columns, SPEC.constraints, strict=True)], axis=-1
    )


def draw_demand(key: PRNGKeyArray, params: Params, dtype: Any) -> Float[Array, ""]:
    """A demand from the Poisson distribution, by inverting its cumulated probabilities; the mean when not random.

    Args:
        key: randomness of the demand.
        params: constants of the plant.
        dtype: precision of the demand.
    """
    counts = jnp.arange(MOST_DEMAND, dtype=dtype)
    mean = jnp.asarray(params.mean_demand, dtype)
    cumulated = jnp.cumsum(jnp.exp(counts * jnp.log(mean) - mean - jax.lax.lgamma(counts + 1)))
    drawn = jnp.sum(jax.random.uniform(key, (), dtype) > cumulated, dtype=dtype)
    return mean + params.randomness * (drawn - mean)


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
    """A mean demand drawn uniformly within the domain's spread."""
    away = jax.random.uniform(key, minval=-1.0, maxval=1.0)
    return NOMINAL._replace(
        mean_demand=domain.mean_demand * (1 + domain.demand_spread * away),
        randomness=domain.randomness,
        backlog=domain.backlog,
    )


def _observe(state: State) -> Float[Array, " 26"]:
    period = state.step.astype(state.stock.dtype)
    return jnp.concatenate([state.stock, state.unmet, period[None], state.under_way])


def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " 26"]]:
    """Full stocks and nothing under way, as or-gym starts."""
    state = State(jnp.array(START), jnp.zeros(sum(LEAD_TIMES)), jnp.zeros(4), jnp.zeros((), jnp.int32))
    return state, _observe(state)


def _timestep(before: State, after: State, params: Params) -> Timestep:
    sold = before.stock[0] + arriving(before.under_way)[0] - after.stock[0]
    period = before.step.astype(sold.dtype)
    return Timestep(
        observation=_observe(after),
        reward=profit(sold, shipped(after.under_way)[2], after.unmet, after.stock, period, params),
        margins=margins_of(after.stock, after.unmet[0]),
        terminated=jnp.asarray(False),
        truncated=after.step >= HORIZON,
    )


def step(
    key: PRNGKeyArray, state: State, action: Float[Array, " 3"], params: Params, up: Up = 1.0
) -> tuple[State, Timestep]:
    """One period under three orders, clipped to the suppliers' capacities; it never terminates.

    Args:
        key: randomness of the demand.
        state: true state before the step.
        action: (3,), orders of the three stages.
        params: constants of the plant.
        up: which suppliers ship; all but in `supply_network`.
    """
    following = advance(state, clip_to(SPEC.action, action), draw_demand(key, params, action.dtype), params, up)
    return following, _timestep(state, following, params)


def _state_of(observation: Float[Array, " 26"]) -> State:
    return State(
        observation[:3], observation[UNDER_WAY:], observation[UNMET:PERIOD], observation[PERIOD].astype(jnp.int32)
    )


def predict(
    observation: Float[Array, " 26"], action: Float[Array, " 3"], params: Params, up: Up = 1.0
) -> tuple[Float[Array, " 26"], Float[Array, " 4"]]:
    """The next observation at the mean demand, and its margins; the observation is the whole state.

    Args:
        observation: (26,), the observation, in its space's units.
        action: (3,), orders of the three stages.
        params: constants of the plant.
        up: which suppliers ship.
    """
    mean = jnp.asarray(params.mean_demand, action.dtype)
    following = advance(_state_of(observation), clip_to(SPEC.action, action), mean, params, up)
    return _observe(following), margins_of(following.stock, following.unmet[0])


def applied(observation: Float[Array, " 26"]) -> Float[Array, " 3"]:
    """What was shipped on the last orders, which is less than was ordered where goods were short."""
    return shipped(observation[UNDER_WAY:])


def logged_margins(next_observation: Float[AnyArray, "*n 26"]) -> Float[Array, "*n 4"]:
    """Margins of logged rows, at the end of the period."""
    return margins_of(next_observation[..., :3], next_observation[..., UNMET])


def logged_reward(
    observation: Float[AnyArray, "*n 26"], action: Float[AnyArray, "*n 3"], next_observation: Float[AnyArray, "*n 26"]
) -> Float[Array, "*n"]:
    """The profit of logged rows at nominal prices: sales follow from the balance of the retailer's stock.

    Args:
        observation: (..., 26), the observation, in its space's units.
        action: (..., 3), orders of the three stages.
        next_observation: (..., 26), what was observed a step later.
    """
    sold = observation[..., 0] + arriving(observation[..., UNDER_WAY:])[..., 0] - next_observation[..., 0]
    made = shipped(next_observation[..., UNDER_WAY:])[..., 2]
    unmet, stock = next_observation[..., UNMET:PERIOD], next_observation[..., :3]
    return profit(jnp.asarray(sold), made, unmet, stock, jnp.asarray(observation[..., PERIOD]), NOMINAL)


class BaseStockParams(NamedTuple):
    """Order-up-to levels."""

    levels: Any
    """(3,) wanted stock of each echelon: the stage, all below it, and what is under way to them."""
    backlog: float | Float[Array, ""]
    """1 where what is unmet waits and so counts against the position."""
    last: Any = (float(HORIZON),) * 3
    """(3,) the last period, from 0, in which each stage orders: what arrives after the end is paid for and not sold."""


def echelon_positions(observation: Float[Array, " 26"], backlog: float | Float[Array, ""]) -> Float[Array, " 3"]:
    """Stock and goods under way from each stage down to the customer, less what waits there to be shipped."""
    under_way = jnp.stack([jnp.sum(observation[first : last + 1]) for first, last in zip(FIRST, LAST, strict=True)])
    return jnp.cumsum(observation[:3] + under_way - backlog * observation[UNMET : UNMET + 3])


def _nothing(params: BaseStockParams, observation: Float[Array, " 26"]) -> tuple[()]:
    return ()


def _order(
    params: BaseStockParams, state: tuple[()], observation: Float[Array, " 26"], applied: Float[Array, " 3"]
) -> tuple[tuple[()], Float[Array, " 3"]]:
    wanted = jnp.asarray(params.levels, observation.dtype) - echelon_positions(observation, params.backlog)
    wanted = jnp.minimum(clip_to(SPEC.action, wanted), jnp.append(observation[1:3], jnp.inf))
    return state, jnp.where(observation[PERIOD] <= jnp.asarray(params.last, wanted.dtype), wanted, 0.0)


base_stock = Controller(_nothing, _order)
"""Every echelon orders up to its level (Clark and Scarf 1960), but no more than its supplier has, as or-gym's does."""

BACKLOG = BaseStockParams(levels=(80.0, 220.0, 468.0), backlog=1.0)
LOST_SALES = BaseStockParams(levels=(87.0, 205.0, 411.0), backlog=0.0)
"""Or-gym's levels for its two modes."""
TUNED = BaseStockParams(levels=(91.0, 211.0, 425.0), backlog=1.0, last=(28.0, 26.0, 9.0))
"""By benchmarks.tuning: goods ordered later than this reach no customer before the end. With 417 for the producer one
unit of money more is earned, and 4 times as many episodes (6 in 10,000) leave too much demand unmet. Levels that change
with the period, searched likewise, gained nothing."""


def _view(i: int) -> AgentView:
    """A stage sees its stock, what others and it itself wait for, the period, its goods under way, what it shipped."""
    served = () if i == 0 else (FIRST[i - 1],)
    seen = (i, UNMET + i, UNMET + i + 1, PERIOD, *range(FIRST[i], LAST[i] + 1), *served)
    return AgentView(STAGES[i], seen, (i,))


PLANT = Plant(
    spec=SPEC,
    params=NOMINAL,
    domain=Domain(),
    sample_params=sample_params,
    reset=reset,
    step=step,
    predict=predict,
    applied=applied,
    resume=lambda key, state, observation, params: (_state_of(observation), params),
    fallback=base_stock,
    fallback_params=TUNED,
    found_params=BACKLOG,
    idle=(18.0, 19.0, 19.0),
    agents=tuple(_view(i) for i in range(3)),
)
