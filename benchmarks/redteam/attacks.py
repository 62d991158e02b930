"""The attacks, each with the access that it needs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from threading import Event
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks.redteam import beginnings as first
from benchmarks.redteam.stage import Stage, forge, invented
from configs.run import OpenedRun
from configs.safety_policy import RULE, SafetyPolicy
from configs.strict import Approvers
from configs.yaml_files import load_yaml
from neorl_core.plants.base import EpisodeResult, rollouts
from neorl_core.safety.certify import certify_batches
from neorl_core.types import Controller, Plant
from tasks.evaluation.guarded import guarded
from tasks.evidence.attempts import (
    AttemptBody,
    Inputs,
    Outcome,
    ResultBody,
    attempt_alpha,
    draw_seed,
    lineage_of,
    open_attempt,
    seed_file,
)
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import make_certificate, read_certificate, verify_certificate
from tasks.evidence.claims import Claim, Materials, exact
from tasks.evidence.decisions.champions import WithdrawalBody
from tasks.evidence.policies import pinned_file
from tasks.files.canonical import read_secret, sha256_hex
from tasks.gates import judge
from tasks.lifecycle.aliases import wanted_aliases
from tasks.lifecycle.policy import hold_run, policy_yaml, sign
from tasks.models.plants.known import plant_named
from tasks.references import CandidateRecord
from tasks.registry.serving import check_aliases

Power = Literal["home", "key", "MLflow", "YAML"]
"""`home`: files and a running signer; `key`: also the decrypted key; `MLflow`: the login; `YAML`: the file of a run."""

C = "c" * 64
"""Digest of a composite that does not exist."""


class Attack(NamedTuple):
    """An attack on a home that passes the audit."""

    number: str
    """Number in the table; letters distinguish attacks on the same target."""
    name: str
    power: Power
    play: Callable[[Stage], str | None]
    """Make the attack. Return the finding of the audit, or None without a finding; raise the error of a refusal."""


def _weak(stage: Stage) -> Claim:
    return stage.claim.model_copy(update={"p0": 0.99, "confidence": 0.01, "max_episodes": 2})


def _promoted(stage: Stage, claim: Claim, by: str = "Somebody Else", replaces: str | None = "") -> str | None:
    """Ask the signer to certify, log, approve and promote a composite."""
    ledger, now = stage.ledger(), stage.champion.digest
    result = stage.certified(ledger, C, claim)
    record = stage.record(result, now if replaces == "" else replaces)
    candidate = ledger.append("candidate", record, plant=stage.plant)
    approval = ledger.append("approval", stage.approval(candidate, by), plant=stage.plant)
    ledger.append("promotion", stage.promotion(approval, now), plant=stage.plant)
    return None


def lower_the_floor_in_a_run(stage: Stage) -> str | None:
    return _run(stage, {"certify": {"p0": 0.99, "confidence": 0.01, "max_episodes": 2}})


def leave_out_what_a_run_must_show(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"beat_plant": True}), "a reviewer", "it must")
    return _run(stage, {"gates": {"beat_plant": False}, "approval": "required"})


def turn_the_approval_off(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"approvers": Approvers(count=1)}), "a reviewer", "a person")
    return _run(stage, {"approval": "auto", "gates": {"beat_plant": stage.policy.beat_plant}})


def _run(stage: Stage, changes: dict[str, object]) -> str | None:
    hold_run(stage.ledger(), OpenedRun.model_validate({"plant": stage.plant, **changes}))
    return None


def promote_a_weak_claim(stage: Stage) -> str | None:
    return _promoted(stage, _weak(stage))


def let_the_rule_approve_for_a_person(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"approvers": Approvers(count=1)}), "a reviewer", "a person")
    return _promoted(stage, stage.claim, by=RULE)


def approve_twice_as_one(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"approvers": Approvers(count=2)}), "a reviewer", "two")
    return _promoted(stage, stage.claim)


def edit_the_pinned_policy(stage: Stage) -> str | None:
    path = pinned_file(stage.ledger().trust, stage.plant)
    path.write_bytes(policy_yaml(load_yaml(path, SafetyPolicy).model_copy(update={"p0": 0.99})))
    return stage.audited()


def use_an_edited_policy(stage: Stage) -> str | None:
    edit_the_pinned_policy(stage)
    return _promoted(stage, stage.claim)


def sign_a_laxer_policy(stage: Stage) -> str | None:
    """Let the signer sign a weaker safety policy. The auditor has the original policies."""
    kept = stage.home.root.with_name("kept")
    shutil.copytree(stage.home.root / "policies", kept / "policies")
    shutil.copy(stage.home.trust, kept / "trust.yaml")
    sign(stage.ledger(), stage.policy.model_copy(update={"p0": 0.99, "confidence": 0.01}), "a reviewer", "because")
    failures = audit(stage.home, trust=kept / "trust.yaml").failures
    return f"{failures[0].name}: {failures[0].detail}" if failures else None


def use_an_old_approval(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"approval_days": 1}), "a reviewer", "a day")
    ledger, now = stage.ledger(), stage.champion.digest
    candidate = ledger.append(
        "candidate", stage.record(stage.certified(ledger, C, stage.claim), now), plant=stage.plant
    )
    approval = ledger.append("approval", stage.approval(candidate), plant=stage.plant)
    later = stage.later(2)
    later.append("promotion", stage.promotion(approval, now), plant=stage.plant)
    return None


def use_an_old_certificate(stage: Stage) -> str | None:
    sign(stage.ledger(), stage.policy.model_copy(update={"certificate_days": 1}), "a reviewer", "a day")
    now = stage.champion.digest
    result = stage.certified(stage.ledger(), C, stage.claim)
    later = stage.later(2)
    candidate = later.append("candidate", stage.record(result, now), plant=stage.plant)
    approval = later.append("approval", stage.approval(candidate), plant=stage.plant)
    later.append("promotion", stage.promotion(approval, now), plant=stage.plant)
    return None


def choose_the_claim_after_looking(stage: Stage) -> str | None:
    """In an attempt with a strong claim, use counts that only show p0 = 0.99."""
    ledger, claim = stage.ledger(), stage.claim
    digest = sha256_hex(b"invented")
    attempt = open_attempt(ledger, Inputs(lineage=lineage_of(claim), composite=C, dataset=digest, config=digest), claim)
    draw_seed(ledger, attempt)
    materials = Materials(**{**dict.fromkeys(Materials.model_fields, digest), "step": claim.step or digest})
    make_certificate(ledger, attempt.entry, invented(0.99, attempt.alpha, claim.horizon), materials)
    return None


def begin_a_lineage_of_ones_own(stage: Stage) -> str | None:
    ledger, claim = stage.ledger(), stage.claim
    body = AttemptBody(
        lineage="f" * 64,
        composite=C,
        dataset=C,
        config=C,
        number=1,
        alpha=attempt_alpha(claim.confidence, 1),
        scope=claim,
    )
    ledger.append("attempt", body, plant=stage.plant)
    return None


def begin_a_lineage_with(changes: Callable[[Claim], dict[str, object]]) -> Callable[[Stage], str | None]:
    """Open an attempt for the same physics under a changed claim; the lineage must go on."""

    def play(stage: Stage) -> str | None:
        claim = stage.claim.model_copy(update=changes(stage.claim))
        inputs = Inputs(lineage=lineage_of(claim), composite=C, dataset=C, config=C)
        number = open_attempt(stage.ledger(), inputs, claim).number
        return f"it is attempt {number} of the lineage" if number > 1 else None

    return play


def rerun_something_else(name: str) -> Callable[[Stage], str | None]:
    """Rerun the counts of the champion's certificate with another simulator, code, lock or composite."""

    def play(stage: Stage) -> str | None:
        ledger = stage.ledger()
        result = next(
            e for e in ledger.entries("result", stage.plant) if e.body["composite"] == stage.champion.body["composite"]
        )
        path = stage.home.root / result.artefacts[0].path
        statement = read_certificate(path, ledger.trust)
        here = {**statement.predicate.materials.model_dump(), "composite": statement.composite}
        here[name] = sha256_hex(here[name].encode())
        checks = verify_certificate(
            path, ledger.trust, artefacts=here, repeat=lambda predicate, _: {"source": predicate.counts}, rerun=True
        )
        failed = [check for check in checks if check.passed is False]
        return f"{failed[0].name}: {failed[0].detail}" if failed else None

    return play


