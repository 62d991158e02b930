"""Mapping between a plant's flat observation and action vectors and a graph.

Logs, normalisers, algorithms, shields and bundles use vectors. A layout assigns the components of a vector to nodes and
edges. Flags in the observation say which edges are present, so the observation contains the topology. A layout is a
constant in a plant's spec and in the weights of a graph policy.
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
"""For each feature, the index of the component of each node or edge; with index -1, the feature is 0."""
Ints = npt.NDArray[np.int64]


class Layout(NamedTuple):
    """N nodes, E edges and their components of observation (O,) and action (A,)."""

    nodes: int
    edges: tuple[tuple[int, int], ...]
    """Pairs of nodes that the edges join."""
    node_observation: Columns = ()
    """(F, N) observation components of the nodes."""
    edge_observation: Columns = ()
    """(G, E) observation components of the edges."""
    context: tuple[int, ...] = ()
    """Observation components of the whole graph."""
    node_action: Columns = ()
    """(K, N) action components of the nodes."""
    edge_action: Columns = ()
    """(J, E) action components of the edges."""
    node_constants: tuple[tuple[float, ...], ...] = ()
    """(·, N) constants of about unit size, such as which node is the source."""
    edge_constants: tuple[tuple[float, ...], ...] = ()
    """(·, E) constants of about unit size, such as the impedance of a line."""
    flags: tuple[int, ...] = ()
    """Observation components that are 0 or 1 and are not normalised."""
    present: tuple[int, ...] = ()
    """(E,) flags that are 1 while an edge is present; empty if all edges always are."""
    kinds: tuple[int, ...] = ()
    """(N,) kinds of nodes that are agents: agents of a kind share weights and see only their own components and
    messages over present edges. Empty for a policy that sees the whole graph."""


jax.tree_util.register_static(Layout)


def check_layout(layout: Layout, observed: int, acting: int) -> Layout:
    """Return the layout after checking it against the numbers of observation and action components.

    Args:
        acting: number of action components; each must belong to one node or edge.

    Raises:
        ValueError: if a field does not fit; the message names the first such field.
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
        wrong = [row for row in rows if len(row) != width or not all(least <= place < top for place in row)]
        if wrong:
            raise ValueError(
                f"each row of {name} needs {width} indices from {least} to {top - 1} in a layout of {n} nodes and {e} "
                f"edges, got {_short(wrong[0])}: correct the layout"
            )
    for name, constants, width in (
        ("node_constants", layout.node_constants, n),
        ("edge_constants", layout.edge_constants, e),
    ):
        odd = [row for row in constants if len(row) != width or not np.isfinite(row).all()]
        if odd:
            raise ValueError(
                f"each row of {name} needs {width} finite numbers, got {_short(odd[0])}: correct the layout"
            )
    places = [place for row in (*layout.node_action, *layout.edge_action) for place in row if place >= 0]
    if sorted(places) != list(range(acting)):
        raise ValueError(
            f"each of the {acting} actions must be at exactly one node or edge, got {_short(sorted(places))}: correct "
            "node_action and edge_action"
        )
    if not set(layout.present) <= set(layout.flags):
        raise ValueError(
            f"every component in present must be in flags, got present {_short(layout.present)} and flags "
            f"{_short(layout.flags)}: correct the layout"
        )
    _check_agents(layout)
    return layout


def _check_agents(layout: Layout) -> None:
    kinds = layout.kinds
    if not kinds:
        return
    if len(kinds) != layout.nodes or set(kinds) != set(range(max(kinds) + 1)):
        raise ValueError(
            f"kinds of {layout.nodes} agents must be numbers from 0 without a gap, got {_short(kinds)}: correct them"
        )
    if layout.context or layout.edge_observation or layout.edge_action:
        raise ValueError(
            f"a layout with kinds must have all components at nodes, got context {_short(layout.context)}, "
            f"edge_observation {_short(layout.edge_observation)} and edge_action {_short(layout.edge_action)}: assign "
            "them to agents"
        )


def _short(values: Any) -> str:
    text = str(values)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def _gathered(rows: Columns) -> Ints:
    return np.asarray(rows, np.int64).T.copy()


@cache
def _action_places(layout: Layout) -> Ints:
    """Return the index of each action (A,) in the concatenated outputs of all nodes and edges."""
    columns = [_gathered(rows).ravel() for rows in (layout.node_action, layout.edge_action) if rows]
    actions = np.concatenate(columns)
    places = np.flatnonzero(actions >= 0)
    return places[np.argsort(actions[places])]


def _features(
    constants: tuple[tuple[float, ...], ...], count: int, parts: tuple[tuple[Columns, Float[Array, "*b I"]], ...]
) -> Float[Array, "*b M F"]:
    """Concatenate constants and the columns of each part for all nodes or edges."""
    like = parts[0][1]
    fixed = jnp.asarray(np.asarray(constants, like.dtype).reshape(-1, count).T)
    features = [jnp.broadcast_to(fixed, (*like.shape[:-1], *fixed.shape))]
    for rows, values in parts:
        if rows:
            # Index -1 reads the appended 0.
            absent = jnp.zeros((*values.shape[:-1], 1), values.dtype)
            features.append(jnp.concatenate([values, absent], -1)[..., _gathered(rows)])
    return jnp.concatenate(features, -1)


def build_graph(layout: Layout, observation: Float[Array, "*b O"], action: Float[Array, "*b A"] | None = None) -> Graph:
    """Return the graph of a normalised observation, with an action at its nodes and edges if given.

    Args:
        observation: (..., O) normalised; flags are 0 or 1.
        action: (..., A) unit action.
    """
    acts = () if action is None else (action,)
    nodes = ((layout.node_observation, observation), *((layout.node_action, act) for act in acts))
    edges = ((layout.edge_observation, observation), *((layout.edge_action, act) for act in acts))
    ends, lead = np.asarray(layout.edges, np.int64).reshape(-1, 2), observation.shape[:-1]
    whole = jnp.ones((*lead, len(layout.edges)), observation.dtype)
    # The leading 1 keeps dense layers of an empty context valid.
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


def flat_action(
    layout: Layout, node_output: Float[Array, "*b N K"], edge_output: Float[Array, "*b E J"]
) -> Float[Array, "*b A"]:
    """Return action vectors (..., A) from outputs of nodes (..., N, K) and edges (..., E, J)."""
    lead = node_output.shape[:-2]
    outputs = jnp.concatenate([node_output.reshape(*lead, -1), edge_output.reshape(*lead, -1)], -1)
    return outputs[..., _action_places(layout)]


def pool_moments(layout: Layout, mean: npt.NDArray[Any], deviation: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Return means and deviations (O,) pooled per feature, so that all nodes or edges of a feature share one scale.

    `mean = mean_j m_j`, `variance = mean_j s_j² + mean_j (m_j - mean)²` over the components j of the feature, with
    means m_j and deviations s_j. Flags keep mean 0 and deviation 1.
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
