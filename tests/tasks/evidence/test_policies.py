"""Safety policies: minimum strength, checks of runs, and checks of promotions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.safety_policy import RULE, SafetyPolicy
from configs.strict import Approvers
from configs.yaml_files import load_yaml
from flows.cli.main import run
from flows.cli.policy import policy_sign
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.claims import DrawnConstant, IdentifiedFrom
from tasks.evidence.decisions.approvals import VerdictBody, approvers, open_approvals
from tasks.evidence.decisions.champions import before_policy, champion
from tasks.evidence.decisions.verdicts import approve, reject
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Answer, Append, Request
from tasks.evidence.policies import PolicyBody, pinned_file, policy_of, unmet_requirement
from tasks.evidence.signer import Signer
from tasks.gates import REQUIRED
from tasks.lifecycle.policy import draft_of_champion, hold_run, policy_yaml, read_policy, sign
from tests.evidence import CLAIM, PLANT, POLICY, candidate_record, certify, crown, open_ledger, propose, put, signer_at
from tests.evidence import verdict as verdict_of
from tests.small_data import reactor_run

A, B, C = "a" * 64, "b" * 64, "c" * 64
DRAWN = IdentifiedFrom(dataset="5" * 64, constants=(DrawnConstant(name="gain", entry=None, law="normal"),))


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


def changed(**changes: Any) -> SafetyPolicy:
    return POLICY.model_copy(update=changes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"p0": 0.99}, "p0 must be at most 0.001 (policy), got 0.99"),
        ({"confidence": 0.01}, "the confidence must be at least 0.95 (policy), got 0.01"),
        ({"horizon": 1}, "the horizon must be 60 (policy), got 1"),
        ({"phi": "0<=T<=999 K"}, "the limits must be 316<=T<=332 K (policy), got 0<=T<=999 K"),
        ({"family": "calm"}, "the family of domains must be nominal (policy), got calm"),
        ({"domain": {"spread": 0.0}}, "spread of the domain must be 0.05 (policy), got 0.0"),
        ({"domain": {}}, "spread of the domain must be 0.05 (policy), got None"),
        ({"domain": {"spread": 0.05, "more": 1.0}}, "more of the domain must be None (policy), got 1.0"),
        ({"identified": DRAWN}, "only no constant may be identified (policy), got gain"),
        ({"p0": 1e-4}, None),
        ({"confidence": 0.99, "max_episodes": 10}, None),
    ],
)
def test_a_claim_may_only_be_stronger_under_the_same_domain(change: dict[str, Any], said: str) -> None:
    assert unmet_requirement(POLICY, CLAIM.model_copy(update=change)) == said


def test_a_posterior_is_a_claim_of_its_own(ledger: Ledger) -> None:
    claim = CLAIM.model_copy(update={"identified": DRAWN, "domain": {"spread": 0.05, "identified_gain": 2.0}})
    assert unmet_requirement(changed(identified=["gain"]), claim) is None
    assert unmet_requirement(changed(identified=["gain", "delay"]), CLAIM) is None
    # A posterior adds its own parameters, and no others.
    wider = claim.model_copy(update={"domain": {**claim.domain, "calm": 1.0}})
    assert unmet_requirement(changed(identified=["gain"]), wider) == "calm of the domain must be None (policy), got 1.0"


def test_a_draft_is_never_weaker_than_the_floor(ledger: Ledger) -> None:
    """Attack: p0 = 0.99 certifies anything in one episode and would replace a champion of 1e-3."""
    first = crown(ledger, A)
    weak = CLAIM.model_copy(update={"p0": 0.99, "confidence": 0.01, "max_episodes": 2})
    certify(ledger, B, claim=weak)
    approval = approve(ledger, PLANT, verdict_of(ledger, B))
    with pytest.raises(Refused, match=r"p0 must be at most 0.001 \(policy\), got 0.99: see `neorl policy show chem"):
        put(ledger, approval, first.digest)
    assert champion(ledger.entries(), PLANT) == first


def test_a_gate_that_the_policy_requires_must_have_passed(ledger: Ledger) -> None:
    sign(ledger, changed(beat_plant=True), "a reviewer", "first")
    certify(ledger, A)
    told = candidate_record(ledger, A)
    record = told.model_copy(update={"evidence": told.evidence.model_copy(update={"beat_plant": False})})
    candidate = ledger.append("candidate", record, plant=PLANT)
    said = verdict_of(ledger, A).model_copy(update={"candidate": candidate.digest})
    with pytest.raises(Refused, match="the policy requires beat_plant"):
        put(ledger, approve(ledger, PLANT, said), None)


@pytest.mark.parametrize(
    ("departure", "said"),
    [
        (0.2, None),
        (0.21, "the policy allows 20.0% of steps unlike the logs, but the candidate has 21.0%"),
        (float("nan"), "the candidate has nan%"),
        (None, "the candidate was not compared with the logs"),
    ],
)
def test_a_policy_limits_the_departure_from_the_logs(ledger: Ledger, departure: float | None, said: str | None) -> None:
    sign(ledger, changed(most_unlike=0.2), "a reviewer", "first")
    certify(ledger, A)
    told = candidate_record(ledger, A)
    record = told.model_copy(update={"evidence": told.evidence.model_copy(update={"departure": departure})})
    candidate = ledger.append("candidate", record, plant=PLANT)
    verdict = verdict_of(ledger, A).model_copy(update={"candidate": candidate.digest})
    approval = approve(ledger, PLANT, verdict)
    if said is None:
        put(ledger, approval, None)
    else:
        with pytest.raises(Refused, match=said):
            put(ledger, approval, None)


def test_an_additional_gate_of_the_policy_must_pass(ledger: Ledger) -> None:
    sign(ledger, changed(gates=[*REQUIRED, "bounds"]), "a reviewer", "first")
    approval = approve(ledger, PLANT, verdict_of(ledger, A))
    with pytest.raises(Refused, match="the policy requires the gate bounds, which the candidate did not pass"):
        put(ledger, approval, None)
    assert champion(ledger.entries(), PLANT) is None
    sign(ledger, POLICY, "a reviewer", "without that gate")
    put(ledger, approve(ledger, PLANT, verdict_of(ledger, A)), None)


def test_two_persons_approve_where_the_policy_says_two(ledger: Ledger) -> None:
    two = changed(approvers=Approvers(count=2, roles=["safety engineer"]))
    sign(ledger, two, "a reviewer", "first")
    said = verdict_of(ledger, A, "Ada")
    first = approve(ledger, PLANT, said)
    assert approve(ledger, PLANT, said) == first
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1"):
        put(ledger, first, None)
    # The same person is one, however the name is written.
    again = approve(ledger, PLANT, said.model_copy(update={"by": " ada ", "role": "safety engineer"}))
    with pytest.raises(Refused, match="approvals needed from 2 persons, got 1"):
        put(ledger, again, None)
    with pytest.raises(Refused, match="requires a person's approval"):
        approve(ledger, PLANT, said.model_copy(update={"by": RULE}))
    second = approve(ledger, PLANT, said.model_copy(update={"by": "Ben"}))
    promotion = put(ledger, second, None)
    assert promotion.body["composite"] == A
    assert approvers(ledger.entries(), promotion) == "Ben, Ada"


def test_a_role_required_by_the_policy_must_approve(ledger: Ledger) -> None:
    sign(ledger, changed(approvers=Approvers(count=1, roles=["safety engineer"])), "a reviewer", "first")
    said = verdict_of(ledger, A, "Ada")
    with pytest.raises(Refused, match="an approval as safety engineer is needed, got none"):
        put(ledger, approve(ledger, PLANT, said), None)
    put(ledger, approve(ledger, PLANT, said.model_copy(update={"role": "safety engineer"})), None)


def test_approvals_and_certificates_expire(home: Path) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    now = start

    ledger = open_ledger(Home(home), clock=lambda: now)
    sign(ledger, changed(approval_days=30, certificate_days=60), "a reviewer", "first")
    approval = approve(ledger, PLANT, verdict_of(ledger, A))
    now = start + timedelta(days=31)
    with pytest.raises(Refused, match="an approval must be at most 30 days old, got none"):
        put(ledger, approval, None)
    now = start + timedelta(days=61)
    approval = approve(ledger, PLANT, verdict_of(ledger, A, "another"))
    with pytest.raises(Refused, match=r"older than 60 days .* retrain on newer logs"):
        put(ledger, approval, None)
    certify(ledger, A)
    assert put(ledger, approval, None).kind == "promotion"


def test_a_changed_policy_is_logged_and_voids_earlier_approvals(ledger: Ledger) -> None:
    propose(ledger, A)
    approval = approve(ledger, PLANT, verdict_of(ledger, A))
    entry = sign(ledger, changed(approval_days=7), "a reviewer", "approvals get old")
    assert sign(ledger, changed(approval_days=7), "a reviewer", "again") == entry
    assert [e.body["why"] for e in ledger.entries("policy")] == ["before the first promotion", "approvals get old"]
    with pytest.raises(Refused, match="an approval must be at most 7 days old, got none"):
        put(ledger, approval, None)
    put(ledger, approve(ledger, PLANT, verdict_of(ledger, A)), None)
    last = PolicyBody(policy=POLICY, by="x", why="y", replaces=None)
    for change, said in (
        ({}, "the policy must replace entry"),
        ({"replaces": entry.digest, "why": " "}, "a change of a policy needs a person and a reason"),
        ({"replaces": entry.digest, "policy": changed(gates=["none"])}, "gates must be among data"),
        ({"replaces": entry.digest, "policy": changed(plant="double_mass")}, "plant must be chemical_reactor"),
    ):
        with pytest.raises(Refused, match=said):
            ledger.append("policy", last.model_copy(update=change), plant=PLANT)


@pytest.mark.parametrize("attack", ["laxer", "gone", "no policy"])
def test_the_pinned_policy_is_that_of_the_ledger(ledger: Ledger, attack: str) -> None:
    """Changing or removing only the file is refused, and found by the audit."""
    approval = approve(ledger, PLANT, verdict_of(ledger, A))
    path = pinned_file(ledger.trust, PLANT)
    assert load_yaml(path, SafetyPolicy) == POLICY
    if attack == "laxer":
        path.write_bytes(policy_yaml(changed(p0=0.5)))
    elif attack == "gone":
        path.unlink()
    else:
        path.write_text("p0: 0.5\n")
    with pytest.raises(Refused, match=re.escape("neorl policy sign chemical_reactor FILE")):
        put(ledger, approval, None)
    assert [check.name for check in audit(ledger.home).failures] == ["policies"]
    sign(ledger, POLICY, "a reviewer", "pinned again")
    put(ledger, approval, None)
    assert audit(ledger.home).passed


def test_nothing_is_promoted_without_a_policy(ledger: Ledger) -> None:
    certify(ledger, A)
    candidate = ledger.append("candidate", candidate_record(ledger, A), plant=PLANT)
    said = VerdictBody(composite=A, by="a reviewer", candidate=candidate.digest)
    approval = approve(ledger, PLANT, said)
    with pytest.raises(Refused, match="chemical_reactor has no safety policy yet"):
        put(ledger, approval, None)
    # A policy signed later applies to earlier results, but not to earlier approvals.
    sign(ledger, POLICY, "a reviewer", "first")
    put(ledger, approve(ledger, PLANT, said), None)
    assert policy_of(ledger.entries(), PLANT) == POLICY


def test_a_champion_from_before_a_stricter_policy_is_reported(ledger: Ledger) -> None:
    first = crown(ledger, A)
    assert before_policy(ledger.entries(), PLANT) is None
    assert draft_of_champion(ledger.entries(), PLANT) == changed(
        approval_days=90, certificate_days=366, simulator=CLAIM.step
    ).model_copy(update={"approvers": Approvers(count=1)})
    sign(ledger, changed(p0=1e-4), "a reviewer", "stricter")
    assert champion(ledger.entries(), PLANT) == first
    said = before_policy(ledger.entries(), PLANT)
    assert said is not None
    assert "was promoted before the policy: p0 must be at most 0.0001 (policy), got 0.001" in said
    report = audit(ledger.home)
    assert report.passed
    assert [check.detail for check in report.checks if check.passed is None and check.name == "policies"] == [said]
    with pytest.raises(Refused, match=r"p0 must be at most 0\.0001"):
        crown(ledger, B)


def test_a_champion_from_before_a_policy_is_judged_by_its_claim(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """One person approved it; the new policy requires two."""
    crown(ledger, A)
    sign(ledger, changed(approvers=Approvers(count=2, roles=["safety engineer"])), "a reviewer", "four eyes")
    held = [check.detail for check in audit(ledger.home).checks if check.name == "policies"]
    assert held == ["1 pinned policies agree with the ledger and with the champions' claims"]
    assert run(["policy", "show", PLANT]) == 0
    assert " meets the policy, certificate valid until" in capsys.readouterr().out


def test_an_invalid_statement_is_one_sentence(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(policy_yaml(POLICY))
    other = tmp_path / "other.json"
    other.write_text("{}")
    for path in (tmp_path / "missing.json", other):
        with pytest.raises(BadInput, match=rf"^{re.escape(str(path))} is not a signed policy .*--statement-to"):
            policy_sign(PLANT, file, "why", statement=[path])


def test_a_certificate_is_compared_with_the_policy_in_force(ledger: Ledger) -> None:
    path = certify(ledger, A)

    def said() -> tuple[bool | None, str]:
        checks = {check.name: check for check in verify_certificate(path, ledger.trust, ledger=ledger)}
        return checks["policy"].passed, checks["policy"].detail

    assert said() == (None, "not compared: chemical_reactor has none")
    sign(ledger, POLICY, "a reviewer", "first")
    assert said() == (True, "the claim meets the policy of chemical_reactor in force")
    sign(ledger, changed(p0=1e-4), "a reviewer", "stricter")
    assert said() == (None, "p0 must be at most 0.0001 (policy), got 0.001")


def test_an_approval_needs_a_comparison_with_the_champion(ledger: Ledger) -> None:
    """A race left an approval of a candidate that was compared with another champion."""
    stale = approve(ledger, PLANT, verdict_of(ledger, B))
    first = crown(ledger, A)
    with pytest.raises(Refused, match="composite bbbbbbbbbbbb"):
        put(ledger, stale, first.digest)
    assert open_approvals(ledger.entries(), PLANT, B) == []
    # A second approval of the same comparison is refused too.
    with pytest.raises(Refused, match=r"composite bbbbbbbbbbbb .* was not compared with the champion in force"):
        approve(ledger, PLANT, VerdictBody(composite=B, by="another", candidate=stale.body["candidate"]))
    again = approve(ledger, PLANT, verdict_of(ledger, B))
    reject(ledger, PLANT, verdict_of(ledger, B))
    assert open_approvals(ledger.entries(), PLANT, B) == []
    with pytest.raises(Refused, match=r"composite bbbbbbbbbbbb .* was ruled out"):
        put(ledger, again, first.digest)


def test_a_run_may_be_stricter_and_never_laxer(home: Path) -> None:
    with signer_at(Home(home)):
        ledger = Ledger.open(Home(home))
        lax = reactor_run(certify={"p0": 0.99, "confidence": 0.01, "max_episodes": 2})
        with pytest.raises(BadInput, match=r"^p0 must be at most 0.1 \(policy\), got 0.99 in this run: correct"):
            hold_run(ledger, lax)
        assert ledger.entries() == []
        # From then on, the first run's own claim is required.
        policy = hold_run(ledger, reactor_run())
        assert policy is not None
        assert (policy.p0, policy.confidence, policy.approvers.count, policy.beat_plant) == (1e-3, 0.95, 1, True)
        assert policy.limits == "316 <= reactor temperature <= 332 K"
        (entry,) = ledger.entries("policy")
        assert entry.body["why"] == "drafted from the first run's claim, because there was none"
        assert read_policy(pinned_file(ledger.trust, PLANT), PLANT) == policy
        assert hold_run(ledger, reactor_run(certify={"p0": 1e-5, "confidence": 0.99})) == policy
        for laxer, said in (
            (reactor_run(certify={"p0": 2e-3}), "p0 must be at most 0.001 (policy), got 0.002"),
            (reactor_run(certify={"confidence": 0.9}), "the confidence must be at least 0.95 (policy), got 0.9"),
            (reactor_run(certify={"domain": {"reaction_spread": 0.0}}), "reaction_spread of the domain must be "),
            (reactor_run(gates={"beat_plant": False}), "gates.beat_plant must be true"),
            (
                reactor_run(approvers={"count": 2}),
                "approvers must be",
            ),
            (reactor_run(approval="auto"), "approval must be required (policy of chemical_reactor), got auto"),
            (
                reactor_run(identify={"constants": {"reaction_rate": {"deviation": 0.03}}}),
                "does not allow 'reaction_rate' under 'identify'",
            ),
        ):
            with pytest.raises(BadInput, match=re.escape(said)):
                hold_run(ledger, laxer)
        assert len(ledger.entries()) == 1
        pinned_file(ledger.trust, PLANT).unlink()
        with pytest.raises(Refused, match="the pinned policy"):
            hold_run(ledger, reactor_run())


def test_a_first_run_killed_before_its_policy_entry_resumes(home: Path) -> None:
    signer = Signer.open(Home(home))

    def dies(request: Request) -> Answer:
        if isinstance(request, Append):
            raise KeyboardInterrupt
        return signer.answer(request)

    (home / "policies").write_text("stands where the folder of policies is to be")
    ledger = Ledger.open(Home(home), ask=signer.answer)
    with pytest.raises((BadInput, OSError)):
        hold_run(ledger, reactor_run())
    (home / "policies").unlink()
    # A draft that is refused leaves nothing behind that the next one would have to agree with.
    with pytest.raises(Refused, match=r"approvers.count must be at least 1"):
        hold_run(ledger, reactor_run(approval="auto", approvers={"count": 0, "keys": True}))
    assert not pinned_file(ledger.trust, PLANT).exists()
    with pytest.raises(KeyboardInterrupt):
        hold_run(Ledger.open(Home(home), ask=dies), reactor_run())
    assert ledger.entries() == []
    pinned = pinned_file(ledger.trust, PLANT).read_bytes()
    # A pinned policy is not replaced by the draft of another run.
    with pytest.raises(Refused, match=r"differs from the policy that this first run drafts"):
        hold_run(ledger, reactor_run(certify={"p0": 0.01}))
    assert hold_run(ledger, reactor_run()) == policy_of(ledger.entries(), PLANT)
    assert pinned_file(ledger.trust, PLANT).read_bytes() == pinned
    assert len(ledger.entries()) == 1
    hold_run(ledger, reactor_run())


def test_a_policy_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(policy_yaml(changed(p0=1e-9, domain={"a": 1e-300, "b": 0.1})))
    assert read_policy(path, PLANT) == changed(p0=1e-9, domain={"a": 1e-300, "b": 0.1})
    with pytest.raises(BadInput, match="not of double_mass"):
        read_policy(path, "double_mass")
    with pytest.raises(BadInput, match="neorl policy draft chemical_reactor"):
        read_policy(tmp_path / "none.yaml", PLANT)


def test_a_policy_binds_the_simulators_program() -> None:
    assert CLAIM.step
    assert unmet_requirement(changed(simulator=CLAIM.step), CLAIM) is None
    other = unmet_requirement(changed(simulator="f" * 64), CLAIM)
    assert other is not None
    assert other.startswith("the simulator's program must be ffffffffffff (policy), got ")
    assert unmet_requirement(changed(simulator="f" * 64), CLAIM.model_copy(update={"step": ""})) is not None
    assert unmet_requirement(POLICY, CLAIM) is None, "policies of earlier versions bind no program"
