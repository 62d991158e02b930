"""Training as a task: as many updates as asked for, resumable to the bit, and plain about what it cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.algorithms import ALGORITHMS
from neorl_core.networks import policy_act
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import make_composite
from tasks.data.store import reader
from tasks.data.store.episodes import halves, read_logs
from tasks.evaluation.model_based import fit_learned_model, logged_steps, windows
from tasks.files.provenance import modules_of
from tasks.models.bundles.bundle import load_bundle
from tasks.references import Dataset, Member, Placement, Population, SignalError, SimulatorErrors
from tasks.training.in_simulator import useless
from tasks.training.population import Diverged, train_members, training_run
from tasks.training.train import _check_gradients, _trained, keep_bundle, train
from tests.small_data import PLANT, altered, reactor_dataset, reactor_run


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of seventeen hours of the reactor's log."""
    folder = tmp_path_factory.mktemp("train")
    return reactor_dataset(Home(folder / "home"), folder, 0.1)


@pytest.fixture(scope="module")
def undisturbed(reference: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Population:
    """The population of a run that nothing disturbed."""
    return train(Home(tmp_path_factory.mktemp("calm")), reactor_run(), reference)


@pytest.mark.parametrize("stage", ["tasks.training.train", "tasks.evaluation.evaluate", "tasks.simulate"])
def test_a_stage_depends_on_no_source_that_it_does_not_use(stage: str) -> None:
    """Another algorithm, another plant, the reports and the command line are no reason to run it again."""
    used = modules_of(stage, PLANTS.module(PLANT), *([ALGORITHMS.module("td3_bc")] if "train" in stage else []))
    others = [PLANTS.module(name) for name in PLANTS if name != PLANT]
    others += [ALGORITHMS.module(name) for name in ALGORITHMS if name != "td3_bc"]
    others += ["tasks.report", "tasks.register", "tasks.promote", "tasks.ingest", "tasks.certify", "tasks.gates"]
    assert not set(used) & set(others)
    packages = ("flows.", "tasks.pictures", "tasks.registry", "tasks.data.historian")
    assert not [module for module in used if module.startswith(packages)]


def test_every_member_is_a_composite_that_could_ship(undisturbed: Population, reference: Dataset) -> None:
    assert [(m.index, m.seed) for m in undisturbed.members] == [(0, 0), (1, 1)]
    assert len({m.bundle.digest for m in undisturbed.members}) == 2
    for member in undisturbed.members:
        plant, composite = load_bundle(member.bundle.folder, member.bundle.digest)
        assert plant.spec.name == PLANT
        assert composite.policy is not None
    assert undisturbed.learners[0].updates == 40
    assert 0 < undisturbed.rows < reference.rows
    assert undisturbed.complete
    with np.load(undisturbed.learners[0].curves) as curves:
        assert curves["step"][-1] == 40
        assert set(curves) > {"step", "critic_loss", "actor_loss"}
        for name in curves:
            assert np.all(np.isfinite(curves[name])), name


@pytest.mark.parametrize("checkpoint_every", [16, 40, 1000])
def test_the_config_alone_says_how_many_updates(
    reference: Dataset, undisturbed: Population, tmp_path: Path, checkpoint_every: int
) -> None:
    told: list[tuple[int, int, str]] = []
    run = reactor_run(train={"checkpoint_every": checkpoint_every})
    found = train(Home(tmp_path), run, reference, lambda *args: told.append(args))
    assert found.learners[0].updates == 40
    assert told[0] == (0, 40, "updates")
    assert told[-1] == (40, 40, "updates")
    # How often a checkpoint is kept changes nothing in what is learnt.
    assert found.digest == undisturbed.digest
    assert [m.bundle.digest for m in found.members] == [m.bundle.digest for m in undisturbed.members]


def test_another_shield_trains_nothing_again(reference: Dataset, tmp_path: Path) -> None:
    home, told = Home(tmp_path), list[int]()
    usual = train(home, reactor_run(), reference)
    found = train(home, reactor_run(shield={"hold": 9}), reference, lambda done, *_: told.append(done))
    assert set(told) <= {40}
    assert found.learners[0].curves == usual.learners[0].curves
    for member, before in zip(found.members, usual.members, strict=True):
        assert member.bundle.digest != before.bundle.digest
        held, other = (load_bundle(x.bundle.folder, x.bundle.digest)[1] for x in (member, before))
        assert int(held.shield.hold) == 9
        jax.tree.map(np.testing.assert_array_equal, held.policy, other.policy)


def test_the_clone_of_the_best_episodes_does_as_those_did(reference: Dataset, tmp_path: Path) -> None:
    """Of every third episode the rewards are higher, and there the actions are others."""
    bounds = reader.StoredDataset.open(reference.store, reference.digest).episodes
    good = np.repeat(np.arange(len(bounds) - 1) % 3 == 0, np.diff(bounds))
    low, high = (np.array(bound) for bound in PLANTS[PLANT].spec.action[2:])
    wanted, other = low + 0.6 * (high - low), low + 0.4 * (high - low)
    mixed = altered(
        reference,
        tmp_path / "mixed",
        rewards=lambda x: x - x.min() + 1000 * good,
        actions=lambda x: np.where(good[:, None], wanted, other),
    )
    share = 0.5 * float(np.mean(np.arange(len(bounds) - 1) % 3 == 0))
    bc: dict[str, Any] = {"algorithm": "bc", "updates": 400, "seeds": 1, "hyperparameters": {"hidden": [8]}}
    learners = {**bc, "best_episodes": share, "beside": [bc]}
    population = train(Home(tmp_path / "home"), reactor_run(train=learners), mixed)
    assert [member.hyperparameters for member in population.members] == [{"best_episodes": share}, {}]
    logs = read_logs(reader.StoredDataset.open(mixed.store, mixed.digest), np.arange(len(bounds) - 1))

    def acts(member: Member) -> npt.NDArray[np.floating]:
        policy = load_bundle(member.bundle.folder, member.bundle.digest)[1].policy
        return (np.asarray(policy_act(policy, logs.transitions.observation)).mean(axis=0) - low) / (high - low)

    best, every = map(acts, population.members)
    np.testing.assert_allclose(best, 0.6, atol=0.02)
    assert np.all(every < 0.55)
    # All see one scale, and the shield of each hands over where its own rows end.
    composites = [load_bundle(m.bundle.folder, m.bundle.digest)[1] for m in population.members]
    for one, other in zip(*(x.policy.normaliser for x in composites), strict=True):
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.any(composites[0].shield.observation_high < composites[1].shield.observation_high)
    # Streamed, the same episodes are learnt from.
    small = {"memory_mb": population.rows * 52 / 8e6}
    little = reactor_run(train={**learners, **small})
    alone = little.model_copy(update={"train": little.train.single_learners()[0]})
    assert training_run(Home(tmp_path / "streamed"), alone, mixed).data.streamed
    streamed = train(Home(tmp_path / "streamed"), little, mixed).members[0]
    np.testing.assert_allclose(acts(streamed), 0.6, atol=0.02)


class _Killed(Exception):
    """Stands for SIGKILL: nothing of ours catches it."""


def kill_training(home: Home, run: OpenedRun, reference: Dataset) -> None:
    """Train, and stop after the first checkpoint."""

    def die(done: int, *_: Any) -> None:
        if done > 0:
            raise _Killed

    with pytest.raises(_Killed):
        train(home, run, reference, die)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_from_its_checkpoint(
    reference: Dataset, undisturbed: Population, tmp_path: Path
) -> None:
    home, told = Home(tmp_path), []
    kill_training(home, reactor_run(), reference)
    found = train(home, reactor_run(), reference, lambda done, *_: told.append(done))
    assert told[0] == 20
    assert found.digest == undisturbed.digest
    with np.load(found.learners[0].curves) as resumed, np.load(undisturbed.learners[0].curves) as whole:
        for name in whole:
            np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)
    # Once more, and nothing is left to do.
    told.clear()
    assert train(home, reactor_run(), reference, lambda done, *_: told.append(done)).digest == found.digest
    assert told == [40]


