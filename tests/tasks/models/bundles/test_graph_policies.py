"""Graph policies in bundles and policy files: they come back over the layout of their plant, and over no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from neorl_core.networks import Normaliser, Policy, actor_init, make_body, policy_act
from neorl_core.plants.linked import linked
from neorl_core.plants.power_grid import LINKS
from neorl_core.plants.power_grid import PLANT as GRID
from neorl_core.plants.power_grid.feeder import feeder_of
from neorl_core.plants.power_grid.switching import switching_plant
from neorl_core.safety.composite import make_composite
from tasks.files.spec import spec_of_record, spec_record
from tasks.models.bundles.policy_file import MadeBy, load_policy, save_policy
from tasks.models.bundles.structure import Arrays, build_composite, flatten

LINES = tuple((a, b, 0.1, 0.1) for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (1, 3)))
PLANT = switching_plant(feeder_of("ladder", 10.0, LINES, ((1.0, 0.2),) * 3, ties=2), score_range=(-2.0, -1.0))
SPEC = PLANT.spec
MADE_BY = MadeBy("bc")


@pytest.fixture(scope="module")
def policy() -> Policy:
    sizes = SPEC.observation.size, SPEC.action.size
    actor = actor_init(jax.random.key(0), *sizes, (4,), make_body(SPEC, (4,), graph=2))
    return Policy(actor, Normaliser(*(jnp.ones(sizes[i // 2]) for i in range(4))))


def test_a_spec_with_a_layout_comes_back() -> None:
    record = json.loads(json.dumps(spec_record(SPEC)))
    assert spec_of_record(record) == SPEC
    record["layout"]["edge_action"] = [[0, 1, 2, 3, 3]]
    with pytest.raises(ValueError, match="each of the 5 actions must be at exactly one node or edge"):
        spec_of_record(record)
    for name, value in (("edges", [[0, "x"]]), ("flags", [[1]]), ("nodes", True)):
        with pytest.raises(ValueError, match=rf"layout.{name} must"):
            spec_of_record(json.loads(json.dumps(spec_record(SPEC))) | {"layout": record["layout"] | {name: value}})


def test_a_policy_file_holds_the_arrays_and_the_spec_the_layout(policy: Policy, tmp_path: Path) -> None:
    save_policy(tmp_path / "a.npz", policy, SPEC, MADE_BY)
    found = load_policy(tmp_path / "a.npz").policy
    assert jax.tree.structure(found) == jax.tree.structure(policy)
    x = np.random.default_rng(1).normal(size=(3, SPEC.observation.size)).astype(np.float32)
    np.testing.assert_array_equal(policy_act(found, x), policy_act(policy, x))
    save_policy(tmp_path / "b.npz", policy, SPEC._replace(layout=None), MADE_BY)
    with pytest.raises(BadInput, match="a network for different signals"):
        load_policy(tmp_path / "b.npz")


def test_a_bundle_brings_it_back_and_no_other_graph(policy: Policy) -> None:
    arrays: Arrays = {}
    composite = make_composite(PLANT, policy)
    structure = json.loads(json.dumps(flatten(composite, arrays)))
    loaded = build_composite(structure, arrays, PLANT)
    assert jax.tree.structure(loaded) == jax.tree.structure(composite)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(composite), strict=True):
        np.testing.assert_array_equal(one, other)

    def refused(change: Any, arrays: Arrays = arrays) -> None:
        forged = json.loads(json.dumps(structure))
        change(forged["fields"]["policy"]["fields"]["params"]["dict"]["graph"]["dict"])
        with pytest.raises(Refused, match=r"another network|the unused array"):
            build_composite(forged, arrays, PLANT)

    def other_edges(graph: dict[str, Any]) -> None:
        graph["layout"]["fields"]["edges"]["tuple"][0]["tuple"][0]["constant"] = 2

    def text(graph: dict[str, Any]) -> None:
        graph["layout"]["fields"]["nodes"] = {"constant": "4"}

    def an_array(graph: dict[str, Any]) -> None:
        body = graph["actor"]["dict"]["body"]["dict"]["nodes"]["dict"]
        graph["layout"]["fields"]["context"] = {"tuple": [body["bias"]]}
        body["bias"] = {"constant": 0}

    def a_round_less(graph: dict[str, Any]) -> None:
        del graph["actor"]["dict"]["body"]["dict"]["round_1"]

    for change in (other_edges, text, an_array, a_round_less):
        refused(change)
    name = "policy/params/graph/actor/per_edge/kernel"
    refused(lambda graph: None, arrays | {name: np.zeros((5, 1), np.float32)})


def test_a_policy_of_agents_comes_back_with_their_kinds(tmp_path: Path) -> None:
    plant = linked(GRID, LINKS)
    sizes = plant.spec.observation.size, plant.spec.action.size
    actor = actor_init(jax.random.key(0), *sizes, (4,), make_body(plant.spec, (4,), graph=2))
    policy = Policy(actor, Normaliser(*(jnp.ones(sizes[i // 2]) for i in range(4))))
    assert spec_of_record(json.loads(json.dumps(spec_record(plant.spec)))) == plant.spec
    save_policy(tmp_path / "a.npz", policy, plant.spec, MADE_BY)
    found = load_policy(tmp_path / "a.npz").policy
    assert jax.tree.structure(found) == jax.tree.structure(policy)
    arrays: Arrays = {}
    structure = json.loads(json.dumps(flatten(make_composite(plant, policy), arrays)))
    loaded = build_composite(structure, arrays, plant).policy
    for one, other in zip(jax.tree.leaves((found, loaded)), jax.tree.leaves((policy, policy)), strict=True):
        np.testing.assert_array_equal(one, other)
    for kinds in ((0,) * 7, tuple(range(7))):
        other = linked(GRID, LINKS, kinds=kinds)
        save_policy(tmp_path / "b.npz", policy, other.spec, MADE_BY)
        with pytest.raises(BadInput, match="a network for different signals"):
            load_policy(tmp_path / "b.npz")
        with pytest.raises(Refused, match="another network"):
            build_composite(structure, arrays, other)
