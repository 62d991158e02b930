"""Bundles: composites on disk as plain arrays and one JSON file, verified before use.

A bundle is a folder of three files. `composite.npz` has the arrays. `examples.npz` has recorded observations and
actions. `composite.json` has the structure, the plant's limits, and the digests of all files. Loading needs no pickle.
"""

from __future__ import annotations

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
    """Recorded observations, and the actions that the composite gave when the bundle was written."""

    observations: Floats
    """(N, O), physical units."""
    applied: Floats
    """(N, A), the action applied before each observation."""
    actions: Floats
    """(N, A), the composite's actions."""


def _known(plant: KnownPlant | str) -> KnownPlant:
    return plant_named(plant) if isinstance(plant, str) else plant


def composite_digest(composite: Params, plant: KnownPlant | str) -> str:
    """Return the digest of a composite: SHA-256 over canonical JSON of structure, array digests and the plant's spec.

    Args:
        plant: the plant; the digest covers its spec with limits and the digest of its user code.
    """
    arrays: Arrays = {}
    structure = flatten(composite, arrays)
    plant = _known(plant)
    return digest_of(plant.spec, structure, arrays, plant.code)


def answers(plant: Plant | Process, composite: Composite, observations: Floats, applied: Floats) -> Floats:
    """Return the composite's actions along a recorded sequence; the composite's memory passes from step to step.

    Args:
        observations: (N, O), physical units.
        applied: (N, A), the action applied before each observation.

    Returns:
        Actions (N, A), physical units.
    """
    return np.asarray(_runner(plant)(composite, observations, applied))


@cache
def _runner(plant: Plant | Process) -> Any:
    """Compile once for all composites of a plant with the same array shapes."""
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
    """Return inputs for checking a loaded bundle: 16 initial states, or 16 logged steps of a log-only plant."""
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
    """Return 16 logged steps of a log-only plant's shield: observations and actions, physical units."""
    shield = composite.shield
    assert isinstance(shield, SupportShield)
    # A constant signal has no scale and equals its centre.
    moved = np.where(np.isfinite(shield.scale), shield.references[:16] * shield.scale, 0.0)
    logged: Floats = np.asarray(moved + shield.centre, np.asarray(shield.centre).dtype)
    return logged


@cache
def _starts(plant: Plant) -> Floats:
    import jax

    reset = jax.jit(jax.vmap(lambda key: plant.reset(key, plant.params)[1]))
    return np.asarray(reset(jax.random.split(jax.random.key(0), 16)))


def save_bundle(folder: Path, composite: Composite, plant: KnownPlant | str) -> str:
    """Write a composite as a bundle and return its digest; the same composite gives the same bytes.

    Raises:
        BadInput: if the composite contains anything but numbers and arrays, or the disk is full.
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
        "meta": {},
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
    """Return whether a bundle can run: whether it has the plant's current names, bounds, limits and code."""
    manifest = read_manifest(folder)
    return same_limits(manifest.spec, plant.spec) and manifest.code == plant.code


def plant_of_bundle(folder: Path, manifest: Manifest, source: Origin | None = None) -> KnownPlant:
    """Find a bundle's plant. The digest of user code is checked before the code is executed.

    Args:
        source: the plant's code in a project; None if the plant is built in or installed.

    Raises:
        Refused: if the plant is unknown here, or its code differs.
    """
    name = manifest.spec.name
    if manifest.site is not None:
        known = plant_of_site(_site_of_bundle(folder, manifest, source))
        return _same_limits(folder, manifest, known)
    if name not in NAMES and not isinstance(source, UserCode) and of_process(manifest.structure):
        if manifest.code:
            raise Refused(f"{folder}, of a log-only plant, must not have a code digest {manifest.code[:12]}: {CURE}")
        if isinstance(source, Described) and source.spec != canonical_json(spec_record(manifest.spec)).decode():
            raise Refused(f"signals or limits of {name[:80]!r} in the mapping differ from those of {folder}: retrain")
        return KnownPlant(manifest.spec, None, None)
    if name in NAMES:
        known = plant_named(name)
    else:
        code = source if source is not None else find_installed(name)
        if not isinstance(code, UserCode):
            raise Refused(
                f"the code of plant {name[:80]!r}, which {folder} needs, is missing: name its file in the project, or "
                "install its package"
            )
        if code.digest != manifest.code:
            raise changed(f"plant {name}", manifest.code, code.digest)
        known = plant_of_code(code)
    return _same_limits(folder, manifest, known)


