"""Safety policies of plants: draft, sign and pin a policy, and check every run against it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from configs.safety_policy import RULE, SafetyPolicy
from configs.strict import Approvers
from configs.yaml_files import load_yaml
from neorl_core.types import Plant
from tasks.evaluation.claims import claim_of
from tasks.evidence.claims import Claim
from tasks.evidence.decisions.champions import champion, restored
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.evidence.people.statement import Signatory
from tasks.evidence.policies import (
    POSTERIOR,
    PolicyBody,
    certified_claims,
    check_pinned,
    expires,
    pinned_file,
    pinned_policy,
    policy_content,
    policy_entry,
    policy_of,
    unmet_requirement,
)
from tasks.evidence.recorded_steps import RecordedSteps, record_file, write_steps
from tasks.files.canonical import file_sha256, write_atomic
from tasks.files.provenance import jax_versions
from tasks.gates import REQUIRED
from tasks.models.plants.known import KnownPlant, plant_of
from tasks.models.plants.step import computed_steps, drawn_inputs, step_digest, step_program
from tasks.references import CandidateRecord, Evidence

FLOOR_P0, FLOOR_CONFIDENCE = 0.1, 0.9
"""Largest p0 and smallest confidence of a policy that NeoRL signs without a person."""
LOWERED_BY = "neorl_core.safety.program"
"""Module that defines the lowered step."""
HEAD = "# A run's YAML may be stricter, never laxer. After a change: neorl policy sign {plant} FILE --why '...'\n"


def draft_of_run(plant: Plant, run: OpenedRun) -> SafetyPolicy:
    """Draft a policy from a run's claim; p0 is at most FLOOR_P0, and confidence at least FLOOR_CONFIDENCE."""
    constants = sorted(run.identify.constants) if run.identify else []
    found = _draft(claim_of(plant, run), run.gates.beat_plant, 0 if run.approval == "auto" else 1, constants)
    return found.model_copy(
        update={
            "p0": min(found.p0, FLOOR_P0),
            "confidence": max(found.confidence, FLOOR_CONFIDENCE),
            "approvers": run.approvers or found.approvers,
        }
    )


def draft_of_champion(entries: Sequence[Entry], plant: str) -> SafetyPolicy | None:
    """Draft a policy that the claim of a plant's champion meets; None without a champion."""
    now = champion(entries, plant)
    claims = certified_claims(entries, plant, now.body["composite"]) if now is not None else []
    if now is None or not claims:
        return None
    by_digest = {entry.digest: entry for entry in entries}
    evidence = by_digest[now.body["candidate"]].read(CandidateRecord).evidence
    claim, persons = claims[-1][1], 0 if by_digest[restored(entries, now).body["approval"]].body["by"] == RULE else 1
    drawn = sorted(_constant(c.name, c.entry) for c in claim.identified.constants) if claim.identified else []
    return _draft(claim, isinstance(evidence, Evidence) and evidence.beat_plant, persons, drawn)


def _draft(claim: Claim, beat_plant: bool, persons: int, identified: list[str]) -> SafetyPolicy:
    return SafetyPolicy(
        plant=claim.plant,
        limits=claim.phi,
        horizon=claim.horizon,
        family=claim.family,
        domain={name: value for name, value in claim.domain.items() if not name.startswith(POSTERIOR)},
        simulator=claim.step,
        identified=identified,
        p0=claim.p0,
        confidence=claim.confidence,
        gates=list(REQUIRED),
        beat_plant=beat_plant,
        approvers=Approvers(count=persons),
    )


def certificate_until(entries: Sequence[Entry], plant: str) -> str:
    """Return the date on which the newest certificate of a plant's champion expires, or an empty string."""
    now, policy = champion(entries, plant), policy_of(entries, plant)
    results = certified_claims(entries, plant, now.body["composite"]) if now else []
    return f"{expires(results[-1][0], policy.certificate_days):%Y-%m-%d}" if policy and results else ""


def _constant(name: str, entry: int | None) -> str:
    return name if entry is None else f"{name}[{entry}]"


def sign(
    ledger: Ledger,
    policy: SafetyPolicy,
    by: str,
    why: str,
    signatories: Sequence[Signatory] = (),
    *,
    renewed: bool = False,
) -> Entry:
    """Log a policy and pin it beside the trust root; a policy that is in force already is only pinned again.

    Args:
        signatories: the persons who sign; if there are none, only the home's key signs.
        renewed: see `PolicyBody.renewed`.
    """
    plant = policy.plant

    def body(history: Sequence[Entry]) -> PolicyBody:
        made = _body(ledger.home, history, policy, by, why, renewed)
        return made.model_copy(update={"signatures": tuple(each.sign(policy_content(made)) for each in signatories)})

    last = policy_entry(ledger.entries(), plant)
    if last is None or policy_of(ledger.entries(), plant) != policy:
        steps = record_file(ledger.home, plant, policy.simulator)
        files = [artefact(ledger.home, steps, "recorded steps")] if steps.is_file() else []
        last = ledger.append("policy", body, plant=plant, artefacts=files)
    _pin(ledger, policy)
    return last


def _pin(ledger: Ledger, policy: SafetyPolicy) -> Path:
    path = pinned_file(ledger.trust, policy.plant)
    if path.parent.parent == ledger.home.root:
        ledger.home.folder(path.parent.name)  # created with mode 0700
    return write_atomic(path, policy_yaml(policy))


