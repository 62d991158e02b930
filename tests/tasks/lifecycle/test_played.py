"""People's decisions through commands, with MLflow's pages after each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.strict import Approvers
from flows.cli.main import run
from flows.decisions import statement
from tasks.evidence.ledger.keys import load_private
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import SigningKey
from tasks.evidence.people import private_keys
from tasks.evidence.people.statement import with_key
from tasks.files.canonical import write_atomic
from tasks.lifecycle.policy import policy_yaml
from tests.evidence import PLANT, POLICY
from tests.tasks.lifecycle.served import Served

if TYPE_CHECKING:
    from flows.services.servers import Services

ADA, BEN = "Ada Lovelace", "Ben Carter"
SECRET = b"correct horse battery"
TWO = POLICY.model_copy(
    update={
        "approvers": Approvers(count=2, roles=["safety engineer"], keys=True, not_author=True),
        "approval_days": 1,
    }
)


@pytest.fixture
def served(services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(private_keys.PASSPHRASE_FILE, str(write_atomic(tmp_path / "passphrase", SECRET)))
    found = Served(services, tmp_path / "home", monkeypatch)
    yield found
    found.close()


class Commands:
    """`neorl` in this process: its JSON with the exit code, or what it printed for people."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> dict[str, Any]:
        code = run([*words, "--json"])
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out.strip().splitlines()[-1])
        return {**answer, "exit": code}

    def told(self, *words: str) -> str:
        assert run(list(words)) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def neorl(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def audit_fails(neorl: Commands) -> list[str]:
    found = neorl("audit", "verify")
    if found["exit"] == 0:
        return []
    return [found["error"]]


@pytest.mark.slow
def test_decisions_are_played_through_and_every_page_follows(
    served: Served, neorl: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _persons_and_policy(neorl, tmp_path)
    first, second = served.candidate(), served.candidate()
    v1, v2 = first.body["version"], second.body["version"]
    neorl("candidates", PLANT)
    assert served.said(v1, v2) == ["waits for approval", "waits for approval"]
    assert served.registry.aliases(PLANT) == {"challenger": v2}

    # Somebody's name without a key, and the name of somebody with one, without it.
    for name in ("Somebody Else", "ben  CARTER"):
        (tmp_path / "config" / "neorl" / "people").rename(tmp_path / "away")
        refused = neorl("approve", PLANT, v1, "--by", name)
        (tmp_path / "away").rename(tmp_path / "config" / "neorl" / "people")
        assert refused["exit"] == 1
        assert "the approval needs the signature of" in refused["error"]

    # Two approvers, and the approval of one has expired: it was signed two days ago, elsewhere.
    private = private_keys.key_file(ADA)
    old = datetime.now(UTC) - timedelta(days=2)
    key = load_private(private, private.read_bytes(), SECRET, "")
    late = statement(
        served.home, PLANT, v1, "in good time", with_key(ADA, SigningKey(key), lambda: old), role="safety engineer"
    )
    write_atomic(tmp_path / "ada.signed", late.encode())
    given = neorl("approve", PLANT, v1, "--statement", str(tmp_path / "ada.signed"))
    assert given["missing"] == "approvals needed from 2 persons, got 0, and 1 expired"
    given = neorl("approve", PLANT, v1, "--by", BEN, "--note", "compared | trajectories")
    assert (given["champion"], given["missing"]) == (None, "approvals needed from 2 persons, got 1, and 1 expired")
    page = served.page(v1)
    assert "Missing: approvals needed from 2 persons, got 1, and 1 expired." in page.description
    assert f"| approved for closed loop | {BEN} | compared \\| trajectories |" in page.description

    # One is rejected.
    assert neorl("reject", PLANT, v2, "--by", BEN, "--note", "too nervous on the valve")["exit"] == 0
    assert served.said(v1, v2) == ["waits for approval", "rejected"]
    assert f"| rejected | {BEN} | too nervous on the valve |" in served.page(v2).description
    assert served.registry.aliases(PLANT) == {"challenger": v1}

    # Ada signs anew, on a machine without the home's key, and it is logged.
    signed = str(tmp_path / "again.signed")
    words = ("approve", PLANT, v1, "--by", ADA, "--role", "safety engineer", "--note", "again")
    assert neorl(*words, "--statement-to", signed)["exit"] == 0
    crowned = neorl("approve", PLANT, v1, "--statement", signed)
    assert (crowned["champion"], crowned["missing"]) == (v1, None)
    assert served.said(v1, v2) == ["champion", "rejected"]
    assert f"| approved for closed loop | {ADA} (safety engineer) | again |" in served.page(v1).description
    assert audit_fails(neorl) == []

    # Another champion: the former one's page says so.
    v3 = served.candidate().body["version"]
    _both_approve(neorl, v3)
    assert served.said(v1, v3) == ["was champion", "champion"]
    assert served.registry.aliases(PLANT) == {"champion": v3}

    # A champion is withdrawn: in the home's name, for that waits for nobody.
    done = neorl("withdraw", PLANT, v3, "--by", "shift engineer", "--why", "another valve since Monday")
    assert done["champion"] is None
    assert served.said(v1, v3) == ["was champion", "withdrawn"]
    assert "| withdrawn | shift engineer | another valve since Monday | in the home's name |" in (
        served.page(v3).description
    )
    assert served.registry.aliases(PLANT) == {}

    _keys_go_out(served, neorl, v1)
    history = neorl.told("history", PLANT)
    for told in (f"by {BEN}", "too nervous on the valve", "in the home's name", "why Ben's key was stolen, key "):
        assert told in history
    assert file.exists()


def _persons_and_policy(neorl: Commands, tmp_path: Path) -> Path:
    """Two persons with keys, and a policy that requires both."""
    for name in (ADA, BEN):
        made = neorl("keys", "create", "--person", name)
        assert made["exit"] == 0, made
        who = ("--by", ADA) if name == BEN else ("--by", "an administrator")
        done = neorl("keys", "pin", "--person", made["public"], "--role", "safety engineer", "--role", "operator", *who)
        assert done["exit"] == 0, done
    file = write_atomic(tmp_path / "policy.yaml", policy_yaml(TWO))
    signed = neorl("policy", "sign", PLANT, str(file), "--why", "two persons", "--by", ADA)
    assert signed["exit"] == 0, signed
    # Changing it takes both: approval: auto, or one person, is a signed change.
    lax = TWO.model_copy(update={"approvers": Approvers(count=0)})
    path = str(write_atomic(tmp_path / "lax.yaml", policy_yaml(lax)))
    for who in ("Somebody Else", ADA):
        assert neorl("policy", "sign", PLANT, path, "--why", "faster", "--by", who)["exit"] == 1
    return file


def _both_approve(neorl: Commands, version: str) -> None:
    for name, role in ((ADA, "safety engineer"), (BEN, "operator")):
        done = neorl("approve", PLANT, version, "--by", name, "--role", role)
        assert done["exit"] == 0, done
    assert done["champion"] == version


def _keys_go_out(served: Served, neorl: Commands, was_champion: str) -> None:
    """A rotated and a revoked key, of persons and of the home."""
    before = private_keys.read_public(private_keys.public_file(private_keys.key_file(ADA)))[0].public
    assert neorl("keys", "rotate", "--person", ADA, "--why", "yearly")["exit"] == 0
    assert private_keys.read_public(private_keys.public_file(private_keys.key_file(ADA)))[0].public != before
    assert neorl("keys", "rotate", "--why", "yearly", "--by", "an administrator")["exit"] == 0
    version = served.candidate().body["version"]
    _both_approve(neorl, version)
    assert served.said(was_champion, version) == ["was champion", "champion"]
    assert audit_fails(neorl) == []
    # Ben's key was stolen before his approval: the champion stays in force, and the audit reports it.
    moment = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
    words = ("keys", "revoke", BEN, "--from", moment, "--why", "the laptop was stolen", "--by", ADA)
    revoked = neorl(*words)
    assert revoked["exit"] == 0, revoked
    assert any(f"serves on {BEN}'s approval" in line for line in revoked["found"])
    assert any("people" in line for line in audit_fails(neorl))
    refused = neorl("approve", PLANT, version, "--by", BEN)
    assert refused["champion"] == version
    other = served.candidate().body["version"]
    refused = neorl("approve", PLANT, other, "--by", BEN, "--role", "operator")
    assert refused["exit"] == 1
    assert "was revoked from" in refused["error"]
    assert served.said(version, other) == ["champion", "waits for approval"]
    assert neorl("withdraw", PLANT, version, "--by", ADA, "--why", "Ben's key was stolen")["exit"] == 0
    assert served.said(version, other) == ["withdrawn", "superseded"]
    assert audit_fails(neorl) == []
    shown = neorl("keys", "show")
    assert [bool(row["revoked"]) for row in shown["people"]].count(True) == 1
    assert [bool(row["until"]) for row in shown["people"]].count(True) == 1
    assert len(shown["trusted"]) == 2
    assert len(Ledger.open(served.home, write=False).entries("rotation")) == 2
