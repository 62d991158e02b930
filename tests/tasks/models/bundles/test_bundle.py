"""What ships: deterministic bytes, verified before use, the same answers in a fresh process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.plants import PLANTS
from neorl_core.safety.composite import Composite, composite_controller, make_composite
from neorl_core.types import Clock
from tasks.evaluation.servability import check_bundle, serve_check
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import sha256_hex
from tasks.models.bundles.bundle import answers, composite_digest, is_current, load_bundle, save_bundle
from tasks.models.bundles.manifest import ARRAYS, EXAMPLES, MANIFEST, read_manifest
from tasks.models.plants.known import plant_named

NAME = "chemical_reactor"
PLANT = PLANTS[NAME]


def _composite(seed: int = 0) -> Composite:
    spec = PLANT.spec
    middle = [(jnp.asarray(s.low) + jnp.asarray(s.high)) / 2 for s in (spec.observation, spec.action)]
    half = [(jnp.asarray(s.high) - jnp.asarray(s.low)) / 2 for s in (spec.observation, spec.action)]
    params = actor_init(jax.random.key(seed), spec.observation.size, spec.action.size, (8, 8))
    return make_composite(PLANT, Policy(params, Normaliser(middle[0], half[0], middle[1], half[1])))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Composite]:
    """A bundle with a policy, its digest and the composite it was made from."""
    folder = tmp_path_factory.mktemp("bundle")
    composite = _composite()
    return folder, save_bundle(folder, composite, NAME), composite


def _copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_a_bundle_made_under_another_clock_is_current_and_under_other_limits_is_not(tmp_path: Path) -> None:
    known = plant_named(NAME)
    timed = known._replace(spec=PLANT.spec._replace(clock=Clock(PLANT.spec.observation.names[0], 1.0)))
    digest = save_bundle(tmp_path / "timed", _composite(), timed)
    assert is_current(tmp_path / "timed", known)
    assert load_bundle(tmp_path / "timed", digest)[0] is PLANT
    digest = save_bundle(tmp_path / "short", _composite(), known._replace(spec=PLANT.spec._replace(horizon=7)))
    assert not is_current(tmp_path / "short", known)
    with pytest.raises(Refused, match="the limits of"):
        load_bundle(tmp_path / "short", digest)


def test_saving_twice_gives_the_same_bytes_and_loading_the_same_digest(
    saved: tuple[Path, str, Composite], tmp_path: Path
) -> None:
    folder, digest, composite = saved
    assert save_bundle(tmp_path / "again", composite, NAME) == digest
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()
    }
    plant, loaded = load_bundle(folder, digest)
    assert plant is PLANT
    assert composite_digest(loaded, NAME) == digest == composite_digest(composite, NAME)
    assert jax.tree.structure(loaded) == jax.tree.structure(composite)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(composite), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_digest_covers_every_leaf(saved: tuple[Path, str, Composite]) -> None:
    _, digest, composite = saved
    leaves, structure = jax.tree.flatten(composite)
    seen = {digest}
    for i, leaf in enumerate(leaves):
        changed = [*leaves[:i], leaf * 2 + 1, *leaves[i + 1 :]]
        seen.add(composite_digest(jax.tree.unflatten(structure, changed), NAME))
    assert len(seen) == len(leaves) + 1
    assert composite_digest(composite._replace(policy=None), NAME) not in seen
    assert composite_digest(composite, "double_mass") not in seen  # the limits are another plant's


def test_arrays_are_named_by_the_sha256_of_their_bytes(saved: tuple[Path, str, Composite]) -> None:
    folder, _, composite = saved
    with np.load(folder / ARRAYS, allow_pickle=False) as archive:
        kernel = archive["policy/params/Dense_0/kernel"]
    assert kernel.dtype.str == "<f4"
    assert composite.policy is not None
    assert kernel.tobytes() == np.asarray(composite.policy.params["Dense_0"]["kernel"]).tobytes()


def test_any_flipped_byte_is_refused_and_its_file_named(saved: tuple[Path, str, Composite], tmp_path: Path) -> None:
    folder, digest, _ = saved
    copy = _copy(folder, tmp_path / "copy")
    chance = random.Random(0)
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        for at in chance.sample(range(len(whole)), 40):
            altered = bytearray(whole)
            altered[at] ^= 1 << chance.randrange(8)
            path.write_bytes(bytes(altered))
            with pytest.raises(Refused, match=path.name):
                load_bundle(copy, digest)
        path.write_bytes(whole)
    load_bundle(copy, digest)


def test_another_digest_is_refused(saved: tuple[Path, str, Composite]) -> None:
    with pytest.raises(Refused, match=r"has composite .*, but 00"):
        load_bundle(saved[0], "00")


def _rewrite(folder: Path, change: Any) -> None:
    """Alter the manifest and make its own digest fit, as someone who knows the format would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = sha256_hex(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    (folder / MANIFEST).write_text(json.dumps(manifest, sort_keys=True, separators=(",", ":")))


def test_a_consistent_forgery_does_not_have_the_expected_digest(
    saved: tuple[Path, str, Composite], tmp_path: Path
) -> None:
    folder, digest, _ = saved
    forged = save_bundle(tmp_path / "forged", _composite(seed=1), NAME)
    _rewrite(tmp_path / "forged", lambda manifest: manifest.update(digest=digest))
    with pytest.raises(Refused, match=forged):
        load_bundle(tmp_path / "forged", digest)
    copy = _copy(folder, tmp_path / "limits")
    _rewrite(copy, lambda manifest: manifest["plant"]["constraints"][0].update(high=999.0))
    with pytest.raises(Refused, match="limits of chemical_reactor"):
        load_bundle(copy, digest)


def test_a_structure_of_unknown_types_is_refused(saved: tuple[Path, str, Composite], tmp_path: Path) -> None:
    copy = _copy(saved[0], tmp_path / "copy")

    def rename(manifest: dict[str, Any]) -> None:
        manifest["structure"]["type"] = "Popen"
        from tasks.models.bundles.manifest import digest_of

        manifest["digest"] = digest_of(PLANT.spec, manifest["structure"], read_npz(copy / ARRAYS))

    _rewrite(copy, rename)
    with pytest.raises(Refused, match="Popen"):
        load_bundle(copy)


def test_pickled_objects_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="plain arrays only"):
        save_bundle(tmp_path, _composite()._replace(fallback=object()), NAME)
    with pytest.raises(BadInput, match="is not a bundle"):
        read_manifest(tmp_path / "none")
    with pytest.raises(BadInput, match="unknown plant 'reactor'"):
        composite_digest(_composite(), "reactor")


