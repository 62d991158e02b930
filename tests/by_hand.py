"""Networks, their gradients and Adam in NumPy without autodiff, and small data for comparison with learners."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neorl_core.training.population import Algorithm
from neorl_core.types import PlantSpec, Space, Transition

Layers = list[list[np.ndarray]]
"""[[kernel, bias], ...]"""


def spec(observations: int, actions: int) -> PlantSpec:
    def space(n: int, bound: float) -> Space:
        return Space(tuple(f"v{i}" for i in range(n)), ("1",) * n, (-bound,) * n, (bound,) * n)

    return PlantSpec("toy", space(observations, 10.0), space(actions, 1.0), (), 1.0, "s", 10, (0.0, 1.0))


def batch_of(rng: np.random.Generator, *shape: int, observations: int = 3, actions: int = 2) -> Transition:
    return Transition(
        observation=jnp.asarray(rng.normal(size=(*shape, observations))),
        action=jnp.asarray(rng.uniform(-1, 1, size=(*shape, actions))),
        reward=jnp.asarray(rng.normal(size=shape)),
        cost=jnp.zeros(shape),
        next_observation=jnp.asarray(rng.normal(size=(*shape, observations))),
        terminated=jnp.asarray(rng.integers(0, 2, size=shape).astype(float)),
        next_action=jnp.asarray(rng.uniform(-1, 1, size=(*shape, actions))),
    )


def layers_of(params: Any) -> Layers:
    return [[np.array(params[f"Dense_{i}"][k]) for k in ("kernel", "bias")] for i in range(len(params))]


def forward(layers: Layers, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    inputs = []
    for i, (kernel, bias) in enumerate(layers):
        inputs.append(x)
        x = x @ kernel + bias
        x = np.maximum(x, 0.0) if i < len(layers) - 1 else x
    return x, inputs


def backward(layers: Layers, inputs: list[np.ndarray], grad: np.ndarray) -> tuple[Layers, np.ndarray]:
    grads: Layers = []
    for i in reversed(range(len(layers))):
        grads.insert(0, [inputs[i].T @ grad, grad.sum(axis=0)])
        grad = grad @ layers[i][0].T
        grad = grad * (inputs[i] > 0) if i else grad
    return grads, grad


class Adam:
    """Adam of Kingma & Ba 2015, algorithm 1, with its default constants."""

    def __init__(self, layers: Layers) -> None:
        self.t, self.m, self.v = 0, np.zeros(sum(p.size for l in layers for p in l)), 0.0

    def step(self, layers: Layers, grads: Layers, rate: float) -> None:
        self.t += 1
        g = np.concatenate([p.ravel() for layer in grads for p in layer])
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        step = rate * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8)
        at = 0
        for layer in layers:
            for j, p in enumerate(layer):
                layer[j] = p - step[at : at + p.size].reshape(p.shape)
                at += p.size


def start(algorithm: Algorithm, config: Any, seed: int = 0, observations: int = 3, actions: int = 2) -> Any:
    """Return a fresh state. Configurations that differ only in floats share compiled programs."""
    floats = {name: value for name, value in config._asdict().items() if isinstance(value, float)}
    fresh = _fresh(algorithm, spec(observations, actions), config._replace(**dict.fromkeys(floats, 0.0)))
    return fresh(jax.random.key(seed), floats)


@lru_cache(maxsize=64)
def _fresh(algorithm: Algorithm, plant: PlantSpec, config: Any) -> Callable[..., Any]:
    return jax.jit(lambda key, floats: algorithm.init(key, plant, config._replace(**floats)))


def tracked(target: Layers, online: Layers, tau: float) -> Layers:
    """Return a target network after a step towards the online network."""
    pairs = zip(target, online, strict=True)
    return [[(1 - tau) * t + tau * p for t, p in zip(ts, ps, strict=True)] for ts, ps in pairs]
