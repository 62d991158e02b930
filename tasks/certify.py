"""Certify a composite on the simulator: log a numbered attempt, draw the seed, test, sign the certificate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.panels import unmeasured_limits
from neorl_core.safety.bounds import betting_episodes
from tasks.evaluation.claims import COUNTED_BY, claim_of, simulator_digest
from tasks.evaluation.relowering import SecondLowering, arguments_file, programs_of
from tasks.evaluation.repetition import artifact_of, count_violations
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
from tasks.evidence.certificate import make_certificate
from tasks.evidence.claims import Materials
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.evidence.policies import expires, policy_of
from tasks.files.canonical import digest_json, sha256_hex, write_atomic
from tasks.files.provenance import jax_versions, lock_digest, processor_class
from tasks.gates import may_certify
from tasks.identify import simulator_of
from tasks.models.bundles.bundle import composite_digest, load_bundle
from tasks.models.plants.known import plant_of
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

ANY_DATASET = "none"
"""Stands in place of a dataset's digest if neither a policy nor a simulator's constants were fitted to data."""


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
    with closing(SecondLowering(bundle.folder, run.source, claim)) as second, ThreadPoolExecutor(1) as beside:
        programs = programs_of(bundle.folder, run.source, claim)
        # Tracing the derivatives takes a second, and compiling the episodes leaves a core idle.
        stored = beside.submit(programs.episode.serialise, derivatives=True)
        counts = count_violations(programs.episode, programs.arguments, claim, seed, attempt.alpha, progress)
        artifact, arguments = stored.result(), arguments_file(programs.arguments)
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
        arguments=sha256_hex(arguments),
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
    kept = [write_atomic(artifact_of(path), artifact), write_atomic(artifact_of(path, ".npz"), arguments)]
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
    result = close_attempt(ledger, attempt, found, [artefact(home, file) for file in (path, *kept)])
    return _certificate(result.read(ResultBody), path, claim.step)


def _reused(home: Home, ledger: Ledger, known: Entry) -> Certificate:
    """Return the certificate of an earlier attempt, which costs no further error probability."""
    result, file = known.read(ResultBody), certificate_file(known)
    path = home.root / (file.path if file else CERTIFICATES)
    if not path.is_file():
        raise Refused(f"the certificate of attempt {result.number} is missing at {path}: restore this file from backup")
    return _certificate(result, path, ledger.entry(result.attempt).read(AttemptBody).scope.step, reused=True)


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
