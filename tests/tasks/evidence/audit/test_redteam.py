"""`make redteam` on a small home: every attack is refused or found for the expected reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.redteam.__main__ import ARCHIVES, attacked, plant_of, table
from benchmarks.redteam.attacks import ATTACKS, Attack
from benchmarks.redteam.people import PEOPLE
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants import PLANTS
from tasks.evaluation.claims import claim_of
from tasks.lifecycle.policy import hold_run
from tests.evidence import PLANT, certify, furnished_home, open_ledger

ONE_HAND = ("1e", "1f", "2e", "2f")
"""What is open where the witness's folder and key are the attacker's, too."""
SIMULATED = ("6a", "6b")
"""They compile a plant: tests/tasks/evaluation/test_guarded.py has them on a smaller one."""
WORDS = {
    "1a": "the seed that runs is none of those that were tried",
    "1b": "does not match the SHA-256 that the ledger states for attempt",
    "1c": "the witness gives no nonce for a record that no countersigned head contains",
    "1d": "witness.example/w1 knows a head that this ledger does not match",
    "1e": "witness.example/w1 knows a head that this ledger does not match",
    "1f": "was not given by witness.example/w1",
    "2a": "this home has a signing key, but the ledger",
    "2b": "witness.example/w1 knows a head that this ledger does not match",
    "2c": "the ledger has 6 entries, but a signed head covers",
    "2d": "witness.example/w1 knows a head that this ledger does not match",
    "2e": "witness.example/w1 knows a head that this ledger does not match",
    "2f": "witness.example/w1 knows a head that this ledger does not match",
    "2g": "the ledger's attempts name witnesses",
    "10a": "refused to countersign: the last record is of",
    "10b": "is behind the ledger's last entry",
    "10c": "2099-01-01T00:00:00.000000Z is later than now",
    "3a": "p0 must be at most 0.001 (policy), got 0.99 in this run",
    "3b": "p0 must be at most 0.001 (policy), got 0.99",
    "3c": "policies: the pinned policy",
    "3d": "the pinned policy",
    "3e": "policies: the pinned policy",
    "3f": "an approval must be at most 1 days old",
    "3g": "the certificate is older than 1 days",
    "3h": "gates.beat_plant must be true (policy of chemical_reactor), got false",
    "3i": "the counts are inconsistent",
    "3j": "but its claim has lineage",
    **dict.fromkeys(("3k", "3l", "3m", "3n", "3o"), "of the lineage"),
    "4a": "simulator: certificate",
    "4b": "code: certificate",
    "4c": "lock: certificate",
    "4d": "shield: certificate",
    "4e": "composite: certificate",
    "5a": "did not pass every gate",
    "5b": "gate data must be failed by its evidence, got passed",
    "5c": "the passed result of attempt",
    "5d": "files: certificates/",
    "5e": "controllers: version 99",
    "7a": "policy_model.py: expected SHA-256",
    "7b": "MLmodel: expected SHA-256",
    "7c": "code/numpy.py: a file that no entry names",
    "7d": "MLmodel: missing",
    "8": "MLflow's chemical_reactor@champion is version 99",
    "8b": "differs from the ledger",
    "9d": "the approval needs the signature of Somebody Else",
    "9e": "the approval needs the signature of Ada",
    "9f": "the statement of Ada is signed by Ben",
    "9g": "the key needs the signature of",
    "9h": "keys: ledger entry",
    "9i": "the policy needs the signature of",
    "9j": "is already in the ledger",
    "9k": "the statement's policy is",
    "9l": "the statement's note is 'only for the summer', the ledger requires ''",
    "9m": "requires another approver than the person who ran the retraining (ada)",
    "9n": "Ben has no role 'safety engineer' (roles: none)",
    "9o": "of Ben (no role) is pinned as Eve",
    "10d": "was revoked from",
    "10e": "serves on Ben's approval",
    "10f": "a rotation of the home's key ",
    "10g": "does not count: signed by key",
    "10h": "all the same",
    "11e": "is the champion of chemical_reactor and cannot be rejected",
    "14.1": "has the unexpected member 'a/b'",
    "14.2": "has the unexpected member 'd/d/d",
    "14.3": "has the unexpected member",
    "14.4": "has type b'2' and 0 bytes",
    "14.5": "extended header 'GNU.sparse",
    "14.6": "that it states",
    "14.7": "files Input should be greater than or equal to 0, got '-1'",
    "14.8": "but the archive has other files",
    "14.9": "has the unexpected member",
    "14.10": "because only the servers' databases and results are restored there",
    "14.11": "ledger.db has no table of entries",
    "14.12": "mlflow/mlflow.db cannot be updated (table 'datasets' has the trigger 'waste', which MLflow's",
    "15": "was restored from a backup: accept its work",
    "9a": "approval must be required (policy of chemical_reactor), got auto",
    "9b": "requires a person's approval",
    "9c": "approvals needed from 2 persons, got 1",
    "11a": "was not compared with the champion in force",
    "11b": "later.py: no entry names it",
    "11c": "'certify.confidence'",
    "11d": "of chemical_reactor was ruled out",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return furnished_home(tmp_path_factory.mktemp("redteam") / "home").home


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the policy of its first run, whose limits and domain bind later runs."""
    home = Home(tmp_path_factory.mktemp("drafted") / "home")
    run, ledger = OpenedRun(plant=PLANT), open_ledger(home)
    hold_run(ledger, run)
    certify(ledger, "a" * 64, claim=claim_of(PLANTS[PLANT], run))
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [a for a in (*ATTACKS, *PEOPLE, *ARCHIVES) if a.number not in SIMULATED], ids=lambda attack: attack.number
)
def test_every_attack_is_refused_or_found(
    source: Home, attack: Attack, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    home = request.getfixturevalue("drafted") if attack.power == "YAML" else source
    result = attacked(attack, home, plant_of(source), tmp_path)
    assert result.held, result
    assert (result.local in ("refused", "found")) is (attack.number not in ONE_HAND), result
    assert WORDS[attack.number] in result.message
    assert f"| {attack.number} | {attack.name} |" in table([result])
