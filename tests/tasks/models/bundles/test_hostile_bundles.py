"""Bundles made by someone who knows the format: refused in one sentence, in little memory, whatever they claim."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import BadInput, NeoRLError, Refused
from neorl_core.history import stacked_size
from neorl_core.networks import Normaliser, Policy, actor_init
from neorl_core.plants import PLANTS
from neorl_core.recurrent import Recurrence
from neorl_core.safety.composite import Composite, make_composite
from neorl_core.types import History, PlantSpec
from tasks.evaluation.servability import serve_check
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import canonical_json, digest_json, file_sha256
from tasks.models.bundles.bundle import load_bundle, load_examples, save_bundle
from tasks.models.bundles.manifest import ARRAYS, EXAMPLES, MANIFEST, digest_of, read_manifest
from tasks.models.bundles.structure import build_composite, flatten
from tests.limited import read_limited

NAME = "chemical_reactor"
SPEC = PLANTS[NAME].spec
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a small policy."""
    observed, acting = SPEC.observation.size, SPEC.action.size
    normaliser = Normaliser(jnp.zeros(observed), jnp.ones(observed), jnp.zeros(acting), jnp.ones(acting))
    policy = Policy(actor_init(jax.random.key(0), observed, acting, (8, 8)), normaliser)
    folder = tmp_path_factory.mktemp("sound")
    save_bundle(folder, make_composite(PLANTS[NAME], policy), NAME)
    return folder


def sign(folder: Path, manifest: Manifest, spec: PlantSpec = SPEC) -> Path:
    """Write a manifest whose digests all fit what is there, as far as they can be computed."""
    with suppress(NeoRLError, ValueError, KeyError, TypeError, AttributeError):
        manifest["digest"] = digest_of(spec, manifest["structure"], read_npz(folder / ARRAYS))
    with suppress(ValueError, KeyError, TypeError):
        manifest["files"] |= {name: file_sha256(folder / name) for name in (ARRAYS, EXAMPLES)}
    manifest.pop("sha256", None)
    manifest["sha256"] = digest_json(manifest)
    (folder / MANIFEST).write_bytes(canonical_json(manifest))
    return folder


def forged(
    folder: Path,
    source: Path,
    change: Callable[[Manifest], object] | None = None,
    spec: PlantSpec = SPEC,
    **arrays: npt.NDArray[Any] | None,
) -> Path:
    """A copy of a bundle, changed, with digests that fit."""
    shutil.copytree(source, folder)
    if arrays:
        held = read_npz(folder / ARRAYS) | {name.replace("__", "/"): array for name, array in arrays.items()}
        plain = {name: array for name, array in held.items() if array is not None}
        (folder / ARRAYS).write_bytes(npz_bytes(plain))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if change is not None:
        change(manifest)
    return sign(folder, manifest, spec)


def nested(depth: int) -> Any:
    """A structure of tuples within tuples."""
    node: Any = {"constant": 1}
    for _ in range(depth):
        node = {"tuple": [node]}
    return node


def fields(manifest: Manifest, *names: str) -> dict[str, Any]:
    """The fields of a part of the structure."""
    node = manifest["structure"]["fields"]
    for name in names:
        node = node[name]["fields"]
    found: dict[str, Any] = node
    return found


def history(observed: Any, acting: Any) -> Any:
    """The structure of a history, of numbers or of what stands in their place."""

    def node(counts: Any) -> Any:
        return {"tuple": [{"constant": count} for count in counts]} if isinstance(counts, list) else counts

    return {"type": "History", "fields": {"observation": node(observed), "action": node(acting)}}


