"""Graphs as arrays of nodes, edges and a context, padded to a few sizes that share compiled programs.

Edges are undirected: messages pass both ways. Masked nodes and edges have no effect on messages and means.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SIZE_CLASSES = ((40, 48), (80, 96), (144, 176), (288, 352))
"""Pairs (number of nodes, number of edges) to which graphs are padded."""


class Graph(NamedTuple):
    """A graph, or a batch of graphs with equal senders and receivers; features and masks have the batch axes."""

    nodes: Float[Array, "*b N F"]
    edges: Float[Array, "*b E G"]
    context: Float[Array, "*b C"]
    """Features of the whole graph."""
    senders: Int[Array, " E"]
    """The first node of each edge."""
    receivers: Int[Array, " E"]
    """The second node of each edge."""
    node_mask: Float[Array, "*b N"]
    """1 for nodes, 0 for padding."""
    edge_mask: Float[Array, "*b E"]
    """1 for edges, 0 for padding and removed edges."""


def size_class(nodes: int, edges: int) -> tuple[int, int]:
    """Return the smallest class that fits a graph, or the graph's own size if none does.

    Example:
        >>> size_class(33, 37)
        (40, 48)
    """
    return next((size for size in SIZE_CLASSES if nodes <= size[0] and edges <= size[1]), (nodes, edges))


def padded(graph: Graph, size: tuple[int, int] | None = None) -> Graph:
    """Pad a graph or batch with masked nodes and edges.

    Args:
        size: resulting numbers of nodes and edges; the `size_class` by default.

    Raises:
        ValueError: if the graph is larger than `size`.
    """
    nodes, edges = graph.nodes.shape[-2], graph.edges.shape[-2]
    size = size_class(nodes, edges) if size is None else size
    extra_nodes, extra_edges = size[0] - nodes, size[1] - edges
    if min(extra_nodes, extra_edges) < 0:
        raise ValueError(
            f"the graph must have at most {size[0]} nodes and {size[1]} edges, got {nodes} and {edges}: use a larger "
            "size"
        )

    def pad(x: Array, count: int, axis: int) -> Array:
        width = [(0, 0)] * x.ndim
        width[axis] = (0, count)
        return jnp.pad(x, width)

    return Graph(
        nodes=pad(graph.nodes, extra_nodes, -2),
        edges=pad(graph.edges, extra_edges, -2),
        context=graph.context,
        senders=pad(graph.senders, extra_edges, -1),
        receivers=pad(graph.receivers, extra_edges, -1),
        node_mask=pad(graph.node_mask, extra_nodes, -1),
        edge_mask=pad(graph.edge_mask, extra_edges, -1),
    )
