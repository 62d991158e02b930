"""Signatures of bundles in OpenSSF's format, verified by the command of the package model-signing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from neorl_core.safety.composite import make_composite
from tasks.evidence.archive.export import export
from tasks.evidence.archive.verify import verify_archive
from tasks.evidence.audit.audit import audit
from tasks.evidence.bundle_signature import KEY, NAME, SIGNATURE, check_signatures, fault_of, sign_bundle
from tasks.evidence.ledger.keys import open_key
from tasks.evidence.ledger.ledger import Ledger, folder_artefacts
from tasks.evidence.ledger.protocol import SignBundle
from tasks.evidence.ledger.signing import from_base64, pae
from tasks.evidence.signer import Signer
from tasks.models.plants.known import plant_named
from tasks.training.train import keep_bundle
from tests.evidence import PLANT, candidate_record, certify, open_ledger, signer_at


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    home = tmp_path_factory.mktemp("made")
    bundle = keep_bundle(Home(home), make_composite(plant_named(PLANT).simulator()), PLANT)
    return home / "bundles", bundle.digest


@pytest.fixture
def bundle(home: Path, made: tuple[Path, str]) -> Path:
    Home(home).folder()
    return Path(shutil.copytree(made[0], home / "bundles")) / PLANT / made[1][:24]


def signed(home: Path, digest: str) -> tuple[Ledger, Path]:
    ledger = open_ledger(Home(home))
    return ledger, sign_bundle(Home(home), PLANT, digest, Signer.open(Home(home)).answer)


def by_command(bundle: Path, folder: Path) -> tuple[int, str]:
    command = [Path(sys.executable).with_name("model_signing"), "verify", "key", bundle]
    command += ["--signature", folder / SIGNATURE, "--public_key", folder / KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_the_package_s_command_verifies_a_bundle_and_refuses_a_flipped_bit(
    home: Path, bundle: Path, made: tuple[Path, str]
) -> None:
    _, folder = signed(home, made[1])
    assert by_command(bundle, folder) == (0, "Verification succeeded\n")
    flip(bundle / "composite.npz")
    code, said = by_command(bundle, folder)
    assert code == 1
    assert "Hash mismatch for 'composite.npz'" in said
    assert "Hash mismatch for 'composite.npz'" in str(check_signatures(bundle))


def test_the_signature_is_ecdsa_over_dsse_and_lists_every_file(
    home: Path, bundle: Path, made: tuple[Path, str]
) -> None:
    """A second implementation: DSSE's encoding and OpenSSL's ECDSA."""
    _, folder = signed(home, made[1])
    envelope = json.loads((folder / SIGNATURE).read_text())["dsseEnvelope"]
    public = serialization.load_pem_public_key((folder / KEY).read_bytes())
    assert isinstance(public, EllipticCurvePublicKey)
    payload = from_base64(envelope["payload"])
    signature = from_base64(envelope["signatures"][0]["sig"])
    public.verify(signature, pae(envelope["payloadType"], payload), ECDSA(hashes.SHA256()))
    named = {row["name"] for row in json.loads(payload)["predicate"]["resources"]}
    assert named == {file.name for file in bundle.iterdir()} == {"composite.json", "composite.npz", "examples.npz"}


def test_the_key_for_bundles_follows_from_the_home_s_key_alone(tmp_path: Path) -> None:
    one, other = open_key(tmp_path / "one.pem"), open_key(tmp_path / "other.pem")
    again = open_key(tmp_path / "one.pem")
    scalars = [key.model_key().private_numbers().private_value for key in (one, again, other)]
    assert scalars[0] == scalars[1] != scalars[2]


def test_the_signer_signs_only_the_bundle_that_has_the_digest(home: Path, bundle: Path, made: tuple[Path, str]) -> None:
    open_ledger(Home(home))
    other = made[1][:24] + "0" * 40
    with pytest.raises(Refused, match=f"has composite {made[1]}, but {other} is required"):
        Signer.open(Home(home)).answer(SignBundle(plant=PLANT, composite=other))
    flip(bundle / "composite.npz")
    with pytest.raises(Refused, match=r"composite\.npz has SHA-256"):
        Signer.open(Home(home)).answer(SignBundle(plant=PLANT, composite=made[1]))


def test_audit_archive_and_auditor_see_the_signature(
    home: Path, bundle: Path, made: tuple[Path, str], tmp_path: Path
) -> None:
    ledger, folder = signed(home, made[1])
    certify(ledger, made[1])
    files = [*folder_artefacts(ledger.home, bundle, "bundle"), *folder_artefacts(ledger.home, folder, NAME)]
    ledger.append("candidate", candidate_record(ledger, made[1]), plant=PLANT, artefacts=files)
    before = (folder / SIGNATURE).read_bytes()
    assert sign_bundle(ledger.home, PLANT, made[1], Signer.open(ledger.home).answer) == folder
    assert (folder / SIGNATURE).read_bytes() == before

    def found(name: str) -> list[tuple[bool | None, str]]:
        return [(check.passed, check.detail) for check in audit(ledger.home).checks if check.name == name]

    assert found("signatures") == [(True, "1 OpenSSF signatures of bundles are valid")]
    with signer_at(ledger.home):
        archive = export(ledger.home, tmp_path / "evidence.tar").path
    assert [check.detail for check in verify_archive(archive) if check.passed is False] == []
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "auditor", filter="data")
    there = tmp_path / "auditor" / "bundles" / PLANT
    assert by_command(there / bundle.name, there / folder.name)[0] == 0
    flip(folder / SIGNATURE, 300)
    ((passed, detail),) = found("signatures")
    assert passed is False
    assert "model.sig" in detail


def test_a_signature_by_another_key_and_a_malformed_one_are_named(
    home: Path, bundle: Path, made: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, folder = signed(home, made[1])
    shown = ["certificate", "verify", str(certify(ledger, made[1])), "--bundle", str(bundle)]
    run(shown)
    assert "ok    signature: " in capsys.readouterr().out
    stranger = open_key(tmp_path / "stranger.pem").model_key().public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / KEY).write_bytes(stranger.public_bytes(serialization.Encoding.PEM, form))
    assert "Key mismatch" in str(fault_of(bundle, folder))
    assert run(shown) == 1
    assert "FAIL  signature: " in capsys.readouterr().out
    (folder / SIGNATURE).write_text("{}")
    assert "does not fit" in str(fault_of(bundle, folder))