OBSERVED, ACTING = SPEC.observation.size, SPEC.action.size
CHANGES: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "no structure": (lambda m: m.pop("structure"), "structure"),
    "no plant": (lambda m: m.pop("plant"), "plant"),
    "no plant's name": (lambda m: m["plant"].pop("name"), "spec must have the keys"),
    "a plant's name that is a list": (lambda m: m["plant"].update(name=[]), "name must be text"),
    "a plant that is a list": (lambda m: m.update(plant=[]), "plant"),
    "an unknown plant": (lambda m: m["plant"].update(name="x" * 9000), "the code of plant"),
    "no files": (lambda m: m.pop("files"), "files"),
    "a file elsewhere": (lambda m: m["files"].update({"../../secret": "0" * 64}), "files"),
    "files that are a list": (lambda m: m.update(files=[]), "files"),
    "an unknown key": (lambda m: m.update(module="os"), "module"),
    "meta of objects": (lambda m: m.update(meta={"a": {"b": 1}}), "meta"),
    "another schema": (lambda m: m.update(schema="neorl/composite/9"), "has format .*: upgrade NeoRL"),
    "a structure of two kinds": (lambda m: m["structure"].update(constant=1), "part of a composite"),
    "an empty structure": (lambda m: m.update(structure={}), "part of a composite"),
    "a structure that is a constant": (lambda m: m.update(structure={"constant": 1}), "used"),
    "a type that is a list": (lambda m: m["structure"].update(type=[]), "part of a composite"),
    "a history that its policy has not": (
        lambda m: fields(m).update(history=history([1] * OBSERVED, [0] * ACTING)),
        "another policy",
    ),
    "a history of different signals": (
        lambda m: fields(m).update(history=history([1], [0] * ACTING)),
        "a history of different signals",
    ),
    "a history of nothing": (
        lambda m: fields(m).update(history=history([0] * OBSERVED, [0] * ACTING)),
        "a history of zero or too many steps",
    ),
    "a history without end": (
        lambda m: fields(m).update(history=history([10**9] * OBSERVED, [0] * ACTING)),
        "a history with invalid step counts",
    ),
    "a history of texts": (
        lambda m: fields(m).update(history=history(["x"] * OBSERVED, [0] * ACTING)),
        "a history with invalid step counts",
    ),
    "a history that is a number": (lambda m: fields(m).update(history={"constant": 3}), "another history"),
    "an unknown type": (lambda m: m["structure"].update(type="Popen"), "Popen"),
    "a missing field": (lambda m: fields(m).pop("shield"), "type 'Composite'"),
    "a missing array": (lambda m: fields(m, "shield").update(hold={"array": "none"}), "missing or used twice"),
    "an array twice": (
        lambda m: fields(m, "shield").update(hold={"array": "shield/action_low"}),
        "missing or used twice",
    ),
    "an array unused": (lambda m: fields(m, "shield").update(hold={"constant": 1}), "unused array"),
    "a constant that is a list": (lambda m: fields(m, "shield").update(hold={"constant": []}), "part of a composite"),
    "a deep structure": (lambda m: m.update(structure=nested(40)), "deeper than 32 levels"),
    "a policy in the shield's place": (lambda m: fields(m).update(shield=fields(m)["policy"]), "missing or used twice"),
    "parts exchanged": (lambda m: m.update(structure=fields(m)["policy"]), "unused array"),
}
REPLACED: dict[str, tuple[dict[str, npt.NDArray[Any] | None], str]] = {
    "another depth of network": ({"policy__params__Dense_2__kernel": np.zeros((8, 9), np.float32)}, "another network"),
    "a bias that is a matrix": ({"policy__params__Dense_0__bias": np.zeros((8, 1), np.float32)}, "another network"),
    "a normaliser of another plant": ({"policy__normaliser__mean": np.zeros(9, np.float32)}, "another policy"),
    "a shield of another plant": ({"shield__action_low": np.zeros(9, np.float32)}, "another shield"),
    "margins of no steps": ({"shield__margin_buffer": np.zeros((0, 2), np.float32)}, "another shield"),
    "margins of one dimension": ({"shield__margin_buffer": np.zeros(2, np.float32)}, "another shield"),
    "an array that is missing": ({"shield__hold": None}, "missing or used twice"),
    "an array besides": ({"besides": np.zeros(3, np.float32)}, "unused array"),
}


def constant(value: Any) -> Callable[[Manifest], object]:
    """Replaces the array of a model constant."""

    def change(manifest: Manifest) -> None:
        model = fields(manifest)["model"]
        model["fields"][min(model["fields"])] = {"constant": value}

    return change


def test_forged_bundles_are_refused_in_one_sentence(sound: Path, tmp_path: Path) -> None:
    for what, (change, said) in CHANGES.items():
        with pytest.raises((Refused, BadInput), match=said) as caught:
            load_bundle(forged(tmp_path / what, sound, change))
        assert "\n" not in str(caught.value), what
        assert len(str(caught.value)) < 700, what
    for what, (arrays, said) in REPLACED.items():
        with pytest.raises(Refused, match=said) as caught:
            load_bundle(forged(tmp_path / what, sound, None, **arrays))
        assert "\n" not in str(caught.value), what


def returned(folder: Path, composite: Composite) -> Path:
    """Save a composite, check that it comes back unchanged, and return the folder."""
    _, loaded = load_bundle(folder, save_bundle(folder, composite, NAME))
    assert jax.tree.structure(loaded) == jax.tree.structure(composite)
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(composite), strict=True):
        np.testing.assert_array_equal(one, other)
    return folder


