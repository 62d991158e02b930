"""A graph as arrays: nodes, edges and a context, padded to a size class so that many graphs share one program.

An edge joins two nodes, and both learn from each other along it. What is masked is not there: it sends and receives
nothing, and counts in no mean. A size class is the shape of the arrays; graphs of one class are compiled for once.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SIZE_CLASSES = ((40, 48), (80, 96), (144, 176), (288, 352))
"""Nodes and edges that graphs are padded to."""


class Graph(NamedTuple):
    """A graph, or a batch of graphs of one structure: leading axes are of features and masks alone."""

    nodes: Float[Array, "*b N F"]
    edges: Float[Array, "*b E G"]
    context: Float[Array, "*b C"]
    """What holds of the whole."""
    senders: Int[Array, " E"]
    """The first node of each edge."""
    receivers: Int[Array, " E"]
    """The second node of each edge."""
    node_mask: Float[Array, "*b N"]
    """1 where there is a node, 0 where there is padding."""
    edge_mask: Float[Array, "*b E"]
    """1 where there is an edge, 0 where there is padding or one that was removed."""


def size_class(nodes: int, edges: int) -> tuple[int, int]:
    """The smallest class that holds a graph; beyond the largest, the graph's own size.

    Example:
        >>> size_class(33, 37)
        (40, 48)
    """
    return next((size for size in SIZE_CLASSES if nodes <= size[0] and edges <= size[1]), (nodes, edges))


def padded(graph: Graph, size: tuple[int, int] | None = None) -> Graph:
    """The graph with masked nodes and edges behind its own.

    Args:
        graph: one graph or a batch.
        size: nodes and edges afterwards; those of its `size_class` by default.

    Raises:
        ValueError: when the graph is larger.
    """
    nodes, edges = graph.nodes.shape[-2], graph.edges.shape[-2]
    size = size_class(nodes, edges) if size is None else size
    more, further = size[0] - nodes, size[1] - edges
    if min(more, further) < 0:
        raise ValueError(
            f"expected a graph of at most {size[0]} nodes and {size[1]} edges, got {nodes} and {edges}: "
            "name a larger size."
        )

    def behind(x: Array, count: int, axis: int) -> Array:
        width = [(0, 0)] * x.ndim
        width[axis] = (0, count)
        return jnp.pad(x, width)

    return Graph(
        nodes=behind(graph.nodes, more, -2),
        edges=behind(graph.edges, further, -2),
        context=graph.context,
        senders=behind(graph.senders, further, -1),
        receivers=behind(graph.receivers, further, -1),
        node_mask=behind(graph.node_mask, more, -1),
        edge_mask=behind(graph.edge_mask, further, -1),
    )
