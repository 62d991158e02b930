"""What ships: the composite as plain arrays beside one JSON file, verified before it is used.

A bundle is a folder of three files. `composite.npz` holds the arrays, `examples.npz` recorded observations with the
actions the composite answered, `composite.json` (canonical JSON) the structure, the plant's limits, the digests of
the other two and of itself. Loading needs NumPy, JAX and `neorl_core` alone. No pickle anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.code import Described, Origin, Site, SiteOf, UserCode
from configs.errors import Refused
from neorl_core.plants import NAMES
from neorl_core.safety.support import SupportShield
from neorl_core.types import Params, Plant, PlantSpec, Process
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import canonical_json, digest_json, make_folder, sha256_hex, write_atomic
from tasks.files.spec import same_limits, spec_record
from tasks.models.bundles.manifest import (
    ARRAYS,
    EXAMPLES,
    MANIFEST,
    MAX_ARRAY_BYTES,
    SCHEMA,
    Manifest,
    digest_of,
    read_manifest,
)
from tasks.models.bundles.structure import CURE, Arrays, build_composite, flatten, of_process
from tasks.models.plants.known import KnownPlant, plant_named, plant_of_code, plant_of_site, site_record
from tasks.models.user_code.loading import changed, find_installed

if TYPE_CHECKING:
    from neorl_core.safety.composite import Composite

Floats = npt.NDArray[np.floating[Any]]

MAX_EXAMPLES = 10_000


class Examples(NamedTuple):
    """A recorded sequence that the composite answered when its bundle was made."""

    observations: Floats
    """(N, O), physical units."""
    applied: Floats
    """(N, A), the action in force before each observation."""
    actions: Floats
    """(N, A), what was answered."""


def _known(plant: KnownPlant | str) -> KnownPlant:
    return plant_named(plant) if isinstance(plant, str) else plant


def composite_digest(composite: Params, plant: KnownPlant | str) -> str:
    """The name of a composite: SHA-256 over canonical JSON of its structure, array digests and the plant's limits.

    Args:
        composite: policy, shield, fallback and model constants, of numbers and arrays.
        plant: its spec, limits included, is part of what is named, and the digest of its code where it is not ours.
    """
    arrays: Arrays = {}
    structure = flatten(composite, arrays)
    plant = _known(plant)
    return digest_of(plant.spec, structure, arrays, plant.code)


def answers(plant: Plant | Process, composite: Composite, observations: Floats, applied: Floats) -> Floats:
    """What the composite does along a recorded sequence, its memory carried from step to step.

    Args:
        plant: whose fallback and model it is shielded with.
        composite: policy, shield, fallback and model constants.
        observations: (N, O), physical units.
        applied: (N, A), the action in force before each observation.

    Returns:
        actions (N, A), physical units.
    """
    return np.asarray(_runner(plant)(composite, observations, applied))


@cache
def _runner(plant: Plant | Process) -> Any:
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


def _recorded(plant: Plant | Process, composite: Composite) -> tuple[Floats, Floats]:
    """Rows to answer as proof of a good load: 16 starts of the plant, or of a process logged steps."""
    import jax

    from neorl_core.safety.composite import first_applied

    if isinstance(plant, Process):
        observations, applied = np.split(_logged(composite), [plant.spec.observation.size], axis=1)
    else:
        observations = _starts(plant)
        before = jax.vmap(lambda row: first_applied(plant, composite, row))
        applied = np.asarray(jax.jit(before)(np.asarray(observations, np.float32)))
    return np.asarray(observations, np.float32), np.asarray(applied, np.float32)


def _logged(composite: Composite) -> Floats:
    """16 of the logged steps that a process's shield looks through: observations beside actions, physical units."""
    shield = composite.shield
    assert isinstance(shield, SupportShield)
    # What never moved has no scale, and stood at its centre.
    moved = np.where(np.isfinite(shield.scale), shield.references[:16] * shield.scale, 0.0)
    logged: Floats = np.asarray(moved + shield.centre, np.asarray(shield.centre).dtype)
    return logged


@cache
def _starts(plant: Plant) -> Floats:
    import jax

    reset = jax.jit(jax.vmap(lambda key: plant.reset(key, plant.params)[1]))
    return np.asarray(reset(jax.random.split(jax.random.key(0), 16)))


def save_bundle(
    folder: Path,
    composite: Composite,
    plant: KnownPlant | str,
    meta: Mapping[str, str] | None = None,
) -> str:
    """Write a composite as a bundle; the same composite gives the same bytes.

    Args:
        folder: made when absent.
        composite: what was certified.
        plant: what it is for; a name is of one of ours, or of an installed package's.
        meta: digests and names worth carrying along; no part of the composite's digest.

    Returns:
        the composite's digest.

    Raises:
        BadInput: when the composite holds anything but numbers and arrays, or the disk is full.
    """
    plant = _known(plant)
    arrays: Arrays = {}
    structure = flatten(composite, arrays)
    digest = digest_of(plant.spec, structure, arrays, plant.code)
    observations, applied = _recorded(plant.controlled, composite)
    actions = answers(plant.controlled, composite, observations, applied)
    files = {
        ARRAYS: npz_bytes(arrays),
        EXAMPLES: npz_bytes({"actions": actions, "applied": applied, "observations": observations}),
    }
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "plant": spec_record(plant.spec),
        "code": plant.code,
        "digest": digest,
        "structure": structure,
        "files": {name: sha256_hex(data) for name, data in files.items()},
        "meta": dict(meta or {}),
    }
    if not plant.code:
        del manifest["code"]
    if isinstance(plant.source, SiteOf):
        manifest["site"] = site_record(plant.source)
    manifest["sha256"] = digest_json(manifest)
    make_folder(folder)
    for name, data in files.items():
        write_atomic(folder / name, data)
    write_atomic(folder / MANIFEST, canonical_json(manifest))
    return digest