def test_a_recurrent_policy_comes_back_and_reads_no_other_history(tmp_path: Path) -> None:
    given = History((2,) + (0,) * (OBSERVED - 1), (1,) * ACTING)
    seen = stacked_size(given)
    normaliser = Normaliser(jnp.zeros(seen), jnp.ones(seen), jnp.zeros(ACTING), jnp.ones(ACTING))
    actor = actor_init(jax.random.key(0), seen, ACTING, (8,), Recurrence(given, 4))
    composite = make_composite(PLANTS[NAME], Policy(actor, normaliser), history=given)
    sound = returned(tmp_path / "sound", composite)

    def unit(manifest: Manifest) -> dict[str, Any]:
        found: dict[str, Any] = fields(manifest, "policy")["params"]["dict"]["gru"]["dict"]
        return found

    def reading(value: Any) -> Callable[[Manifest], object]:
        return lambda m: unit(m).update(history=value)

    def an_array(manifest: Manifest) -> None:
        place = unit(manifest)["input"]["dict"]
        unit(manifest)["history"] = {
            "type": "History",
            "fields": {"observation": {"tuple": [place["bias"]]}, "action": {"tuple": []}},
        }
        place["bias"] = {"constant": 0}

    others = {
        "shorter": reading(history([1] + [0] * (OBSERVED - 1), [1] * ACTING)),
        "texts": reading(history(["x"] * OBSERVED, [0] * ACTING)),
        "endless": reading(history([10**9] * OBSERVED, [0] * ACTING)),
        "a number": reading({"constant": 3}),
        "an array": an_array,
    }
    for what, change in others.items():
        with pytest.raises(Refused, match="another network"):
            load_bundle(forged(tmp_path / what, sound, change))
    arrays = {"state__bias": (5,), "input__kernel": (3, 12), "state__kernel": (4, 8)}
    for name, shape in arrays.items():
        changed = {f"policy__params__gru__{name}": np.zeros(shape, np.float32)}
        with pytest.raises(Refused, match="another network"):
            load_bundle(forged(tmp_path / name, sound, None, **changed))


def test_a_policy_that_corrects_choices_comes_back_and_fits_no_other_network(tmp_path: Path) -> None:
    # Beside the six signals, the policy sees the choice of the controller, which has no state.
    name, seen, choices = "pumping_station", 7, 4
    normaliser = Normaliser(jnp.zeros(seen), jnp.ones(seen), jnp.zeros(1), jnp.ones(1), jnp.arange(4.0))
    policy = Policy(actor_init(jax.random.key(0), seen, choices, (8,)), normaliser)
    composite = make_composite(PLANTS[name], policy, correction=jnp.full(1, 2.0))
    _, loaded = load_bundle(tmp_path / "sound", save_bundle(tmp_path / "sound", composite, name))
    for one, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(composite), strict=True):
        np.testing.assert_array_equal(one, other)
    arrays: dict[str, Any] = {}
    structure = flatten(composite, arrays)
    last = {"kernel": np.zeros((8, 1), np.float32), "bias": np.zeros(1, np.float32)}
    others = {
        "another correction": {"correction": np.zeros(choices, np.float32)},
        "another network": {f"policy/params/Dense_1/{key}": value for key, value in last.items()},
    }
    for said, changed in others.items():
        assert changed.keys() <= arrays.keys()
        with pytest.raises(Refused, match=said):
            build_composite(structure, arrays | changed, PLANTS[name])


def test_a_correcting_policy_comes_back_and_fits_no_other_inputs(tmp_path: Path) -> None:
    # Beside the observation, the policy sees the three numbers of the controller's state and its action.
    seen = OBSERVED + 3 + ACTING
    normaliser = Normaliser(jnp.zeros(seen), jnp.ones(seen), jnp.zeros(ACTING), jnp.ones(ACTING))
    policy = Policy(actor_init(jax.random.key(0), seen, ACTING, (8,)), normaliser)
    composite = make_composite(PLANTS[NAME], policy, correction=jnp.full(ACTING, 2.0))
    sound = returned(tmp_path / "sound", composite)
    with pytest.raises(Refused, match="another correction"):
        load_bundle(forged(tmp_path / "longer", sound, None, correction=np.zeros(ACTING + 1, np.float32)))
    with pytest.raises(Refused, match="another policy"):
        load_bundle(forged(tmp_path / "fewer", sound, None, policy__normaliser__mean=np.zeros(OBSERVED, np.float32)))
    with pytest.raises(Refused, match="unused array"):
        load_bundle(forged(tmp_path / "none", sound, lambda m: fields(m).pop("correction")))
    alone = tmp_path / "alone"
    save_bundle(alone, make_composite(PLANTS[NAME]), NAME)
    for value in ({"array": "correction"}, history([1] * OBSERVED, [0] * ACTING)):
        change = partial(lambda value, m: fields(m).update(correction=value), value)
        added = {"correction": np.zeros(ACTING, np.float32)} if "array" in value else {}
        with pytest.raises(Refused, match="a correction without a policy"):
            load_bundle(forged(tmp_path / f"alone {sorted(value)}", alone, change, **added))