def crash_where_it_would_violate(stage: Stage) -> str | None:
    """Use a simulator that raises an error where it would violate. Its episodes must not count as safe."""

    def crash(reward: np.ndarray) -> np.ndarray:
        raise ArithmeticError("the integrator gave up")

    return _certified_by(stage, crash, 600.0)


def hang_where_it_would_violate(stage: Stage) -> str | None:
    """Use a simulator that never returns where it would violate."""
    released = Event()

    def hang(reward: np.ndarray) -> np.ndarray:
        released.wait()
        return np.asarray(reward)

    try:
        return _certified_by(stage, hang, 1.0)
    finally:
        released.set()


def _certified_by(stage: Stage, back: Callable[[np.ndarray], np.ndarray], seconds: float) -> str | None:
    plant = plant_named(stage.plant).simulator()

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        following, seen = plant.step(key, state, action, params)
        shape = jax.ShapeDtypeStruct(seen.reward.shape, seen.reward.dtype)
        return following, seen._replace(reward=jax.pure_callback(back, shape, seen.reward, vmap_method="sequential"))

    broken = plant._replace(spec=plant.spec._replace(horizon=2), step=step)
    hold = Controller(lambda params, observation: (), lambda params, state, observation, applied: (state, applied))

    def run(simulator: Plant, *arguments: Any) -> EpisodeResult | None:
        return guarded(lambda: rollouts(simulator, *arguments), simulator.spec.name, seconds)

    *_, found = certify_batches(
        broken, hold, (), plant.domain, 0, p0=0.1, alpha=0.05, max_episodes=200, batch=16, run=run
    )
    if found.certified or not found.crashed:
        return None
    return f"not certified: {found.crashed} of {found.violations} violations are batches without a result"


