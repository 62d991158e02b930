"""Certify a composite on the simulator: a numbered attempt, a seed drawn after it is logged, a signed certificate."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.code import UserCode
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.identify.domain import drawing_plant, replaced_fields
from neorl_core.identify.unknowns import Unknown
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import BATCH, certify_batches
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.types import Params, Plant
from tasks.adapters.files.canonical import digest_json, write_atomic
from tasks.adapters.files.provenance import lock_digest, processor_class
from tasks.adapters.files.spec import spec_record
from tasks.adapters.ledger.attempts import (
    CERTIFICATES,
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
    witnesses_of,
)
from tasks.adapters.ledger.certificate import Repeat, make_certificate
from tasks.adapters.ledger.claims import Claim, Counts, DrawnConstant, IdentifiedFrom, Materials, Predicate
from tasks.adapters.ledger.ledger import Entry, Ledger, artefact
from tasks.adapters.ledger.policies.policy import expires, policy_of
from tasks.adapters.models.bundle import composite_digest, load_bundle, plant_of_bundle, read_manifest, stored_digest
from tasks.adapters.plants.known import KnownPlant, plant_of
from tasks.evaluation.guarded import SECONDS, guarded
from tasks.gates import may_certify
from tasks.identify import simulator_of
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

if TYPE_CHECKING:
    from tasks.progress import Report

ROOM = 10
"""Violations for which there is room where a run does not say how many episodes there may be."""
COUNTED_BY = (
    "neorl_core.safety.certify",
    "neorl_core.safety.composite",
    "neorl_core.identify.domain",
    "tasks.evaluation.guarded",
)
"""Modules that the counts of a test rest on, besides the plant's."""
ANY_DATASET = "none"
"""Stands for a dataset's digest where the composite learned nothing from data."""


def claim_of(plant: Plant, run: RunConfig, identification: Identification = KNOWN, attempt: int = 1) -> Claim:
    """What the run's configuration asks to be shown for a plant.

    Args:
        plant: with the constants of its file.
        run: its `certify`.
        identification: of the constants that were estimated; the domain draws these from their posterior.
        attempt: number of the attempt, by which it needs more or fewer episodes.

    Raises:
        BadInput: when `certify.domain` names what is none of the domain, or what only spreads a constant that is drawn
            from the posterior, which cannot be overridden.
    """
    spec = plant.spec
    unknown = set(run.certify.domain) - set(plant.domain._fields)
    if unknown:
        raise BadInput(
            f"expected certify.domain to name some of {', '.join(plant.domain._fields)}, got '{min(unknown)}': "
            "correct the name."
        )
    if identification.constants:
        drawn = [Unknown(c.name, 1.0, c.law, entry=c.entry) for c in identification.constants]
        if replaced := sorted(set(run.certify.domain) & set(replaced_fields(plant, drawn))):
            raise BadInput(
                f"expected certify.domain to name what the posterior of {', '.join(map(str, drawn))} does not draw, "
                f"got '{replaced[0]}', which would change nothing: leave it out, or its constant out of 'identify'."
            )
    domain = {**plant.domain._asdict(), **run.certify.domain}
    name = "standard" if domain == plant.domain._asdict() else f"custom-{digest_json(domain)[:8]}"
    identified = None
    if identification.constants:
        name += f" identified from dataset {identification.dataset[:12]}"
        constants = (DrawnConstant(name=c.name, entry=c.entry, law=c.law) for c in identification.constants)
        identified = IdentifiedFrom(dataset=identification.dataset, constants=tuple(constants))
    return Claim(
        plant=spec.name,
        phi="; ".join(f"{c.low:g} <= {c.name} <= {c.high:g} {c.unit}" for c in spec.constraints),
        horizon=spec.horizon,
        family=f"{spec.name}.{type(plant.domain).__name__}",
        domain_name=f"domain {spec.name}/{name}",
        domain=domain | identification.domain,
        identified=identified,
        p0=run.certify.p0,
        confidence=run.certify.confidence,
        max_episodes=run.certify.max_episodes
        or betting_episodes(run.certify.p0, ROOM, attempt_alpha(run.certify.confidence, attempt)),
        batch=BATCH,
        batch_seconds=SECONDS,
    )