def test_a_policy_that_moves_set_points_comes_back_and_fits_no_other_plant(tmp_path: Path) -> None:
    plant = PLANTS["supply_chain"]
    # The policy sees the observation and the three orders of the controller, which has no state.
    seen = plant.spec.observation.size + 3
    normaliser = Normaliser(jnp.zeros(seen), jnp.ones(seen), jnp.zeros(3), jnp.full(3, 40.0))
    policy = Policy(actor_init(jax.random.key(0), seen, 3, (8,)), normaliser)
    composite = make_composite(plant, policy, shift=jnp.full(3, 40.0))
    sound = tmp_path / "sound"
    digest = save_bundle(sound, composite, "supply_chain")
    back = load_bundle(sound, digest)[1]
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(composite), strict=True):
        np.testing.assert_array_equal(one, other)
    forge = partial(forged, spec=plant.spec)
    four = np.zeros(4, np.float32)
    with pytest.raises(Refused, match="another shift"):
        load_bundle(forge(tmp_path / "longer", sound, None, shift=four))
    for name, number in {"beyond": 41.0, "infinite": np.inf, "negative": -1.0, "undefined": np.nan}.items():
        with pytest.raises(Refused, match="another shift"):
            load_bundle(forge(tmp_path / name, sound, None, shift=np.full(3, number, np.float32)))
    with pytest.raises(Refused, match="another policy"):
        load_bundle(forge(tmp_path / "range", sound, None, policy__normaliser__action_half_range=four))
    both = forge(
        tmp_path / "both",
        sound,
        lambda m: fields(m).update(correction={"array": "correction"}),
        correction=np.zeros(3, np.float32),
    )
    with pytest.raises(Refused, match="got a shift"):
        load_bundle(both)
    # The reactor's controller has no set points.
    other = returned(tmp_path / "other", make_composite(PLANTS[NAME]))
    added = {"shift": np.zeros(ACTING, np.float32)}
    with pytest.raises(Refused, match="a shift without a policy"):
        load_bundle(forged(tmp_path / "alone", other, lambda m: fields(m).update(shift={"array": "shift"}), **added))
    seen = OBSERVED + 3 + ACTING
    normaliser = Normaliser(jnp.zeros(seen), jnp.ones(seen), jnp.zeros(ACTING), jnp.ones(ACTING))
    policy = Policy(actor_init(jax.random.key(0), seen, ACTING, (8,)), normaliser)
    corrects = returned(tmp_path / "corrects", make_composite(PLANTS[NAME], policy, correction=jnp.full(ACTING, 2.0)))

    def renamed(m: Any) -> None:
        fields(m)["shift"] = fields(m).pop("correction")

    with pytest.raises(Refused, match="got a shift"):
        load_bundle(forged(tmp_path / "renamed", corrects, renamed))


@pytest.mark.parametrize("value", ["text", 2**40, 10**400], ids=["text", "large", "huge"])
def test_constants_that_are_no_numbers_of_a_controller_are_refused(sound: Path, tmp_path: Path, value: Any) -> None:
    first = min(PLANTS[NAME].params._fields)
    with pytest.raises(Refused, match="got the constant"):
        load_bundle(forged(tmp_path / "a", sound, constant(value), **{f"model__{first}": None}))


