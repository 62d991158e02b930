"""Large populations on an accelerator: the page, missing measurements, and a small run of each part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.accelerator import page, scores, speed
from benchmarks.accelerator.__main__ import PAGE, RESULTS, ROOT, Records, records
from benchmarks.accelerator.learners import BATCH, LEARNERS, UPDATES, Program, at_precision, product_error, programs
from benchmarks.accelerator.speed import Bench, Group
from benchmarks.windows import Kept
from configs.run import Train
from neorl_core.algorithms import ALGORITHMS
from neorl_core.plants import PLANTS
from neorl_core.training.precision import mixed_precision
from neorl_core.types import Transition

SMALL: dict[str, Any] = {"hidden": [8], "critics": 2}


def test_learners_are_those_of_a_default_retrain() -> None:
    first = {learner.algorithm: learner for learner in Train.model_validate({}).single_learners()}
    for name, own in LEARNERS.items():
        if name in first:
            grid = {key: values[0] for key, values in first[name].grid.items()}
            assert {**first[name].hyperparameters, **grid} == own, name
    assert {name: first[name].updates for name in UPDATES} == UPDATES
    assert at_precision(ALGORITHMS["bc"], "bfloat16") is mixed_precision(ALGORITHMS["bc"])
    assert Train.model_validate({}).batch_size == BATCH


def row(members: int, rate: float, precision: str = "float32", program: str = "td3_bc") -> dict[str, Any]:
    about = {"program": program, "members": members, "precision": precision, "quiet": True}
    return {**about, "steps_per_second": rate, "compile_seconds": 3.0, "megabytes": 250.0, "side_by_side": 6}


def record(device: str, rows: list[dict[str, Any]], **found: list[float]) -> dict[str, Any]:
    about = {"algorithm": "td3_bc", "updates": 10, "rows": 100, "episodes": 4, "diverged": 0}
    return {
        "device": device,
        "platform": device.lower(),
        "host": "x86_64, 2 cores",
        "date": "2026-01-01",
        "jax": "0.0",
        "commit": "0123456789abcdef",
        "product_error": {"float32": 1e-4, "bfloat16": 2e-3, "float32, exact": 1e-7},
        "memory_peak_bytes": None,
        "behaviour": 40.0,
        "controller": 90.0,
        "speed": rows,
        "scores": [
            {**about, "precision": precision, "seconds": 9.0, "compile_seconds": 2.0, "scores": each}
            for precision, each in found.items()
        ],
    }


def test_page_of_records() -> None:
    full = {"program": "td3_bc", "members": 1024, "precision": "float32", "error": "RESOURCE_EXHAUSTED: 1 GB"}
    rows = [row(1, 50.0), row(128, 4_000.0), row(128, 1_000.0, "bfloat16"), full]
    accelerator = record("GPU", rows, float32=[10.0, 20.0, 30.0, 40.0], bfloat16=[10.0, 10.0, 20.0, 30.0])
    text = page.page([record("CPU", [row(1, 100.0), row(8, 160.0), row(128, 200.0)], float32=[3.0]), accelerator])
    assert "| GPU | x86_64, 2 cores | 2026-01-01 | 0.0 | 0123456 | 1.0e-04 | 2.0e-03 | 1.0e-07 | – |" in text
    assert "| td3_bc | 128 | 4,000 | 80 | 1,000 | 0.25 | 0.25 | 3.0 |" in text
    assert "| td3_bc | 1,024 | does not fit | – | – | – | – | – |" in text
    assert "Up to 6 programs compiled at the same time" in text
    # By hand: ratios at one member, at 128, and of 4,000 to the CPU's best of 200.
    assert "| GPU: members | 1 | 128 | best of each |" in text
    assert "| td3_bc | 0.50 | 20 | 20 |" in text
    assert "| GPU | td3_bc | float32 | 4 | 9 | 2 | 25.0 | 10.0 | 11.5 | 25.0 | 38.5 | 0 |" in text
    # Differences 0, -10, -10, -10: Student's t with three degrees of freedom, 3.1824, times 5 / sqrt(4).
    assert "| td3_bc | bfloat16 | -7.50 (-15.46 to +0.46) | -1.50 |" in text
    assert text.index("### GPU") < text.index("### CPU")
    assert "No CPU was measured" in page.page([accelerator])
    failed = record("CPU", [])
    failed["scores"] = [{"algorithm": "bptt", "precision": "float32", "error": "expected training to stay finite"}]
    assert "| CPU | bptt | float32 | – |" in page.page([failed])


def test_committed_page_equals_the_kept_records() -> None:
    assert page.page(list(records(RESULTS).values())) == PAGE.read_text()


def test_run_continues_unless_the_commit_changed(tmp_path: Path) -> None:
    path = tmp_path / "results" / "accelerator.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"GPU": record("GPU", [])}))
    kept = Records(path, "one")
    assert not kept.accelerated
    group = Group(1, "float32")
    assert speed.missing(kept.own["speed"], group) == programs()
    kept.add("speed", row(1, 5.0))
    again = Records(path, "one").own
    assert again["speed"] == [row(1, 5.0)]
    assert speed.missing(again["speed"], group) == programs()[1:]
    assert speed.missing(again["speed"], Group(8, "float32")) == programs()
    # Results of another commit, JAX or host are discarded.
    for other in ("commit", "jax", "host"):
        path.write_text(json.dumps({jax.devices()[0].device_kind: again | {other: "another"}}))
        assert Records(path, "one").own["speed"] == [], other
    path.write_text(json.dumps({"GPU": record("GPU", []), jax.devices()[0].device_kind: again}))
    assert list(records(path)) == ["GPU", jax.devices()[0].device_kind]


def test_compile_seconds_are_those_of_first_chunks_beyond_others() -> None:
    # A warm-up of 20 steps with chunks of 5, 1 and 3 seconds, then chunks of 4 and 2.
    marks = [(0, 10.0), (10, 15.0), (15, 16.0), (20, 19.0), (30, 23.0), (40, 25.0)]
    assert scores.beyond_the_others(marks, warm_up=20) == (5.0 - 2.0) + (4.0 - 2.0)
    assert scores.beyond_the_others(marks[:2], warm_up=20) == 0.0


def test_small_population_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(speed, "LIMIT", 0.0)
    made = Bench(3, rows=64, names=["td3_bc"])
    assert made.population("td3_bc", 2).step.shape == (2,)
    (found,) = speed.measured(made, Group(2, "float32"), [Program("td3_bc", False)], side_by_side=2)
    assert (found["program"], found["members"], found["precision"]) == ("td3_bc", 2, "float32")
    # The plan includes at least the rows.
    assert found["megabytes"] > sum(x.nbytes for x in jax.tree.leaves(made.data)) / 1e6
    assert [program.words for program in programs()][-2:] == ["bptt, its model", "bptt, its policy"]


def test_steps_of_all_members_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(works: dict[str, Any], **_: Any) -> dict[str, Kept]:
        return {name: Kept(0.5, 5, 0) for name in works}

    monkeypatch.setattr(speed, "WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(speed, "interleaved", timed)
    made = Bench(3, rows=64, names=["td3_bc"])
    (found,) = speed.measured(made, Group(3, "float32"), [Program("td3_bc", False)])
    # One call of three members in half a second.
    assert (found["steps_per_second"], found["quiet"]) == (3 * speed.CHUNK / 0.5, False)


def test_products_of_a_cpu_have_float32_precision() -> None:
    assert 0.0 < product_error("float32") < 1e-6


def test_only_packages_of_the_core_are_needed() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'prefect', 'mlflow']))"
    subprocess.run([sys.executable, "-c", f"{blocked}; import benchmarks.accelerator.__main__"], cwd=ROOT, check=True)


def _rows(count: int) -> Transition:
    """Return random steps of the plant."""
    random, spec = np.random.default_rng(0), PLANTS[scores.PLANT].spec
    observation = random.normal(size=(count + 1, spec.observation.size)).astype(np.float32)
    return Transition(
        observation=observation[:-1],
        action=random.uniform(-1, 1, (count, spec.action.size)).astype(np.float32),
        reward=random.normal(size=count).astype(np.float32),
        cost=np.zeros(count, np.float32),
        next_observation=observation[1:],
        terminated=np.zeros(count, np.float32),
    )


def test_members_score_the_same_trained_together_and_alone() -> None:
    def found(*seeds: int) -> dict[str, Any]:
        return scores.trained("td3_bc", "float32", seeds, _rows(64), played=4, updates=20, overrides=SMALL)

    together, alone = found(3, 5), found(5)
    assert (together["updates"], together["rows"], together["episodes"], together["diverged"]) == (20, 64, 4, 0)
    assert together["scores"][1] == pytest.approx(alone["scores"][0], abs=0.01)
    assert abs(together["scores"][0] - together["scores"][1]) > 0.1


@pytest.mark.slow
def test_small_run_from_episodes_to_scores() -> None:
    """On a CPU, default and exact float32 give the same scores."""
    learned = scores.logs(logged=4, played=4)
    assert learned.transitions.observation.shape == (400, 6)
    assert 20 < learned.behaviour < 60 < learned.controller
    both = [
        scores.trained("bptt", precision, [0], learned.transitions, played=2, updates=40)["scores"]
        for precision in ("float32", "float32, exact")
    ]
    assert both[0] == pytest.approx(both[1], abs=0.01)
