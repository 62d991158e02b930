"""Decisions on candidates: idempotent, refused with nothing left behind, and completed after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from configs.strict import Approvers
from neorl_core.plants import PLANTS
from tasks import promote
from tasks.evidence.decisions import approvals, champions, queue, verdicts
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import sha256_hex
from tasks.files.provenance import sources_digest
from tasks.lifecycle.aliases import reconcile
from tasks.lifecycle.policy import check_run, draft_of_run, sign
from tasks.references import Bundle, Candidate, Dataset, Proposal
from tasks.stages import config_digest
from tests import judged
from tests.evidence import PLANT, POLICY, candidate_record, certificate_of, certify, forge, signer_at
from tests.sample_record import write_bundle
from tests.small_data import reactor_run

if TYPE_CHECKING:
    from flows.services.servers import Services


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with the plant's policy alone, in a home of the test's own."""
    home = Home(tmp_path / "home")
    with signer_at(home):
        ledger = Ledger.open(home)
        sign(ledger, POLICY, "a reviewer", "before the first promotion")
        yield ledger


def digest_of(name: str) -> str:
    return sha256_hex(name.encode())


def candidate(ledger: Ledger, name: str, **changes: Any) -> Entry:
    """A candidate that is certified for real, and passed every gate but for what is changed."""
    composite = digest_of(name)
    certify(ledger, composite)
    said = {"version": name, "run_key": f"run of {name}", "url": f"http://mlflow/{name}", **changes}
    return ledger.append("candidate", candidate_record(ledger, composite, **said), plant=PLANT)


def failed(ledger: Ledger, name: str) -> Entry:
    """A candidate whose dataset did not pass."""
    composite = digest_of(name)
    certify(ledger, composite)
    own = certificate_of(ledger, composite)
    numbers = judged.evidence(fallback=own, certificate=own, data=("too few episodes",))
    return ledger.append("candidate", candidate_record(ledger, composite, numbers, version=name), plant=PLANT)


def current(ledger: Ledger) -> Entry | None:
    return champions.champion(ledger.entries(), PLANT)


