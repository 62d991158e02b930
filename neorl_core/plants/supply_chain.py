"""A serial supply chain of four stages with long lead times and random demand; the actions are the stages' orders.

The task is InvManagement of or-gym 0.5.0 (Hubbs et al., arXiv 2008.06319; Glasserman and Tayur 1995). The retailer
sells to customers and orders from the distributor, the distributor from the producer, and the producer from the fourth
stage, a maker with unlimited material. In each period, suppliers ship the orders, up to their capacity and stock. Then
shipments of 3, 5 and 10 periods ago arrive, and customers are served. Unmet demand waits (backlog) or is lost.

| constant | source (ours: chosen by NeoRL) |
|---|---|
| mean_demand, randomness, backlog, price, production_cost, unmet_cost, holding_cost, discount | or-gym 0.5.0 |
| lead times, capacities, stock at the start | or-gym 0.5.0; stocks are measured without noise |
| demand_spread | ours, zero by default |
| STORAGE, UNMET_LIMIT | ours |

The model is or-gym's game: orders are rounded down to whole goods, lead times are constant, and demand is independent
between periods. Gradients pass the rounding of orders unchanged, and so are not those of the rounded orders.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from neorl_core.plants.base import AnyArray, Scalar, clip_to, two_sided_margin
from neorl_core.types import AgentView, Clock, Constraint, Controller, Plant, PlantSpec, SetPoints, Space, Timestep

HORIZON = 30
STAGES = ("retailer", "distributor", "producer")
LEAD_TIMES = (3, 5, 10)
"""Periods from shipping to arrival at retailer, distributor and producer."""
CAPACITIES = (100.0, 90.0, 80.0)
"""Largest shipment of each stage's supplier per period."""
START = (100.0, 100.0, 200.0)
"""Stock at each stage; nothing is under way."""
MOST_DEMAND = 100
"""Largest demand that can be drawn; practically never reached at a mean of 20."""
STORAGE = (150.0, 150.0, 300.0)
UNMET_LIMIT = 80.0
"""Limits added to or-gym's task: 1.5 times the initial stock of each stage, and the mean demand of four periods. Large
late orders violate the limits of the stocks; waiting too long before an order violates the limit of unmet demand."""

UNMET = 3
"""Index of the unmet demand in the observation; the unmet orders follow."""
PERIOD = 7
UNDER_WAY = 8
FIRST = tuple(UNDER_WAY + sum(LEAD_TIMES[:i]) for i in range(3))
"""Index of the latest shipment to each stage in the observation; earlier shipments follow."""
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
    # 0: the best constant orders; 100: the tuned base stock (4,000 episodes with backlog each).
    score_range=(394.0, 529.5),
    clock=Clock("period", float(HORIZON)),
)


class Params(NamedTuple):
    """Prices, costs and demand."""

    mean_demand: Scalar = 20.0
    """Units per period."""
    randomness: Scalar = 0.0
    """1: Poisson demand; 0: the demand is always its mean, as in the predictions of the shield."""
    backlog: Scalar = 1.0
    """1: unmet demand and unmet orders wait and are served first in the next period; 0: both are lost."""
    price: Scalar = 2.0
    """Price per unit sold to customers."""
    production_cost: Scalar = 0.5
    """Cost per unit shipped by the maker; payments between stages cancel."""
    unmet_cost: tuple[Scalar, ...] = (0.1, 0.075, 0.05, 0.025)
    """Cost per unit and period of unmet demand (first), and of the unmet orders of each stage."""
    holding_cost: tuple[Scalar, ...] = (0.15, 0.1, 0.05)
    """Cost per unit of stock at each stage at the end of a period."""
    discount: Scalar = 0.97
    """Factor of the reward per period, as in or-gym: later money is worth less."""


class Domain(NamedTuple):
    """Or-gym's task with backlog; set `backlog=0` for lost sales."""

    mean_demand: float = 20.0
    demand_spread: float = 0.0
    """Relative half range of the mean demand."""
    randomness: float = 1.0
    backlog: float = 1.0


class State(NamedTuple):
    stock: Float[Array, " 3"]
    under_way: Float[Array, " 18"]
    """Shipments to each stage, latest first, in the order of the observation."""
    unmet: Float[Array, " 4"]
    """Unmet demand and each stage's unmet orders of the last period."""
    step: Int[Array, ""]


NOMINAL = Params()