def promote_a_candidate_whose_gates_failed(stage: Stage) -> str | None:
    ledger, now = stage.ledger(), stage.champion.digest
    record = stage.record(stage.certified(ledger, C, stage.claim), now)
    evidence = record.evidence.model_copy(update={"data": ("too few episodes",)})
    failed_record = record.model_copy(update={"evidence": evidence, "gates": judge(evidence), "passed": False})
    failed = forge(stage.home, "candidate", failed_record, plant=stage.plant)
    approval = forge(stage.home, "approval", stage.approval(failed), plant=stage.plant)
    forge(stage.home, "promotion", stage.promotion(approval, now), plant=stage.plant)
    return stage.audited()


def turn_verdicts_round(stage: Stage) -> str | None:
    ledger, now = stage.ledger(), stage.champion.digest
    record = stage.record(stage.certified(ledger, C, stage.claim), now)
    evidence = record.evidence.model_copy(update={"data": ("too few episodes",)})
    forge(stage.home, "candidate", record.model_copy(update={"evidence": evidence}), plant=stage.plant)
    return stage.audited()


def pass_without_a_certificates_file(stage: Stage) -> str | None:
    ledger, claim = stage.ledger(), stage.claim
    attempt = open_attempt(ledger, Inputs(lineage=lineage_of(claim), composite=C, dataset=C, config=C), claim)
    draw_seed(ledger, attempt)
    opened = attempt.body.model_dump(exclude={"scope"})
    secret = read_secret(seed_file(stage.home, attempt.entry)).hex()
    body = ResultBody(**Outcome(passed=True).model_dump(), **opened, attempt=attempt.entry, secret=secret)
    forge(stage.home, "result", body, plant=stage.plant)
    return stage.audited()


def remove_a_certificates_file(stage: Stage) -> str | None:
    result = stage.ledger().entries("result", stage.plant)[-1]
    (stage.home.root / result.artefacts[0].path).unlink()
    return stage.audited()


def log_a_policy_as_the_plants_own_controller(stage: Stage) -> str | None:
    ledger, now = stage.ledger(), stage.champion.digest
    # Use the run's own candidate in spite of failed gates.
    trained = [e for e in ledger.entries("candidate", stage.plant) if e.body["role"] == "candidate"][-1]
    result = stage.certified(ledger, trained.body["composite"], stage.claim)
    record = stage.record(result, now, role="fallback")
    forge(stage.home, "candidate", record, trained.artefacts, plant=stage.plant)
    return stage.audited()


