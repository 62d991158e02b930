"""What ships: the composite as plain arrays beside one JSON file, verified before it is used.

A bundle is a folder of three files. `composite.npz` holds the arrays, `examples.npz` recorded observations with the
actions the composite answered, `composite.json` (canonical JSON) the structure, the plant's limits, the digests of
the other two and of itself. Loading needs NumPy, JAX and `neorl_core` alone. No pickle anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.types import Plant, PlantSpec
from tasks.adapters.files.arrays import npz_bytes
from tasks.adapters.files.canonical import canonical_json, digest_json, sha256_hex, write_atomic
from tasks.adapters.files.spec import spec_record

ARRAYS, EXAMPLES, MANIFEST = "composite.npz", "examples.npz", "composite.json"
SCHEMA = "neorl/composite/1"


def _plant(name: str) -> Plant:
    from neorl_core.plants import PLANTS

    if name not in PLANTS:
        raise BadInput(f"expected a plant among {sorted(PLANTS)}, got {name!r}: correct the name.")
    return PLANTS[name]


def _flatten(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Describe a pytree as JSON and collect its arrays under their paths."""
    if node is None or isinstance(node, bool | int | float | str):
        return {"constant": node}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        fields = {name: _flatten(getattr(node, name), f"{path}/{name}", arrays) for name in node._fields}
        return {"type": type(node).__name__, "fields": fields}
    if isinstance(node, Mapping):
        return {"dict": {key: _flatten(node[key], f"{path}/{key}", arrays) for key in sorted(node)}}
    if isinstance(node, tuple | list):
        items = [_flatten(item, f"{path}/{i}", arrays) for i, item in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": items}
    array = np.asarray(node)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"expected a number or an array at {path}, got {type(node).__name__}: ship plain arrays only.")
    name = path.lstrip("/")
    arrays[name] = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    return {"array": name}


def _unflatten(node: Any, arrays: Mapping[str, np.ndarray], types: Mapping[str, Any]) -> Any:
    (kind,) = set(node) - {"fields"}
    value = node[kind]
    if kind == "constant":
        return value
    if kind == "array":
        import jax.numpy as jnp

        return jnp.asarray(arrays[value])
    if kind == "dict":
        return {key: _unflatten(item, arrays, types) for key, item in value.items()}
    if kind in ("tuple", "list"):
        items = [_unflatten(item, arrays, types) for item in value]
        return tuple(items) if kind == "tuple" else items
    if value not in types or set(types[value]._fields) != set(node["fields"]):
        raise Refused(
            f"expected a bundle of a structure this version of neorl_core knows, got the type {value!r} with fields "
            f"{sorted(node['fields'])}: load it with the version it was made with."
        )
    return types[value](**{name: _unflatten(item, arrays, types) for name, item in node["fields"].items()})


def _known_types(plant: Plant) -> dict[str, Any]:
    """The NamedTuples a bundle may hold, by name: a file never says which module to import."""
    from neorl_core.networks import Normaliser, Policy
    from neorl_core.safety.composite import Composite
    from neorl_core.safety.shield import ShieldParams

    types: dict[str, Any] = {kind.__name__: kind for kind in (Composite, Policy, Normaliser, ShieldParams)}
    queue = [plant.params, plant.fallback_params]
    while queue:
        node = queue.pop()
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            types[type(node).__name__] = type(node)
        if isinstance(node, tuple | list):
            queue.extend(node)
        elif isinstance(node, Mapping):
            queue.extend(node.values())
    return types


def _digest(spec: PlantSpec, structure: Any, arrays: Mapping[str, np.ndarray]) -> str:
    leaves = [
        {"path": name, "dtype": array.dtype.str, "shape": list(array.shape), "sha256": sha256_hex(array.tobytes())}
        for name, array in sorted(arrays.items())
    ]
    return digest_json({"schema": SCHEMA, "plant": spec_record(spec), "structure": structure, "leaves": leaves})


def composite_digest(composite: Any, plant_name: str) -> str:
    """The name of a composite: SHA-256 over canonical JSON of its structure, array digests and the plant's limits.

    Args:
        composite: policy, shield, fallback and model constants, of numbers and arrays.
        plant_name: a key of PLANTS; its spec, limits included, is part of what is named.
    """
    arrays: dict[str, np.ndarray] = {}
    structure = _flatten(composite, "", arrays)
    return _digest(_plant(plant_name).spec, structure, arrays)


def answers(plant: Plant, composite: Any, observations: np.ndarray, applied: np.ndarray) -> np.ndarray:
    """What the composite does along a recorded sequence, its memory carried from step to step.

    Args:
        observations: (N, O), physical units.
        applied: (N, A), the action in force before each observation.

    Returns:
        actions (N, A), physical units.
    """
    return np.asarray(_runner(plant)(composite, observations, applied))