def test_a_decision_makes_a_champion_once(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    promotion = promote.promote_candidate(ledger.home, entry, "a reviewer", "looked at it")
    assert current(ledger) == promotion
    assert promotion.body["candidate"] == entry.digest
    assert promotion.body["version"] == "1"
    (approval,) = ledger.entries("approval", PLANT)
    assert promotion.body["approval"] == approval.digest
    assert (approval.body["by"], approval.body["note"]) == ("a reviewer", "looked at it")
    count = len(ledger.entries())
    assert promote.promote_candidate(ledger.home, entry, "another", "again") == promotion
    assert len(ledger.entries()) == count


def test_a_failed_gate_cannot_be_approved(ledger: Ledger) -> None:
    entry = failed(ledger, "1")
    with pytest.raises(Refused, match=r"failed data: .*no approval can skip a gate") as error:
        promote.promote_candidate(ledger.home, entry, "a reviewer", "")
    assert "statistical" not in str(error.value)
    assert ledger.entries("approval") == []
    assert current(ledger) is None


def test_a_record_that_was_tampered_with_cannot_be_approved(ledger: Ledger) -> None:
    entry = failed(ledger, "1")
    said = queue.record_of(entry)
    gates = tuple(gate.model_copy(update={"passed": True}) for gate in said.gates)
    forged = forge(ledger.home, "candidate", said.model_copy(update={"gates": gates, "passed": True}))
    with pytest.raises(Refused, match="gate data must be failed by its evidence, got passed"):
        promote.promote_candidate(ledger.home, forged, "a reviewer", "")
    fewer = forge(ledger.home, "candidate", said.model_copy(update={"gates": gates[1:], "passed": True}))
    with pytest.raises(Refused, match="the gates must be data, simulator, ope"):
        promote.promote_candidate(ledger.home, fewer, "a reviewer", "")
    assert ledger.entries("approval") == []


def test_a_champion_that_came_meanwhile_leaves_no_usable_approval(ledger: Ledger) -> None:
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    promotion = promote.promote_candidate(ledger.home, first, "a reviewer", "")
    with pytest.raises(Refused, match="compare") as error:
        promote.promote_candidate(ledger.home, second, "a reviewer", "")
    assert str(error.value).count(". ") == 0
    assert current(ledger) == promotion
    assert approvals.open_approval(ledger.entries(), PLANT, digest_of("2")) is None
    # Nor can the refusal be turned into a promotion by whoever finds the approval.
    assert queue.waiting(ledger.entries(), PLANT) == []


def test_a_rejected_candidate_is_not_promoted(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    promote.reject_candidate(ledger.home, entry, "a reviewer", "too lively")
    with pytest.raises(Refused, match="rejected"):
        promote.promote_candidate(ledger.home, entry, "another", "")
    assert current(ledger) is None
    assert approvals.open_approval(ledger.entries(), PLANT, digest_of("1")) is None


def test_a_kill_between_approval_and_promotion_is_completed(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    verdict = approvals.VerdictBody(composite=digest_of("1"), version="1", by="a reviewer", candidate=entry.digest)
    approval = verdicts.approve(ledger, PLANT, verdict)
    # Nobody may think it is done.
    assert queue.waiting(ledger.entries(), PLANT) == [entry]
    promotion = promote.promote_candidate(ledger.home, entry, "a reviewer", "")
    assert promotion.body["approval"] == approval.digest
    assert ledger.entries("approval", PLANT) == [approval]
    assert queue.waiting(ledger.entries(), PLANT) == []


def test_who_waits(ledger: Ledger) -> None:
    assert queue.waiting(ledger.entries()) == []
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    refused = failed(ledger, "3")
    rejected = candidate(ledger, "4")
    promote.reject_candidate(ledger.home, rejected, "a reviewer", "")
    found = queue.waiting(ledger.entries(), PLANT)
    assert found == queue.waiting(ledger.entries()) == [first, second]
    assert refused not in found
    assert queue.waiting(ledger.entries(), "double_mass") == []
    promotion = promote.promote_candidate(ledger.home, first, "a reviewer", "")
    # The second was compared with no champion, which is no longer so.
    assert queue.waiting(ledger.entries(), PLANT) == []
    third = candidate(ledger, "5", champion=promotion.digest)
    assert queue.waiting(ledger.entries(), PLANT) == [third]
    # What another run made again is what runs: there is nothing to decide about it.
    again = {"version": "6", "run_key": "another run", "champion": promotion.digest}
    ledger.append("candidate", candidate_record(ledger, digest_of("1"), **again), plant=PLANT)
    assert queue.waiting(ledger.entries(), PLANT) == [third]


def test_a_rejection_takes_back_an_approval_that_was_not_used(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    verdict = approvals.VerdictBody(composite=digest_of("1"), version="1", by="a", candidate=entry.digest)
    verdicts.approve(ledger, PLANT, verdict)
    promote.reject_candidate(ledger.home, entry, "b", "second thoughts")
    assert queue.waiting(ledger.entries(), PLANT) == []
    assert approvals.open_approval(ledger.entries(), PLANT, digest_of("1")) is None


def test_a_rejection_is_logged_once(ledger: Ledger) -> None:
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    rejection = promote.reject_candidate(ledger.home, first, "a reviewer", "why")
    assert promote.reject_candidate(ledger.home, first, "another", "also") == rejection
    other = promote.reject_candidate(ledger.home, second, "a reviewer", "")
    assert ledger.entries("rejection", PLANT) == [rejection, other]
    assert rejection.body["candidate"] == first.digest


def test_the_rule_says_promoted_only_where_it_promoted(ledger: Ledger) -> None:
    """A policy may ask for a role, which the rule has not, without asking for a number of persons."""
    sign(ledger, POLICY.model_copy(update={"approvers": Approvers(count=0, roles=["safety engineer"])}), "x", "y")
    entry = candidate(ledger, "1")
    found = Candidate(entry=entry.digest, record=queue.record_of(entry), plots={})
    proposal = Proposal(verdict="promoted", reason="it passed", rejected=False, candidate=found, proposed=found)
    run = reactor_run(approval="auto")
    decision = promote.decide(ledger.home, run, proposal)
    assert (decision.verdict, decision.promotion, current(ledger)) == ("waiting", None, None)
    # A run that begins under such a policy is told before.
    lax = draft_of_run(PLANTS[PLANT], run).model_copy(update={"approvers": Approvers(count=0, roles=["x"])})
    with pytest.raises(BadInput, match=r"approval must be required \(policy of chemical_reactor\), got auto"):
        check_run(lax, run)


def test_a_run_compares_with_the_champion_before_it_put_one_into_force_itself(ledger: Ledger, tmp_path: Path) -> None:
    run = reactor_run()
    inputs = {"config": config_digest(run), "sources": sources_digest(promote.FLOW)}
    certify(ledger, digest_of("z"))
    logged = candidate_record(ledger, digest_of("z")).dataset
    other = logged.model_copy(update={"digest": digest_of("other data")})

    def incumbent(fallback: str = "f", run: OpenedRun = run, dataset: Dataset = logged) -> str | None:
        own = Bundle(digest=digest_of(fallback), plant=PLANT, folder=tmp_path)
        return promote.incumbent(ledger.home, run, dataset, own).digest

    def promoted(name: str, **said: object) -> None:
        now = current(ledger)
        # A bundle of other limits cannot be run here, but it is the champion all the same.
        write_bundle(ledger.home.folder("bundles", PLANT) / digest_of(name)[:24])
        entry = candidate(ledger, name, champion=now.digest if now else None, **said)
        promote.promote_candidate(ledger.home, entry, "a reviewer", "")

    assert incumbent() is None
    promoted("a", **inputs, dataset=other)
    assert incumbent() == digest_of("a")
    assert incumbent(dataset=other) is None
    promoted("b", **inputs)
    # A repetition of the run that promoted b, and runs that may have trained it too: other settings, data or code.
    assert incumbent() == digest_of("a")
    assert incumbent(dataset=other) == digest_of("b")
    discounted = run.model_copy(update={"evaluate": run.evaluate.model_copy(update={"discount": 0.9})})
    assert incumbent(run=discounted) == digest_of("b")
    promoted("c", **inputs | {"sources": ""})
    assert incumbent() == digest_of("c")
    assert incumbent(fallback="c") == digest_of("a")
    assert incumbent(run=run.model_copy(update={"plant": "double_mass"})) is None


@pytest.mark.parametrize(
    ("passed", "rejected", "champion", "stands", "role", "reason"),
    [
        (True, False, None, True, "candidate", "the candidate passed every gate"),
        (True, False, "other", True, "candidate", "the candidate passed every gate"),
        (True, False, "itself", True, None, "the candidate is already champion"),
        (False, False, None, True, "fallback", "the candidate did not pass every gate; the certified tuned controller"),
        (False, False, None, False, None, "the tuned controller is not certified, or a person rejected it"),
        (False, False, "other", True, None, "; version other stays champion"),
        (False, False, "fallback", True, None, "; the tuned controller stays champion"),
        # A person's no outlasts the run: the certified controller stands in, and the reason says why.
        (True, True, None, True, "fallback", "a person rejected this composite; the certified tuned controller"),
        (True, True, "other", True, None, "a person rejected this composite; version other stays champion"),
    ],
)
def test_the_rule(
    ledger: Ledger,
    passed: bool,
    rejected: bool,
    champion: str | None,
    stands: bool,
    role: str | None,
    reason: str,
) -> None:
    said = queue.record_of(candidate(ledger, "1") if passed else failed(ledger, "1"))
    names = {"itself": said.composite, "fallback": "f", "other": "o"}
    now = said.model_copy(update={"composite": names[champion], "version": champion}) if champion else None
    found, why = promote.propose(said, "f", stands, now, rejected)
    assert found == role
    assert reason in why


def test_a_run_that_is_repeated_after_its_promotion_proposes_as_before(ledger: Ledger) -> None:
    first = candidate(ledger, "1")
    promotion = promote.promote_candidate(ledger.home, first, "rule: auto", "")
    second = candidate(ledger, "2", champion=promotion.digest)
    promote.promote_candidate(ledger.home, second, "rule: auto", "")
    entries = ledger.entries()
    before = promote.before_run(entries, PLANT, "run of 2")
    assert before is not None
    assert before.version == "1"
    assert promote.before_run(entries, PLANT, "run of 1") == queue.record_of(second)
    assert promote.before_run(entries, "double_mass", "run of 1") is None


def test_a_candidate_is_found_by_its_version(ledger: Ledger) -> None:
    first = candidate(ledger, "1")
    assert queue.find_candidate(ledger.entries(), PLANT, "1") == first
    with pytest.raises(BadInput, match=r"no version '2' in the ledger \(versions: 1\)"):
        queue.find_candidate(ledger.entries(), PLANT, "2")
    with pytest.raises(BadInput, match=r"double_mass has no version .* \(versions: none\)"):
        queue.find_candidate(ledger.entries(), "double_mass", "1")


def _on_the_sessions_servers(services: Services, root: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of its own that uses the session's servers as a team's."""
    monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect.url)
    monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url)
    return Home(root)


@pytest.mark.slow
def test_people_decide_and_the_aliases_follow(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.decisions import approve, list_candidates, reject
    from neorl_core.plants import PLANTS
    from neorl_core.safety.composite import make_composite
    from tasks.models.bundles.bundle import save_bundle
    from tasks.registry.registry import Registry
    from tasks.registry.upload import Submission

    home = _on_the_sessions_servers(services, tmp_path / "home", monkeypatch)
    assert list_candidates(home) == ()
    ledger, registry, plant = Ledger.open(home), Registry(services.mlflow.url), PLANTS[PLANT]
    sign(ledger, POLICY, "a reviewer", "before the first promotion")
    registry.reconcile(PLANT, None, None)
    dataset = Dataset(
        digest=digest_of("dataset"), plant=PLANT, store=tmp_path, manifest=tmp_path, shards=(), rows=1, episodes=1
    )
    entries: list[Entry] = []
    for i in range(2):
        composite = make_composite(plant)
        composite = composite._replace(shield=composite.shield._replace(hold=composite.shield.hold + i))
        digest = save_bundle(tmp_path / f"bundle-{i}", composite, PLANT)
        key = f"decisions-{i}-{tmp_path}"
        submission = Submission(
            plant=PLANT, run_key=key, name="candidate", digest=digest, bundle=tmp_path / f"bundle-{i}", dataset=dataset,
            describe=lambda run_id: f"made by {run_id}",
        )  # fmt: skip
        reference = registry.register(submission)
        certify(ledger, digest)
        said = candidate_record(ledger, digest, run_key=key, version=reference.version, url=reference.url)
        entries.append(ledger.append("candidate", said, plant=PLANT))
    first, second = (entry.body["version"] for entry in entries)
    assert [row.record.version for row in list_candidates(home, PLANT)] == [first, second]
    assert list_candidates(home, "double_mass") == ()
    reconcile(home, PLANT, registry)
    assert registry.aliases(PLANT) == {"challenger": second}

    turned = reject(home, PLANT, second, "a reviewer", "too lively")
    assert (turned.champion, turned.record) == (None, None)
    assert registry.aliases(PLANT) == {"challenger": first}
    with pytest.raises(Refused, match=f"rejected version {second}"):
        approve(home, PLANT, second, "a reviewer", "")
    with pytest.raises(BadInput, match="has no version"):
        approve(home, PLANT, "0", "a reviewer", "")

    crowned = approve(home, PLANT, first, "a reviewer", "compared")
    assert crowned.champion == first
    assert crowned.record is not None
    assert crowned.record.approver == "a reviewer"
    assert crowned.record.url == entries[0].body["url"]
    assert registry.aliases(PLANT) == {"champion": first}
    assert list_candidates(home) == ()
    with pytest.raises(Refused, match="the champion"):
        reject(home, PLANT, first, "a reviewer", "")
    again = approve(home, PLANT, first, "another", "")
    assert again.record == crowned.record
    assert len(ledger.entries("promotion")) == 1

    # What someone moves by hand in MLflow is put right by the next reconciliation.
    registry.reconcile(PLANT, second, None)
    reconcile(home, PLANT, registry)
    assert registry.aliases(PLANT) == {"champion": first}
    registry.reconcile(PLANT, None, None)


def test_nothing_is_decided_while_mlflow_is_gone(
    ledger: Ledger, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    from configs.errors import ServiceMissing
    from flows.decisions import approve, reject

    home = _on_the_sessions_servers(services, ledger.home.root, monkeypatch)
    monkeypatch.setenv("NEORL_MLFLOW_URL", "http://127.0.0.1:9")
    candidate(ledger, "1")
    count = len(ledger.entries())
    for decision in (approve, reject):
        with pytest.raises(ServiceMissing, match="MLflow"):
            decision(home, PLANT, "1", "a reviewer", "")
    assert len(ledger.entries()) == count