def is_current(folder: Path, plant: KnownPlant) -> bool:
    """Whether a bundle was made for the plant's names, bounds, limits and code as they are, so that it can be run."""
    manifest = read_manifest(folder)
    return same_limits(manifest.spec, plant.spec) and manifest.code == plant.code


def plant_of_bundle(folder: Path, manifest: Manifest, source: Origin | None = None) -> KnownPlant:
    """The plant that a bundle was made for; code of its own is held against the bundle's digest before it is executed.

    Args:
        folder: the bundle, for messages.
        manifest: as `read_manifest` found it.
        source: the plant's code in a project; without it the plant is ours, or an installed package's.

    Raises:
        Refused: when the plant is not known here, or its code is not that with which the bundle was made.
    """
    name = manifest.spec.name
    if manifest.site is not None:
        known = plant_of_site(_site_of_bundle(folder, manifest, source))
        return _same_limits(folder, manifest, known)
    if name not in NAMES and not isinstance(source, UserCode) and of_process(manifest.structure):
        if manifest.code:
            raise Refused(f"expected a process of which there is no code in {folder}, got a digest of some: {CURE}.")
        if isinstance(source, Described) and source.spec != canonical_json(spec_record(manifest.spec)).decode():
            raise Refused(
                f"expected the signals and limits that {folder} was made for, got others in the mapping: retrain."
            )
        return KnownPlant(manifest.spec, None, None)
    if name in NAMES:
        known = plant_named(name)
    else:
        code = source if source is not None else find_installed(name)
        if not isinstance(code, UserCode):
            raise Refused(
                f"expected the code of plant {name[:80]!r}, for which {folder} was made, got none: name its file in "
                "the project, or install the package that offers it."
            )
        if code.digest != manifest.code:
            raise changed(f"plant {name}", manifest.code, code.digest)
        known = plant_of_code(code)
    return _same_limits(folder, manifest, known)


def _site_of_bundle(folder: Path, manifest: Manifest, source: Origin | None) -> SiteOf:
    """The site that a bundle says it is for, with the code of its plant where that is a user's own."""
    held = dict(manifest.site or {})
    code = source.code if isinstance(source, SiteOf) else source
    try:
        expected = str(held.pop("code", ""))
        plant, site = held.pop("plant"), Site(name=manifest.spec.name, **held)
        if expected and code is None:
            code = find_installed(str(plant))
        found = SiteOf(site=site, plant=plant, code=code if expected and isinstance(code, UserCode) else None)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"expected a site of a plant in {folder}, got '{_line(error)}': {CURE}.") from error
    if expected and found.code is None:
        raise Refused(
            f"expected the code of plant {found.plant[:80]!r}, of which {folder} is a site's, got none: name its file "
            "in the project, or install the package that offers it."
        )
    if found.code is not None and found.code.digest != expected:
        raise changed(f"plant {found.plant}", expected, found.code.digest)
    return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _same_limits(folder: Path, manifest: Manifest, known: KnownPlant) -> KnownPlant:
    if not same_limits(known.spec, manifest.spec) or known.code != manifest.code:
        raise Refused(
            f"expected the limits of {known.name} that {folder} was certified with, got others in this version of "
            "the code: retrain, or load it with the version it was made with."
        )
    return known


def load_bundle(
    folder: Path, expected_digest: str | None = None, source: Origin | None = None
) -> tuple[Plant | Process, Composite]:
    """Read a bundle and build its composite, after every digest has been checked.

    Nothing that the files say of themselves is believed before it has been compared: sizes before they are read, shapes
    before they are allocated, structure and shapes before anything computes with them.

    Args:
        folder: the bundle.
        expected_digest: the composite digest that the registry, the ledger or the certificate names.
        source: the plant's code, if a project has its own (`user_code.loading.find_code`).

    Returns:
        (plant, composite), arrays on JAX's default device.

    Raises:
        BadInput: when there is no bundle, or its arrays are no plain arrays.
        Refused: when a file was altered, the digest is another, the plant's limits or code are others, or the
            structure is not that of a composite of the plant.
    """
    manifest = read_manifest(folder)
    known = plant_of_bundle(folder, manifest, source)
    plant = known.controlled
    arrays = read_npz(folder / ARRAYS, MAX_ARRAY_BYTES)
    found = digest_of(known.spec, manifest.structure, arrays, known.code)
    for expected in {manifest.digest, expected_digest or manifest.digest}:
        if found != expected:
            raise Refused(
                f"expected the composite {expected} in {folder}, got {found}: take the bundle from the registry again."
            )
    return plant, build_composite(manifest.structure, arrays, plant)


def load_examples(folder: Path, spec: PlantSpec) -> Examples:
    """The recorded sequence of a bundle.

    Raises:
        BadInput: when it is no archive of plain arrays.
        Refused: when its arrays are others than these three or do not fit the plant.
    """
    arrays = read_npz(folder / EXAMPLES, MAX_ARRAY_BYTES)
    rows = len(np.atleast_1d(arrays.get("observations", np.empty(0))))
    observed, acting = (rows, spec.observation.size), (rows, spec.action.size)
    shapes = {name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"}
    if shapes != {"observations": observed, "applied": acting, "actions": acting} or not 0 < rows <= MAX_EXAMPLES:
        raise Refused(
            f"expected 1 to {MAX_EXAMPLES} observations, applied actions and actions of {spec.name} in "
            f"{folder / EXAMPLES}, got {str(shapes)[:200]}: take the bundle from the registry again."
        )
    return Examples(arrays["observations"], arrays["applied"], arrays["actions"])
