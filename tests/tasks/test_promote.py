"""Decisions on candidates: idempotent, refused with nothing left behind, and completed after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks import promote
from tasks.adapters.files.canonical import sha256_hex
from tasks.adapters.ledger import champions
from tasks.adapters.ledger.audit import audit
from tasks.adapters.ledger.ledger import Entry, Ledger
from tests.evidence import PLANT, certify
from tests.sample_record import write_bundle
from tests.small_data import reactor_dataset

if TYPE_CHECKING:
    from flows.services.servers import Services

GATES = [{"name": "data", "passed": True, "detail": ""}, {"name": "ope", "passed": True, "detail": ""}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger in a home of the test's own."""
    return Ledger.open(Home(tmp_path / "home"))


def digest_of(name: str) -> str:
    return sha256_hex(name.encode())


def body(name: str, **changes: Any) -> dict[str, Any]:
    """What a run would say of its candidate."""
    return {
        "run_key": f"run of {name}",
        "composite": digest_of(name),
        "version": name,
        "run_id": "0",
        "url": f"http://mlflow/{name}",
        "gates": GATES,
        "passed": True,
        "claim": "P(violation) <= 0.001",
        "dataset": {"digest": "0"},
        "config": "0",
        "champion": None,
        **changes,
    }


def candidate(ledger: Ledger, name: str, **changes: Any) -> Entry:
    """A candidate that is certified for real."""
    certify(ledger, digest_of(name))
    return ledger.append("candidate", body(name, **changes), plant=PLANT)


def current(ledger: Ledger) -> Entry | None:
    return champions.champion(ledger.entries(), PLANT)