def alter_what_is_served(name: str, text: str | None) -> Callable[[Stage], str | None]:
    """Write or delete a file of the champion's model in MLflow."""

    def play(stage: Stage) -> str | None:
        model = stage.candidate.read(CandidateRecord).served.model
        folder = next((stage.home.root / "mlflow" / "artifacts").glob(f"*/models/{model}/artifacts"))
        path = folder / name
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
        return stage.audited()

    return play


def point_the_alias_elsewhere(stage: Stage) -> str | None:
    checks = check_aliases(stage.plant, {"champion": "99"}, wanted_aliases(stage.ledger().entries(), stage.plant))
    return checks[0].detail if checks else None


def promote_after_another_comparison(stage: Stage) -> str | None:
    return _promoted(stage, stage.claim, replaces=None)


def put_a_later_file_into_a_bundle(stage: Stage) -> str | None:
    named = (file for entry in stage.ledger().entries() for file in entry.artefacts)
    file = next(file for file in named if file.path.endswith("/composite.json"))
    (stage.home.root / file.path).with_name("later.py").write_text("print('executed')\n")
    return stage.audited()


def ask_for_a_confidence_that_is_one(stage: Stage) -> str | None:
    path = stage.home.root / "run.yaml"
    path.write_text(f"plant: {stage.plant}\ncertify: {{confidence: 0.9999999999999}}\n")
    load_yaml(path, OpenedRun)
    return None


def bring_a_withdrawn_champion_back(stage: Stage) -> str | None:
    now = stage.champion
    again = stage.candidate.read(CandidateRecord).model_copy(update={"champion": None, "run_key": "once more"})
    body = WithdrawalBody(
        composite=now.body["composite"], promotion=now.digest, version=now.body["version"], by="x", why="y"
    )
    ledger = stage.ledger()
    ledger.append("withdrawal", body, plant=stage.plant)
    candidate = ledger.append("candidate", again, plant=stage.plant)
    approval = ledger.append("approval", stage.approval(candidate), plant=stage.plant)
    ledger.append("promotion", stage.promotion(approval, None), plant=stage.plant)
    return None


def _renamed(claim: Claim) -> dict[str, object]:
    return {"plant": "other", "family": "other.Domain", "phi": re.sub(r"<= .* <=", "<= other <=", claim.phi)}


def _permuted(claim: Claim) -> dict[str, object]:
    names, values = [*claim.domain], [*claim.domain.values()]
    return {"domain": dict(zip(names, values[1:] + values[:1], strict=True)), "step": "b" * 64}


def _moved(claim: Claim) -> dict[str, object]:
    return {"phi": re.sub(r"\d+(\.\d+)?", lambda number: exact(float(number[0]) * (1 + 1e-6)), claim.phi, count=1)}


