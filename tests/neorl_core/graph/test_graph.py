"""Graph networks do not depend on node order, padding, or removed edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.graph.graphs import SIZE_CLASSES, Graph, padded, size_class
from neorl_core.graph.message_passing import Actor, Critic, Round, sum_messages
from neorl_core.graph.policy import act_on

ACTOR, CRITIC = Actor(width=8, rounds=3, node_actions=2, edge_actions=1), Critic(width=8, rounds=3)


def drawn(nodes: int, edges: int, seed: int = 0) -> Graph:
    """A random graph, several edges between the same nodes included."""
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape))

    ends = rng.integers(0, nodes, (2, edges))
    whole = jnp.ones((nodes,)), jnp.ones((edges,))
    return Graph(numbers(nodes, 3), numbers(edges, 2), numbers(4), *map(jnp.asarray, ends), *whole)


def gradient(module: Any, weights: Any, graph: Graph) -> Any:
    """Gradient of the sum of squares of all outputs with respect to the weights."""

    def loss(weights: Any) -> jax.Array:
        outputs = jax.tree.leaves(module.apply(weights, graph))
        # Rows of masked nodes may contain anything.
        masks = (graph.node_mask, graph.edge_mask) if len(outputs) == 2 else (jnp.ones(1),)
        return sum(
            jnp.sum((x * mask[:, None] if x.ndim == 2 else x) ** 2) for x, mask in zip(outputs, masks, strict=True)
        )

    return jax.grad(loss)(weights)


def close(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6 * max(1.0, float(jnp.max(jnp.abs(a)))))


def renumbered(graph: Graph, nodes: np.ndarray, edges: np.ndarray) -> Graph:
    """The same graph with nodes and edges in another order."""
    new = np.argsort(nodes)
    return Graph(
        nodes=graph.nodes[..., nodes, :],
        edges=graph.edges[..., edges, :],
        context=graph.context,
        senders=new[graph.senders][edges],
        receivers=new[graph.receivers][edges],
        node_mask=graph.node_mask[..., nodes],
        edge_mask=graph.edge_mask[..., edges],
    )


def test_networks_are_equivariant_to_node_order() -> None:
    graph, rng = drawn(9, 14), np.random.default_rng(1)
    nodes, edges = rng.permutation(9), rng.permutation(14)
    other = renumbered(graph, nodes, edges)
    # Edges join the same nodes, and the order of their ends does not matter.
    assert np.array_equal(nodes[other.senders], np.asarray(graph.senders)[edges])
    turned = other._replace(senders=other.receivers, receivers=other.senders)
    for again in (other, turned):
        weights = ACTOR.init(jax.random.key(0), graph)
        of_nodes, of_edges = ACTOR.apply(weights, graph)
        close((of_nodes[nodes], of_edges[edges]), ACTOR.apply(weights, again))
        close(gradient(ACTOR, weights, graph), gradient(ACTOR, weights, again))
        weights = CRITIC.init(jax.random.key(0), graph)
        close(CRITIC.apply(weights, graph), CRITIC.apply(weights, again))
        close(gradient(CRITIC, weights, graph), gradient(CRITIC, weights, again))


def test_padding_changes_nothing() -> None:
    graph = drawn(9, 14)
    larger = padded(graph)
    assert (larger.nodes.shape[0], larger.edges.shape[0]) == SIZE_CLASSES[0]
    # For any content of the padding.
    dirty = larger._replace(nodes=larger.nodes.at[9:].set(7.0), edges=larger.edges.at[14:].set(-7.0))
    for other in (larger, dirty):
        weights = ACTOR.init(jax.random.key(0), graph)
        of_nodes, of_edges = ACTOR.apply(weights, other)
        close(ACTOR.apply(weights, graph), (of_nodes[:9], of_edges[:14]))
        close(gradient(ACTOR, weights, graph), gradient(ACTOR, weights, other))
        weights = CRITIC.init(jax.random.key(0), graph)
        close(CRITIC.apply(weights, graph), CRITIC.apply(weights, other))
        close(gradient(CRITIC, weights, graph), gradient(CRITIC, weights, other))


def test_removed_edges_carry_no_messages() -> None:
    graph = drawn(9, 14)
    kept = np.arange(14) != 5
    removed = graph._replace(edge_mask=graph.edge_mask.at[5].set(0.0))
    without = graph._replace(
        edges=graph.edges[kept],
        senders=graph.senders[kept],
        receivers=graph.receivers[kept],
        edge_mask=graph.edge_mask[kept],
    )
    weights = ACTOR.init(jax.random.key(0), graph)
    of_nodes, of_edges = ACTOR.apply(weights, removed)
    close((of_nodes, of_edges[kept]), ACTOR.apply(weights, without))
    whole = ACTOR.apply(weights, graph)[0]
    assert np.abs(np.asarray(whole - of_nodes)).max() > 1e-3
    weights = CRITIC.init(jax.random.key(0), graph)
    close(CRITIC.apply(weights, removed), CRITIC.apply(weights, without))
    # Features of a removed edge have no effect and no gradient.
    told = jax.grad(lambda edges: jnp.sum(CRITIC.apply(weights, removed._replace(edges=edges))))(graph.edges)
    assert not np.any(told[5])
    assert np.any(told[4])


def test_a_round_by_hand() -> None:
    """Two nodes with one number each, one edge, all weights 1 and biases 0."""
    graph = Graph(
        jnp.asarray([[1.0], [-2.0]]),
        jnp.asarray([[0.5]]),
        jnp.asarray([3.0]),
        jnp.asarray([0]),
        jnp.asarray([1]),
        jnp.ones(2),
        jnp.ones(1),
    )
    weights = jax.tree.map(jnp.ones_like, Round(1.0).init(jax.random.key(0), graph))
    weights = jax.tree.map_with_path(lambda path, x: jnp.zeros_like(x) if path[-1].key == "bias" else x, weights)
    after: Any = Round(1.0).apply(weights, graph)
    # Both messages are relu(1 - 2 + 0.5) = 0; nodes gain relu(1 + 0 + 3) and relu(-2 + 0 + 3).
    np.testing.assert_allclose(after.nodes, [[5.0], [-1.0]])
    np.testing.assert_allclose(after.edges, [[0.5]])
    # The context gains relu((5 - 1) / 2 + 3).
    np.testing.assert_allclose(after.context, [8.0])
    louder: Any = Round(1.0).apply(weights, graph._replace(edges=jnp.asarray([[2.0]])))
    np.testing.assert_allclose(louder.edges, [[2.0 + 1.0 + 1.0]])
    np.testing.assert_allclose(louder.nodes, [[1.0 + 5.0], [-2.0 + 2.0]])


def test_rounds_equal_loops_over_edges() -> None:
    """The equations per edge and node in double precision, without merged kernels."""
    graph = drawn(9, 14)
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), ACTOR.init(jax.random.key(0), graph)["params"])
    h, e, u = (np.asarray(x, np.float64) for x in graph[:3])

    def layer(name: str, x: Any, within: Any) -> Any:
        return x @ within[name]["kernel"] + within[name].get("bias", 0.0)

    h, e, u = (layer(name, x, weights["body"]) for name, x in (("nodes", h), ("edges", e), ("context", u)))
    ends = [(int(a), int(b)) for a, b in zip(graph.senders, graph.receivers, strict=True)]
    for i in range(3):
        w = weights["body"][f"round_{i}"]
        arrived, gained = np.zeros_like(h), np.zeros_like(e)
        for k, (a, b) in enumerate(ends):
            for of, to in ((a, b), (b, a)):
                message = np.maximum(layer("sent", h[of], w) + layer("got", h[to], w) + layer("along", e[k], w), 0.0)
                arrived[to] += message
                gained[k] += message
        h = h + np.maximum(layer("kept", h, w) + layer("arrived", arrived, w) + layer("told", u, w), 0.0) / 3
        u = u + np.maximum(layer("pooled", h.mean(0), w) + layer("context", u, w), 0.0) / 3
        e = e + gained / 3
    told = layer("told", u, weights)
    of_nodes = layer("per_node", np.maximum(layer("nodes", h, weights) + told, 0.0), weights)
    both = np.stack([np.concatenate([e[k], h[a] + h[b], np.abs(h[a] - h[b])]) for k, (a, b) in enumerate(ends)])
    of_edges = layer("per_edge", np.maximum(layer("edges", both, weights) + told, 0.0), weights)
    close((of_nodes, of_edges), ACTOR.apply({"params": weights}, graph))
    with jax.enable_x64(True):
        double = graph._replace(**{name: jnp.asarray(x, float) for name, x in graph._asdict().items() if x.ndim})
        double = double._replace(senders=graph.senders, receivers=graph.receivers)
        for ours, theirs in zip(ACTOR.apply({"params": weights}, double), (of_nodes, of_edges), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 5, 12])
def test_fresh_actors_have_small_outputs(rounds: int) -> None:
    """Behind a tanh, large outputs have no gradient."""
    graph = drawn(30, 40)
    module = Actor(width=24, rounds=rounds, node_actions=1, edge_actions=1)
    for key in range(5):
        said = jax.tree.leaves(module.apply(module.init(jax.random.key(key), graph), graph))
        assert all(np.abs(x).max() < 1.0 for x in said)


def test_message_sums_equal_numpy() -> None:
    rng = np.random.default_rng(0)
    messages, at = rng.normal(size=(4, 14, 3)).astype(np.float32), rng.integers(0, 9, 14)
    expected = np.zeros((4, 9, 3), np.float32)
    np.add.at(expected, (slice(None), at), messages)
    np.testing.assert_allclose(sum_messages(jnp.asarray(messages), jnp.asarray(at), 9), expected, atol=1e-6)


def test_one_program_for_a_size_class() -> None:
    weights = ACTOR.init(jax.random.key(0), drawn(9, 14))["params"]
    compiled = jax.jit(act_on)
    for seed, (nodes, edges) in enumerate(((9, 14), (33, 37), (40, 48), (69, 68), (118, 132), (136, 156))):
        compiled(weights, padded(drawn(nodes, edges, seed)))
    assert compiled._cache_size() == len({size_class(33, 37), size_class(69, 68), size_class(136, 156)}) == 3


def test_size_classes_fit_or_reject_graphs() -> None:
    assert size_class(33, 37) == (40, 48)
    assert size_class(118, 132) == size_class(136, 156) == (144, 176)
    assert size_class(1000, 2) == (1000, 2)
    with pytest.raises(ValueError, match="at most 4 nodes and 4 edges, got 9 and 14"):
        padded(drawn(9, 14), (4, 4))