def test_python_numbers_none_and_lists_survive(tmp_path: Path) -> None:
    odd = {"a": [1, 2.5, None], "b": (True, "text"), "c": np.float64(3.0)}
    composite = make_composite(PLANT)._replace(model=PLANT.params)
    digest = save_bundle(tmp_path, composite, NAME)
    assert load_bundle(tmp_path, digest)[1].model == PLANT.params
    assert composite_digest(odd, NAME) == composite_digest(dict(odd), NAME)


def test_answers_follow_the_controller_step_by_step(saved: tuple[Path, str, Composite]) -> None:
    # Second implementation: a Python loop over single steps.
    composite = saved[2]
    controller = composite_controller(PLANT)
    rng = np.random.default_rng(0)
    rows = np.stack([[0.877, 324.5, 300.0, 0.877]] * 16).astype(np.float32)
    rows[:, 1] += rng.normal(size=16).astype(np.float32)
    applied = np.full((16, 1), 300.0, np.float32)
    act = jax.jit(controller.act)
    memory = controller.init(composite, jnp.asarray(rows[0]))
    for t, found in enumerate(answers(PLANT, composite, rows, applied)):
        memory, action = act(composite, memory, jnp.asarray(rows[t]), jnp.asarray(applied[t]))
        np.testing.assert_allclose(found, action, rtol=1e-6)


@pytest.mark.slow
def test_a_fresh_process_serves_the_bundle(saved: tuple[Path, str, Composite]) -> None:
    check = serve_check(saved[0], saved[1], calls=50, budget_us=10e6)
    assert check.passed, check.reasons
    assert check.answers == 16
    assert check.max_error is not None
    assert check.max_error <= check.tolerance == 1e-4
    assert check.latency_us is not None
    assert 0 < check.latency_us.p50 <= check.latency_us.p99 <= check.budget_us


@pytest.mark.slow
def test_a_bundle_that_does_not_load_or_answer_in_time_is_not_servable(
    saved: tuple[Path, str, Composite], tmp_path: Path
) -> None:
    wrong = serve_check(saved[0], "00")
    assert not wrong.passed
    assert "but 00" in wrong.reasons[0]
    late = serve_check(saved[0], saved[1], timeout=0.01)
    assert late.reasons == ("no answer within 0.01 s",)


def test_checking_in_this_process_finds_altered_answers(saved: tuple[Path, str, Composite], tmp_path: Path) -> None:
    found = check_bundle(saved[0], saved[1], calls=3, budget_us=10e6)
    assert found.max_error == pytest.approx(0.0, abs=1e-5)
    other = tmp_path / "other"
    save_bundle(other, saved[2], NAME)
    examples = read_npz(other / EXAMPLES)
    examples["actions"] = examples["actions"] + 1.0
    (other / EXAMPLES).write_bytes(npz_bytes(examples))
    _rewrite(other, lambda m: m["files"].update({EXAMPLES: sha256_hex((other / EXAMPLES).read_bytes())}))
    half_range = (PLANT.spec.action.high[0] - PLANT.spec.action.low[0]) / 2
    assert check_bundle(other, None, calls=3, budget_us=10e6).max_error == pytest.approx(1 / half_range, rel=1e-4)
