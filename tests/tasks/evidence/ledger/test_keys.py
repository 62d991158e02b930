"""The private key on disk: encrypted, pinned once, never replaced, and useless without its passphrase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger.keys import (
    PASSPHRASE_FILE,
    kept_passphrase,
    must_be_asked_for,
    open_keys,
)
from tasks.evidence.ledger.signing import TrustRoot, home_pin, key_id, trust_yaml
from tasks.files.canonical import read_secret, write_secret


def unencrypted(private: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    """Write a key as earlier versions stored it."""
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def trust(tmp_path: Path) -> TrustRoot:
    """Pin a foreign key."""
    path = tmp_path / "trust.yaml"
    path.write_bytes(trust_yaml(home_pin(Ed25519PrivateKey.generate().public_key(), "another")))
    return TrustRoot.read(path)


def test_keys_are_made_and_pinned_on_first_use_only(home: Path) -> None:
    place = Home(home)
    key, root = open_keys(place, first_use=True)
    again, _ = open_keys(place, first_use=False)
    assert key_id(again.public) == key_id(key.public)
    assert list(root.keys) == [key_id(key.public)]
    assert root.source == place.trust
    path = place.signing_key
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700

    path.unlink()
    with pytest.raises(Refused, match=r"the private key .* does not exist"):
        open_keys(place, first_use=False)
    # A new key for a home whose trust root pins the old one signs nothing.
    with pytest.raises(Refused, match="is not pinned in"):
        open_keys(place, first_use=True)


def test_the_key_file_is_useless_without_its_passphrase(home: Path) -> None:
    place = Home(home)
    key, _ = open_keys(place, first_use=True)
    pem = place.signing_key.read_bytes()
    with pytest.raises(TypeError, match="encrypted"):
        serialization.load_pem_private_key(pem, None)
    kept = kept_passphrase(pem)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not kept.resolve().is_relative_to(home.resolve())
    private = serialization.load_pem_private_key(pem, read_secret(kept).strip())
    assert private.public_key() == key.public
    # A copy of the home on another machine is without it.
    kept.unlink()
    assert must_be_asked_for(place)
    with pytest.raises(Refused, match=f"passphrase of .*{PASSPHRASE_FILE}"):
        open_keys(place, first_use=False)


def test_a_chosen_passphrase_is_used(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = Home(home), tmp_path / "passphrase"
    key, _ = open_keys(place, first_use=True, passphrase=b"correct horse")
    assert not kept_passphrase(place.signing_key.read_bytes()).exists()
    assert must_be_asked_for(place)
    with pytest.raises(Refused, match="does not decrypt") as refusal:
        open_keys(place, first_use=False, passphrase=b"hunter2")
    assert "hunter2" not in str(refusal.value)
    monkeypatch.setenv(PASSPHRASE_FILE, str(file))
    assert not must_be_asked_for(place)
    with pytest.raises(BadInput, match="No such file"):
        open_keys(place, first_use=False)
    file.write_text("\n")
    with pytest.raises(BadInput, match="is empty: write"):
        open_keys(place, first_use=False)
    file.write_text("correct horse\n")
    assert open_keys(place, first_use=False)[0].public == key.public


def test_an_unencrypted_key_of_an_earlier_version_is_encrypted(home: Path) -> None:
    place, private = Home(home), Ed25519PrivateKey.generate()
    write_secret(place.signing_key, unencrypted(private))
    place.trust.write_bytes(trust_yaml(home_pin(private.public_key(), "pinned on first use")))
    key, _ = open_keys(place, first_use=False)
    assert key.public == private.public_key()
    pem = place.signing_key.read_bytes()
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert place.signing_key.stat().st_mode & 0o777 == 0o600
    assert open_keys(place, first_use=False)[0].public == private.public_key()


def test_a_passphrase_that_cannot_be_kept_makes_no_key(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("a file in the way")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with pytest.raises(BadInput, match=f"write the key's passphrase .*{PASSPHRASE_FILE}"):
        open_keys(Home(home), first_use=True)
    assert not Home(home).signing_key.exists()


def test_a_lost_trust_root_is_not_replaced(home: Path) -> None:
    open_keys(Home(home), first_use=True)
    Home(home).trust.unlink()
    with pytest.raises(BadInput, match="pinned public keys"):
        open_keys(Home(home), first_use=False)


def test_the_project_s_pins_come_before_the_home_s(home: Path, trust: TrustRoot) -> None:
    with pytest.raises(Refused, match="pin it there"):
        open_keys(Home(home), first_use=True, project=trust.source)
    assert not Home(home).trust.exists()
    given = home / "given.yaml"
    given.write_bytes(trust.source.read_bytes())
    assert TrustRoot.locate(Home(home), project=trust.source).source == trust.source
    assert TrustRoot.locate(Home(home), given, project=trust.source).source == given


def test_secrets_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "keys" / "seed", b"hunter2")
    assert read_secret(path) == b"hunter2"
    path.chmod(0o640)
    with pytest.raises(Refused, match="0600, got 0640") as refusal:
        read_secret(path)
    assert "hunter2" not in str(refusal.value)


def test_foreign_keys_are_bad_input_and_are_not_quoted(home: Path) -> None:
    path = Home(home).signing_key
    for content in (
        unencrypted(X25519PrivateKey.generate()),
        b"-----BEGIN PRIVATE KEY-----\nhello\n-----END PRIVATE KEY-----\n",
    ):
        write_secret(path, content)
        with pytest.raises(BadInput, match="Ed25519") as refusal:
            open_keys(Home(home), first_use=True)
        assert "hello" not in str(refusal.value)
        assert path.read_bytes() == content


def test_processes_that_start_together_agree_on_one_key(home: Path) -> None:
    code = (
        "from configs.home import Home\n"
        "from tasks.evidence.ledger.keys import open_keys\n"
        "from tasks.evidence.ledger.signing import key_id\n"
        "print(key_id(open_keys(Home.locate(), first_use=True)[0].public))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) for _ in range(3)
    ]
    names = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert len(set(names)) == 1