def signed_policy(ledger: Ledger, policy: SafetyPolicy, why: str, signatory: Signatory) -> str:
    """Return a person's signed statement on a new policy; `sign` later logs the statements of all signers.

    Args:
        why: reason for the policy; all signers must give the same reason.
    """
    return signatory.sign(policy_content(_body(ledger.home, ledger.entries(), policy, signatory.person, why)))


def _body(
    home: Home, history: Sequence[Entry], policy: SafetyPolicy, by: str, why: str, renewed: bool = False
) -> PolicyBody:
    last, steps = policy_entry(history, policy.plant), record_file(home, policy.plant, policy.simulator)
    return PolicyBody(
        policy=policy,
        by=by,
        why=why,
        replaces=last.digest if last else None,
        recorded=file_sha256(steps) if steps.is_file() else "",
        renewed=renewed,
    )


def record_steps(ledger: Ledger, known: KnownPlant, policy: SafetyPolicy) -> None:
    """Record steps of the simulator that a policy binds, for a later renewal.

    Nothing is recorded if another simulator is installed, or if a signed policy names a record of this simulator.
    """
    plant, path = known.simulator(), record_file(ledger.home, known.name, policy.simulator)
    named = {file.path for entry in ledger.entries("policy", known.name) for file in entry.artefacts}
    if policy.simulator != step_digest(plant) or path.relative_to(ledger.home.root).as_posix() in named:
        return
    inputs, sources = drawn_inputs(plant), known.sources(LOWERED_BY)
    steps = computed_steps(step_program(plant), inputs)
    write_steps(ledger.home, known.name, RecordedSteps(policy.simulator, sources, jax_versions(), inputs, steps))


def policy_yaml(policy: SafetyPolicy) -> bytes:
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 4096
    yaml.dump(policy.model_dump(mode="json"), stream)
    return (HEAD.format(plant=policy.plant) + stream.getvalue()).encode()


def read_policy(path: Path, plant: str) -> SafetyPolicy:
    """Read a plant's policy from a file; raise BadInput if it belongs to another plant."""
    if not path.is_file():
        raise BadInput(f"there is no safety policy at {path}: write one with 'neorl policy draft {plant}'")
    found = load_yaml(path, SafetyPolicy)
    if found.plant != plant:
        raise BadInput(f"the policy in {path} is of {found.plant}, not of {plant}: name {found.plant}, or another file")
    return found


def policy_for(history: Sequence[Entry], run: OpenedRun) -> tuple[SafetyPolicy, str]:
    """Return the policy for a run: the policy in force, else a draft from the champion's claim or the run's claim.

    Returns:
        The policy, and the origin of a draft; the origin is empty if the policy is in force.
    """
    if found := policy_of(history, run.plant):
        return found, ""
    if found := draft_of_champion(history, run.plant):
        return found, "the champion's claim"
    return draft_of_run(plant_of(run).simulator(), run), "the first run's claim"


def hold_run(ledger: Ledger, run: OpenedRun) -> SafetyPolicy | None:
    """Check a run against the plant's policy; if there is no policy, draft and sign a policy.

    Log-only plants have no policy, because nothing is claimed about them.
    """
    if plant_of(run).plant is None:
        return None
    policy, origin = policy_for(ledger.entries(), run)
    if not origin:
        check_pinned(ledger.entries(), ledger.trust, run.plant)
    check_run(policy, run)
    if origin:
        record_steps(ledger, plant_of(run), policy)
        _sign_first(ledger, policy, f"drafted from {origin}, because there was none")
    return policy


def _sign_first(ledger: Ledger, policy: SafetyPolicy, why: str) -> None:
    """Pin a drafted policy, then log it.

    The order matters: if the ledger has a policy and the file is missing, the file was removed, and NeoRL refuses.
    A run that is killed between the two steps leaves a file, which the same run accepts.
    """
    pinned = pinned_policy(ledger.trust, policy.plant)
    if pinned not in (None, policy):
        path = pinned_file(ledger.trust, policy.plant)
        raise Refused(
            f"{path} differs from the policy that this first run drafts: remove the file if a killed run left it, or "
            f"sign it with 'neorl policy sign {policy.plant} {path}'"
        )
    path = _pin(ledger, policy)
    try:
        sign(ledger, policy, by="neorl retrain", why=why)
    except Refused:
        if pinned is None and policy_entry(ledger.entries(), policy.plant) is None:
            path.unlink(missing_ok=True)
        raise


def check_run(policy: SafetyPolicy, run: OpenedRun) -> None:
    """Raise BadInput if a run is laxer than a policy."""
    cure = f"correct the run's file, or change the policy with 'neorl policy draft {run.plant}' and 'neorl policy sign'"
    if fault := unmet_requirement(policy, claim_of(plant_of(run).simulator(), run)):
        raise BadInput(f"{fault} in this run: {cure}")
    constants = sorted(run.identify.constants) if run.identify else []
    if extra := sorted(set(constants) - set(policy.identified)):
        raise BadInput(f"the policy of {run.plant} does not allow '{extra[0]}' under 'identify': {cure}")
    if policy.beat_plant and not run.gates.beat_plant:
        raise BadInput(f"gates.beat_plant must be true (policy of {run.plant}), got false: {cure}")
    if (policy.approvers.count or policy.approvers.roles) and run.approval == "auto":
        raise BadInput(f"approval must be required (policy of {run.plant}), got auto: {cure}")
    if run.approvers is not None and run.approvers != policy.approvers:
        raise BadInput(f"approvers must be {policy.approvers} (policy of {run.plant}), got {run.approvers}: {cure}")