def claimed_simulator(plant: Plant, claim: Claim) -> tuple[Plant, Params]:
    """The simulator that a claim is about, and its operating domain, rebuilt from the claim alone.

    Args:
        plant: with the constants of its file.
        claim: whose domain may draw from a posterior.

    Raises:
        Refused: when the claim's domain is not that of the plant and of what the claim says was identified.
    """
    own = set(plant.domain._fields)
    posterior = {name: value for name, value in claim.domain.items() if name not in own}
    drawn = claim.identified.constants if claim.identified else ()
    try:
        if missing := own - set(claim.domain):
            raise ValueError(f"expected a domain with {', '.join(sorted(own))}, got none of '{min(missing)}'")
        # The law says how a draw becomes a constant; the prior's spread has no part in it.
        unknowns = [Unknown(constant.name, 1.0, constant.law, entry=constant.entry) for constant in drawn]
        found = drawing_plant(plant, unknowns, posterior) if unknowns or posterior else plant
    except (ValueError, AttributeError, TypeError) as error:
        raise Refused(f"{error}: use the version of the plant that the certificate is of.") from error
    return found, found.domain._replace(**claim.domain)


def simulator_digest(known: KnownPlant, simulator: Plant) -> str:
    """Digest of the simulator that a claim is about: its spec, its constants and its source."""
    return digest_json([spec_record(simulator.spec), simulator.params._asdict(), known.sources()])


def materials_here(folder: Path, source: UserCode | None, claim: Claim) -> dict[str, str]:
    """Digests of what a test would rest on that is run on this machine, by the names of a certificate's materials.

    Args:
        folder: the certified composite's bundle.
        source: the plant's code, where it is in a project of the user's own.
        claim: the certificate's.

    Raises:
        Refused: when the plant is not here as the bundle needs it.
    """
    known = plant_of_bundle(folder, read_manifest(folder), source)
    composite = load_bundle(folder, source=source)[1]
    return {
        "composite": stored_digest(folder),
        "simulator": simulator_digest(known, claimed_simulator(known.simulator(), claim)[0]),
        "shield": composite_digest(composite.shield, known),
        "code": known.sources(*COUNTED_BY),
        "lock": lock_digest(),
        "processor": processor_class(),
    }