def shipped(under_way: Float[AnyArray, "*n 18"]) -> Float[Array, "*n 3"]:
    """Return the latest shipment to each stage (3,) from the shipments under way (18,) [units]."""
    return jnp.stack([under_way[..., first - UNDER_WAY] for first in FIRST], axis=-1)


def arriving(under_way: Float[AnyArray, "*n 18"]) -> Float[Array, "*n 3"]:
    """Return the units that arrive at each stage (3,) in the next period, from the shipments under way (18,)."""
    return jnp.stack([under_way[..., last - UNDER_WAY] for last in LAST], axis=-1)


@jax.custom_jvp
def whole(goods: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return goods rounded down to whole units, with the derivative 1 of unrounded goods.

    The true derivative is 0 almost everywhere, and says nothing about larger changes (straight-through estimator of
    Bengio et al. 2013, arXiv 1308.3432).
    """
    return jnp.floor(goods)


whole.defjvps(lambda along, rounded, goods: along)


Up = float | Float[Array, " 3"]
"""For each stage: 1 if its supplier can ship in the period, else 0."""


def advance(state: State, orders: Float[Array, " 3"], demand: Float[Array, ""], params: Params, up: Up = 1.0) -> State:
    """Return the state after one period with a given demand.

    Args:
        orders: (3,), orders of the stages [units], rounded down; capacity and stock of suppliers limit the shipments.
            The derivative by the orders is that of unrounded orders (`whole`).
        up: (3,), 1 if the stage's supplier can ship, else 0.
    """
    waiting = params.backlog * state.unmet
    ordered = whole(jnp.maximum(orders, 0.0)) + waiting[1:]
    # Only the maker's capacity limits the producer's orders.
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
    """Return a period's profit 0.97ⁿ (2 sold − 0.5 made − Σ k unmet − Σ h stock): k `unmet_cost`, h `holding_cost`.

    Args:
        made: units shipped by the maker in the period.
        unmet: (..., 4), unmet demand and orders at the end of the period [units].
        stock: (..., 3), stock at the end of the period [units].
        period: number n of the period, from 0.
    """
    stock = jnp.asarray(stock)
    unmet = jnp.asarray(unmet)
    holding = sum(stock[..., i] * params.holding_cost[i] for i in range(3))
    regret = sum(unmet[..., i] * params.unmet_cost[i] for i in range(4))
    earned = params.price * sold - params.production_cost * made - regret - holding
    return jnp.asarray(params.discount**period * earned)


def margins_of(stock: Float[AnyArray, "*n 3"], unmet: Float[AnyArray, "*n"]) -> Float[Array, "*n 4"]:
    """Return the distances [units] of the three stocks and of the unmet demand to their limits."""
    columns = [jnp.asarray(stock)[..., i] for i in range(3)] + [jnp.asarray(unmet)]
    return jnp.stack(
        [two_sided_margin(x, c.low, c.high) for x, c in zip(columns, SPEC.constraints, strict=True)], axis=-1
    )


def draw_demand(key: PRNGKeyArray, params: Params, dtype: Any) -> Float[Array, ""]:
    """Draw a Poisson demand [units] by inverting the cumulative distribution; `randomness` 0 gives the mean."""
    counts = jnp.arange(MOST_DEMAND, dtype=dtype)
    mean = jnp.asarray(params.mean_demand, dtype)
    cumulated = jnp.cumsum(jnp.exp(counts * jnp.log(mean) - mean - jax.lax.lgamma(counts + 1)))
    drawn = jnp.sum(jax.random.uniform(key, (), dtype) > cumulated, dtype=dtype)
    return mean + params.randomness * (drawn - mean)


def sample_params(key: PRNGKeyArray, domain: Domain) -> Params:
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
    """Return or-gym's initial state: stocks `START`, and no goods under way."""
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
    """Simulate one period under three orders, clipped to the suppliers' capacities; never terminates.

    `up` is as in `advance`; only `supply_network` uses it.
    """
    next_state = advance(state, clip_to(SPEC.action, action), draw_demand(key, params, action.dtype), params, up)
    return next_state, _timestep(state, next_state, params)


def _state_of(observation: Float[Array, " 26"]) -> State:
    return State(
        observation[:3], observation[UNDER_WAY:], observation[UNMET:PERIOD], observation[PERIOD].astype(jnp.int32)
    )


def predict(
    observation: Float[Array, " 26"], action: Float[Array, " 3"], params: Params, up: Up = 1.0
) -> tuple[Float[Array, " 26"], Float[Array, " 4"]]:
    """Predict the next observation and margins at the mean demand."""
    mean = jnp.asarray(params.mean_demand, action.dtype)
    next_state = advance(_state_of(observation), clip_to(SPEC.action, action), mean, params, up)
    return _observe(next_state), margins_of(next_state.stock, next_state.unmet[0])


def applied(observation: Float[Array, " 26"]) -> Float[Array, " 3"]:
    """Return the latest shipments (3,). Shipments are smaller than orders if a supplier had too few goods."""
    return shipped(observation[UNDER_WAY:])


def logged_margins(next_observation: Float[AnyArray, "*n 26"]) -> Float[Array, "*n 4"]:
    return margins_of(next_observation[..., :3], next_observation[..., UNMET])


def logged_reward(
    observation: Float[AnyArray, "*n 26"], action: Float[AnyArray, "*n 3"], next_observation: Float[AnyArray, "*n 26"]
) -> Float[Array, "*n"]:
    """Return the profit of logged rows at nominal prices. The change of the retailer's stock gives the sales."""
    sold = observation[..., 0] + arriving(observation[..., UNDER_WAY:])[..., 0] - next_observation[..., 0]
    made = shipped(next_observation[..., UNDER_WAY:])[..., 2]
    unmet, stock = next_observation[..., UNMET:PERIOD], next_observation[..., :3]
    return profit(jnp.asarray(sold), made, unmet, stock, jnp.asarray(observation[..., PERIOD]), NOMINAL)


class BaseStockParams(NamedTuple):
    """Order-up-to levels of a base-stock policy."""

    levels: Any
    """(3,), target of each echelon position; see `echelon_positions`."""
    backlog: Scalar
    """1 if unmet orders wait and so are subtracted from the stock; else 0."""
    last: Any = (float(HORIZON),) * 3
    """(3,), last period, from 0, in which each stage orders. Goods that arrive after the end are not sold."""


def echelon_positions(observation: Float[Array, " 26"], backlog: Scalar) -> Float[Array, " 3"]:
    """Return stock + goods under way − backlog · unmet orders, summed from each stage to the customers [units]."""
    under_way = jnp.stack([jnp.sum(observation[first : last + 1]) for first, last in zip(FIRST, LAST, strict=True)])
    return jnp.cumsum(observation[:3] + under_way - backlog * observation[UNMET : UNMET + 3])


def _order(
    params: BaseStockParams, state: tuple[()], observation: Float[Array, " 26"], applied: Float[Array, " 3"]
) -> tuple[tuple[()], Float[Array, " 3"]]:
    wanted = jnp.asarray(params.levels, observation.dtype) - echelon_positions(observation, params.backlog)
    wanted = jnp.minimum(clip_to(SPEC.action, wanted), jnp.append(observation[1:3], jnp.inf))
    return state, jnp.where(observation[PERIOD] <= jnp.asarray(params.last, wanted.dtype), wanted, 0.0)


base_stock = Controller(lambda params, observation: (), _order)
"""Each stage orders the target minus its echelon position (Clark and Scarf 1960), at most the supplier's stock."""

SET_POINTS = SetPoints(
    names=tuple(f"{name}_level" for name in STAGES),
    units=("1",) * 3,
    reach=(40.0,) * 3,
    shifted=lambda params, shift: params._replace(levels=tuple(params.levels[i] + shift[i] for i in range(3))),
)
"""The reach covers the demand of two mean periods."""

BACKLOG = BaseStockParams(levels=(80.0, 220.0, 468.0), backlog=1.0)
LOST_SALES = BaseStockParams(levels=(87.0, 205.0, 411.0), backlog=0.0)
"""Or-gym's levels if unmet demand waits, and if unmet demand is lost."""
TUNED = BaseStockParams(levels=(91.0, 211.0, 425.0), backlog=1.0, last=(28.0, 26.0, 9.0))
"""By benchmarks.tuning. Later orders reach no customer before the end. A producer level of 417 earns 1 unit more, but 4
times as many episodes (6 in 10,000) leave too much demand unmet. Levels that vary with the period are no better."""


def _view(i: int) -> AgentView:
    """View of a stage: stock, unmet orders of customers and of the stage, period, goods under way, last shipment."""
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
    set_points=SET_POINTS,
)