@pytest.mark.slow
def test_hostile_files_are_refused_in_little_memory(sound: Path, tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(7)]
    for folder in folders:
        shutil.copytree(sound, folder)
    bomb, sparse, deep, brackets, promise, wide, digits = folders
    # Zeros that inflate to half a gigabyte, and digests that fit them.
    np.savez_compressed(bomb / ARRAYS, a=np.zeros(2**27, np.float32))
    sign(bomb, json.loads((sound / MANIFEST).read_bytes()))
    with (sparse / ARRAYS).open("r+b") as file:
        file.truncate(2**40)
    (deep / MANIFEST).write_bytes(b"[" * 100_000 + b"]" * 100_000)
    (brackets / MANIFEST).write_bytes(b"[" + b"[]," * 2_000_000 + b"[]]")
    data = npz_bytes({"a": np.zeros(3, np.float32)}).replace(b"(3,), }" + b" " * 9, b"(20000000,), }  ")
    (promise / ARRAYS).write_bytes(data)
    sign(promise, json.loads((sound / MANIFEST).read_bytes()))
    # One array of 16 MB, named very many times.
    big = read_npz(sound / ARRAYS) | {"shield/hold": np.zeros(2**22, np.float32)}
    (wide / ARRAYS).write_bytes(npz_bytes(big))
    manifest = json.loads((sound / MANIFEST).read_bytes())
    fields(manifest, "shield")["hold"] = {"tuple": [{"array": "shield/hold"}] * 50_000}
    sign(wide, manifest)
    (digits / MANIFEST).write_bytes(b"9" * 4_000_000)
    found = read_limited("tasks.models.bundles.bundle:load_bundle", sound, folders, megabytes=512)
    said = [
        "not a complete|at most 268435456 are read|the limit is 268435456",
        "at most 268435456 are read|the limit is 268435456",
        "was altered",
        "at most 4194304 are read",
        "compressed bytes can contain|CRC",
        "missing or used twice",
        "was altered",
    ]
    for (kind, message), expected in zip(found, said, strict=True):
        assert kind in ("Refused", "BadInput"), (expected, kind, message)
        with pytest.raises(BadInput, match=expected):
            raise BadInput(message)


@pytest.mark.slow
def test_examples_that_do_not_fit_are_refused_and_not_served(sound: Path, tmp_path: Path) -> None:
    held = read_npz(sound / EXAMPLES)
    for i, arrays in enumerate(
        (
            {},
            {"observations": held["observations"]},
            {name: array[:, :0] for name, array in held.items()},
            {name: array[:0] for name, array in held.items()},
            held | {"actions": held["actions"].astype(np.int32)},
            held | {"besides": np.zeros(3)},
        )
    ):
        folder = tmp_path / str(i)
        shutil.copytree(sound, folder)
        (folder / EXAMPLES).write_bytes(npz_bytes(arrays))
        sign(folder, json.loads((sound / MANIFEST).read_bytes()))
        with pytest.raises(Refused, match="observations, applied actions and actions of chemical_reactor"):
            load_examples(folder, SPEC)
    check = serve_check(folder)
    assert [reason for reason in check.reasons if "observations, applied actions" in reason]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**400, -(2**63), 2**31, 0.5, 1e308, "", "x", "array", "Composite", "\ud800", [], {}, [[]]]),
)


def places(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value."""
    found = [path] if path else []
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found += places(item, (*path, key))
    return found


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from(["set", "drop", "add", "move"]), VALUES), min_size=1))
def test_changed_manifests_with_fitting_digests_never_give_anything_but_a_sentence(
    sound: Path, changes: list[tuple[int, str, Any]]
) -> None:
    manifest = json.loads((sound / MANIFEST).read_bytes())
    for number, how, value in changes[:4]:
        known = places(manifest)
        if not known:
            break
        *parents, last = known[number % len(known)]
        node: Any = manifest
        for step in parents:
            node = node[step]
        if how == "drop":
            del node[last]
        elif how == "add" and isinstance(node, dict):
            node[str(value)[:20]] = value
        elif how == "move":
            other = manifest
            for step in known[(number * 7919) % len(known)]:
                other = other[step]
            node[last] = copy.deepcopy(other)
        else:
            node[last] = value
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "a"
        shutil.copytree(sound, folder)
        with suppress(ValueError):  # a lone surrogate cannot be written
            sign(folder, manifest)
        with suppress(Refused, BadInput):
            load_bundle(folder)


@pytest.mark.slow
def test_changed_bytes_never_give_anything_but_a_sentence(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(sound, folder)
    chance = random.Random(0)
    for name in (MANIFEST, ARRAYS, EXAMPLES):
        whole = (folder / name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            (folder / name).write_bytes(data)
            if name != MANIFEST:
                sign(folder, json.loads((sound / MANIFEST).read_bytes()))
            with suppress(Refused, BadInput):
                load_bundle(folder)
                load_examples(folder, SPEC)
        (folder / name).write_bytes(whole)
    shutil.copy(sound / MANIFEST, folder / MANIFEST)
    read_manifest(folder)