def test_a_decision_makes_a_champion_once(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    promotion = promote.decide(ledger.home, entry, "a reviewer", "looked at it")
    assert current(ledger) == promotion
    assert promotion.body["candidate"] == entry.digest
    assert promotion.body["version"] == "1"
    (approval,) = ledger.entries("approval", PLANT)
    assert promotion.body["approval"] == approval.digest
    assert (approval.body["by"], approval.body["note"]) == ("a reviewer", "looked at it")
    count = len(ledger.entries())
    assert promote.decide(ledger.home, entry, "another", "again") == promotion
    assert len(ledger.entries()) == count


def test_a_failed_gate_cannot_be_approved(ledger: Ledger) -> None:
    gates = [*GATES, {"name": "statistical", "passed": False, "detail": ""}]
    gates.append({"name": "servability", "passed": None, "detail": ""})
    entry = candidate(ledger, "1", passed=False, gates=gates)
    with pytest.raises(Refused, match=r"which failed.* statistical.*no approval can skip a gate") as error:
        promote.decide(ledger.home, entry, "a reviewer", "")
    assert "data" not in str(error.value)
    assert ledger.entries("approval") == []
    assert current(ledger) is None


def test_a_candidate_without_certificate_is_not_promoted(ledger: Ledger) -> None:
    entry = ledger.append("candidate", body("1"), plant=PLANT)
    with pytest.raises(Refused, match="certify it first"):
        promote.decide(ledger.home, entry, "a reviewer", "")
    assert current(ledger) is None
    assert champions.open_approval(ledger.entries(), PLANT, digest_of("1")) is None


def test_a_champion_that_came_meanwhile_leaves_no_usable_approval(ledger: Ledger) -> None:
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    promotion = promote.decide(ledger.home, first, "a reviewer", "")
    with pytest.raises(Refused, match="compare") as error:
        promote.decide(ledger.home, second, "a reviewer", "")
    assert str(error.value).count(". ") == 0
    assert current(ledger) == promotion
    assert champions.open_approval(ledger.entries(), PLANT, digest_of("2")) is None
    # Nor can the refusal be turned into a promotion by whoever finds the approval.
    assert promote.waiting(ledger.entries(), PLANT) == []


def test_a_rejected_candidate_is_not_promoted(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    promote.turn_down(ledger.home, entry, "a reviewer", "too lively")
    with pytest.raises(Refused, match="rejected"):
        promote.decide(ledger.home, entry, "another", "")
    assert current(ledger) is None
    assert champions.open_approval(ledger.entries(), PLANT, digest_of("1")) is None


def test_a_kill_between_approval_and_promotion_is_completed(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    approval = champions.approve(
        ledger, PLANT, digest_of("1"), version="1", by="a reviewer", note="", candidate=entry.digest
    )
    # Nobody may think it is done.
    assert promote.waiting(ledger.entries(), PLANT) == [entry]
    promotion = promote.decide(ledger.home, entry, "a reviewer", "")
    assert promotion.body["approval"] == approval.digest
    assert ledger.entries("approval", PLANT) == [approval]
    assert promote.waiting(ledger.entries(), PLANT) == []


def test_who_waits(ledger: Ledger) -> None:
    assert promote.waiting(ledger.entries()) == []
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    failed = candidate(ledger, "3", passed=False)
    rejected = candidate(ledger, "4")
    promote.turn_down(ledger.home, rejected, "a reviewer", "")
    found = promote.waiting(ledger.entries(), PLANT)
    assert found == promote.waiting(ledger.entries()) == [first, second]
    assert failed not in found
    assert promote.waiting(ledger.entries(), "double_mass") == []
    promotion = promote.decide(ledger.home, first, "a reviewer", "")
    # The second was compared with no champion, which is no longer so.
    assert promote.waiting(ledger.entries(), PLANT) == []
    third = candidate(ledger, "5", champion=promotion.digest)
    assert promote.waiting(ledger.entries(), PLANT) == [third]


def test_a_rejection_takes_back_an_approval_that_was_not_used(ledger: Ledger) -> None:
    entry = candidate(ledger, "1")
    champions.approve(ledger, PLANT, digest_of("1"), version="1", by="a", note="", candidate=entry.digest)
    promote.turn_down(ledger.home, entry, "b", "second thoughts")
    assert promote.waiting(ledger.entries(), PLANT) == []
    assert champions.open_approval(ledger.entries(), PLANT, digest_of("1")) is None


def test_turning_down_is_logged_once(ledger: Ledger) -> None:
    first, second = candidate(ledger, "1"), candidate(ledger, "2")
    rejection = promote.turn_down(ledger.home, first, "a reviewer", "why")
    assert promote.turn_down(ledger.home, first, "another", "also") == rejection
    other = promote.turn_down(ledger.home, second, "a reviewer", "")
    assert ledger.entries("rejection", PLANT) == [rejection, other]
    assert rejection.body["candidate"] == first.digest


def test_the_incumbent_is_the_champion_before_the_runs_own(ledger: Ledger) -> None:
    def incumbent(*own: str) -> Entry | None:
        return promote.incumbent(ledger.entries(), PLANT, map(digest_of, own))

    assert incumbent("a") is None
    reigns: list[Entry] = []
    for name in ("a", "b", "c"):
        before = reigns[-1].digest if reigns else None
        reigns.append(promote.decide(ledger.home, candidate(ledger, name, champion=before), "a reviewer", ""))
    a, b, c = reigns
    assert incumbent() == incumbent("a") == incumbent("x") == c
    assert incumbent("c") == incumbent("c", "a") == b
    assert incumbent("c", "b") == a
    assert incumbent("a", "b", "c") is None
    assert promote.incumbent(ledger.entries(), "double_mass", []) is None


def test_a_candidate_is_found_by_its_version(ledger: Ledger) -> None:
    first = candidate(ledger, "1")
    assert promote.find_candidate(ledger.entries(), PLANT, "1") == first
    with pytest.raises(BadInput, match=r"knows \(1\), got '2'"):
        promote.find_candidate(ledger.entries(), PLANT, "2")
    with pytest.raises(BadInput, match=r"double_mass that the ledger knows \(none\)"):
        promote.find_candidate(ledger.entries(), "double_mass", "1")


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, dict[str, Any], Path, str]:
    """(home, dataset, bundle, its digest)."""
    folder = tmp_path_factory.mktemp("promote")
    home = Home(folder / "home")
    dataset = reactor_dataset(home, folder, 0.05)
    bundle = home.root / "bundles" / "sample"
    return home, dataset, bundle, write_bundle(bundle)


def test_a_candidate_is_recorded_once_with_all_its_files(
    furnished: tuple[Home, dict[str, Any], Path, str],
) -> None:
    home, dataset, bundle, digest = furnished
    certificate = certify(Ledger.open(home), digest)
    said = body("1", composite=digest)
    entry = promote.record_candidate(home, PLANT, said, [bundle], certificate, dataset)
    assert promote.record_candidate(home, PLANT, said, [bundle], certificate, dataset) == entry
    assert Ledger.open(home).entries("candidate") == [entry]
    named = {(home.root / item["path"]).resolve() for item in entry.artefacts}
    assert {path.resolve() for path in bundle.rglob("*") if path.is_file()} <= named
    assert certificate.resolve() in named
    store = Path(dataset["path"])
    assert {path.resolve() for path in store.glob("shards/*")} <= named
    assert (store / "manifests" / f"{dataset['digest']}.json").resolve() in named
    # The same composite from another run is another candidate, compared with another champion perhaps.
    other = promote.record_candidate(home, PLANT, {**said, "run_key": "other"}, [bundle], None, dataset)
    assert other != entry
    promotion = promote.decide(home, entry, "a reviewer", "")
    assert promotion.artefacts == entry.artefacts
    assert audit(home).passed


def _on_the_sessions_servers(services: Services, root: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of its own that uses the session's servers as a team's."""
    monkeypatch.setenv("NEORL_PREFECT_URL", services.prefect.url)
    monkeypatch.setenv("NEORL_MLFLOW_URL", services.mlflow.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Home(root)


def test_people_decide_and_the_aliases_follow(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.promote import approve, list_candidates, reject
    from neorl_core.plants import PLANTS
    from neorl_core.safety.composite import make_composite
    from tasks.adapters.models.bundle import save_bundle
    from tasks.adapters.registry.registry import Registry
    from tasks.adapters.registry.upload import Submission, TrainingData

    home = _on_the_sessions_servers(services, tmp_path / "home", monkeypatch)
    assert list_candidates(home) == []
    ledger, registry, plant = Ledger.open(home), Registry(services.mlflow.url), PLANTS[PLANT]
    registry.reconcile(PLANT, None, None)
    dataset = TrainingData(digest=digest_of("dataset"), store=tmp_path, rows=1, episodes=1)
    entries: list[Entry] = []
    for i in range(2):
        composite = make_composite(plant)
        composite = composite._replace(shield=composite.shield._replace(hold=composite.shield.hold + i))
        digest = save_bundle(tmp_path / f"bundle-{i}", composite, PLANT)
        key = f"decisions-{i}-{tmp_path}"
        submission = Submission(
            plant=PLANT, run_key=key, digest=digest, bundle=tmp_path / f"bundle-{i}", dataset=dataset,
            describe=lambda run_id: f"made by {run_id}",
        )  # fmt: skip
        reference = registry.register(submission)
        certify(ledger, digest)
        said = body("", run_key=key, composite=digest, version=reference.version, url=reference.url)
        entries.append(ledger.append("candidate", said, plant=PLANT))
    first, second = (entry.body["version"] for entry in entries)
    assert [row["version"] for row in list_candidates(home, PLANT)] == [first, second]
    assert list_candidates(home, "double_mass") == []
    promote.reconcile(home, PLANT, registry)
    assert registry.aliases(PLANT) == {"challenger": second}

    turned = reject(home, PLANT, second, "a reviewer", "too lively")
    assert (turned["champion"], turned["record"]) == (None, None)
    assert registry.aliases(PLANT) == {"challenger": first}
    with pytest.raises(Refused, match=f"version {second}.*rejected"):
        approve(home, PLANT, second, "a reviewer", "")
    with pytest.raises(BadInput, match="expected a version of"):
        approve(home, PLANT, "0", "a reviewer", "")

    crowned = approve(home, PLANT, first, "a reviewer", "compared")
    assert crowned["champion"] == first
    assert crowned["record"]["approver"] == "a reviewer"
    assert crowned["record"]["url"] == entries[0].body["url"]
    assert registry.aliases(PLANT) == {"champion": first}
    assert list_candidates(home) == []
    with pytest.raises(Refused, match="the champion"):
        reject(home, PLANT, first, "a reviewer", "")
    again = approve(home, PLANT, first, "another", "")
    assert again["record"] == crowned["record"]
    assert len(ledger.entries("promotion")) == 1

    # What someone moves by hand in MLflow is put right by the next reconciliation.
    registry.reconcile(PLANT, second, None)
    promote.reconcile(home, PLANT, registry)
    assert registry.aliases(PLANT) == {"champion": first}
    registry.reconcile(PLANT, None, None)


def test_nothing_is_decided_while_mlflow_is_gone(
    ledger: Ledger, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    from configs.errors import ServiceMissing
    from flows.promote import approve, reject

    home = _on_the_sessions_servers(services, ledger.home.root, monkeypatch)
    monkeypatch.setenv("NEORL_MLFLOW_URL", "http://127.0.0.1:9")
    candidate(ledger, "1")
    count = len(ledger.entries())
    for decision in (approve, reject):
        with pytest.raises(ServiceMissing, match="MLflow"):
            decision(home, PLANT, "1", "a reviewer", "")
    assert len(ledger.entries()) == count
