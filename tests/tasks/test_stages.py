"""What a stage is found again by, and what a reference knows of its files; the flow's tests run stages in Prefect."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

from configs.fallback import Fallback, Shadow, Support
from configs.home import Home
from configs.run import Certify, Evaluate, OpenedRun, Train
from neorl_core.algorithms import ALGORITHMS
from neorl_core.plants import PLANTS
from tasks import references, stages
from tasks.files.canonical import file_sha256
from tasks.files.provenance import modules_of
from tasks.references import Bundle, Dataset, Interval, Reference
from tasks.stages import STAGES, cached, config_digest, content, effect

ALL = [value for value in vars(references).values() if inspect.isclass(value) and issubclass(value, Reference)]


def files_of(annotation: object) -> bool:
    """Whether a field's type names files."""
    return annotation is Path or any(files_of(part) for part in get_args(annotation))


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_every_file_that_a_reference_names_is_missed(model: type[Reference], tmp_path: Path) -> None:
    for name, field in model.model_fields.items():
        if not files_of(field.annotation) or (model, name) in {(Dataset, "store"), (Bundle, "folder")}:
            continue
        path = tmp_path / name
        path.write_text("")
        many = {"tuple": (path,), "dict": {"one": path}}
        value = next((many[kind] for kind in many if str(field.annotation).startswith(kind)), path)
        made = model.model_construct(**{name: value})
        assert path in set(made.files())
        assert made.complete
        path.unlink()
        assert not made.complete


def test_a_bundle_is_all_of_its_files(tmp_path: Path) -> None:
    bundle = Bundle(digest="0", plant="double_mass", folder=tmp_path)
    for name in ("composite.json", "composite.npz", "examples.npz"):
        assert not bundle.complete
        (tmp_path / name).write_text("")
    assert bundle.complete


def test_content_is_of_digests_and_values_and_never_of_paths(tmp_path: Path) -> None:
    here, there = (Bundle(digest="d", plant="p", folder=tmp_path / name) for name in ("a", "b"))
    assert content(here) == content(there) == "d"
    one = Interval(value=1.0, lower=0.0, upper=2.0)
    assert content(one) == content(one.model_copy())
    assert content(one) != content(one.model_copy(update={"upper": 2.0000000001}))
    nan = one.model_copy(update={"value": float("nan")})
    assert content(nan) == content(nan.model_copy())
    log = tmp_path / "log.csv"
    log.write_text("a")
    assert content(log) == file_sha256(log)
    copy = tmp_path / "copy.csv"
    copy.write_text("a")
    assert content((log,)) == content((copy,))
    copy.write_text("b")
    assert content((log,)) != content((copy,))
    folder = content(tmp_path)
    copy.write_text("c")
    assert content(tmp_path) != folder
    assert content(tmp_path / "nowhere") == str(tmp_path / "nowhere")


def test_a_mapping_counts_by_what_it_says(tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("a")
    run = OpenedRun(plant="double_mass")
    data = run.data.model_copy(update={"mapping": mapping})
    mapped = run.model_copy(update={"data": data})
    first = config_digest(mapped)
    assert first != config_digest(run)
    mapping.write_text("b")
    assert config_digest(mapped) != first


def test_approval_and_concurrency_change_no_result() -> None:
    run = OpenedRun(plant="double_mass")
    assert config_digest(run) == config_digest(run.model_copy(update={"approval": "auto", "concurrency": "wait"}))
    for changes in (
        {"train": Train(updates=7)},
        {"evaluate": Evaluate(rollouts=7)},
        {"certify": Certify(p0=0.5)},
        {"fallback": Fallback(kind="cloned", least_explained=0.9)},
        {"support": Support(most_handed_over=0.9)},
        {"shadow": Shadow(days=7)},
    ):
        assert config_digest(run) != config_digest(run.model_copy(update=changes))


def test_outside_of_a_flow_a_stage_is_its_function() -> None:
    def one(home: Home, x: float) -> Interval:
        return Interval(value=x, lower=x, upper=x)

    for stage in (cached()(one), effect()(one)):
        assert stage(Home(Path()), 2.0).value == 2.0
        assert inspect.signature(stage) == inspect.signature(one)
    with pytest.raises(RuntimeError, match="no flow is running"):
        stages.current()


def test_what_a_stage_does_not_use_is_no_part_of_its_key() -> None:
    from flows import retrain

    assert retrain
    found = {name: stage for name, stage in STAGES.items() if stage.cached and name.startswith("tasks.")}
    assert {stage.name for stage in found.values()} == {
        "ingest",
        "validate",
        "identify",
        "train",
        "fallback",
        "rank",
        "evaluate",
        "simulate",
        "validate_simulator",
        "fit_model",
        "examine",
        "estimate",
    }
    others = {ALGORITHMS.module(name) for name in ALGORITHMS} | {PLANTS.module(name) for name in PLANTS}
    for name in found:
        used = set(modules_of(name.rpartition(".")[0]))
        assert not used & others, name
        for foreign in ("flows.", "tasks.progress", "tasks.report", "tasks.conclusion", "tasks.gates"):
            assert not any(module.startswith(foreign) for module in used), (name, foreign)
        assert not any(module.startswith("tasks.evidence.ledger") for module in used), name
    # The decision's key covers the flow, the gates and all else.
    whole = set(modules_of("flows.retrain"))
    assert {"flows.flow_run", "tasks.gates", "tasks.conclusion", "tasks.certify"} <= whole
