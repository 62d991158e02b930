"""One update of each algorithm equals d3rlpy's, from the same parameters, batch and random numbers.

The golden file contains its configuration; `benchmarks/peers/golden_d3rlpy.py` regenerates it. Where d3rlpy differs
from the paper, the case says how and takes that part as given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.algorithms import AWAC, IQL, SAC_N, TD3_BC, awac, bc, cql, iql, losses, sac_n, td3_bc
from neorl_core.networks import (
    NormalActor,
    Params,
    critics_apply,
    mlp_apply,
    normal_apply,
    normal_sample,
)
from neorl_core.training.population import polyak
from neorl_core.types import Transition
from tests.by_hand import spec

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "d3rlpy.npz", allow_pickle=False)
CONFIG = json.loads(str(GOLDEN["config"]))
SPEC = spec(CONFIG["observations"], CONFIG["actions"])
RATE = CONFIG["learning_rate"]

Found = dict[str, Any]
"""Parameters or gradients by the names of the golden file."""


class Record:
    """Golden values of one algorithm, in double precision."""

    def __init__(self, name: str) -> None:
        self.name, self.config = name, CONFIG["algorithms"][name]

    def __getitem__(self, key: str) -> jax.Array:
        return jnp.asarray(GOLDEN[f"{self.name}/{key}"], jnp.float64)

    def scalar(self, key: str) -> jax.Array:
        return self[key][0]

    def network(self, key: str) -> Params:
        """A vector of the file as a network of ours: kernel and bias of each layer, one after the other."""
        vector, params, at = self[key], {}, 0
        width = CONFIG["observations"] + ("critic" in key) * CONFIG["actions"]
        for i, out in enumerate((*CONFIG["hidden"], None)):
            if out is None:
                out = (vector.size - at) // (width + 1)
            kernel, bias = jnp.split(vector[at : at + (width + 1) * out], [width * out])
            params[f"Dense_{i}"] = {"kernel": kernel.reshape(width, out), "bias": bias}
            at, width = at + (width + 1) * out, out
        assert at == vector.size
        return params

    def ensemble(self, key: str) -> tuple[Params, ...]:
        return tuple(self.network(f"{key}_{i}") for i in range(self.config["n_critics"]))


def batch() -> Transition:
    told = ("observation", "action", "reward", "next_observation", "terminated")
    columns = {name: jnp.asarray(GOLDEN[f"batch/{name}"], jnp.float64) for name in told}
    return Transition(**columns, cost=jnp.zeros(CONFIG["rows"]))


def descend(params: Any, gradient: Any) -> Any:
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradient)


def many(name: str, ensemble: tuple[Params, ...]) -> Found:
    return {f"{name}_{i}": params for i, params in enumerate(ensemble)}


def of_bc(golden: Record) -> tuple[Found, Found]:
    before = golden.network("before/actor")
    gradient = jax.grad(bc.actor_loss)(before, batch(), jnp.asarray(bc.Config().huber))
    return {"actor": gradient}, {"actor": descend(before, gradient)}


def of_td3_bc(golden: Record) -> tuple[Found, Found]:
    config = TD3_BC.Config(discount=CONFIG["discount"], tau=CONFIG["tau"], noise=0.0, alpha=golden.config["alpha"])
    state = TD3_BC.init(jax.random.key(0), SPEC, config)._replace(
        actor=golden.network("before/actor"),
        critics=golden.ensemble("before/critic"),
        actor_target=golden.network("before/actor_target"),
        critics_target=golden.ensemble("before/critic_target"),
    )
    target = td3_bc.targets(state, batch(), jax.random.key(0))
    critics_gradient = jax.grad(td3_bc.critic_loss)(state.critics, batch(), target)
    critics = descend(state.critics, critics_gradient)
    gradient = jax.grad(td3_bc.actor_loss)(state.actor, critics, batch(), state.hyper["alpha"])
    actor = descend(state.actor, gradient)
    after = {"actor": actor, "actor_target": polyak(state.actor_target, actor, state.hyper["tau"])}
    tracked = polyak(state.critics_target, critics, state.hyper["tau"])
    gradients = {"actor": gradient, **many("critic", critics_gradient)}
    return gradients, {**after, **many("critic", critics), **many("critic_target", tracked)}


def sac_state(golden: Record) -> sac_n.State:
    config = SAC_N.Config(discount=CONFIG["discount"], tau=CONFIG["tau"], critics=golden.config["n_critics"])
    return SAC_N.init(jax.random.key(0), SPEC, config)._replace(
        actor=golden.network("before/actor"),
        critics=golden.ensemble("before/critic"),
        critics_target=golden.ensemble("before/critic_target"),
        log_temperature=golden.scalar("before/log_temperature"),
    )


def sac_actor(state: sac_n.State, noise: jax.Array) -> tuple[Found, Found]:
    """d3rlpy updates the temperature first and uses the new value in the actor; ours uses the value of the state."""
    _, log_prob = sac_n.actor_loss(state.actor, state.critics, batch(), noise, jnp.asarray(0.0))
    slope = jax.grad(sac_n.temperature_loss)(state.log_temperature, log_prob, CONFIG["actions"])
    log_temperature = descend(state.log_temperature, slope)
    gradient, _ = jax.grad(sac_n.actor_loss, has_aux=True)(
        state.actor, state.critics, batch(), noise, jnp.exp(log_temperature)
    )
    tracked = polyak(state.critics_target, state.critics, state.hyper["tau"])
    after = {"actor": descend(state.actor, gradient), "log_temperature": log_temperature}
    return (
        {"actor": gradient, "log_temperature": slope},
        {**after, **many("critic", state.critics), **many("critic_target", tracked)},
    )


def of_sac(golden: Record) -> tuple[Found, Found]:
    state = sac_state(golden)
    target = sac_n.targets(state, batch(), golden["draws/normal_0"], jnp.asarray(1.0))
    gradient, _ = jax.grad(sac_n.critic_loss, has_aux=True)(state.critics, state, batch(), target)
    state = state._replace(critics=descend(state.critics, gradient))
    gradients, after = sac_actor(state, golden["draws/normal_1"])
    return {**gradients, **many("critic", gradient)}, after


def of_cql(golden: Record) -> tuple[Found, Found]:
    """d3rlpy sums over the proposals instead of averaging (appendix F), which shifts the threshold by the logarithm of
    their number; it also weights the multiplier's loss by `conservative_weight`, and updates the multiplier before
    use."""
    state, c = sac_state(golden), golden.config
    samples, rows, actions = c["n_action_samples"], CONFIG["rows"], CONFIG["actions"]
    target = sac_n.targets(state, batch(), golden["draws/normal_0"], jnp.asarray(1.0))
    noise = jnp.stack([golden["draws/normal_1"], golden["draws/normal_2"]]).swapaxes(1, 2)
    uniform = golden["draws/uniform_0"].reshape(rows, samples, actions)
    proposed = cql.proposals(state.actor, batch(), uniform, noise)
    log_alpha = golden.scalar("before/log_alpha")
    _, metrics = cql.critic_loss(state.critics, batch(), target, *proposed, jnp.asarray(0.0))
    threshold = jnp.asarray(c["alpha_threshold"] - np.log(3 * samples))
    weighted = jax.grad(losses.multiplier_loss)(log_alpha, metrics["conservative_loss"], threshold)
    slope = c["conservative_weight"] * weighted
    log_alpha = descend(log_alpha, slope)
    weight = c["conservative_weight"] * jnp.exp(log_alpha)
    gradient, _ = cql.critic_gradient(state.critics, batch(), target, *proposed, weight)
    state = state._replace(critics=descend(state.critics, gradient))
    gradients, after = sac_actor(state, golden["draws/normal_3"])
    return {**gradients, "log_alpha": slope, **many("critic", gradient)}, {**after, "log_alpha": log_alpha}


def log_deviation(raw: jax.Array, low: float, high: float) -> jax.Array:
    """d3rlpy's free log deviation: a sigmoid between the bounds, where ours is clipped."""
    return low + (high - low) * jax.nn.sigmoid(raw)


