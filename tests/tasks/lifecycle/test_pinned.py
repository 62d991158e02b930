"""The trust root that a project pins, and the lines for an auditor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from tasks.evidence.ledger import signing
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.policies import check_pinned, pinned_file
from tasks.evidence.witness.notes import COSIGNATURE, Verifier
from tasks.files.canonical import write_atomic
from tasks.lifecycle import keys
from tasks.lifecycle.policy import sign
from tests.evidence import PLANT, POLICY, signer_at
from tests.tasks.evidence.people.persons import Person, enrol


def test_pinned_files_follow_the_key_into_the_project(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "project" / "trust.yaml"
    monkeypatch.setattr(signing, "PROJECT_TRUST", project)
    with signer_at(Home(home)):
        ledger = Ledger.open(Home(home))
        sign(ledger, POLICY, "a reviewer", "first")
        own = write_atomic(project.parent / "policies" / "double_mass.yaml", b"the project's own")
        write_atomic(home / "policies" / "double_mass.yaml", b"the home's")
        assert run(["keys", "pin", "--json"]) == 0
        copied = json.loads(capsys.readouterr().out)["copied"]
        trust = TrustRoot.locate(Home(home), project=project)
        assert trust.source == project
        assert copied == [str(pinned_file(trust, PLANT))]
        check_pinned(ledger.entries(), trust, PLANT)
        assert own.read_bytes() == b"the project's own"
        # Given again it copies nothing; of a project without the policies it copies them.
        assert run(["keys", "pin"]) == 0
        assert "copied" not in capsys.readouterr().out
        pinned_file(trust, PLANT).unlink()
        assert run(["keys", "pin"]) == 0
        assert f"also copied: {pinned_file(trust, PLANT)}" in capsys.readouterr().out


def test_witnesses_are_copied_and_other_keys_are_kept_out(home: Path, tmp_path: Path) -> None:
    with signer_at(Home(home)):
        public = Person("Ada").key.public
        trust = Ledger.open(Home(home)).trust
        shutil.copy(trust.source, tmp_path / "trust.yaml")
        with pytest.raises(Refused, match="pins other keys"):
            keys.pin_home(Home(home), public, "", tmp_path / "trust.yaml")
        write_atomic(home / "tsa.pem", b"certificate")
        witness = Verifier.of("witness.example/w1", COSIGNATURE, Person("W").key)
        lines = ["origin: here", "witnesses:", f"  - {{key: '{witness}', url: 'http://w:1'}}"]
        lines += ["timestamps: {url: 'http://t:1', certificate: tsa.pem}"]
        write_atomic(home / "witnesses.yaml", "\n".join(lines).encode())
        own = next(iter(trust.keys.values()))
        copied = keys.pin_home(Home(home), own, "", tmp_path / "project" / "trust.yaml")
        assert [path.name for path in copied] == ["tsa.pem", "witnesses.yaml"]


def test_the_printed_lines_are_the_whole_trust_root(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with signer_at(Home(home)):
        ledger = Ledger.open(Home(home))
        enrol(ledger, Person("Ada"), ["operator"])
        keys.rotate_home(Home(home), "an administrator", "yearly")
        assert run(["keys", "show"]) == 0
        out = capsys.readouterr().out
        handed = write_atomic(home / "handed.yaml", out[out.index("keys:\n") :].encode())
        trust = TrustRoot.locate(Home(home))
        assert TrustRoot.read(handed).pins == trust.pins
        assert len(trust.pins) == 3
        assert run(["keys", "show", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["pins"]) == 3
