"""Certify a composite on the simulator: a numbered attempt, a seed drawn after it is logged, a signed certificate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from neorl_core.plants import PLANTS
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import CertificationCounts, certify_batches
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.types import Plant
from tasks.adapters.files.canonical import digest_json, write_atomic
from tasks.adapters.files.provenance import code_digest, lock_digest, processor_class, sources_digest
from tasks.adapters.files.spec import spec_record
from tasks.adapters.ledger.attempts import (
    attempt_alpha,
    close_attempt,
    draw_seed,
    find_result,
    lineage_digest,
    open_attempt,
)
from tasks.adapters.ledger.certificate import Claim, make_certificate
from tasks.adapters.ledger.ledger import Ledger, artefact
from tasks.adapters.models.bundle import composite_digest, load_bundle
from tasks.progress import Report

ANY_DATASET = "none"
"""In place of a dataset's digest where the composite learned nothing from data."""


def claim_of(plant: Plant, run: RunConfig) -> Claim:
    """What the run's configuration asks to be shown for a plant."""
    spec = plant.spec
    unknown = set(run.certify.domain) - set(plant.domain._fields)
    if unknown:
        raise BadInput(
            f"expected certify.domain to name some of {', '.join(plant.domain._fields)}, got '{min(unknown)}': "
            "correct the name."
        )
    domain = {**plant.domain._asdict(), **run.certify.domain}
    name = "standard" if domain == plant.domain._asdict() else f"custom-{digest_json(domain)[:8]}"
    return Claim(
        plant=spec.name,
        phi="; ".join(f"{c.low:g} <= {c.name} <= {c.high:g} {c.unit}" for c in spec.constraints),
        horizon=spec.horizon,
        domain_name=f"domain {spec.name}/{name}",
        domain=domain,
        p0=run.certify.p0,
        confidence=run.certify.confidence,
        max_episodes=run.certify.max_episodes,
    )


def simulator_digest(plant: Plant) -> str:
    """Digest of the simulator that a claim is about: its spec, its constants and its source."""
    return digest_json(
        [spec_record(plant.spec), plant.params._asdict(), sources_digest(PLANTS.module(plant.spec.name))]
    )


def certify(
    home: Home,
    run: RunConfig,
    bundle: Mapping[str, str],
    dataset: str = ANY_DATASET,
    progress: Report | None = None,
) -> dict[str, Any]:
    """Certify a bundle, or find the result of the same attempt.

    Args:
        bundle: {path, digest} of the composite.
        dataset: digest of what it was trained on.
        progress: told of episodes done; the total is what a run without violations needs.

    Returns:
        {path, claim, passed, attempt, alpha, episodes, violations, upper_bound, composite, reused}.

    Raises:
        Refused: when the bundle is not what its digest says.
    """
    plant, composite = load_bundle(Path(bundle["path"]), bundle["digest"])
    ledger = Ledger.open(home)
    claim = claim_of(plant, run)
    lineage = lineage_digest(plant.spec.name, claim.phi, f"{plant.spec.name}.{type(plant.domain).__name__}")
    code = sources_digest("neorl_core.safety.certify", PLANTS.module(plant.spec.name))
    config = digest_json([run.certify.model_dump(mode="json"), claim.domain, code])
    inputs = {"lineage": lineage, "composite": bundle["digest"], "dataset": dataset, "config": config}
    known = find_result(ledger.entries(), **inputs)
    if known is not None:
        path = home.root / known.artefacts[0]["path"]
        if not path.exists():
            raise Refused(
                f"expected the certificate of attempt {known.body['number']} at {path}, got none: restore it."
            )
        return {**known.body["certificate"], "path": str(path), "reused": True}
    number = sum(e.kind == "attempt" and e.body["lineage"] == lineage for e in ledger.entries()) + 1
    least = betting_episodes(claim.p0, 0, attempt_alpha(claim.confidence, number))
    if claim.max_episodes < least:
        raise BadInput(
            f"expected certify.max_episodes of at least {least}, which attempt {number} needs without a violation, "
            f"got {claim.max_episodes}: raise it; nothing was spent."
        )
    attempt = open_attempt(ledger, plant.spec.name, **inputs, confidence=claim.confidence)
    seed = draw_seed(ledger, attempt)
    counts = _count(plant, composite, claim, seed, attempt.alpha, progress)
    materials = {
        "dataset": dataset,
        "config": config,
        "code": code_digest(),
        "lock": lock_digest(),
        "simulator": simulator_digest(plant),
        "shield": composite_digest(composite.shield, plant.spec.name),
        "processor": processor_class(),
    }
    envelope = make_certificate(ledger, attempt, seed, claim, counts._asdict(), materials)
    path = (
        home.folder("certificates", plant.spec.name) / f"attempt-{attempt.number:04d}-{bundle['digest'][:12]}.dsse.json"
    )
    write_atomic(path, envelope)
    summary = {
        "claim": claim.line(bundle["digest"], materials["simulator"], counts.certified),
        "passed": counts.certified,
        "attempt": attempt.number,
        "alpha": attempt.alpha,
        "episodes": counts.episodes,
        "violations": counts.violations,
        "upper_bound": counts.upper_bound,
        "handovers": counts.handovers,
        "composite": bundle["digest"],
    }
    body = {"passed": counts.certified, "certificate": summary}
    close_attempt(ledger, attempt, body, [artefact(home, path)])
    return {**summary, "path": str(path), "reused": False}


def _count(
    plant: Plant, composite: Composite, claim: Claim, seed: bytes, alpha: float, progress: Report | None
) -> CertificationCounts:
    """Run the sequential test of one attempt."""
    batches = certify_batches(
        plant,
        composite_controller(plant),
        composite,
        plant.domain._replace(**claim.domain),
        seed,
        p0=claim.p0,
        alpha=alpha,
        max_episodes=claim.max_episodes,
    )
    for counts in batches:
        if progress:
            needed = betting_episodes(claim.p0, counts.violations, alpha)
            progress(counts.episodes, max(min(needed, claim.max_episodes), counts.episodes), "episodes")
    return counts


def repeat_with(bundle: Path) -> Any:
    """A function that runs a certificate's test again on this machine, for `neorl certificate verify`.

    Args:
        bundle: folder of the certified composite.

    Returns:
        (predicate, seed) -> counts, as `verify_certificate` takes it.
    """
    return partial(_repeat, bundle)


def _repeat(bundle: Path, predicate: Mapping[str, Any], seed: bytes) -> dict[str, Any]:
    claim = Claim(**predicate["scope"])
    plant, composite = load_bundle(bundle)
    # A challenge is an attempt that spends what the certificate's own did.
    return _count(plant, composite, claim, seed, predicate["attempt"]["alpha"], None)._asdict()