@pytest.mark.slow
def test_members_in_processes_are_those_of_one_program(
    reference: Dataset, undisturbed: Population, tmp_path: Path
) -> None:
    """To 1e-5 after 40 updates."""
    assert not undisturbed.learners[0].placement.processes
    assert "too few to measure" in undisturbed.learners[0].placement.reason
    apart = train(Home(tmp_path), reactor_run(train={"members": "processes"}), reference)
    assert apart.learners[0].placement == Placement(processes=True, reason="the run's configuration says so")
    with np.load(undisturbed.learners[0].curves) as one, np.load(apart.learners[0].curves) as other:
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=1e-5, err_msg=name)
    for a, b in zip(undisturbed.members, apart.members, strict=True):
        assert (a.seed, a.hyperparameters) == (b.seed, b.hyperparameters)
        pair = [load_bundle(m.bundle.folder, m.bundle.digest)[1].policy for m in (a, b)]
        for x, y in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    # Both know of the same population, whatever the placement.
    assert apart.folder.name == undisturbed.folder.name


@pytest.mark.slow
def test_what_does_not_fit_is_streamed_and_resumed_to_the_bit(
    reference: Dataset, undisturbed: Population, tmp_path: Path
) -> None:
    def die(done: int, *_: Any) -> None:
        if done == 20:
            raise _Killed

    # 500-odd rows of 52 bytes are resident in a megabyte, and four times what 7 kB may hold.
    resident = train(Home(tmp_path / "resident"), reactor_run(train={"memory_mb": 1.0}), reference)
    assert [m.bundle.digest for m in resident.members] == [m.bundle.digest for m in undisturbed.members]
    run = reactor_run(train={"memory_mb": undisturbed.rows * 52 / 4e6, "checkpoint_every": 10})
    streamed = train(Home(tmp_path / "calm"), run, reference)
    assert streamed.rows == undisturbed.rows
    assert streamed.members[0].bundle.digest != undisturbed.members[0].bundle.digest
    with pytest.raises(_Killed):
        train(Home(tmp_path / "wild"), run, reference, die)
    assert train(Home(tmp_path / "wild"), run, reference).digest == streamed.digest


