"""Renewal of a safety policy after an upgrade of jax or the compiler alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from configs.errors import BadInput, Refused
from configs.safety_policy import SafetyPolicy
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory
from tasks.evidence.policies import PolicyBody, check_pinned, policy_entry, renewed_policy
from tasks.evidence.recorded_steps import (
    TOLERANCE,
    RecordedSteps,
    largest_difference,
    read_steps,
    same_arrays,
    write_steps,
)
from tasks.files.provenance import jax_versions
from tasks.lifecycle.policy import LOWERED_BY, sign
from tasks.models.plants.known import KnownPlant
from tasks.models.plants.step import computed_steps, drawn_inputs, step_program


class Renewal(NamedTuple):
    """A policy for the same simulator under another version of jax."""

    policy: SafetyPolicy
    before: RecordedSteps
    now: RecordedSteps
    """The same inputs and outputs with the installed software; later renewals compare with the first outputs too."""
    difference: float
    """Largest difference of the outputs; see `recorded_steps.largest_difference`."""


def renewal(ledger: Ledger, known: KnownPlant) -> Renewal:
    """Compare the installed simulator with the recorded steps of the policy in force; nothing is written.

    Raises:
        BadInput: if there is nothing to renew, or nothing to compare with.
        Refused: if more than jax and the compiler changed.
    """
    entry, plant = policy_entry(ledger.entries(), known.name), known.simulator()
    body = entry.read(PolicyBody) if entry else None
    cure = f"review the simulator, then sign a new policy ('neorl policy draft', 'neorl policy sign {known.name} FILE')"
    if body is None or not body.recorded:
        missing = "has no safety policy" if body is None else "has a safety policy without recorded steps"
        raise BadInput(f"{known.name} {missing}, so there is nothing to compare with: {cure}")
    check_pinned(ledger.entries(), ledger.trust, known.name)
    before = read_steps(ledger.home, known.name, body.policy.simulator, body.recorded)
    program, sources = step_program(plant), known.sources(LOWERED_BY)
    if program.digest == before.simulator:
        raise BadInput(f"the policy of {known.name} binds the installed program: nothing to renew")
    domain = {name: value for name, value in drawn_inputs(plant).items() if name.startswith("domain_")}
    if not same_arrays(domain, {name: value for name, value in before.inputs.items() if name.startswith("domain_")}):
        raise Refused(f"the operating domain of {known.name} changed since the policy was signed: {cure}")
    if sources != before.sources:
        raise Refused(
            f"the source of {known.name} changed ({before.sources[:12]} to {sources[:12]}), not only jax: {cure}"
        )
    if (jax := jax_versions()) == before.jax:
        raise Refused(
            f"the program of {known.name} changed, but neither the source nor jax {jax}: the simulator reads other "
            f"inputs, such as a file or the environment; remove them, or {cure}"
        )
    difference = largest_difference(before.outputs, computed_steps(program, before.inputs))
    if not difference <= TOLERANCE:
        raise Refused(
            f"{len(before.inputs['keys'])} recorded steps of {known.name} differ by up to {difference:.3g} of the "
            f"recorded values, more than the rounding of {TOLERANCE:g}: {cure}"
        )
    now = before._replace(simulator=program.digest, jax=jax)
    return Renewal(renewed_policy(body.policy, program.digest), before, now, difference)


def renew(ledger: Ledger, known: KnownPlant, by: str, why: str, signatories: Sequence[Signatory] = ()) -> Entry:
    """Compare as `renewal` does, then log and pin the renewed policy; one person signs."""
    found = renewal(ledger, known)
    write_steps(ledger.home, known.name, found.now)
    return sign(ledger, found.policy, by, why, signatories, renewed=True)
