"""Make tests/golden/d3rlpy.npz: one update of d3rlpy's algorithms from given parameters and a given batch.

Development only, in an environment with d3rlpy 2.8.1 and a CPU build of torch:

    PYTHON benchmarks/peers/golden_d3rlpy.py

Each algorithm makes one `inner_update` with plain gradient descent. Keys `algorithm/part` of the file have the
parameters before and after, the gradients, all random numbers in order, and the bootstrapped `target`. `batch` has the
transitions and `config` the settings as JSON. A network is one vector: kernel (inputs, outputs) and bias of each layer.
The last layer of a Gaussian actor has the means, then the logarithms of the standard deviations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers.optimizers import OptimizerWrapper, SGDFactory
from d3rlpy.torch_utility import TorchMiniBatch

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "d3rlpy.npz"
CONFIG: dict[str, Any] = {
    "d3rlpy": d3rlpy.__version__,
    "torch": torch.__version__,
    "seed": 7,
    "observations": 3,
    "actions": 2,
    "rows": 8,
    "hidden": [5, 4],
    "learning_rate": 0.05,
    "discount": 0.9,
    "tau": 0.1,
    "algorithms": {
        "bc": {},
        # Without smoothing, which is tested separately.
        "td3_bc": {"alpha": 2.0, "target_smoothing_sigma": 0.0, "n_critics": 2},
        "sac": {"initial_temperature": 0.6, "n_critics": 2},
        "cql": {
            "initial_temperature": 0.6,
            "initial_alpha": 1.5,
            "alpha_threshold": 2.0,
            "conservative_weight": 3.0,
            "n_action_samples": 4,
            "soft_q_backup": True,
            "n_critics": 2,
        },
        "iql": {"expectile": 0.8, "weight_temp": 2.0, "max_weight": 100.0, "n_critics": 2},
        # The temperature, which the paper does not have, is set to zero below.
        "awac": {"lam": 0.7, "n_action_samples": 1, "n_critics": 2},
    },
}
PEERS = {
    "bc": d3rlpy.algos.BCConfig,
    "td3_bc": d3rlpy.algos.TD3PlusBCConfig,
    "sac": d3rlpy.algos.SACConfig,
    "cql": d3rlpy.algos.CQLConfig,
    "iql": d3rlpy.algos.IQLConfig,
    "awac": d3rlpy.algos.AWACConfig,
}
PARTS = {
    "actor": ("policy", "imitator"),
    "actor_target": ("targ_policy",),
    "value": ("value_func",),
    "log_temperature": ("log_temp",),
    "log_alpha": ("log_alpha",),
}
"""d3rlpy's names of each network; `networks` adds the critics."""


def networks(impl: Any) -> dict[str, torch.nn.Module]:
    """Return all networks with parameters, under NeoRL's names."""
    modules = impl._modules
    found = {ours: getattr(modules, name) for ours, names in PARTS.items() for name in names if hasattr(modules, name)}
    for ours, name in (("critic", "q_funcs"), ("critic_target", "targ_q_funcs")):
        found |= {f"{ours}_{i}": module for i, module in enumerate(getattr(modules, name, ()))}
    return found


