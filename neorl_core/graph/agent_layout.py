"""Graph layout of agents that control one plant together: agents are nodes, communication links are edges.

A flag in the observation is 1 while a link is up. Several agents may measure the same component, such as the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from neorl_core.graph.layout import Layout, check_layout
from neorl_core.types import AgentView, PlantSpec

Links = tuple[tuple[str, str], ...]
"""Pairs of agent names that communicate."""


def alike(spec: PlantSpec, agents: Sequence[AgentView]) -> tuple[int, ...]:
    """Return the kind (N,) of each agent; agents with equal units of observations and actions are of one kind."""
    quantities = [
        (tuple(spec.observation.units[k] for k in agent.observation), tuple(spec.action.units[k] for k in agent.action))
        for agent in agents
    ]
    order = list(dict.fromkeys(quantities))
    return tuple(order.index(each) for each in quantities)


def agents_layout(
    spec: PlantSpec,
    agents: Sequence[AgentView],
    links: Links,
    present: tuple[int, ...] = (),
    kinds: tuple[int, ...] | None = None,
) -> Layout:
    """Return the layout with agents as nodes and links as edges.

    A component that several agents see is a feature of its own. If only one agent sees a component, its position in the
    agent's view determines the feature; agents of one kind share these features and their scale. A one-hot constant
    identifies each agent, so agents of a kind may act differently.

    Args:
        agents: views of the agents; every action component belongs to one of them.
        links: pairs of agents that communicate.
        present: observation component of each link that is 1 while the link is up; empty if all links are always up.
        kinds: (N,) kind of each agent, by default from `alike`. Agents of one kind share weights.

    Raises:
        ValueError: if a link names an unknown agent, or agents do not fit the spec.
    """
    names = [agent.name for agent in agents]
    if unknown := next((name for link in links for name in link if name not in names), None):
        raise ValueError(f"links must join the agents {', '.join(names)}, got '{unknown}': correct the name")
    seen = [place for agent in agents for place in agent.observation if place not in present]
    common = [place for place in dict.fromkeys(seen) if seen.count(place) > 1]
    rows = [tuple(place if place in agent.observation else -1 for agent in agents) for place in common]
    private = [tuple(p for p in agent.observation if p not in (*common, *present)) for agent in agents]
    groups = alike(spec, agents)
    for group in dict.fromkeys(groups):
        own = (part if kind == group else () for part, kind in zip(private, groups, strict=True))
        rows += zip_longest(*own, fillvalue=-1)
    layout = Layout(
        nodes=len(agents),
        edges=tuple((names.index(a), names.index(b)) for a, b in links),
        node_observation=tuple(rows),
        node_action=tuple(zip_longest(*(agent.action for agent in agents), fillvalue=-1)),
        node_constants=tuple(tuple(float(i == j) for j in range(len(agents))) for i in range(len(agents))),
        flags=present,
        present=present,
        kinds=groups if kinds is None else kinds,
    )
    return check_layout(layout, spec.observation.size, spec.acting)