ATTACKS = (
    Attack("1a", "try seeds and put a good one into keys/seeds", "home", first.try_seeds_before_one_is_drawn),
    Attack("1b", "change the secret after the nonce is known", "home", first.change_the_secret_once_the_nonce_is_known),
    Attack(
        "1c",
        "ask for nonces of commitments that are not logged",
        "home",
        first.ask_for_unlogged_nonces,
    ),
    Attack("1d", "truncate the ledger to get another nonce", "key", first.set_the_ledger_back_for_another_commitment),
    Attack("1e", "the same as 1d, and restore the witness's folder", "key", first.set_the_witness_back_too),
    Attack("1f", "invent a nonce", "key", first.make_the_nonce_oneself),
    Attack("2a", "delete ledger.db, keep key and head", "home", first.delete_the_ledger),
    Attack("2b", "replace the ledger with an empty one", "home", first.put_an_empty_ledger_in_its_place),
    Attack("2c", "truncate the ledger", "home", first.truncate_the_ledger),
    Attack("2d", "truncate the ledger and sign the heads again", "key", first.truncate_the_ledger_and_its_head),
    Attack("2e", "restore the whole home from an older copy", "home", first.restore_an_older_home_whole),
    Attack("2f", "start a new home with a new key", "home", first.begin_a_new_home),
    Attack("2g", "delete witnesses.yaml", "home", first.take_the_witnesses_away),
    Attack("3a", "claim p0 = 0.99 with confidence 1 % in a run", "YAML", lower_the_floor_in_a_run),
    Attack("3b", "certify, approve and promote with p0 = 0.99 and confidence 1 %", "home", promote_a_weak_claim),
    Attack("3c", "edit the pinned safety policy", "home", edit_the_pinned_policy),
    Attack("3d", "promote under an edited safety policy", "home", use_an_edited_policy),
    Attack("3e", "sign a weaker safety policy than the auditor has", "home", sign_a_laxer_policy),
    Attack("3f", "use an expired approval", "home", use_an_old_approval),
    Attack("3g", "use an expired certificate", "home", use_an_old_certificate),
    Attack("3h", "turn off the comparison with the plant's controller", "YAML", leave_out_what_a_run_must_show),
    Attack("3i", "choose the claim after the counts", "home", choose_the_claim_after_looking),
    Attack("3j", "start a new lineage with the full error probability", "home", begin_a_lineage_of_ones_own),
    Attack("3k", "rename the plant and its limits", "home", begin_a_lineage_with(_renamed)),
    Attack("3l", "name the plant as a fleet's site", "home", begin_a_lineage_with(lambda c: {"plant": f"{c.plant}_7"})),
    Attack("3m", "add an operation without effect", "home", begin_a_lineage_with(lambda _: {"step": "a" * 64})),
    Attack("3n", "permute the constants of the domain", "home", begin_a_lineage_with(_permuted)),
    Attack("3o", "move a limit by a millionth", "home", begin_a_lineage_with(_moved)),
    *(
        Attack(f"4{letter}", f"rerun a certificate with {words}", "home", rerun_something_else(words.split()[1]))
        for letter, words in zip(
            "abcde",
            ("another simulator", "other code", "another lock file", "another shield", "another composite"),
            strict=True,
        )
    ),
    Attack("5a", "promote a candidate with failed gates", "key", promote_a_candidate_whose_gates_failed),
    Attack("5b", "log verdicts that contradict their numbers", "key", turn_verdicts_round),
    Attack("5c", "log a passed result without a certificate file", "key", pass_without_a_certificates_file),
    Attack("5d", "delete a certificate file", "home", remove_a_certificates_file),
    Attack("5e", "log a policy as the plant's controller", "key", log_a_policy_as_the_plants_own_controller),
    Attack("6a", "use a simulator that crashes", "home", crash_where_it_would_violate),
    Attack("6b", "use a simulator that hangs", "home", hang_where_it_would_violate),
    Attack("7a", "replace policy_model.py", "MLflow", alter_what_is_served("policy_model.py", "import os\n")),
    Attack("7b", "replace MLmodel", "MLflow", alter_what_is_served("MLmodel", "flavors: {}\n")),
    Attack("7c", "add a module to the model's code", "MLflow", alter_what_is_served("code/numpy.py", "\n")),
    Attack("7d", "delete a file of the model", "MLflow", alter_what_is_served("MLmodel", None)),
    Attack("8", "move the alias @champion", "MLflow", point_the_alias_elsewhere),
    Attack("9a", "replace approval: required with approval: auto", "YAML", turn_the_approval_off),
    Attack("9b", "approve by rule where persons are required", "home", let_the_rule_approve_for_a_person),
    Attack("9c", "approve twice as one person", "home", approve_twice_as_one),
    Attack("10a", "date an attempt 2099", "home", first.date_an_entry_2099),
    Attack("10b", "append after an entry dated 2099", "home", first.go_on_after_2099),
    Attack("10c", "forge an entry dated 2099", "key", first.forge_an_entry_of_2099),
    Attack(
        "11a",
        "promote a candidate that was compared with another champion",
        "home",
        promote_after_another_comparison,
    ),
    Attack("11b", "add a file to a bundle's folder", "home", put_a_later_file_into_a_bundle),
    Attack("11c", "set confidence: 0.9999999999999", "YAML", ask_for_a_confidence_that_is_one),
    Attack("11d", "promote a withdrawn champion again", "home", bring_a_withdrawn_champion_back),
)
