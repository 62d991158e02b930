"""Persons' private keys on disk: encrypted, outside of every home, with a passphrase that NeoRL never stores."""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from configs.errors import BadInput, Refused
from configs.home import Home, login
from tasks.evidence.ledger.keys import configuration, encrypted, load_private
from tasks.evidence.ledger.signing import SigningKey, TrustRoot, key_id, public_key, public_text
from tasks.evidence.people.keyring import KEY_TYPE, PersonKey, folded, unwritable
from tasks.evidence.people.statement import Signatory, with_key
from tasks.files.canonical import read_secret, write_atomic, write_secret

PERSON = "NEORL_PERSON"
"""Variable with the name of the acting person; defaults to the login."""
PASSPHRASE_FILE = "NEORL_PERSON_PASSPHRASE_FILE"
PASSPHRASE_COMMAND = "NEORL_PERSON_PASSPHRASE_COMMAND"
"""Variable with a command that prints the passphrase, for example from a key ring. It runs without a shell."""
LEAST = 8
"""Minimum number of characters of a passphrase."""
TIMEOUT = 120.0
"""Time limit of the command in seconds. A person may have to touch a hardware token."""


def acting() -> str:
    """Return the acting person: NEORL_PERSON, or the login."""
    return os.environ.get(PERSON) or login()


def people_folder() -> Path:
    """Return the folder of persons' private keys, which is outside of every home."""
    return configuration() / "people"


def key_file(person: str) -> Path:
    """Return the path of a person's private key (PEM, encrypted PKCS #8, mode 0600)."""
    slug = re.sub(r"[^\w]+", "-", folded(person)).strip("-")
    if not slug:
        raise BadInput(f"a person's name must contain letters, got {person!r}: give another name")
    return people_folder() / f"{slug}.pem"


def public_file(private: Path) -> Path:
    """Return the path of the public file beside a private key; other persons enrol the key with this file."""
    if private.suffix != ".pem":
        raise BadInput(f"the file of a private key must end with .pem, got {private}: rename it")
    return private.with_suffix(".json")


def create(home: Home, person: str, path: Path | None = None) -> tuple[Path, PersonKey]:
    """Create a person's key; return the path and the content of its public file.

    Args:
        path: file of the key; defaults to the user's configuration.
    """
    if (odd := unwritable(" ".join(person.split()))) is not None:
        raise BadInput(f"a person's name must not contain control characters: remove {odd} from {person!r}")
    private = path or key_file(person)
    if private.resolve().is_relative_to(home.root.resolve()):
        raise BadInput(f"{private} is in the home, so copies of it could sign as {person}: choose another folder")
    if private.exists() or public_file(private).exists():
        raise BadInput(f"{person} already has a key in {private}: replace it with 'neorl keys rotate --person'")
    return write(private, person, Ed25519PrivateKey.generate(), new_passphrase(person))


def write(path: Path, person: str, private: Ed25519PrivateKey, passphrase: bytes) -> tuple[Path, PersonKey]:
    """Encrypt a person's key and write its private and public files; return path and content of the public file."""
    key = SigningKey(private)
    own = PersonKey(person=" ".join(person.split()), public=public_text(key.public), login=login())
    # The mode of a folder that the person chose is not changed.
    write_secret(path, encrypted(private, passphrase), folder_is_ours=path.parent == people_folder())
    return write_atomic(public_file(path), key.seal(KEY_TYPE, own.model_dump())), own


def new_passphrase(person: str) -> bytes:
    """Get the passphrase for a new key from the environment or the terminal."""
    secret = _given()
    if secret is None:
        secret = _asked(f"New passphrase for {person}'s key: ")
        if secret and secret != _asked("Once more: "):
            raise BadInput("the two passphrases differ: run the command again")
    if len(secret or b"") < LEAST:
        raise BadInput(
            f"a passphrase must have at least {LEAST} characters, got {len(secret or b'')}: run the command in a "
            f"terminal, or set {PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}"
        )
    return secret or b""


def read_public(path: Path) -> tuple[PersonKey, str]:
    """Read and verify a public file; return its content and the signed envelope."""
    cure = "use the file that 'neorl keys create --person' wrote"
    try:
        envelope = path.read_bytes()
        own = PersonKey.model_validate_json(base64.b64decode(json.loads(envelope)["payload"]))
        public = public_key(own.public)
        TrustRoot({key_id(public): public}, path).unseal(KEY_TYPE, envelope)
    except (OSError, ValueError, LookupError, TypeError, Refused) as error:
        raise BadInput(f"{path} is not a person's public key ('{_line(error)}'): {cure}") from error
    return own, envelope.decode()


def unlock(path: Path) -> Signatory:
    """Decrypt a person's private key; return the person, ready to sign."""
    if not path.is_file():
        raise BadInput(f"{path} does not exist: make a person's key with 'neorl keys create --person NAME'")
    own, _ = read_public(public_file(path))
    pem = read_secret(path)
    passphrase = _given() or _asked(f"Passphrase of {own.person}'s key: ")
    if not passphrase:
        raise Refused(
            f"the passphrase of {own.person}'s key is missing: run the command in a terminal, or set "
            f"{PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}"
        )
    key = SigningKey(load_private(path, pem, passphrase, f"correct {PASSPHRASE_FILE}, or type it again"))
    if public_text(key.public) != own.public:
        raise Refused(f"the private key in {path} does not match {own.person}'s public file: restore it from a backup")
    return with_key(own.person, key)


def signatory_of(person: str, path: Path | None = None) -> Signatory | None:
    """Return the acting person, ready to sign; None if this machine has no key of this person.

    Args:
        path: file of the private key, which must exist if given.

    Raises:
        BadInput: if the key belongs to another person.
    """
    private = path or key_file(person)
    if path is None and not private.is_file():
        return None
    own, _ = read_public(public_file(private))
    if folded(own.person) != folded(person):
        raise BadInput(f"{private} is the key of {own.person}, not of {person}: give --by or --key of one person")
    return unlock(private)


def _asked(prompt: str) -> bytes | None:
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return getpass.getpass(prompt).encode()


def _given() -> bytes | None:
    sources: tuple[tuple[str, Callable[[str], bytes]], ...] = (
        (PASSPHRASE_FILE, lambda name: Path(name).read_bytes()),
        (PASSPHRASE_COMMAND, _command_output),
    )
    for variable, read in sources:
        if not (named := os.environ.get(variable)):
            continue
        try:
            secret = read(named).strip()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The command's output is not shown: it may be the passphrase.
            raise BadInput(f"{variable} gave no passphrase ({type(error).__name__}): correct the variable") from None
        if not secret:
            raise BadInput(f"{variable} gave an empty passphrase: correct the variable")
        return secret
    return None


def _command_output(command: str) -> bytes:
    return subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True, timeout=TIMEOUT).stdout


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
