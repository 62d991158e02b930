"""Shared policy of a fleet: pooled training, and fine-tuning at each site."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import Refused
from configs.home import Home
from configs.run import OpenedRun, Shared
from tasks.files.arrays import read_npz
from tasks.files.canonical import exclusive
from tasks.fleet.shared import _pooled, current_start, pooled_start, shared_run, with_shared
from tasks.models.bundles.bundle import load_bundle
from tasks.references import Dataset, Member
from tasks.training.population import training_run
from tasks.training.start import start_file
from tasks.training.train import train
from tests.small_data import reactor_dataset, reactor_run

SHARED = {"algorithm": "bc", "updates": 40, "fine_tune": 40, "fleet": "reactors", "hyperparameters": {"hidden": [8]}}
Sites = tuple[Home, OpenedRun, dict[str, Dataset]]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    folder = tmp_path_factory.mktemp("sites")
    home = Home(folder / "home")
    run = reactor_run(train={"algorithm": "bc", "seeds": 1, "hyperparameters": {"hidden": [8]}})
    datasets = {name: reactor_dataset(home, folder, 0.1, seed) for seed, name in enumerate(("east", "west"))}
    return home, run.model_copy(update={"shared": Shared(**SHARED)}), datasets


def actor(home: Home, digest: str) -> dict[str, Any]:
    arrays = read_npz(start_file(home, digest))
    return {name.removeprefix("actor/"): x for name, x in arrays.items() if name.startswith("actor/")}


def policy(member: Member) -> dict[str, Any]:
    params = load_bundle(member.bundle.folder, member.bundle.digest)[1].policy.params
    return {f"{layer}/{name}": np.asarray(x) for layer, held in params.items() for name, x in held.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_shared_policy_of_one_site_equals_single_training(sites: Sites) -> None:
    home, run, datasets = sites
    start = pooled_start(home, "reactors", {"east": run}, {"east": datasets["east"]})
    alone = train(home, shared_run(run), datasets["east"])
    assert same(actor(home, start), policy(alone.members[0]))
    assert current_start(home, "reactors") == start


def test_pooled_scaling_limit_is_the_largest_of_all_sites(sites: Sites) -> None:
    home, run, datasets = sites
    east, west = (training_run(home, shared_run(run), dataset) for dataset in datasets.values())
    wide = west.data.scaling._replace(limit=2.0 * east.data.scaling.limit)
    west = west._replace(data=west.data._replace(scaling=wide))
    assert {_pooled(pair).data.scaling.limit for pair in ([east, west], [west, east])} == {wide.limit}


def test_pooled_training_of_two_sites_is_reused(sites: Sites) -> None:
    home, run, datasets = sites
    runs = dict.fromkeys(datasets, run)
    alone = pooled_start(home, "reactors", {"west": run}, {"west": datasets["west"]})
    both = pooled_start(home, "reactors", runs, datasets)
    assert not same(actor(home, alone), actor(home, both))
    made = start_file(home, both).stat().st_mtime_ns
    # The order of the sites does not matter.
    assert pooled_start(home, "reactors", runs, dict(reversed(datasets.items()))) == both
    assert start_file(home, both).stat().st_mtime_ns == made


def test_concurrent_retrainings_of_a_fleet_take_turns(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the lock, each would remove checkpoints that the other is writing."""
    home, run, datasets = sites
    output = ""
    with ThreadPoolExecutor(1) as pool:
        with exclusive(home.folder("locks") / "fleet-reactors.lock"):
            second = pool.submit(pooled_start, home, "reactors", {"east": run}, {"east": datasets["east"]})
            while (
                "waiting for another training of the shared policy of fleet reactors" not in output
                and not second.done()
            ):
                time.sleep(0.05)
                output += capsys.readouterr().err
            assert not second.done()
        assert second.result() == current_start(home, "reactors")


def test_site_learner_starts_from_shared_weights(sites: Sites) -> None:
    home, run, datasets = sites
    start = pooled_start(home, "reactors", dict.fromkeys(datasets, run), datasets)
    still = run.model_copy(update={"shared": Shared(**{**SHARED, "hyperparameters": {"hidden": [8], "actor_lr": 0.0}})})
    # With a learning rate of 0 the learner keeps the shared weights; the site's other members stay.
    population = train(home, with_shared(home, still), datasets["east"])
    assert [member.algorithm for member in population.members] == ["bc", "bc"]
    assert same(actor(home, start), policy(population.members[1]))
    moving = train(home, with_shared(home, run), datasets["east"])
    assert not same(actor(home, start), policy(moving.members[1]))
    # All members use the site's normaliser.
    normalisers = [load_bundle(m.bundle.folder, m.bundle.digest)[1].policy.normaliser for m in moving.members]
    assert all(np.array_equal(a, b) for a, b in zip(*normalisers, strict=True))


def test_fine_tuning_is_limited_to_thirty_epochs(sites: Sites) -> None:
    home, run, datasets = sites
    pooled_start(home, "reactors", dict.fromkeys(datasets, run), datasets)
    long = run.model_copy(update={"shared": Shared(**{**SHARED, "fine_tune": 2_000_000})})
    further = with_shared(home, long).train.beside[-1]
    data = {}
    for name, learner in {"going on": further, "from its seed": further.model_copy(update={"start": None})}.items():
        alone = run.train.model_copy(update={**dict(learner), "beside": []})
        data[name] = training_run(home, run.model_copy(update={"train": alone}), datasets["east"]).data
    rows = float(data["going on"].moments.rows)
    assert 28 < data["going on"].plan.updates * run.train.batch_size / rows < 32
    assert data["from its seed"].plan.updates == 2_000_000


def test_learner_with_warm_up_takes_all_steps(sites: Sites) -> None:
    """The warm-up takes four fifths of all steps; thirty epochs would leave none for the policy."""
    home, run, datasets = sites
    change = {"algorithm": "bptt", "updates": 8_010, "start": "0" * 64, "hyperparameters": {}, "beside": []}
    alone = run.model_copy(update={"train": run.train.model_copy(update=change)})
    plan = training_run(home, alone, datasets["east"]).data.plan
    assert plan.warm_up > 0
    assert plan.updates >= 8_010


def test_missing_or_altered_shared_weights_are_refused(sites: Sites, tmp_path: Path) -> None:
    home, run, datasets = sites
    with pytest.raises(Refused, match="run 'neorl fleet retrain' first"):
        with_shared(Home(tmp_path / "home"), run)
    start = pooled_start(home, "reactors", {"east": run}, {"east": datasets["east"]})
    other = run.model_copy(update={"shared": Shared(**{**SHARED, "hyperparameters": {"hidden": [4]}})})
    with pytest.raises(Refused, match="give the sites' learner the layers of the shared policy"):
        train(home, with_shared(home, other), datasets["east"])
    path = start_file(home, start)
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + b"0")
    with pytest.raises(Refused, match=r"the weights .* are unusable"):
        train(home, with_shared(home, run).model_copy(update={"seed": 5}), datasets["east"])
    path.write_bytes(kept)