def _site_of_bundle(folder: Path, manifest: Manifest, source: Origin | None) -> SiteOf:
    held = dict(manifest.site or {})
    code = source.code if isinstance(source, SiteOf) else source
    try:
        expected = str(held.pop("code", ""))
        plant, site = held.pop("plant"), Site(name=manifest.spec.name, **held)
        if expected and code is None:
            code = find_installed(str(plant))
        found = SiteOf(site=site, plant=plant, code=code if expected and isinstance(code, UserCode) else None)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{folder} has no valid site, got '{_line(error)}': {CURE}") from error
    if expected and found.code is None:
        raise Refused(
            f"the code of plant {found.plant[:80]!r}, which the site in {folder} needs, is missing: name its file in "
            "the project, or install its package"
        )
    if found.code is not None and found.code.digest != expected:
        raise changed(f"plant {found.plant}", expected, found.code.digest)
    return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _same_limits(folder: Path, manifest: Manifest, known: KnownPlant) -> KnownPlant:
    if not same_limits(known.spec, manifest.spec) or known.code != manifest.code:
        raise Refused(
            f"the limits of {known.name} in this version differ from those of {folder}: retrain, or load the bundle "
            "with the version that wrote it"
        )
    return known


def load_bundle(
    folder: Path, expected_digest: str | None = None, source: Origin | None = None
) -> tuple[Plant | Process, Composite]:
    """Read a bundle and build its composite, after checking every digest.

    Files are not trusted: sizes are checked before reading, shapes before allocation, structure before computation.

    Args:
        expected_digest: digest of the composite, from registry, ledger or certificate.

    Returns:
        (plant, composite), arrays on JAX's default device.

    Raises:
        BadInput: if there is no bundle, or it contains anything but plain arrays.
        Refused: if a file was altered, the digest, limits or code differ, or the structure does not fit the plant.
    """
    manifest = read_manifest(folder)
    known = plant_of_bundle(folder, manifest, source)
    plant = known.controlled
    arrays = read_npz(folder / ARRAYS, MAX_ARRAY_BYTES)
    found = digest_of(known.spec, manifest.structure, arrays, known.code)
    for expected in {manifest.digest, expected_digest or manifest.digest}:
        if found != expected:
            raise Refused(f"{folder} has composite {found}, but {expected} is required: {CURE}")
    return plant, build_composite(manifest.structure, arrays, plant)


def load_examples(folder: Path, spec: PlantSpec) -> Examples:
    """Load the recorded sequence of a bundle.

    Raises:
        BadInput: if the file is no archive of plain arrays.
        Refused: if arrays are missing, unknown, or do not fit the plant.
    """
    arrays = read_npz(folder / EXAMPLES, MAX_ARRAY_BYTES)
    rows = len(np.atleast_1d(arrays.get("observations", np.empty(0))))
    observed, acting = (rows, spec.observation.size), (rows, spec.action.size)
    shapes = {name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"}
    if shapes != {"observations": observed, "applied": acting, "actions": acting} or not 0 < rows <= MAX_EXAMPLES:
        raise Refused(
            f"{folder / EXAMPLES} must have 1 to {MAX_EXAMPLES} observations, applied actions and actions of "
            f"{spec.name}, got {str(shapes)[:200]}: {CURE}"
        )
    return Examples(arrays["observations"], arrays["applied"], arrays["actions"])
