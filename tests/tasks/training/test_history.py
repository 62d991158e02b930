"""A run's history from dataset to bundle: policies learn from stacked rows, and their composites stack alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.run import OpenedRun
from flows.preflight import checked_run
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.types import History, Transition
from neorl_core.wrappers.agent import Agent
from tasks.data.store import reader
from tasks.data.store.episodes import read_logs
from tasks.data.store.histories import run_history
from tasks.evaluation.evaluate import evaluate
from tasks.models.bundles.agents import Agent as StoredAgent
from tasks.models.bundles.bundle import answers, composite_digest, load_bundle, load_examples
from tasks.references import Champion, Dataset, Population
from tasks.training.train import fallback_composite, train
from tests.small_data import PLANT, reactor_dataset, reactor_run

SIMULATOR = PLANTS[PLANT]
SPEC = SIMULATOR.spec
HISTORY = {SPEC.observation.names[0]: 2, SPEC.action.names[0]: 3}
BPTT = {"hidden": [8], "model_hidden": [8], "warm_up_updates": 20, "horizon": 5}


def run_of(**settings: Any) -> OpenedRun:
    train = {"algorithm": "bptt", "seeds": 1, "hyperparameters": BPTT}
    return reactor_run(train={**train, **settings}, history=HISTORY)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("history") / "home")


@pytest.fixture(scope="module")
def reference(home: Home) -> Dataset:
    return reactor_dataset(home, home.root.parent, 0.1)


@pytest.fixture(scope="module")
def population(home: Home, reference: Dataset) -> Population:
    return train(home, run_of(), reference)


@pytest.fixture(scope="module")
def composite(population: Population) -> Composite:
    bundle = population.members[0].bundle
    loaded: Composite = load_bundle(bundle.folder, bundle.digest)[1]
    return loaded


@pytest.mark.slow
def test_the_bundle_has_the_history_and_answers_by_it(population: Population, composite: Composite) -> None:
    bundle, acting = population.members[0].bundle, SPEC.action.size
    # The coolant temperature is observed and commanded: what is meant is the command.
    assert composite.history == History((2, 0, 0, 0), (3,))
    assert (SPEC.observation.size, acting) == (4, 1)
    assert composite.policy is not None
    size = SPEC.observation.size
    assert composite.policy.params["Dense_0"]["kernel"].shape[0] == size + 5
    assert composite.policy.normaliser.mean.shape == (size + 5,)
    assert composite.shield.observation_low.shape == (size,)
    assert composite_digest(composite, PLANT) == bundle.digest
    assert composite_digest(composite._replace(history=None), PLANT) != bundle.digest
    examples = load_examples(bundle.folder, SPEC)
    found = answers(SIMULATOR, composite, examples.observations, examples.applied)
    np.testing.assert_array_equal(found, examples.actions)


@pytest.mark.slow
def test_along_every_logged_step_the_controller_sees_what_the_policy_was_trained_on(
    reference: Dataset, composite: Composite
) -> None:
    store = reader.StoredDataset.open(reference.store, reference.digest)
    logs = read_logs(store, store.split(0.3)[0])
    expected = run_history(run_of(), store).stacked(logs).transitions
    controller = composite_controller(SIMULATOR)
    t = logs.transitions

    @jax.jit
    def along(observation: Any, before: Any) -> Any:
        def step(memory: Any, row: Any) -> Any:
            memory, _ = controller.act(composite, memory, *row)
            return memory, memory.seen

        return jax.lax.scan(step, controller.init(composite, observation[0]), (observation, before))[1]

    for begin, end in zip(logs.starts, [*logs.starts[1:], len(t.reward)], strict=True):
        observation, action = (jnp.asarray(x[begin:end]) for x in (t.observation, t.action))
        first = SIMULATOR.applied(observation[0])[None]
        seen = along(observation, jnp.concatenate([first, action[:-1]]))
        np.testing.assert_array_equal(seen, expected.observation[begin:end])
        # What is to be predicted from a row is what is seen at the next.
        same = np.all(t.next_observation[begin : end - 1] == t.observation[begin + 1 : end], axis=1)
        np.testing.assert_array_equal(expected.next_observation[begin : end - 1][same], np.asarray(seen)[1:][same])


@pytest.mark.slow
def test_members_and_a_champion_without_a_history_are_compared(
    home: Home, reference: Dataset, population: Population
) -> None:
    plain = train(home, reactor_run(train={"seeds": 1}), reference).members[0].bundle
    found = evaluate(home, run_of(), reference, population, Champion(digest=plain.digest, bundle=plain))
    assert found.champion_difference is not None
    # Small networks leave the logged steps, and what the logs do not support has no number.
    assert np.isfinite(found.champion_difference.value) == found.supported
    assert np.isfinite(found.members[0].disagreement)
    alone = fallback_composite(home, run_of())
    assert load_bundle(alone.folder, alone.digest)[1].history is None


@pytest.mark.slow
def test_an_agent_keeps_the_history_itself_and_learns_with_it(
    reference: Dataset, population: Population, composite: Composite, tmp_path: Path
) -> None:
    store = reader.StoredDataset.open(reference.store, reference.digest)
    rows: Transition = read_logs(store, store.split(0.3)[0]).transitions
    bundle = population.members[0].bundle
    agent = StoredAgent.load(bundle.folder, bundle.digest, algorithm="bc", hyperparameters={"hidden": [8]})
    controller = composite_controller(SIMULATOR)
    memory = controller.init(composite, jnp.asarray(rows.observation[0]))
    applied = SIMULATOR.applied(jnp.asarray(rows.observation[0]))
    for observation in rows.observation[:3]:
        memory, applied = controller.act(composite, memory, jnp.asarray(observation), applied)
        np.testing.assert_allclose(agent(observation), applied, rtol=1e-6)
    agent.train(rows, updates=10)
    assert agent.history == composite.history
    agent.save(tmp_path / "policy.npz")
    alone = Agent.__call__(StoredAgent.load(tmp_path / "policy.npz"), np.asarray(memory.seen))
    assert alone.shape == (SPEC.action.size,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{temprature: 2}", "got 'temprature'"),
        ("{coolant_temperature: 0}", "must be greater than or equal to 1, got 0"),
        ("{coolant_temperature: 100000}", "got 100000: correct the number"),
    ],
)
def test_a_history_that_the_plant_has_not_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"plant: {PLANT}\nhistory: {text}\n")
    with pytest.raises(BadInput) as error:
        checked_run(config)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
