"""Certify a composite on the simulator: log a numbered attempt, draw the seed, test, sign the certificate."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from configs.code import UserCode
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.panels import unmeasured_limits
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import certify_results
from neorl_core.safety.program import Program, read_program
from neorl_core.types import Plant
from tasks.evaluation.claims import claim_of, claimed_simulator
from tasks.evaluation.episodes import episodes_of
from tasks.evaluation.relowering import Programs, SecondLowering, programs_of
from tasks.evidence.attempts import (
    CERTIFICATES,
    AttemptBody,
    Inputs,
    Outcome,
    ResultBody,
    attempt_alpha,
    certificate_file,
    close_attempt,
    draw_seed,
    find_result,
    lineage_of,
    next_number,
    open_attempt,
    unfinished,
    witnesses_of,
)
from tasks.evidence.certificate import Repeat, make_certificate
from tasks.evidence.claims import Claim, Counts, Materials, Predicate
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.evidence.policies import expires, policy_of
from tasks.files.canonical import digest_json, sha256_hex, write_atomic
from tasks.files.provenance import jax_versions, lock_digest, processor_class
from tasks.files.spec import spec_record
from tasks.gates import may_certify
from tasks.identify import simulator_of
from tasks.models.bundles.bundle import composite_digest, load_bundle, plant_of_bundle
from tasks.models.bundles.manifest import read_manifest, stored_digest
from tasks.models.plants.known import KnownPlant, plant_of
from tasks.references import (
    KNOWN,
    Bundle,
    Certificate,
    Certification,
    Dataset,
    Evaluation,
    Identification,
    Judgement,
    Population,
)
from tasks.stages import effect
from tasks.versions.versions import current

if TYPE_CHECKING:
    from tasks.progress import Report

COUNTED_BY = (
    "neorl_core.safety.certify",
    "neorl_core.safety.composite",
    "neorl_core.safety.program",
    "neorl_core.identify.domain",
    "tasks.evaluation.guarded",
)
"""Modules whose code decides which episodes violate a limit. The plant's own modules are added to this list."""
ANY_DATASET = "none"
"""Stands in place of a dataset's digest if neither a policy nor a simulator's constants were fitted to data."""


def simulator_digest(known: KnownPlant, simulator: Plant) -> str:
    """Return one digest over a simulator's spec, constants and source code."""
    return digest_json([spec_record(simulator.spec), simulator.params._asdict(), known.sources()])


def materials_here(folder: Path, source: UserCode | None, claim: Claim) -> dict[str, str]:
    """Return the digests that a test of this bundle would record on this machine, by their names in a certificate.

    Raises:
        Refused: if the bundle's plant is missing on this machine.
    """
    known = plant_of_bundle(folder, read_manifest(folder), source)
    composite = load_bundle(folder, source=source)[1]
    programs = programs_of(folder, source, claim)
    return {
        "composite": stored_digest(folder),
        "simulator": simulator_digest(known, claimed_simulator(known.simulator(), claim)[0]),
        "shield": composite_digest(composite.shield, known),
        "code": known.sources(*COUNTED_BY),
        "lock": lock_digest(),
        "processor": processor_class(),
        "step": programs.simulator.digest,
        "program": programs.episode.digest,
        "jax": jax_versions(),
    }