@pytest.mark.slow
def test_a_grid_varies_the_members(reference: Dataset, tmp_path: Path) -> None:
    settings = {"updates": 20, "seeds": 1, "grid": {"alpha": [0.5, 2.5]}}
    found = train(Home(tmp_path), reactor_run(train=settings), reference)
    assert [m.hyperparameters for m in found.members] == [{"alpha": 0.5}, {"alpha": 2.5}]
    assert [m.seed for m in found.members] == [0, 1]
    assert len({m.bundle.digest for m in found.members}) == 2
    # The first has the seed of one that is alone, and another alpha.
    alone = train(Home(tmp_path), reactor_run(train={**settings, "grid": {"alpha": [2.5]}}), reference)
    assert alone.members[0].bundle.digest not in {m.bundle.digest for m in found.members}


def test_what_checkpoints_are_compared_by_counts_where_the_best_ships(reference: Dataset, tmp_path: Path) -> None:
    def key(ships: str, updates: int = 40, **how: object) -> str:
        run = reactor_run(train={"ships": ships, **how}, evaluate={"model_updates": updates})
        return training_run(Home(tmp_path), run, reference).key

    assert key("last", 40) == key("last", 60)
    assert len({key("last", 40), key("best", 40), key("best", 60)}) == 3
    # Which checkpoints there are to compare, and whether of all members or of each, counts only there.
    apart: dict[str, object] = {"members": "processes"}
    assert key("last") == key("last", checkpoint_every=10) == key("last", **apart)
    assert len({key("best"), key("best", checkpoint_every=10), key("best", **apart)}) == 3


