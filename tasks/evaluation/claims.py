"""Make the claim of a certificate from a run, and rebuild the claim's simulator to verify the certificate."""

from __future__ import annotations

from configs.errors import BadInput, Refused
from configs.run import OpenedRun
from neorl_core.identify.domain import drawing_plant, replaced_fields
from neorl_core.identify.unknowns import Unknown
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import BATCH
from neorl_core.types import Params, Plant
from tasks.evaluation.guarded import SECONDS
from tasks.evidence.claims import Claim, DrawnConstant, IdentifiedFrom, exact
from tasks.files.canonical import digest_json
from tasks.files.spec import spec_record
from tasks.models.plants.known import KnownPlant
from tasks.models.plants.step import step_digest
from tasks.references import KNOWN, Identification

COUNTED_BY = (
    "neorl_core.safety.certify",
    "neorl_core.safety.composite",
    "neorl_core.safety.program",
    "neorl_core.identify.domain",
    "tasks.evaluation.guarded",
)
"""Modules that decide which episodes violate a limit. The plant's own modules are added to this list."""
ROOM = 10
"""Largest number of violations with which the test can pass at the default number of episodes."""


def claim_of(plant: Plant, run: OpenedRun, identification: Identification = KNOWN, attempt: int = 1) -> Claim:
    """Return the claim that a run asks to certify.

    Args:
        attempt: number of the attempt, which determines the number of episodes.

    Raises:
        BadInput: if `certify.domain` names an unknown field, or a field that the posterior of a constant replaces.
    """
    # Imported late: the second lowering needs no ledger.
    from tasks.evidence.attempts import attempt_alpha

    spec = plant.spec
    unknown = set(run.certify.domain) - set(plant.domain._fields)
    if unknown:
        raise BadInput(
            f"certify.domain has the unknown name '{min(unknown)}': choose from {', '.join(plant.domain._fields)}"
        )
    if identification.constants:
        drawn = [Unknown(c.name, 1.0, c.law, entry=c.entry) for c in identification.constants]
        if replaced := sorted(set(run.certify.domain) & set(replaced_fields(plant, drawn))):
            raise BadInput(
                f"certify.domain sets '{replaced[0]}', but the posterior of {', '.join(map(str, drawn))} replaces it: "
                f"remove '{replaced[0]}' from certify.domain, or the constant from 'identify'"
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
        phi="; ".join(f"{exact(c.low)} <= {c.name} <= {exact(c.high)} {c.unit}" for c in spec.constraints),
        horizon=spec.horizon,
        family=f"{spec.name}.{type(plant.domain).__name__}",
        domain_name=f"domain {spec.name}/{name}",
        domain=domain | identification.domain,
        identified=identified,
        step=step_digest(plant),
        p0=run.certify.p0,
        confidence=run.certify.confidence,
        max_episodes=run.certify.max_episodes
        or betting_episodes(run.certify.p0, ROOM, attempt_alpha(run.certify.confidence, attempt)),
        batch=BATCH,
        batch_seconds=SECONDS,
    )


def claimed_simulator(plant: Plant, claim: Claim) -> tuple[Plant, Params]:
    """Rebuild the simulator and the operating domain of a claim, from the plant and the claim.

    Raises:
        Refused: if the claim's domain does not match the plant and the identified constants.
    """
    own = set(plant.domain._fields)
    posterior = {name: value for name, value in claim.domain.items() if name not in own}
    drawn = claim.identified.constants if claim.identified else ()
    try:
        if missing := own - set(claim.domain):
            raise ValueError(f"the claim's domain has no value for '{min(missing)}'")
        # The spread 1.0 has no effect, because only the law turns a draw into a constant.
        unknowns = [Unknown(constant.name, 1.0, constant.law, entry=constant.entry) for constant in drawn]
        found = drawing_plant(plant, unknowns, posterior) if unknowns or posterior else plant
    except (ValueError, AttributeError, TypeError) as error:
        raise Refused(f"{error}: use the version of the plant that the certificate is for") from error
    return found, found.domain._replace(**claim.domain)


def simulator_digest(known: KnownPlant, simulator: Plant) -> str:
    """Return one digest over a simulator's spec, constants and source code."""
    return digest_json([spec_record(simulator.spec), simulator.params._asdict(), known.sources()])