@effect()
def certify_fallback(
    home: Home,
    run: OpenedRun,
    fallback: Bundle,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certificate:
    """Certify the tuned controller, which may become champion if the candidate fails a gate."""
    return certify(home, run, fallback, identification=identification, progress=progress)


@effect()
def certify_candidate(
    home: Home,
    run: OpenedRun,
    dataset: Dataset,
    population: Population,
    evaluation: Evaluation,
    screening: Judgement,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certification:
    """Certify the candidate if every earlier gate passed; otherwise return a result without a certificate."""
    if not may_certify(screening.gates):
        return Certification()
    bundle = population.members[evaluation.selected].bundle
    return Certification(certificate=certify(home, run, bundle, dataset.digest, progress, identification))


def certify(
    home: Home,
    run: OpenedRun,
    bundle: Bundle,
    dataset: str = ANY_DATASET,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certificate:
    """Certify a bundle, or return the result of an earlier attempt with the same inputs.

    Args:
        dataset: digest of the training data. Default: the logs that identified the simulator's constants, if any.

    Raises:
        Refused: if the bundle's files do not match the digest, or an earlier certificate's file is missing.
        BadInput: if `certify.max_episodes` is too small to pass the test, even without a violation.
    """
    known_plant = plant_of(run)
    simulator, composite = known_plant.simulator(), load_bundle(bundle.folder, bundle.digest, run.source)[1]
    ledger = Ledger.open(home)
    claim = claim_of(simulator, run, identification)
    dataset = (identification.dataset or dataset) if dataset == ANY_DATASET else dataset
    lineage = lineage_of(claim, ledger.entries())
    code = known_plant.sources(*COUNTED_BY)
    of = [] if claim.identified is None else [claim.identified.model_dump(mode="json")]
    config = digest_json([run.certify.model_dump(mode="json"), claim.domain, code, *of])
    inputs = Inputs(lineage=lineage, composite=bundle.digest, dataset=dataset, config=config)
    known, policy = find_result(ledger.entries(), inputs), policy_of(ledger.entries(), simulator.spec.name)
    expired = known and policy and expires(known, policy.certificate_days) < datetime.now(UTC)
    if known is not None and not expired:
        return _reused(home, ledger, known)
    attempt = unfinished(ledger, inputs, claim)
    if attempt is None:
        number = next_number(ledger.entries(), lineage)
        claim = claim_of(simulator, run, identification, number)
        least = betting_episodes(claim.p0, 0, attempt_alpha(claim.confidence, number))
        if claim.max_episodes < least:
            raise BadInput(
                f"certify.max_episodes is {claim.max_episodes}, but attempt {number} needs at least {least} episodes "
                "without a violation: raise certify.max_episodes (no error probability was spent)"
            )
        attempt = open_attempt(ledger, inputs, claim)
    claim, seed = attempt.body.scope, draw_seed(ledger, attempt)
    with closing(SecondLowering(bundle.folder, run.source, claim)) as second:
        programs = programs_of(bundle.folder, run.source, claim)
        counts = _count(programs, claim, seed, attempt.alpha, progress)
        artifact = programs.episode.serialise(derivatives=True)
        isolation = second.compare(programs)
    materials = Materials(
        dataset=dataset,
        config=config,
        code=code,
        lock=lock_digest(),
        simulator=simulator_digest(known_plant, simulator_of(known_plant, identification)),
        shield=composite_digest(composite.shield, known_plant),
        processor=processor_class(),
        step=programs.simulator.digest,
        program=programs.episode.digest,
        artifact=sha256_hex(artifact),
        isolation=isolation,
        custom_calls=", ".join(programs.episode.custom_calls),
        jax=jax_versions(),
        unmeasured=", ".join(unmeasured_limits(simulator.spec, simulator.drawn)),
    )
    envelope = make_certificate(ledger, attempt.entry, counts, materials)
    path = (
        home.folder("certificates", simulator.spec.name)
        / f"attempt-{attempt.number:04d}-{bundle.digest[:12]}.dsse.json"
    )
    program = write_atomic(artifact_of(path), artifact)
    write_atomic(path, envelope)
    found = Outcome(
        passed=counts.certified,
        claim=claim.lines(
            bundle.digest, materials.simulator, counts.certified, witnesses_of(ledger, attempt), current().texts
        ),
        episodes=counts.episodes,
        violations=counts.violations,
        upper_bound=counts.upper_bound,
        handovers=counts.handovers,
    )
    result = close_attempt(ledger, attempt, found, [artefact(home, path), artefact(home, program)])
    return _certificate(result.read(ResultBody), path, claim.step)


def _reused(home: Home, ledger: Ledger, known: Entry) -> Certificate:
    """Return the certificate of an earlier attempt, which costs no further error probability."""
    result, file = known.read(ResultBody), certificate_file(known)
    path = home.root / (file.path if file else CERTIFICATES)
    if not path.is_file():
        raise Refused(f"the certificate of attempt {result.number} is missing at {path}: restore this file from backup")
    return _certificate(result, path, ledger.entry(result.attempt).read(AttemptBody).scope.step, reused=True)


def artifact_of(certificate: Path) -> Path:
    """Return the path of the program that a certificate is about."""
    return certificate.with_name(certificate.name.removesuffix(".dsse.json") + ".jax")


def _certificate(result: ResultBody, path: Path, step: str, reused: bool = False) -> Certificate:
    return Certificate(
        claim=result.claim,
        passed=result.passed,
        attempt=result.number,
        alpha=result.alpha,
        episodes=result.episodes,
        violations=result.violations,
        upper_bound=result.upper_bound,
        handovers=result.handovers,
        composite=result.composite,
        path=path,
        reused=reused,
        step=step,
    )


def _count(programs: Programs, claim: Claim, seed: bytes, alpha: float, progress: Report | None) -> Counts:
    """Simulate episodes until the test of one attempt passes or reaches the claim's largest number of episodes."""
    limits = programs.episode.exported.out_avals[3].shape[1]
    with episodes_of(claim, programs.episode, programs.arguments, seed) as results:
        for counts in certify_results(
            results, limits, p0=claim.p0, alpha=alpha, max_episodes=claim.max_episodes, batch=claim.batch
        ):
            if progress:
                needed = betting_episodes(claim.p0, counts.violations, alpha)
                progress(counts.episodes, max(min(needed, claim.max_episodes), counts.episodes), "episodes")
    return Counts(**counts._asdict())


def repeat_with(bundle: Path, source: UserCode | None = None, artifact: Path | None = None) -> Repeat:
    """Return a function that repeats a certificate's test on this machine, used by `neorl certificate verify`.

    Args:
        artifact: file of the certified program, which is repeated beside the newly lowered one if it has its digest.

    Returns:
        A function of the certificate's content and the seed, which returns counts by program.
    """

    def repeat(predicate: Predicate, seed: bytes) -> dict[str, Counts]:
        # The test ends earlier or later with another alpha, so the repetition uses the alpha of the attempt.
        claim, alpha = predicate.scope, predicate.attempt.alpha
        programs = programs_of(bundle, source, claim)
        found = {"source": _count(programs, claim, seed, alpha, None)}
        if artifact is not None and artifact.exists() and predicate.materials.artifact:
            stored = programs._replace(episode=_stored_program(artifact, predicate.materials.artifact))
            found["stored program"] = _count(stored, claim, seed, alpha, None)
        return found

    return repeat


def _stored_program(path: Path, digest: str) -> Program:
    """Read a certified program after verifying its digest.

    Raises:
        Refused: if the file is missing or altered, or this version of jax cannot read it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read the program {path} ('{error.strerror}'): restore it from a backup") from error
    if sha256_hex(data) != digest:
        raise Refused(f"{path} has SHA-256 {sha256_hex(data)[:12]}, must be {digest[:12]}: restore it from a backup")
    try:
        return read_program(data)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise Refused(
            f"jax {jax_versions()} cannot read the program {path} ({reason}): install the lock file of the commit that "
            "wrote the certificate"
        ) from error