def normal_actor(golden: Record, stage: str = "before") -> tuple[Params, jax.Array]:
    return golden.network(f"{stage}/actor"), golden[f"{stage}/actor_log_std"]


def of_iql(golden: Record) -> tuple[Found, Found]:
    """d3rlpy weights the regression by the value after its step, as the paper's code does; ours uses the value before
    the step."""
    c = golden.config
    config = IQL.Config(discount=CONFIG["discount"], tau=CONFIG["tau"], expectile=c["expectile"], beta=c["weight_temp"])
    mean, raw = normal_actor(golden)
    state = IQL.init(jax.random.key(0), SPEC, config)._replace(
        value=golden.network("before/value"),
        critics=golden.ensemble("before/critic"),
        critics_target=golden.ensemble("before/critic_target"),
    )
    q = jnp.min(critics_apply(state.critics_target, batch().observation, batch().action), axis=0)
    value_gradient, _ = jax.grad(iql.value_loss, has_aux=True)(state.value, batch(), q, state.hyper["expectile"])
    gradient = jax.grad(iql.critic_loss)(state.critics, batch(), iql.targets(state, batch()))
    value, critics = descend(state.value, value_gradient), descend(state.critics, gradient)
    advantage = q - mlp_apply(value, batch().observation)[:, 0]
    weight = jax.vmap(losses.advantage_weight, in_axes=(0, None))(advantage, state.hyper["beta"])

    def loss(mean: Params, raw: jax.Array) -> jax.Array:
        return iql.actor_loss(NormalActor(mean, log_deviation(raw, -5.0, 2.0)), batch(), weight)

    slopes = dict(zip(("actor", "actor_log_std"), jax.grad(loss, argnums=(0, 1))(mean, raw), strict=True))
    before = {"actor": mean, "actor_log_std": raw}
    tracked = polyak(state.critics_target, critics, state.hyper["tau"])
    after = {name: descend(before[name], slopes[name]) for name in slopes}
    return (
        {**slopes, "value": value_gradient, **many("critic", gradient)},
        {**after, "value": value, **many("critic", critics), **many("critic_target", tracked)},
    )


