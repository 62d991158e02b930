"""How the flat observation and action of a plant lie on a graph.

Logs, normalisers, algorithms, shields and bundles know vectors. A layout says which of their components belong to which
node or edge, and which of them tells whether an edge is there, so that the topology is a part of the observation. It is
a part of a plant's spec and of a graph policy's weights: structure, not arrays.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from neorl_core.graph.graphs import Graph

Columns = tuple[tuple[int, ...], ...]
"""For each feature the component of each node or edge, -1 where one has none (it then reads 0)."""
Ints = npt.NDArray[np.int64]


class Layout(NamedTuple):
    """N nodes and E edges, and what of observation (O,) and action (A,) is theirs."""

    nodes: int
    edges: tuple[tuple[int, int], ...]
    """The nodes that each edge joins."""
    node_observation: Columns = ()
    """(F, N) components of the observation."""
    edge_observation: Columns = ()
    """(G, E) components of the observation."""
    context: tuple[int, ...] = ()
    """Components of the observation that hold of the whole."""
    node_action: Columns = ()
    """(K, N) components of the action."""
    edge_action: Columns = ()
    """(J, E) components of the action."""
    node_constants: tuple[tuple[float, ...], ...] = ()
    """(·, N) numbers about as large as 1 that never change, such as which node is the source."""
    edge_constants: tuple[tuple[float, ...], ...] = ()
    """(·, E) numbers about as large as 1 that never change, such as a line's impedance."""
    flags: tuple[int, ...] = ()
    """Components of the observation that are 0 or 1; they stay what they are where others are normalised."""
    present: tuple[int, ...] = ()
    """(E,) flags that are 1 while an edge is there; none where all always are."""
    kinds: tuple[int, ...] = ()
    """(N,) kinds of nodes that are agents: those of a kind share their weights, and none knows more than its own
    components and what others tell it over edges that are there. None of nodes that one policy sees as a whole."""


jax.tree_util.register_static(Layout)


def checked(layout: Layout, observed: int, acting: int) -> Layout:
    """The layout, once it is one of these sizes.

    Args:
        layout: which may come from anywhere.
        observed: components of the observation.
        acting: components of the action, each of which one node or edge must have.

    Raises:
        ValueError: naming what does not fit.
    """
    n, e = layout.nodes, len(layout.edges)
    for name, rows, width, top in (
        ("node_observation", layout.node_observation, n, observed),
        ("edge_observation", layout.edge_observation, e, observed),
        ("node_action", layout.node_action, n, acting),
        ("edge_action", layout.edge_action, e, acting),
        ("edges", layout.edges, 2, n),
        ("context", (layout.context,), len(layout.context), observed),
        ("flags", (layout.flags,), len(layout.flags), observed),
        ("present", (layout.present,) if layout.present else (), e, observed),
    ):
        least = -1 if name.endswith(("observation", "action")) else 0
        if not all(len(row) == width and all(least <= place < top for place in row) for row in rows):
            raise ValueError(f"expected {name} of a layout of {n} nodes and {e} edges below {top}, got another shape.")
    for name, constants, width in (
        ("node_constants", layout.node_constants, n),
        ("edge_constants", layout.edge_constants, e),
    ):
        if not all(len(row) == width and np.isfinite(row).all() for row in constants):
            raise ValueError(f"expected finite {name} of {width} each, got others.")
    places = [place for row in (*layout.node_action, *layout.edge_action) for place in row if place >= 0]
    if sorted(places) != list(range(acting)):
        raise ValueError(f"expected each of {acting} actions at one node or edge, got others: correct the layout.")
    if not set(layout.present) <= set(layout.flags):
        raise ValueError("expected what tells of edges among the flags, got others: correct the layout.")
    _check_agents(layout)
    return layout


def _check_agents(layout: Layout) -> None:
    kinds = layout.kinds
    if not kinds:
        return
    if len(kinds) != layout.nodes or set(kinds) != set(range(max(kinds) + 1)):
        raise ValueError(
            f"expected kinds of {layout.nodes} agents, counted from 0, got {list(kinds)}: correct the layout."
        )
    if layout.context or layout.edge_observation or layout.edge_action:
        raise ValueError(
            "expected components at agents alone, got a context or edges with some: name the agent that has them."
        )


