"""Make tests/golden/federated.npz: results of Flower's strategies and of dp-accounting.

Development only, in an environment with flwr 1.32.1 and dp-accounting 0.6.0:

    FLWR_TELEMETRY_ENABLED=0 PYTHON benchmarks/peers/golden_federated.py

The file contains stacked parameters of eleven sites, their numbers of examples, the aggregates of the strategies in
`flwr.serverapp` and `flwr.server.strategy.aggregate`, and under `config` versions, settings and epsilons.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.server.strategy import aggregate as older
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "federated.npz"
SITES, HOSTILE, KEPT, TRIMMED = 11, 2, 4, 0.2
DELTA = 1e-5
MECHANISMS = ((1.1, 256 / 60000, 14062), (1.1, 0.01, 10_000), (5.0, 0.5, 100), (0.8, 1.0, 3), (2.0, 0.05, 1))
"""Noise multiplier, sampling rate and number of rounds of each case."""


def replies(weights: np.ndarray, bias: np.ndarray, examples: np.ndarray) -> list[Message]:
    """Return the replies of the sites as Flower's messages, with parameters and numbers of examples."""
    found = []
    for i in range(SITES):
        arrays = ArrayRecord({"weights": Array(weights[i]), "bias": Array(bias[i])})
        metrics = MetricRecord({"num-examples": int(examples[i])})
        asked = Message(RecordDict(), dst_node_id=i + 1, message_type="train")
        found.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=asked))
    return found


def epsilons(noise: float, rate: float, rounds: int) -> dict[str, float]:
    """Return the privacy loss epsilon by each of the two accountants of dp-accounting."""
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    found = {"noise": noise, "rate": rate, "rounds": rounds}
    for name, accountant in (("renyi", RdpAccountant()), ("loss", PLDAccountant())):
        accountant.compose(event, rounds)
        found[name] = accountant.get_epsilon(DELTA)
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(SITES, 5, 3)), rng.normal(size=(SITES, 3))
    weights[[3, 7]] *= 40.0
    examples = rng.integers(20, 900, SITES)
    strategies = {
        "mean": FedAvg(),
        "median": FedMedian(),
        "trimmed": FedTrimmedAvg(beta=TRIMMED),
        "krum": Krum(num_malicious_nodes=HOSTILE),
        "multi_krum": MultiKrum(num_malicious_nodes=HOSTILE, num_nodes_to_select=KEPT),
    }
    arrays = {}
    for name, strategy in strategies.items():
        made = strategy.aggregate_train(1, replies(weights, bias, examples))[0]
        arrays |= {f"{name}_weights": made["weights"].numpy(), f"{name}_bias": made["bias"].numpy()}
    results = [([weights[i], bias[i]], int(examples[i])) for i in range(SITES)]
    for name, made in {
        "older_mean": older.aggregate(results),
        "older_median": older.aggregate_median(results),
        "older_trimmed": older.aggregate_trimmed_avg(results, TRIMMED),
        "older_krum": older.aggregate_krum(results, HOSTILE, 0),
        "older_multi_krum": older.aggregate_krum(results, HOSTILE, KEPT),
    }.items():
        arrays |= {f"{name}_weights": made[0], f"{name}_bias": made[1]}
    config = {
        "flwr": version("flwr"),
        "dp-accounting": version("dp-accounting"),
        "hostile": HOSTILE,
        "kept": KEPT,
        "trimmed": TRIMMED,
        "delta": DELTA,
        "epsilons": [epsilons(*mechanism) for mechanism in MECHANISMS],
    }
    np.savez_compressed(
        OUT, weights=weights, bias=bias, examples=examples, config=np.array(json.dumps(config, indent=1)), **arrays
    )
    print(f"{OUT.name}: {OUT.stat().st_size} bytes", json.dumps(config["epsilons"]))


if __name__ == "__main__":
    main()