def of_awac(golden: Record) -> tuple[Found, Found]:
    """d3rlpy samples the target action from another distribution than the actor's, so the value there is taken as
    given; it sums over the batch where ours averages, with weights that sum to the number of rows."""
    config = AWAC.Config(discount=CONFIG["discount"], tau=CONFIG["tau"], temperature=golden.config["lam"])
    mean, raw = normal_actor(golden)
    state = AWAC.init(jax.random.key(0), SPEC, config)._replace(
        critics=golden.ensemble("before/critic"), critics_target=golden.ensemble("before/critic_target")
    )
    bootstrap = jax.vmap(losses.td_target, in_axes=(0, None, 0, 0))
    told = golden["target"][:, None]
    target = bootstrap(batch().reward, state.hyper["discount"], batch().terminated, told)
    gradient = jax.grad(awac.critic_loss)(state.critics, batch(), target)
    critics = descend(state.critics, gradient)
    distribution = normal_apply(NormalActor(mean, log_deviation(raw, -6.0, 0.0)), batch().observation)
    drawn = normal_sample(distribution, golden["draws/normal_1"][0])
    q, v = (jnp.min(critics_apply(critics, batch().observation, a), axis=0) for a in (batch().action, drawn))
    weight = jax.vmap(losses.advantage_weight, in_axes=(0, None))(q - v, 1.0 / state.hyper["temperature"])
    rows = CONFIG["rows"]

    def loss(mean: Params, raw: jax.Array) -> jax.Array:
        actor = NormalActor(mean, log_deviation(raw, -6.0, 0.0))
        return rows * awac.actor_loss(actor, batch(), rows * weight / jnp.sum(weight))

    slopes = dict(zip(("actor", "actor_log_std"), jax.grad(loss, argnums=(0, 1))(mean, raw), strict=True))
    before = {"actor": mean, "actor_log_std": raw}
    tracked = polyak(state.critics_target, critics, state.hyper["tau"])
    after = {name: descend(before[name], slopes[name]) for name in slopes}
    unmoved = {"log_temperature": golden.scalar("before/log_temperature")}
    return (
        {**slopes, **many("critic", gradient)},
        {**after, **unmoved, **many("critic", critics), **many("critic_target", tracked)},
    )


CASES: dict[str, Callable[[Record], tuple[Found, Found]]] = {
    "bc": of_bc,
    "td3_bc": of_td3_bc,
    "sac": of_sac,
    "cql": of_cql,
    "iql": of_iql,
    "awac": of_awac,
}
"""Golden name -> (gradients, parameters after one step of plain descent) by our functions."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_update_equals_d3rlpys(name: str) -> None:
    with jax.enable_x64(True):
        golden = Record(name)
        for stage, found in zip(("gradient", "after"), jax.jit(lambda: CASES[name](golden))(), strict=True):
            held = {key.split("/")[2] for key in GOLDEN.files if key.startswith(f"{name}/{stage}/")}
            assert held == set(found), "everything that the peer changed must be compared"
            for part, ours in found.items():
                is_network = isinstance(ours, dict)
                theirs = golden.network(f"{stage}/{part}") if is_network else golden[f"{stage}/{part}"]
                for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                    np.testing.assert_allclose(
                        jnp.atleast_1d(one), other, atol=1e-5, rtol=1e-5, err_msg=f"{stage} of {part}"
                    )
                if stage == "gradient":
                    assert max(np.abs(x).max() for x in jax.tree.leaves(theirs)) > 1e-3, f"{part} must have a gradient"


def test_golden_file_names_its_configuration() -> None:
    assert CONFIG["d3rlpy"] == "2.8.1"
    assert {key.split("/")[0] for key in GOLDEN.files} == {"batch", "config", *CONFIG["algorithms"]}