def test_a_file_that_a_bundle_lost_is_written_again(tmp_path: Path) -> None:
    home, composite = Home(tmp_path), make_composite(PLANTS[PLANT])
    bundle = keep_bundle(home, composite, PLANT)
    for path in bundle.files():
        content = path.read_bytes()
        path.unlink()
        assert not bundle.complete
        assert keep_bundle(home, composite, PLANT) == bundle
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"algorithm": "dqn"}, ["choose from", "bc", "td3_bc", "'dqn'"]),
        ({"hyperparameters": {"learning_rate": 0.1}}, ["learning_rate", "critic_lr"]),
        ({"hyperparameters": {"critics": 2.5}}, ["critics", "2.5"]),
        ({"grid": {"temperature": [1.0]}}, ["temperature"]),
        ({"grid": {"hidden": [8.0]}}, ["hidden"]),
        ({"devices": 64}, ["train.devices", "64"]),
        ({"precision": "bfloat16"}, ["train.precision", "CPU"]),
    ],
)
def test_what_is_not_known_is_one_sentence(
    reference: Dataset, tmp_path: Path, settings: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(BadInput) as error:
        train(Home(tmp_path), reactor_run(train=settings), reference)
    text = str(error.value)
    assert text.count(". ") == 0
    assert all(name in text for name in named), text
    assert not (tmp_path / "checkpoints").exists()


def test_a_population_that_diverged_is_refused(reference: Dataset, tmp_path: Path) -> None:
    wild = {"hyperparameters": {"critics": 2, "hidden": [8], "critic_lr": 1e30, "actor_lr": 1e30}}
    with pytest.raises(Refused, match=r"every member diverged .*lower the learning rates") as error:
        train(Home(tmp_path), reactor_run(train=wild), reference)
    assert str(error.value).count(". ") == 0
    assert not (tmp_path / "bundles").exists()


def test_what_counts_as_divergence_is_scaled_as_the_rewards_are(reference: Dataset, tmp_path: Path) -> None:
    run = reactor_run(train={"algorithm": "bc", "updates": 20, "seeds": 1, "hyperparameters": {"hidden": [8]}})
    training = training_run(Home(tmp_path), run, reference)
    strict = training._replace(data=training.data._replace(scaling=training.data.scaling._replace(limit=1e-9)))
    with training.data.open(None) as rows:
        with pytest.raises(Diverged, match="every member diverged by update"):
            train_members(strict, rows)
        train_members(training, rows)
    # The same of a training that is over, of which the curves alone tell.
    with pytest.raises(Diverged, match=r"all \d+ members of .* diverged"):
        _trained(strict, 0, None, None)


def test_learners_side_by_side_are_what_they_are_alone(
    reference: Dataset, undisturbed: Population, tmp_path: Path
) -> None:
    """Of three learners one diverges: it costs its own members, and is told; the others' have the same bits."""
    clone = {"algorithm": "bc", "updates": 20, "seeds": 1, "hyperparameters": {"hidden": [8]}}
    wild = {**clone, "hyperparameters": {"hidden": [8], "actor_lr": 1e30}}
    told: list[str] = []
    run = reactor_run(train={"beside": [wild, clone]})
    found = train(Home(tmp_path / "mixed"), run, reference, lambda done, total, unit: told.append(unit))
    assert [(m.index, m.learner, m.row, m.algorithm, m.seed) for m in found.members] == [
        (0, 0, 0, "td3_bc", 0),
        (1, 0, 1, "td3_bc", 1),
        (3, 1, 0, "bc", 0),
    ]
    assert [m.bundle.digest for m in found.members[:2]] == [m.bundle.digest for m in undisturbed.members]
    assert [(one.algorithm, one.updates) for one in found.learners] == [("td3_bc", 40), ("bc", 20)]
    assert len(found.diverged) == 1
    assert "lower the learning rates" in found.diverged[0]
    assert found.found.endswith("; 1 learner(s) diverged")
    assert set(told) == {"updates of td3_bc", "updates of bc"}
    alone = train(Home(tmp_path / "alone"), reactor_run(train=clone), reference)
    assert alone.members[0].bundle.digest == found.members[2].bundle.digest
    # What one learner has learned does not depend on who learns beside it, and is found again.
    fewer = train(Home(tmp_path / "mixed"), reactor_run(train={"beside": [clone]}), reference)
    assert [m.bundle.digest for m in fewer.members] == [m.bundle.digest for m in found.members]
    assert fewer.diverged == ()


@pytest.mark.slow
def test_a_member_that_diverged_is_left_out(reference: Dataset, tmp_path: Path) -> None:
    settings = {"seeds": 1, "grid": {"critic_lr": [3e-4, 1e30]}}
    found = train(Home(tmp_path), reactor_run(train=settings), reference)
    assert [m.hyperparameters for m in found.members] == [{"critic_lr": 3e-4}]


@pytest.mark.slow
def test_the_best_checkpoint_ships_where_the_run_says_so(
    reference: Dataset, undisturbed: Population, tmp_path: Path
) -> None:
    """The same as stopping where the learned model's estimate was highest: at 20 updates, or at the end."""
    half = train(Home(tmp_path / "half"), reactor_run(train={"updates": 20}), reference)
    found = train(Home(tmp_path / "best"), reactor_run(train={"ships": "best", "checkpoint_every": 20}), reference)
    store = reader.StoredDataset.open(reference.store, reference.digest)
    # Those that select a member: the others are for the claim alone.
    select, _ = halves(read_logs(store, store.split(reactor_run().data.held_out)[1]))
    logs = windows(select, PLANTS["chemical_reactor"].spec.horizon)
    policies = {
        name: [load_bundle(m.bundle.folder, m.bundle.digest)[1].policy for m in run.members]
        for name, run in (("half", half), ("whole", undisturbed))
    }
    normaliser = policies["whole"][0].normaliser
    horizon = PLANTS["chemical_reactor"].spec.horizon
    learned = fit_learned_model(reactor_run(), logged_steps(logs, normaliser), normaliser, None, horizon)
    best = max(policies, key=lambda name: learned.best(policies[name]))
    meant = {"half": half, "whole": undisturbed}[best]
    assert [m.bundle.digest for m in found.members] == [m.bundle.digest for m in meant.members]


ONLINE = {"algorithm": "analytic_gradient", "updates": 4, "checkpoint_every": 2, "seeds": 2}
ONLINE_RUN: dict[str, Any] = {"train": {**ONLINE, "hyperparameters": {"episodes": 4, "hidden": [8]}}}


@pytest.fixture(scope="module")
def online(reference: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Population:
    """A population that learned in the simulator."""
    return train(Home(tmp_path_factory.mktemp("online")), reactor_run(**ONLINE_RUN), reference)


@pytest.mark.slow
def test_a_learner_in_the_simulator_is_trained_behind_the_shield_of_the_logs(
    online: Population, undisturbed: Population
) -> None:
    shield = load_bundle(undisturbed.members[0].bundle.folder, undisturbed.members[0].bundle.digest)[1].shield
    assert len({member.bundle.digest for member in online.members}) == 2
    for member in online.members:
        composite = load_bundle(member.bundle.folder, member.bundle.digest)[1]
        assert composite.correction is not None
        for ours, theirs in zip(jax.tree.leaves(composite.shield), jax.tree.leaves(shield), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert online.learners[0].placement.processes is False


@pytest.mark.parametrize(
    ("finite", "gradient", "said"),
    [
        (0.5, 1.0, None),
        (0.49, 1.0, "only 49% of the episodes of tank have a finite gradient"),
        (1.0, 0.0, "the gradient of the return of tank by the actions is 0"),
    ],
)
def test_gradients_of_no_use(finite: float, gradient: float, said: str | None) -> None:
    reason = useless("tank", {"finite": finite, "gradient": gradient})
    assert reason is None if said is None else said in str(reason)


@pytest.mark.slow
def test_a_simulator_without_gradients_is_named(reference: Dataset, tmp_path: Path) -> None:
    training = training_run(Home(tmp_path), reactor_run(**ONLINE_RUN), reference)
    assert training.data.scaling.limit == np.inf
    curves = {name: np.zeros((2, 4)) for name in ("finite", "gradient")}
    with pytest.raises(Diverged, match="analytic_gradient learned nothing, because only 0% of the episodes"):
        _check_gradients(training, curves)


@pytest.mark.slow
def test_a_killed_training_in_the_simulator_resumes_to_the_bit(
    online: Population, reference: Dataset, tmp_path: Path
) -> None:
    home, told = Home(tmp_path), []
    kill_training(home, reactor_run(**ONLINE_RUN), reference)
    found = train(home, reactor_run(**ONLINE_RUN), reference, lambda done, *_: told.append(done))
    assert told == [2, 4]
    assert found.digest == online.digest


@pytest.mark.slow
def test_shield_and_domain_determine_a_training_in_the_simulator(
    online: Population, undisturbed: Population, reference: Dataset, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    for change in ({"shield": {"hold": 9}}, {"certify": {"domain": {"reaction_spread": 0.005}}}):
        key = training_run(home, reactor_run(**ONLINE_RUN, **change), reference).key
        assert key != online.learners[0].key
        assert training_run(home, reactor_run(**change), reference).key == undisturbed.learners[0].key
    assert (
        training_run(home, reactor_run(**ONLINE_RUN, **change), reference).setting.plant.domain.reaction_spread == 0.005
    )


@pytest.mark.slow
def test_a_simulator_that_mispredicts_the_logs_teaches_nothing(
    undisturbed: Population, reference: Dataset, tmp_path: Path
) -> None:
    wrong = SimulatorErrors(signals={"temperature": SignalError(logs=9.0, domain=1.0, spread=1.0)})
    run = reactor_run(**ONLINE_RUN)
    with pytest.raises(Refused, match=r"the simulator mispredicts temperature \(7\.14 of the allowed error\) of"):
        train(Home(tmp_path), run, reference, simulator=wrong)
    both = run.model_copy(update={"train": run.train.model_copy(update={"beside": [reactor_run().train]})})
    found = train(Home(tmp_path), both, reference, simulator=wrong)
    assert [member.bundle.digest for member in found.members] == [m.bundle.digest for m in undisturbed.members]
    assert len(found.diverged) == 1
    right = wrong.model_copy(update={"signals": {"temperature": SignalError(logs=0.9, domain=1.0, spread=1.0)}})
    assert len(train(Home(tmp_path), both, reference, simulator=right).members) == 4
