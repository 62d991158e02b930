"""A plant with several agents that communicate over unreliable links.

The last signals of the observation are flags, one per link: 1 if the link is up, else 0. In each step the state of a
link is drawn again with probability `link_redraw`; the new state is "down" with probability `link_loss`. In the long
run a link is down for a share `link_loss` of the time. The mean outage is `1 / (link_redraw (1 - link_loss))` steps
(Gilbert 1960, Capacity of a burst-noise channel, Bell System Technical Journal 39). If `link_redraw` is 0, a link never
changes during an episode. The links change nothing in the plant's physics, random numbers, controllers and limits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from neorl_core.graph.agent_layout import Links, agents_layout
from neorl_core.identify.unknowns import extended
from neorl_core.plants.base import AnyArray, LoggedSignals
from neorl_core.types import Controller, Params, Plant, Space, Timestep

FOLD = 8_191
"""Folded into the random keys for links, so that the plant draws the same numbers with and without links."""
DRAWN = ("link_loss", "link_redraw")


class State(NamedTuple):
    plant: Any
    up: Float[Array, " L"]
    """1 while a link is up."""


def linked(
    plant: Plant, links: Links, loss: float = 0.1, redraw: float = 0.25, kinds: tuple[int, ...] | None = None
) -> Plant:
    """Return `plant` with unreliable links between agents, and with a graph layout for policies that use the links.

    Args:
        loss: share of the time for which a link is down (`link_loss`).
        redraw: probability per step that the state of a link is drawn again (`link_redraw`).
        kinds: one number per agent; agents with equal numbers share the policy's weights. See `agents_layout`.

    Raises:
        ValueError: if the plant has no agents, or a link names an unknown agent.
    """
    own, count = plant.spec.observation, len(links)
    if not plant.agents:
        raise ValueError(
            f"links need a plant with several agents, but {plant.spec.name} has none: set `agents` of the plant"
        )
    up = tuple(range(own.size, own.size + count))
    observation = Space(
        own.names + tuple(f"link_{a}_{b}" for a, b in links),
        own.units + ("1",) * count,
        own.low + (0.0,) * count,
        own.high + (1.0,) * count,
    )
    # Each agent sees the flags of the links that it is part of.
    agents = tuple(
        agent._replace(
            observation=agent.observation + tuple(k for k, link in zip(up, links, strict=True) if agent.name in link)
        )
        for agent in plant.agents
    )
    spec = plant.spec._replace(observation=observation)
    layout = agents_layout(spec, plant.agents, links, up, kinds)

    def drawn(key: PRNGKeyArray, params: Params) -> Float[Array, " L"]:
        return (jax.random.uniform(key, (count,)) >= jnp.asarray(params.link_loss, float)).astype(float)

    def sample_params(key: PRNGKeyArray, domain: Params) -> Params:
        constants = plant.sample_params(key, _without(plant.domain, domain))
        return _with(constants, (domain.link_loss, domain.link_redraw))

    def reset(key: PRNGKeyArray, params: Params) -> tuple[State, Float[Array, " O"]]:
        state, seen = plant.reset(key, _without(plant.params, params))
        flags = drawn(jax.random.fold_in(key, FOLD), params).astype(seen.dtype)
        return State(state, flags), jnp.concatenate([seen, flags])

    def step(key: PRNGKeyArray, state: State, action: Float[Array, " A"], params: Params) -> tuple[State, Timestep]:
        next_state, timestep = plant.step(key, state.plant, action, _without(plant.params, params))
        key_link, key_draw = jax.random.split(jax.random.fold_in(key, FOLD))
        redrawn = jax.random.uniform(key_draw, (count,)) < jnp.asarray(params.link_redraw, float)
        flags = jnp.where(redrawn, drawn(key_link, params).astype(state.up.dtype), state.up)
        return State(next_state, flags), timestep._replace(observation=jnp.concatenate([timestep.observation, flags]))

    def predict(seen: Float[Array, " O"], action: Float[Array, " A"], params: Params) -> Any:
        next_seen, margins = plant.predict(seen[: own.size], action, _without(plant.params, params))
        # The future of a link is unknown, so it keeps its state.
        return jnp.concatenate([next_seen, seen[own.size :]]), margins

    def resume(key: PRNGKeyArray, state: State, seen: Float[Array, " O"], params: Params) -> tuple[State, Params]:
        assert plant.resume is not None
        resumed, constants = plant.resume(key, state.plant, seen[: own.size], _without(plant.params, params))
        return State(resumed, seen[own.size :]), _with(constants, params[len(plant.params) :])

    return plant._replace(
        spec=spec._replace(layout=layout),
        params=_with(plant.params, (loss, redraw)),
        domain=_with(plant.domain, (loss, redraw)),
        sample_params=sample_params,
        reset=reset,
        step=step,
        predict=predict,
        applied=lambda seen: plant.applied(seen[: own.size]),
        fallback=_blind(plant.fallback, own.size),
        reference=None if plant.reference is None else _blind(plant.reference, own.size),
        resume=None if plant.resume is None else resume,
        agents=agents,
    )


def linked_signals(logged: LoggedSignals, observed: int) -> LoggedSignals:
    """Return reward and margin functions that apply `logged` to the first `observed` signals, without link flags."""

    def reward(
        observation: Float[AnyArray, "*n O"], action: Float[AnyArray, "*n A"], next_observation: Float[AnyArray, "*n O"]
    ) -> Float[Array, "*n"]:
        return logged.reward(observation[..., :observed], action, next_observation[..., :observed])

    def margins(next_observation: Float[AnyArray, "*n O"]) -> Float[Array, "*n K"]:
        return logged.margins(next_observation[..., :observed])

    return LoggedSignals(reward, margins)


def _with(plain: Params, drawn: tuple[Any, ...]) -> Params:
    return extended("Linked", plain, dict(zip(DRAWN, drawn, strict=True)))


def _without(plain: Params, linked: Params) -> Params:
    return type(plain)(*linked[: len(plain)])


def _blind(controller: Controller, size: int) -> Controller:
    """Hide the link flags from a controller."""
    return Controller(
        lambda params, observation: controller.init(params, observation[:size]),
        lambda params, memory, observation, applied: controller.act(params, memory, observation[:size], applied),
    )
