"""The layout of agents that share a plant, from what each of them sees and who talks to whom.

A link is an edge between two agents, and a flag of the observation says whether it is up. Nothing else joins them: a
component that several agents see is one that each of them measures, such as the hour of its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from neorl_core.graph.layout import Layout, checked
from neorl_core.types import AgentView, PlantSpec

Links = tuple[tuple[str, str], ...]
"""Pairs of agents, by name, that talk to each other."""


def alike(spec: PlantSpec, agents: Sequence[AgentView]) -> tuple[int, ...]:
    """One kind for all agents that see and do the same quantities, told by their units: they share their weights.

    Args:
        spec: of the plant.
        agents: what each sees and does.

    Returns:
        (N,) the number of each agent's kind.
    """
    of = [
        (tuple(spec.observation.units[k] for k in agent.observation), tuple(spec.action.units[k] for k in agent.action))
        for agent in agents
    ]
    order = list(dict.fromkeys(of))
    return tuple(order.index(quantities) for quantities in of)


def agents_layout(
    spec: PlantSpec,
    agents: Sequence[AgentView],
    links: Links,
    present: tuple[int, ...] = (),
    kinds: tuple[int, ...] | None = None,
) -> Layout:
    """Agents as the nodes of a graph, whose edges are their links.

    What several agents see is a feature of its own; what one of them sees alone stands beside what agents that are
    alike see at the same place, and is scaled as theirs. Each agent has a constant that tells it from the others, so
    that those of a kind may act differently where they stand.

    Args:
        spec: of the plant.
        agents: what each sees and does; every component of the action has one of them.
        links: who talks to whom.
        present: component of the observation that is 1 while a link is up, for each; none where all always are.
        kinds: (N,) agents of a kind share their weights: `alike` by default, zeros for one set of weights, `range(N)`
            for weights of their own.

    Raises:
        ValueError: on a link to nobody, or when agents do not fit the spec.
    """
    names = [agent.name for agent in agents]
    if strange := next((name for link in links for name in link if name not in names), None):
        raise ValueError(f"expected links between {', '.join(names)}, got '{strange}': correct the name.")
    seen = [place for agent in agents for place in agent.observation if place not in present]
    common = [place for place in dict.fromkeys(seen) if seen.count(place) > 1]
    rows = [tuple(place if place in agent.observation else -1 for agent in agents) for place in common]
    private = [tuple(p for p in agent.observation if p not in (*common, *present)) for agent in agents]
    groups = alike(spec, agents)
    for group in dict.fromkeys(groups):
        own = (part if kind == group else () for part, kind in zip(private, groups, strict=True))
        rows += zip_longest(*own, fillvalue=-1)
    found = Layout(
        nodes=len(agents),
        edges=tuple((names.index(a), names.index(b)) for a, b in links),
        node_observation=tuple(rows),
        node_action=tuple(zip_longest(*(agent.action for agent in agents), fillvalue=-1)),
        node_constants=tuple(tuple(float(i == j) for j in range(len(agents))) for i in range(len(agents))),
        flags=present,
        present=present,
        kinds=groups if kinds is None else kinds,
    )
    return checked(found, spec.observation.size, spec.acting)
