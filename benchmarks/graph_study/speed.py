"""Measure the time of a decision on one core, one observation at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.graph_study.logs import cases, plant_of
from neorl_core.graph.graphs import padded, size_class
from neorl_core.graph.layout import build_graph
from neorl_core.graph.policy import act_on
from neorl_core.networks import Normaliser, Policy, actor_init, make_body, normalise, policy_act, to_physical
from neorl_core.plants.power_grid.feeder import Feeder
from neorl_core.plants.power_grid.feeder33 import FEEDER
from neorl_core.plants.power_grid.feeders.case69 import CASE69
from neorl_core.plants.power_grid.feeders.case118zh import CASE118ZH
from neorl_core.plants.power_grid.feeders.case136ma import CASE136MA
from neorl_core.plants.power_grid.radial import radial
from neorl_core.plants.power_grid.switching import OUT, split_observation
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.safety.shield import default_shield
from neorl_core.types import Plant

FEEDERS = (FEEDER, CASE69, CASE118ZH, CASE136MA)
Act = Callable[[jax.Array], jax.Array]


def on_one_core(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """Call `work` in a new process on one core; running threads would keep their cores.

    In the result, `pinned` is false if this system cannot pin a process to a core.
    """
    if not hasattr(os, "sched_setaffinity"):
        return work(*given) | {"pinned": False}
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(ours)})
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(work, *given).result() | {"pinned": True}
    finally:
        os.sched_setaffinity(0, ours)


def rows(decisions: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """Measure every feeder, and the largest one padded to a size class.

    Args:
        decisions: number of timed decisions each.
        overrides: hyper-parameters of the policy; the weights are random.
    """
    # With one core, compute in the calling thread. Both settings must precede the first use of JAX.
    os.environ["PJRT_NPROC"] = "1"
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    found: dict[str, Any] = {}
    for feeder in FEEDERS:
        found[feeder.name] = _of(feeder, feeder.name, decisions, overrides, pad=False)
    nodes, edges = size_class(len(CASE136MA.active_load) + 1, len(CASE136MA.ends))
    name = f"{CASE136MA.name}, padded"
    found[name] = _of(CASE136MA, name, decisions, overrides, pad=True) | {"buses": nodes, "lines": edges}
    return {"sizes": found, "decisions": decisions}


def _of(feeder: Feeder, name: str, decisions: int, overrides: dict[str, Any], *, pad: bool) -> dict[str, Any]:
    plant = plant_of(feeder)
    policy, x = drawn(plant, overrides), jnp.asarray(cases(plant, feeder, np.array([0]), 0.0, 1, 7).observation[0])
    preferring = (lambda x: padded_act(policy, x)) if pad else (lambda x: policy_act(policy, x))
    row: dict[str, Any] = {"buses": len(feeder.active_load) + 1, "lines": len(feeder.ends), "ties": feeder.ties}
    row |= _timed(lambda x: decide(feeder, preferring, x), x, decisions)
    if not pad:
        for steps in (1, 12):
            row[f"composite_{steps}"] = _timed(_shielded(plant, policy, steps), x, decisions)["median"]
    print(name, row, flush=True)
    return row


def drawn(plant: Plant, overrides: dict[str, Any]) -> Policy:
    """Return a policy with initial weights, which do not affect the time."""
    observed, acting, hidden = plant.spec.observation.size, plant.spec.action.size, tuple(overrides["hidden"])
    body = make_body(plant.spec, hidden, graph=overrides["graph"])
    normaliser = Normaliser(jnp.zeros(observed), jnp.ones(observed), jnp.zeros(acting), jnp.ones(acting))
    return Policy(actor_init(jax.random.key(0), observed, acting, hidden, body), normaliser)


def padded_act(policy: Policy, x: jax.Array) -> jax.Array:
    """Return the action computed on a graph padded to the size class."""
    weights = policy.params["graph"]
    graph = padded(build_graph(weights["layout"], normalise(policy.normaliser, x)))
    lines = len(weights["layout"].edges)
    return to_physical(policy.normaliser, jnp.tanh(act_on(weights["actor"], graph)[1][:lines, 0]))


def decide(feeder: Feeder, preferring: Act, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the policy's preferences and the lines to open.

    Without the preferences, the compiler would remove the network of a feeder with nothing to open.
    """
    preference = preferring(x)
    usable = split_observation(feeder, x).in_service > 0.5
    return preference, radial(jnp.where(usable, jnp.clip(preference, -1.0, 1.0), OUT), feeder).opened


def _shielded(plant: Plant, policy: Policy, look_ahead: int) -> Callable[[jax.Array], jax.Array]:
    """Return a function for the action of policy, shield and fallback together."""
    composite = make_composite(plant, policy, default_shield(plant.spec, look_ahead=look_ahead))
    controller = composite_controller(plant)
    memory = jax.jit(controller.init)(composite, jnp.asarray(np.zeros(plant.spec.observation.size, np.float32)))
    return lambda x: controller.act(composite, memory, x, plant.applied(x))[1]


def _timed(work: Callable[[jax.Array], Any], x: jax.Array, decisions: int) -> dict[str, float]:
    compiled, times = jax.jit(work), []
    jax.block_until_ready(compiled(x))
    for _ in range(decisions):
        began = time.perf_counter()
        jax.block_until_ready(compiled(x))
        times.append(time.perf_counter() - began)
    return {"median": float(np.median(times) * 1e6), "p99": float(np.quantile(times, 0.99) * 1e6)}
