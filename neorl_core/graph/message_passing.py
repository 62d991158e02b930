"""Message-passing networks on graphs.

Battaglia et al. 2018, Relational inductive biases, deep learning, and graph networks (arXiv 1806.01261), with
undirected edges. Dense layers act on nodes before messages are formed, because a graph has fewer nodes than messages.
"""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from neorl_core.graph.graphs import Graph

NEAR_ZERO = nn.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")
"""Initialiser of an actor's last layer; small first actions keep the tanh steep (Andrychowicz et al. 2021, arXiv
2006.05990, section 3.2)."""


def sum_messages(messages: Float[Array, "*b E H"], at: Int[Array, " E"], nodes: int) -> Float[Array, "*b N H"]:
    """Sum the messages that arrive at each node.

    Args:
        messages: (..., E, H) one per edge.
        at: (E,) receiving node of each message.
    """
    empty = jnp.zeros((*messages.shape[:-2], nodes, messages.shape[-1]), messages.dtype)
    return empty.at[..., at, :].add(messages)


def mean(values: Float[Array, "*b N H"], mask: Float[Array, "*b N"]) -> Float[Array, "*b H"]:
    """Return the mean over unmasked entries, 0 if there are none."""
    total = jnp.einsum("...nh,...n->...h", values, mask)
    return total / jnp.maximum(jnp.sum(mask, -1, keepdims=True), 1.0)


class Kernel(nn.Module):
    """Kernel of a dense layer without a bias, for products with several inputs at once."""

    features: int

    @nn.compact
    def __call__(self, inputs: int, like: Float[Array, "*b I"]) -> Float[Array, "I H"]:
        return self.param("kernel", nn.initializers.lecun_normal(), (inputs, self.features), like.dtype)


class Round(nn.Module):
    """One round of message passing.

    Messages `m_ij = relu(A h_i + B h_j + C e_ij + d)` both ways along every present edge, then `h_j += relu(D h_j + E
    Σ_i m_ij + F u + g) / R`, `e_ij += (m_ij + m_ji) / R` and `u += relu(K mean_j h_j + L u + l) / R`. Here h are the
    features of nodes, e of edges and u of the context, for R rounds. The division by R keeps outputs small, because an
    actor with a tanh far from 0 does not learn.
    """

    share: float
    """1 / R for R rounds."""

    @nn.compact
    def __call__(self, graph: Graph) -> Graph:
        width = graph.nodes.shape[-1]
        dense = partial(nn.Dense, width, param_dtype=graph.nodes.dtype)
        plain = partial(dense, use_bias=False)
        kernels = [Kernel(width, name=name)(width, graph.nodes) for name in ("sent", "got", "kept")]
        products, (s, r) = graph.nodes @ jnp.concatenate(kernels, -1), graph[3:5]
        ends, kept = products[..., : 2 * width], products[..., 2 * width :]
        first, second = ends[..., s, :], ends[..., r, :]
        along, there = dense(name="along")(graph.edges), graph.edge_mask[..., None]
        forth = nn.relu(first[..., :width] + second[..., width:] + along) * there
        back = nn.relu(second[..., :width] + first[..., width:] + along) * there
        both = jnp.concatenate([forth, back], -2)
        arrived = sum_messages(both, jnp.concatenate([r, s]), graph.nodes.shape[-2])
        context = dense(name="told")(graph.context)[..., None, :]
        update = nn.relu(kept + plain(name="arrived")(arrived) + context)
        nodes = graph.nodes + self.share * update
        pooled = plain(name="pooled")(mean(nodes, graph.node_mask))
        context = graph.context + self.share * nn.relu(pooled + dense(name="context")(graph.context))
        return graph._replace(nodes=nodes, edges=graph.edges + self.share * (forth + back), context=context)


class Body(nn.Module):
    """Project features to one width, then pass messages; masked edges do not change."""

    width: int
    rounds: int

    @nn.compact
    def __call__(self, graph: Graph) -> Graph:
        dense = partial(nn.Dense, self.width, param_dtype=graph.nodes.dtype)
        graph = graph._replace(
            nodes=dense(name="nodes")(graph.nodes),
            edges=dense(name="edges")(graph.edges),
            context=dense(name="context")(graph.context),
        )
        for i in range(self.rounds):
            graph = Round(1.0 / self.rounds, name=f"round_{i}")(graph)
        return graph


class Actor(nn.Module):
    """A permutation-equivariant network with outputs for every node and edge."""

    width: int
    rounds: int
    node_actions: int
    edge_actions: int

    @nn.compact
    def __call__(self, graph: Graph) -> tuple[Float[Array, "*b N K"], Float[Array, "*b E J"]]:
        graph = Body(self.width, self.rounds, name="body")(graph)
        dense = partial(nn.Dense, param_dtype=graph.nodes.dtype)
        context = dense(self.width, name="told")(graph.context)[..., None, :]
        node_outputs, edge_outputs = graph.nodes[..., :0], graph.edges[..., :0]
        if self.node_actions:
            own = dense(self.width, use_bias=False, name="nodes")(graph.nodes)
            node_outputs = dense(self.node_actions, kernel_init=NEAR_ZERO, name="per_node")(nn.relu(own + context))
        if self.edge_actions:
            # Sum and distance of the two ends do not depend on their order. The product with the kernel comes before
            # the sum, because there are fewer nodes than edge ends.
            own, sum_kernel, distance_kernel = jnp.split(
                Kernel(self.width, name="edges")(3 * self.width, graph.edges), 3
            )
            ends = jnp.concatenate([graph.nodes, graph.nodes @ sum_kernel], -1)
            a, b = ends[..., graph.senders, :], ends[..., graph.receivers, :]
            distance = jnp.abs(a[..., : self.width] - b[..., : self.width])
            summed_up = a[..., self.width :] + b[..., self.width :]
            edge_outputs = dense(self.edge_actions, kernel_init=NEAR_ZERO, name="per_edge")(
                nn.relu(graph.edges @ own + summed_up + distance @ distance_kernel + context)
            )
        return node_outputs, edge_outputs


class Critic(nn.Module):
    """A permutation-invariant network with one output for the graph."""

    width: int
    rounds: int

    @nn.compact
    def __call__(self, graph: Graph) -> Float[Array, "*b 1"]:
        graph = Body(self.width, self.rounds, name="body")(graph)
        dense = partial(nn.Dense, param_dtype=graph.nodes.dtype)
        nodes, edges = mean(nn.relu(graph.nodes), graph.node_mask), mean(nn.relu(graph.edges), graph.edge_mask)
        return dense(1, name="value")(
            nn.relu(dense(self.width, name="whole")(jnp.concatenate([nodes, edges, graph.context], -1)))
        )
