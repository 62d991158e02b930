"""What a certificate claims of a plant, and the simulator that it is about."""

from __future__ import annotations

from configs.errors import BadInput, Refused
from configs.run import OpenedRun
from neorl_core.identify.domain import drawing_plant, replaced_fields
from neorl_core.identify.unknowns import Unknown
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import BATCH
from neorl_core.types import Params, Plant
from tasks.evaluation.guarded import SECONDS
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.claims import Claim, DrawnConstant, IdentifiedFrom
from tasks.files.canonical import digest_json
from tasks.references import KNOWN, Identification

ROOM = 10
"""Violations for which there is room where a run does not say how many episodes there may be."""


def claim_of(plant: Plant, run: OpenedRun, identification: Identification = KNOWN, attempt: int = 1) -> Claim:
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
