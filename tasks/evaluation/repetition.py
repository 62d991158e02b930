"""Count the violations of a claim's program, and repeat a certificate's test without executing a plant's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import Refused
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import certify_results
from neorl_core.safety.program import ImpureProgram, Program, check_pure, read_program
from tasks.evaluation.episodes import episodes_of
from tasks.evaluation.relowering import Lowered, as_arrays
from tasks.evidence.certificate import Repeat
from tasks.evidence.claims import Claim, Counts, Predicate
from tasks.files.arrays import read_npz
from tasks.files.canonical import sha256_hex
from tasks.files.provenance import jax_versions, lock_digest, processor_class
from tasks.models.bundles.manifest import ARRAYS, read_manifest, stored_digest

if TYPE_CHECKING:
    from tasks.progress import Report


def artifact_of(certificate: Path, suffix: str = ".jax") -> Path:
    """Return the path of the program that a certificate is about, or with `.npz` of the program's arguments."""
    return certificate.with_name(certificate.name.removesuffix(".dsse.json") + suffix)


def materials_here(folder: Path, lowered: Lowered) -> dict[str, str]:
    """Return the digests that a test of a bundle would record on this machine, by their names in a certificate.

    Args:
        lowered: the claim's programs, lowered in a process of their own.
    """
    here = {"lock": lock_digest(), "processor": processor_class(), "jax": jax_versions()}
    return {"composite": stored_digest(folder), **lowered.materials, **here}


def count_violations(
    episode: Program, arguments: Any, claim: Claim, seed: bytes, alpha: float, progress: Report | None = None
) -> Counts:
    """Simulate episodes until the test of one attempt passes or reaches the claim's largest number of episodes."""
    limits = episode.exported.out_avals[3].shape[1]
    with episodes_of(claim, episode, arguments, seed) as results:
        for counts in certify_results(
            results, limits, p0=claim.p0, alpha=alpha, max_episodes=claim.max_episodes, batch=claim.batch
        ):
            if progress:
                needed = betting_episodes(claim.p0, counts.violations, alpha)
                progress(counts.episodes, max(min(needed, claim.max_episodes), counts.episodes), "episodes")
    return Counts(**counts._asdict())


def repeat_with(bundle: Path, lowered: Lowered, certificate: Path | None = None) -> Repeat:
    """Return a function that repeats a certificate's test on this machine, used by `neorl certificate verify`.

    This process executes programs, never the code of a plant, so that a plant's code cannot change the counts.

    Args:
        lowered: the claim's programs, newly lowered in a process of their own.
        certificate: file of the certificate; the stored program beside it is repeated too.

    Returns:
        A function of the certificate's content and the seed, which returns counts by program.
    """

    def repeat(predicate: Predicate, seed: bytes) -> dict[str, Counts]:
        # The test ends earlier or later with another alpha, so the repetition uses the alpha of the attempt.
        claim, alpha, materials = predicate.scope, predicate.attempt.alpha, predicate.materials
        _check_arguments(lowered.leaves, bundle, claim, "the isolated process")
        fresh, found = _computing(read_program(lowered.stored), "the isolated process"), {}
        if certificate is not None and materials.artifact and artifact_of(certificate).exists():
            program = _stored(artifact_of(certificate), materials.artifact)
            leaves = _stored_arguments(artifact_of(certificate, ".npz"), materials.arguments)
            _check_arguments(leaves, bundle, claim, str(artifact_of(certificate, ".npz")))
            found["stored program"] = count_violations(program, leaves, claim, seed, alpha)
            if _equal(leaves, lowered.leaves) and program.text == fresh.text:
                return found | {"source (the same program)": found["stored program"]}
        return found | {"source": count_violations(fresh, lowered.leaves, claim, seed, alpha)}

    return repeat


def _check_arguments(leaves: Sequence[Any], bundle: Path, claim: Claim, origin: str) -> None:
    """Check that a program's arguments are numbers of a bundle and of a claim's domain, each used once.

    Numbers that fix a program's shape, such as a graph's layout, are no arguments.

    Raises:
        Refused: if they are not.
    """
    numbers = [*read_npz(bundle / ARRAYS).values(), *_constants(read_manifest(bundle).structure)]
    expected = as_arrays([*numbers, *claim.domain.values()])
    given, known = (Counter((a.dtype.str, a.shape, a.tobytes()) for a in arrays) for arrays in (leaves, expected))
    if given - known:
        raise Refused(
            f"{(given - known).total()} arguments of {origin} are not among the {len(expected)} numbers of "
            f"{bundle.name} and of the claim's domain: the code of the plant or the file was changed"
        )


def _constants(structure: Any) -> Iterator[Any]:
    """Yield the plain numbers of a bundle's structure."""
    if isinstance(structure, dict):
        if isinstance(structure.get("constant"), bool | int | float):
            yield structure["constant"]
        structure = [*structure.values()]
    for item in structure if isinstance(structure, list) else ():
        yield from _constants(item)


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _stored_arguments(path: Path, digest: str) -> list[Any]:
    _read(path, digest)
    arrays = read_npz(path)
    return [arrays[name] for name in sorted(arrays)]


def _stored(path: Path, digest: str) -> Program:
    """Read a certified program after verifying its digest.

    Raises:
        Refused: if the file is missing or altered, or this version of jax cannot read it.
    """
    try:
        program = read_program(_read(path, digest))
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise Refused(
            f"jax {jax_versions()} cannot read the program {path} ({reason}): install the lock file of the commit that "
            "wrote the certificate"
        ) from error
    return _computing(program, str(path))


def _computing(program: Program, origin: str) -> Program:
    """Check that a program only computes, because code of a plant may have written the program.

    Raises:
        Refused: if the program does more.
    """
    try:
        # Certified programs have derivatives for other users. A rerun never differentiates them.
        return check_pure(program, derivatives=True)
    except ImpureProgram as error:
        raise Refused(f"{origin}: {error}: correct the plant, or install the versions of the certificate") from error


def _read(path: Path, digest: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read {path} ('{error.strerror}'): restore it from a backup") from error
    if sha256_hex(data) != digest:
        raise Refused(f"{path} has SHA-256 {sha256_hex(data)[:12]}, must be {digest[:12]}: restore it from a backup")
    return data