@cache
def _runner(plant: Plant) -> Any:
    """Compiled once for all composites of a plant whose arrays have the same shapes."""
    import jax

    from neorl_core.safety.composite import composite_controller

    controller = composite_controller(plant)

    @jax.jit
    def run(composite: Any, observations: Any, applied: Any) -> Any:
        def step(memory: Any, row: Any) -> Any:
            return controller.act(composite, memory, *row)

        return jax.lax.scan(step, controller.init(composite, observations[0]), (observations, applied))[1]

    return run


def _recorded(
    plant: Plant, observations: np.ndarray | None, applied: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to answer as proof of a good load; by default 16 starts of the plant."""
    import jax

    if observations is None:
        observations = _starts(plant)
    if applied is None:
        applied = np.asarray(jax.jit(jax.vmap(plant.applied))(np.asarray(observations, np.float32)))
    return np.asarray(observations, np.float32), np.asarray(applied, np.float32)


@cache
def _starts(plant: Plant) -> np.ndarray:
    import jax

    reset = jax.jit(jax.vmap(lambda key: plant.reset(key, plant.params)[1]))
    return np.asarray(reset(jax.random.split(jax.random.key(0), 16)))


def save_bundle(
    folder: Path,
    composite: Any,
    plant_name: str,
    meta: Mapping[str, Any] | None = None,
    observations: np.ndarray | None = None,
    applied: np.ndarray | None = None,
) -> str:
    """Write a composite as a bundle; the same composite gives the same bytes.

    Args:
        folder: made when absent.
        composite: what was certified.
        plant_name: a key of PLANTS.
        meta: digests and names worth carrying along (JSON); no part of the composite's digest.
        observations: (N, O) recorded sequence to answer as proof of a good load; by default 16 starts.
        applied: (N, A) actions in force before each observation; by default what the observations tell.

    Returns:
        the composite's digest.

    Raises:
        BadInput: when the composite holds anything but numbers and arrays, or the disk is full.
    """
    plant = _plant(plant_name)
    arrays: dict[str, np.ndarray] = {}
    structure = _flatten(composite, "", arrays)
    digest = _digest(plant.spec, structure, arrays)
    observations, applied = _recorded(plant, observations, applied)
    actions = answers(plant, composite, observations, applied)
    files = {
        ARRAYS: npz_bytes(arrays),
        EXAMPLES: npz_bytes({"actions": actions, "applied": applied, "observations": observations}),
    }
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "plant": spec_record(plant.spec),
        "digest": digest,
        "structure": structure,
        "files": {name: sha256_hex(data) for name, data in files.items()},
        "meta": dict(meta or {}),
    }
    manifest["sha256"] = digest_json(manifest)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_atomic(folder / name, data)
    write_atomic(folder / MANIFEST, canonical_json(manifest))
    return digest


def read_manifest(folder: Path) -> dict[str, Any]:
    """A bundle's `composite.json`, checked against its own digest, its canonical form and the files it names.

    Raises:
        BadInput: when there is no bundle.
        Refused: when a byte of any file is not what was written; names the file.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BadInput(f"expected a bundle (a folder with {MANIFEST}) at {folder}, got none: check the path.")
    data = path.read_bytes()
    try:
        manifest = json.loads(data)
        intact = canonical_json(manifest) == data
        claimed = manifest.pop("sha256")
        intact = intact and digest_json(manifest) == claimed and manifest["schema"] == SCHEMA
    except (ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise Refused(f"expected {path} as it was written, got altered bytes: take the bundle from the registry again.")
    for name, expected in manifest["files"].items():
        file = folder / name
        found = sha256_hex(file.read_bytes()) if file.is_file() else "no file"
        if found != expected:
            raise Refused(
                f"expected SHA-256 {expected} of {file}, got {found}: take the bundle from the registry again."
            )
    return manifest


def is_current(folder: Path, plant: Plant) -> bool:
    """Whether a bundle was made for the plant's names, bounds and limits as they are now, so that it can be run."""
    return bool(read_manifest(folder)["plant"] == spec_record(plant.spec))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def load_bundle(folder: Path, expected_digest: str | None = None) -> tuple[Plant, Any]:
    """Read a bundle and build its composite, after every digest has been checked.

    Args:
        folder: the bundle.
        expected_digest: the composite digest that the registry, the ledger or the certificate names.

    Returns:
        (plant, composite), arrays on JAX's default device.

    Raises:
        BadInput: when there is no bundle.
        Refused: when a file was altered, the digest is another, or the plant's limits in the code are others.
    """
    manifest = read_manifest(folder)
    plant = _plant(manifest["plant"]["name"])
    arrays = read_npz(folder / ARRAYS)
    if manifest["plant"] != spec_record(plant.spec):
        raise Refused(
            f"expected the limits of {plant.spec.name} that {folder} was certified with, got others in this version of "
            "the code: retrain, or load it with the version it was made with."
        )
    found = _digest(plant.spec, manifest["structure"], arrays)
    for expected in {manifest["digest"], expected_digest or manifest["digest"]}:
        if found != expected:
            raise Refused(
                f"expected the composite {expected} in {folder}, got {found}: take the bundle from the registry again."
            )
    return plant, _unflatten(manifest["structure"], arrays, _known_types(plant))