@cache
def _gathered(rows: Columns) -> Ints:
    return np.asarray(rows, np.int64).T.copy()


@cache
def _action_places(layout: Layout) -> Ints:
    """(A,) where in the numbers of all nodes, then of all edges, each action is."""
    columns = [_gathered(rows).ravel() for rows in (layout.node_action, layout.edge_action) if rows]
    found = np.concatenate(columns)
    places = np.flatnonzero(found >= 0)
    return places[np.argsort(found[places])]


def _features(
    constants: tuple[tuple[float, ...], ...], count: int, parts: tuple[tuple[Columns, Float[Array, "*b I"]], ...]
) -> Float[Array, "*b M F"]:
    """Constants, then what stands in the columns of each part, of each node or edge."""
    like = parts[0][1]
    fixed = jnp.asarray(np.asarray(constants, like.dtype).reshape(-1, count).T)
    found = [jnp.broadcast_to(fixed, (*like.shape[:-1], *fixed.shape))]
    for rows, values in parts:
        if rows:
            # -1 is the last place, and there stands the 0 of those that have none.
            absent = jnp.zeros((*values.shape[:-1], 1), values.dtype)
            found.append(jnp.concatenate([values, absent], -1)[..., _gathered(rows)])
    return jnp.concatenate(found, -1)


def graph_of(layout: Layout, observation: Float[Array, "*b O"], action: Float[Array, "*b A"] | None = None) -> Graph:
    """The graph that a normalised observation is, with an action at its nodes and edges where one is given.

    Args:
        layout: of the plant.
        observation: (..., O), normalised, its flags 0 or 1.
        action: (..., A) unit action.
    """
    acts = () if action is None else (action,)
    nodes = ((layout.node_observation, observation), *((layout.node_action, act) for act in acts))
    edges = ((layout.edge_observation, observation), *((layout.edge_action, act) for act in acts))
    ends, lead = np.asarray(layout.edges, np.int64).reshape(-1, 2), observation.shape[:-1]
    whole = jnp.ones((*lead, len(layout.edges)), observation.dtype)
    # A context of nothing would be a dense layer of no inputs: it is at least a 1.
    context = observation[..., np.asarray(layout.context, np.int64)]
    return Graph(
        nodes=_features(layout.node_constants, layout.nodes, nodes),
        edges=_features(layout.edge_constants, len(layout.edges), edges),
        context=jnp.concatenate([jnp.ones((*lead, 1), observation.dtype), context], -1),
        senders=jnp.asarray(ends[:, 0]),
        receivers=jnp.asarray(ends[:, 1]),
        node_mask=jnp.ones((*lead, layout.nodes), observation.dtype),
        edge_mask=observation[..., np.asarray(layout.present, np.int64)] if layout.present else whole,
    )


def action_of(
    layout: Layout, of_nodes: Float[Array, "*b N K"], of_edges: Float[Array, "*b E J"]
) -> Float[Array, "*b A"]:
    """The flat action of what nodes and edges do; the inverse of how `graph_of` lays one on the graph."""
    lead = of_nodes.shape[:-2]
    every = jnp.concatenate([of_nodes.reshape(*lead, -1), of_edges.reshape(*lead, -1)], -1)
    return every[..., _action_places(layout)]


def shared(layout: Layout, mean: npt.NDArray[Any], deviation: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Means and deviations of the observation with one pair for each feature, so that all its nodes or edges are scaled
    alike; flags keep their 0 and 1.

    `mean = mean_j m_j`, `variance = mean_j s_j² + mean_j (m_j - mean)²` over the feature's components j.

    Args:
        layout: of the plant.
        mean: (O,) of each component.
        deviation: (O,) of each component.
    """
    mean, deviation = mean.copy(), deviation.copy()
    for row in (*layout.node_observation, *layout.edge_observation):
        at = np.asarray([place for place in row if place >= 0], np.int64)
        centre = mean[at].mean()
        deviation[at] = np.sqrt(np.mean(deviation[at] ** 2) + np.mean((mean[at] - centre) ** 2))
        mean[at] = centre
    flags = np.asarray(layout.flags, np.int64)
    mean[flags], deviation[flags] = 0.0, 1.0
    return mean, deviation