@effect()
def certify_fallback(
    home: Home,
    run: RunConfig,
    fallback: Bundle,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certificate:
    """Certify the plant's own controller by itself, for it stands in where a candidate fails."""
    return certify(home, run, fallback, identification=identification, progress=progress)


@effect()
def certify_candidate(
    home: Home,
    run: RunConfig,
    dataset: Dataset,
    population: Population,
    evaluation: Evaluation,
    screening: Judgement,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certification:
    """Certify the selected member; an attempt is spent only where every gate before it passed.

    Args:
        home: of the ledger.
        run: its `certify`.
        dataset: what the population was trained on.
        population: the members.
        evaluation: which of them was selected.
        screening: the gates before certification.
        progress: told of episodes done.
        identification: of the simulator's constants.
    """
    if not may_certify(screening.gates):
        return Certification()
    bundle = population.members[evaluation.selected].bundle
    return Certification(certificate=certify(home, run, bundle, dataset.digest, progress, identification))


def certify(
    home: Home,
    run: RunConfig,
    bundle: Bundle,
    dataset: str = ANY_DATASET,
    progress: Report | None = None,
    identification: Identification = KNOWN,
) -> Certificate:
    """Certify a bundle, or find the result of the same attempt.

    Args:
        home: of the ledger.
        run: its `certify`.
        bundle: the composite.
        dataset: digest of what it was trained on; where nothing was, that of the logs that constants were
            identified from.
        progress: told of episodes done; the total is what a run without violations needs.
        identification: of the simulator's constants.

    Raises:
        Refused: when the bundle is not what its digest says.
        BadInput: when the test could not pass even without a violation.
    """
    known_plant = plant_of(run)
    plant, composite = known_plant.simulator(), load_bundle(bundle.folder, bundle.digest, run.source)[1]
    ledger = Ledger.open(home)
    claim = claim_of(plant, run, identification)
    dataset = (identification.dataset or dataset) if dataset == ANY_DATASET else dataset
    lineage = lineage_of(claim)
    code = known_plant.sources(*COUNTED_BY)
    of = [] if claim.identified is None else [claim.identified.model_dump(mode="json")]
    config = digest_json([run.certify.model_dump(mode="json"), claim.domain, code, *of])
    inputs = Inputs(lineage=lineage, composite=bundle.digest, dataset=dataset, config=config)
    known, policy = find_result(ledger.entries(), inputs), policy_of(ledger.entries(), plant.spec.name)
    expired = known and policy and expires(known, policy.certificate_days) < datetime.now(UTC)
    if known is not None and not expired:
        return _reused(home, known)
    number = next_number(ledger.entries(), lineage)
    claim = claim_of(plant, run, identification, number)
    least = betting_episodes(claim.p0, 0, attempt_alpha(claim.confidence, number))
    if claim.max_episodes < least:
        raise BadInput(
            f"expected certify.max_episodes of at least {least}, which attempt {number} needs without a violation, "
            f"got {claim.max_episodes}: raise it; nothing was spent."
        )
    attempt = open_attempt(ledger, inputs, claim)
    claim, seed = attempt.body.scope, draw_seed(ledger, attempt)
    counts = _count(plant, composite, claim, seed, attempt.alpha, progress)
    materials = Materials(
        dataset=dataset,
        config=config,
        code=code,
        lock=lock_digest(),
        simulator=simulator_digest(known_plant, simulator_of(known_plant, identification)),
        shield=composite_digest(composite.shield, known_plant),
        processor=processor_class(),
    )
    envelope = make_certificate(ledger, attempt.entry, counts, materials)
    path = home.folder("certificates", plant.spec.name) / f"attempt-{attempt.number:04d}-{bundle.digest[:12]}.dsse.json"
    write_atomic(path, envelope)
    found = Outcome(
        passed=counts.certified,
        claim=claim.lines(bundle.digest, materials.simulator, counts.certified, witnesses_of(ledger, attempt)),
        episodes=counts.episodes,
        violations=counts.violations,
        upper_bound=counts.upper_bound,
        handovers=counts.handovers,
    )
    result = close_attempt(ledger, attempt, found, [artefact(home, path)])
    return _certificate(result.read(ResultBody), path, reused=False)


def _reused(home: Home, known: Entry) -> Certificate:
    """The certificate of an earlier attempt with the same inputs, which spends nothing."""
    result, file = known.read(ResultBody), certificate_file(known)
    path = home.root / (file.path if file else CERTIFICATES)
    if not path.is_file():
        raise Refused(f"expected the certificate of attempt {result.number} at {path}, got none: restore it.")
    return _certificate(result, path, reused=True)


def _certificate(result: ResultBody, path: Path, reused: bool) -> Certificate:
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
    )


def _count(
    plant: Plant, composite: Composite, claim: Claim, seed: bytes, alpha: float, progress: Report | None
) -> Counts:
    """Run the sequential test of one attempt, as anybody can from the claim."""
    simulator, domain = claimed_simulator(plant, claim)
    batches = certify_batches(
        simulator,
        composite_controller(simulator),
        composite,
        domain,
        seed,
        p0=claim.p0,
        alpha=alpha,
        max_episodes=claim.max_episodes,
        batch=claim.batch,
        run=guarded(claim.batch_seconds),
    )
    for counts in batches:
        if progress:
            needed = betting_episodes(claim.p0, counts.violations, alpha)
            progress(counts.episodes, max(min(needed, claim.max_episodes), counts.episodes), "episodes")
    return Counts(**counts._asdict())


def repeat_with(bundle: Path, source: UserCode | None = None) -> Repeat:
    """A function that runs a certificate's test again on this machine, for `neorl certificate verify`.

    Args:
        bundle: folder of the certified composite.
        source: the plant's code, where it is in a project of the user's own.

    Returns:
        (predicate, seed) -> counts, as `verify_certificate` takes it.
    """
    return partial(_repeat, bundle, source)


def _repeat(bundle: Path, source: UserCode | None, predicate: Predicate, seed: bytes) -> Counts:
    plant, composite = load_bundle(bundle, source=source)
    if not isinstance(plant, Plant):
        raise Refused(f"expected a bundle of a simulated plant in {bundle}, got a process's: it has no certificate.")
    # A challenge is an attempt that spends what the certificate's own did.
    return _count(plant, composite, predicate.scope, seed, predicate.attempt.alpha, None)