def vectors(module: torch.nn.Module, of: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return `data` or `grad` of a network as one vector; a separate log standard deviation is a second vector."""
    named = {name: getattr(p, of) for name, p in module.named_parameters()}
    if any(x is None for x in named.values()):
        return {}
    free = {"_log_std": named.pop("_logstd").numpy().ravel().copy()} if "_logstd" in named else {}
    if "_logstd.weight" in named:
        for kind in ("weight", "bias"):
            named[f"_mu.{kind}"] = torch.cat([named.pop(f"_mu.{kind}"), named.pop(f"_logstd.{kind}")])
    return {"": np.concatenate([(x.mT if x.ndim == 2 else x).numpy().ravel() for x in named.values()]), **free}


@contextmanager
def recorded(draws: dict[str, np.ndarray[Any, Any]]) -> Iterator[None]:
    """Record every random number of torch as `normal_0`, `uniform_0`, ..."""
    normal, uniform = torch.distributions.normal._standard_normal, torch.Tensor.uniform_

    def keep(kind: str, x: torch.Tensor) -> torch.Tensor:
        draws[f"{kind}_{sum(name.startswith(kind) for name in draws)}"] = x.detach().numpy().copy()
        return x

    torch.distributions.normal._standard_normal = lambda *a, **k: keep("normal", normal(*a, **k))
    torch.Tensor.uniform_ = lambda *a, **k: keep("uniform", uniform(*a, **k))  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.distributions.normal._standard_normal = normal
        torch.Tensor.uniform_ = uniform  # type: ignore[method-assign]


def one_update(name: str, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return parameters, gradients and random numbers of one update."""
    fixed: dict[str, Any] = dict(CONFIG["algorithms"][name])
    wanted = PEERS[name].__dataclass_fields__
    for field in wanted:
        if field.endswith("learning_rate"):
            fixed[field] = CONFIG["learning_rate"]
        elif field.endswith("optim_factory"):
            fixed[field] = SGDFactory()
        elif field.endswith("encoder_factory"):
            fixed[field] = VectorEncoderFactory(CONFIG["hidden"])
    fixed |= {"gamma": CONFIG["discount"]} | ({"tau": CONFIG["tau"]} if "tau" in wanted else {})
    algorithm = PEERS[name](**fixed).create(device=False)
    algorithm.create_impl((CONFIG["observations"],), CONFIG["actions"])
    impl = algorithm.impl
    parts = networks(impl)
    with torch.no_grad():
        for part, module in parts.items():
            for parameter in module.parameters():
                if "target" in part:
                    parameter.add_(0.2 * torch.randn(parameter.shape))
        if name == "awac":
            impl._modules.log_temp._parameter.fill_(-50.0)
    found: dict[str, np.ndarray[Any, Any]] = {}

    def note(stage: str, of: str, among: dict[str, torch.nn.Module]) -> None:
        for part, module in among.items():
            found.update({f"{name}/{stage}/{part}{tail}": x for tail, x in vectors(module, of).items()})

    note("before", "data", parts)
    step, compute_target = OptimizerWrapper.step, getattr(impl, "compute_target", None)

    def step_and_note(self: OptimizerWrapper) -> None:
        own = {id(p) for p in self._params}
        note("gradient", "grad", {k: m for k, m in parts.items() if all(id(p) in own for p in m.parameters())})
        step(self)

    def target_and_note(batch: TorchMiniBatch) -> torch.Tensor:
        target: torch.Tensor = compute_target(batch)
        found[f"{name}/target"] = target.numpy().ravel().copy()
        return target

    draws: dict[str, np.ndarray[Any, Any]] = {}
    OptimizerWrapper.step = step_and_note  # type: ignore[method-assign]
    if compute_target:
        impl.compute_target = target_and_note
    try:
        with recorded(draws):
            impl.inner_update(minibatch(batch), 0)
    finally:
        OptimizerWrapper.step = step  # type: ignore[method-assign]
    note("after", "data", parts)
    return found | {f"{name}/draws/{key}": x for key, x in draws.items()}


def minibatch(batch: dict[str, np.ndarray[Any, Any]]) -> TorchMiniBatch:
    columns = {key: torch.tensor(x if x.ndim == 2 else x[:, None]) for key, x in batch.items()}
    rewards = columns["reward"]
    return TorchMiniBatch(
        observations=columns["observation"],
        actions=columns["action"],
        rewards=rewards,
        next_observations=columns["next_observation"],
        next_actions=torch.zeros_like(columns["action"]),
        returns_to_go=torch.zeros_like(rewards),
        terminals=columns["terminated"],
        intervals=torch.ones_like(rewards),
        device="cpu:0",
    )


def main() -> None:
    random = np.random.default_rng(CONFIG["seed"])
    rows, observations, actions = CONFIG["rows"], CONFIG["observations"], CONFIG["actions"]
    batch = {
        "observation": random.standard_normal((rows, observations), np.float32),
        "action": random.uniform(-0.95, 0.95, (rows, actions)).astype(np.float32),
        "reward": random.standard_normal(rows, np.float32),
        "next_observation": random.standard_normal((rows, observations), np.float32),
        "terminated": (np.arange(rows) % 4 == 0).astype(np.float32),
    }
    found: dict[str, Any] = {f"batch/{key}": x for key, x in batch.items()}
    for name in PEERS:
        torch.manual_seed(CONFIG["seed"])
        found |= one_update(name, batch)
    found["config"] = np.array(json.dumps(CONFIG, indent=1))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUT, **found)
    print(f"{OUT.name}: {len(found)} arrays, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
