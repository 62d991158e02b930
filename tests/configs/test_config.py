"""Runs' YAML: what is accepted, and that every error names the key, the file, the line and the nearest valid key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from configs.errors import BadInput, nearest
from configs.load import load_run
from configs.run import OpenedRun
from configs.yaml_files import load_yaml
from neorl_core.algorithms import TD3_BC
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import configure

SMALLEST = "plant: double_mass\ndata:\n  held_out: 0.2\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_a_run_says_only_what_differs(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, SMALLEST))
    # Defaults as the working agreement and design.md fix them.
    assert (run.train.algorithm, run.train.batch_size, run.evaluate.discount) == ("bptt", 256, 0.99)
    assert [learner.algorithm for learner in run.train.single_learners()] == ["bptt", "iql", "td3_bc", "bc"]
    # Of several controllers the median action is one of theirs, the mean none: the clone counts large errors linearly.
    assert run.train.beside[-1].hyperparameters["huber"] == 0.2
    clone = run.train.single_learners()[-1]
    recipe = clone.hyperparameters["actor_recipe"]
    assert isinstance(recipe, dict)
    assert recipe["steps"] == clone.updates, "the rate falls to nothing as training ends"
    best = clone.model_copy(update={"best_episodes": 0.25})
    assert (clone.title, best.title) == ("bc", "bc of the best 25 %")
    assert sorted(run.train.grid) == ["support"], "the default learner's members differ in how near the logs they stay"
    assert (run.certify.p0, run.certify.confidence, run.certify.max_episodes) == (1e-3, 0.95, None)
    assert (run.data.max_quarantined, run.data.held_out, run.concurrency) == (0.05, 0.2, "refuse")
    assert run.approval == "required"  # promotion without a person has to be asked for


def test_whole_numbers_are_numbers_and_lists_nest(tmp_path: Path) -> None:
    text = SMALLEST + "train:\n  hyperparameters: {alpha: 1, hidden: [64, 64]}\n  grid: {tau: [1, 2.5e-3]}\n"
    train = load_run(write(tmp_path, text)).train
    assert train.hyperparameters == {"alpha": 1, "hidden": [64, 64]}
    assert train.grid == {"tau": [1.0, 0.0025]}


def test_a_run_that_names_a_learner_trains_no_other_unasked(tmp_path: Path) -> None:
    train = load_run(write(tmp_path, SMALLEST + "train: {algorithm: bc, batch_size: 64}\n")).train
    assert [learner.algorithm for learner in train.single_learners()] == ["bc"]
    beside = "  beside:\n  - {algorithm: iql, updates: 9, hyperparameters: {expectile: 0.8}}\n"
    train = load_run(write(tmp_path, SMALLEST + "train:\n  algorithm: bc\n  batch_size: 64\n" + beside)).train
    first, second = train.single_learners()
    assert (first.algorithm, first.beside, first.batch_size) == ("bc", [], 64)
    assert (second.algorithm, second.updates, second.batch_size) == ("iql", 9, 64)
    assert second.hyperparameters == {"expectile": 0.8}
    # What is kept of a run says it all: read again, it trains the same.
    whole = load_run(write(tmp_path, SMALLEST))
    assert OpenedRun.model_validate_json(whole.model_dump_json()) == whole
    assert dict(whole.settings())["train.beside.0.algorithm"] == "iql"


def test_what_chooses_has_other_defaults_and_keeps_what_is_said(tmp_path: Path) -> None:
    whole = load_run(write(tmp_path, SMALLEST)).train.for_discrete_action()
    assert [learner.algorithm for learner in whole.single_learners()] == ["discrete_cql", "discrete_iql", "discrete_bc"]
    assert whole.grid == {}, "a setting of the other default learner"
    told = load_run(write(tmp_path, SMALLEST + "train: {seeds: 3, grid: {beta: [1, 5]}}\n")).train.for_discrete_action()
    assert [learner.algorithm for learner in told.single_learners()] == ["discrete_cql"]
    assert (told.seeds, told.grid) == (3, {"beta": [1.0, 5.0]})


def test_a_recipe_of_an_optimiser_is_a_name_or_its_fields(tmp_path: Path) -> None:
    recipes = "{actor_recipe: {schedule: cosine, steps: 6000}, critic_recipe: sac}"
    run = load_run(write(tmp_path, SMALLEST + f"train:\n  hyperparameters: {recipes}\n"))
    config = configure(TD3_BC, run.train.hyperparameters)
    assert config.actor_recipe == Recipe(schedule="cosine", steps=6000)
    assert config.critic_recipe == Recipe(clip=1.0)
    assert dict(run.settings())["train.hyperparameters.critic_recipe"] == "sac"


def test_a_part_of_a_run_keeps_what_is_named_and_nothing_else(tmp_path: Path) -> None:
    text = (
        "plant: double_mass\nseed: 3\napproval: auto\n"
        "data: {held_out: 0.3, max_quarantined: 0.1}\ntrain: {updates: 7, seeds: 5}\ngates: {beat_plant: false}\n"
    )
    run = load_run(write(tmp_path, text))
    bare = OpenedRun(plant="double_mass", seed=3)
    assert run.part() == bare
    assert run.part("train") == bare.model_copy(update={"train": run.train})
    assert run.part("train.updates", "train.seeds", "train.beside", "train.grid") == run.part("train")
    assert run.part("train.updates", "train") == run.part("train", "train.updates") == run.part("train")
    assert run.part("approval") == bare.model_copy(update={"approval": "auto"})
    held_out = run.part("data.held_out")
    assert (held_out.data.held_out, held_out.data.max_quarantined) == (0.3, 0.05)
    assert run.part(*OpenedRun.model_fields) == run


@pytest.mark.parametrize("name", ["", "trian", "train.", "train.update", "plant.name", "identity", ".held_out"])
def test_a_part_of_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no section or key '{name}'"):
        OpenedRun(plant="double_mass").part(name)


def test_a_mapping_is_named_relative_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs" / "mappings").mkdir(parents=True)
    mapping = tmp_path / "configs" / "mappings" / "m.yaml"
    mapping.write_text("{}\n")
    path = tmp_path / "configs" / "r.yaml"
    path.write_text("plant: chemical_reactor\ndata:\n  mapping: mappings/m.yaml\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_run(path).data.mapping == mapping.resolve()
    mapping.unlink()
    with pytest.raises(BadInput, match=r"r\.yaml names the mapping .*m\.yaml, which does not exist"):
        load_run(path)


def test_settings_hold_what_results_depend_on_and_no_path(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, SMALLEST))
    settings = dict(run.settings())
    assert settings["train.algorithm"] == run.train.algorithm
    assert not {"data.mapping", "approval", "concurrency"} & settings.keys()
    assert str(tmp_path) not in str(settings)
    other = load_run(write(tmp_path, SMALLEST + "approval: auto\nconcurrency: wait\n"))
    assert dict(other.settings()) == settings
    assert dict(load_run(write(tmp_path, SMALLEST + "seed: 1\n")).settings()) != settings


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (SMALLEST + "trian: {}\n", 4, ["unknown key 'trian'", "did you mean 'train'?"]),
        (SMALLEST + "train:\n  updates: 3\n  bach_size: 4\n", 6, ["'bach_size'", "under 'train'", "'batch_size'?"]),
        (SMALLEST + "shield:\n  look_ahed: 3\n", 5, ["unknown key 'look_ahed'", "did you mean 'look_ahead'?"]),
        (SMALLEST + "shield:\n  buffers: {travel: -1}\n", 5, ["'shield.buffers.travel'", "greater than or equal to 0"]),
        (
            SMALLEST + "certify:\n  qqq: 1\n",
            5,
            ["unknown key 'qqq'", "choose from confidence, domain"],
        ),
        ("plnt: double_mass\n", 1, ["unknown key 'plnt'", "did you mean 'plant'?"]),
        (SMALLEST + "train:\n  updates: many\n", 5, ["'train.updates'", "valid integer", "'many' (a string)"]),
        (SMALLEST + "train:\n  updates: 2.5\n", 5, ["'train.updates'", "valid integer", "2.5"]),
        (SMALLEST + "train:\n  updates: 0\n", 5, ["'train.updates'", "greater than or equal to 1", "got 0"]),
        (SMALLEST + "certify:\n  p0: .nan\n", 5, ["'certify.p0'", "finite number", "nan"]),
        (
            SMALLEST + "certify:\n  confidence: 1\n",
            5,
            ["'certify.confidence'", "less than or equal to 0.999999999", "got 1 "],
        ),
        (
            SMALLEST + "certify:\n  confidence: 0.9999999999999\n",
            5,
            ["'certify.confidence'", "0.999999999, got", "got 0.9999999999999"],
        ),
        (
            SMALLEST + "certify:\n  p0: 1.0e-300\n",
            5,
            ["'certify.p0'", "greater than or equal to 0.000000001", "1e-300"],
        ),
        (SMALLEST + "train:\n  hyperparameters:\n    alpha: [a]\n", 6, ["'train.hyperparameters.alpha'"]),
        (SMALLEST + "train: 3\n", 4, ["'train'", "keys and values", "got 3"]),
        (SMALLEST + "train:\n", 4, ["'train'", "keys and values", "got a null"]),
        (SMALLEST + "approval: maybe\n", 4, ["'auto' or 'required'", "'maybe'"]),
        (SMALLEST + "seed: true\n", 4, ["'seed'", "valid integer", "True (a boolean)"]),
        (SMALLEST + "seed: 1\nseed: 2\n", 5, ['duplicate key "seed"']),
        (SMALLEST + "seed: !!python/object/apply:os.getcwd []\n", 4, ["YAML", "a tag (!), which is not allowed"]),
        (SMALLEST + "seed: [1\n", 5, ["YAML"]),
    ],
)
def test_an_error_names_file_line_key_and_cure(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        load_run(path)
    message = str(caught.value)
    assert f"{path}, line {line}" in message
    for word in words:
        assert word in message
    assert "\n" not in message


def test_several_errors_are_counted(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'trian'.*\(and 1 more\)"):
        load_run(write(tmp_path, SMALLEST + "trian: {}\nseeed: 1\n"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got an empty file"),
        (b"- 1\n", "got a list"),
        (b"plant: caf\xe9\n", "is not UTF-8 at byte 10"),
        (b"plant: a\x00b\n", "is not valid YAML"),
        (b"data:\n  held_out: 0.2\n", "the key 'plant' is missing"),
        (b"3: 4\n" + SMALLEST.encode(), "keys that are strings"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_run(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path, SMALLEST)
    with pytest.raises(BadInput, match=r"there is no YAML file .*: did you mean 'run\.yaml'\?"):
        load_run(tmp_path / "runn.yaml")
    with pytest.raises(BadInput, match=r"there is no YAML file .*: check the path"):
        load_run(tmp_path / "no" / "run.yaml")
    with pytest.raises(BadInput, match="got a folder"):
        load_run(tmp_path)


class Tag(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    unit: str


class Mapping(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    tags: dict[str, Tag]
    items: Annotated[list[Tag], Field(min_length=1)]


def test_keys_inside_tables_and_lists_are_found(tmp_path: Path) -> None:
    path = write(tmp_path, "tags:\n  TI-1:\n    unt: K\nitems:\n- unit: K\n")
    with pytest.raises(BadInput, match=r"unknown key 'unt' under 'tags.TI-1' in .*line 3: did you mean 'unit'\?"):
        load_yaml(path, Mapping)
    path = write(tmp_path, "tags: {}\nitems:\n- unit: K\n- {}\n")
    with pytest.raises(BadInput, match=r"the key 'items.1.unit' is missing in .*line 4"):
        load_yaml(path, Mapping)


def test_nearest_names_one_or_lists_all() -> None:
    assert nearest("chemical_recator", ["double_mass", "chemical_reactor"]) == "did you mean 'chemical_reactor'?"
    assert nearest("zzz", ["b", "a"]) == "choose from a, b"
    assert nearest("zzz", []) == "no name is known here"
