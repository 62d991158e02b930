"""A person's private key at rest: encrypted, outside every home, under a passphrase that is kept in no file of ours."""

from __future__ import annotations

import getpass
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
from tasks.files.canonical import write_atomic
from tasks.files.secrets import read_secret, write_secret

PERSON = "NEORL_PERSON"
"""Who acts, where a command does not say; the login otherwise."""
PASSPHRASE_FILE = "NEORL_PERSON_PASSPHRASE_FILE"
PASSPHRASE_COMMAND = "NEORL_PERSON_PASSPHRASE_COMMAND"
"""A command that prints the passphrase, such as an agent's or a key ring's: it is run without a shell."""
LEAST = 8
"""Characters of a passphrase."""
PATIENCE = 120.0
"""Seconds for that command: somebody may have to touch a token."""


def acting() -> str:
    """Who acts: the person that the environment names, else the login."""
    return os.environ.get(PERSON) or login()


def people_folder() -> Path:
    """Where this user's persons' keys lie: with the user's configuration, and so in no copy of a home."""
    return configuration() / "people"


def key_file(person: str) -> Path:
    """A person's private key: PEM, encrypted PKCS #8, mode 0600."""
    slug = re.sub(r"[^\w]+", "-", folded(person)).strip("-")
    if not slug:
        raise BadInput(f"expected a person's name, got {person!r}: write letters.")
    return people_folder() / f"{slug}.pem"


def public_file(private: Path) -> Path:
    """What the person hands to whoever enrols the key: a statement of the key about itself.

    Raises:
        BadInput: when the private key's file does not end with .pem, so that the two could be one.
    """
    if private.suffix != ".pem":
        raise BadInput(f"expected a file for a private key that ends with .pem, got {private}: name it so.")
    return private.with_suffix(".json")


def create(home: Home, person: str, path: Path | None = None) -> tuple[Path, PersonKey]:
    """Make a person's key.

    Args:
        home: where it must not lie.
        person: whose it is.
        path: the file for it; the user's configuration otherwise.

    Returns:
        The file to hand to whoever enrols the key, and what it says.

    Raises:
        BadInput: when there is one, the name has control characters, the place is in the home or does not end with
            .pem, or nobody gives a passphrase.
    """
    if (odd := unwritable(" ".join(person.split()))) is not None:
        raise BadInput(f"expected a person's name without control characters, got {odd} in it: write letters.")
    private = path or key_file(person)
    if private.resolve().is_relative_to(home.root.resolve()):
        raise BadInput(f"expected a place outside the home, got {private}: a copy of the home could sign as {person}.")
    if private.exists() or public_file(private).exists():
        raise BadInput(f"expected no key of {person} yet, got {private}: replace it with 'neorl keys rotate --person'.")
    return write(private, person, Ed25519PrivateKey.generate(), new_passphrase(person))


def write(path: Path, person: str, private: Ed25519PrivateKey, passphrase: bytes) -> tuple[Path, PersonKey]:
    """Encrypt a person's key, and write what it says of itself beside it."""
    key = SigningKey(private)
    own = PersonKey(person=" ".join(person.split()), public=public_text(key.public), login=login())
    # A person may name any folder, whose mode is their own business.
    write_secret(path, encrypted(private, passphrase), folder_is_ours=path.parent == people_folder())
    return write_atomic(public_file(path), key.seal(KEY_TYPE, own.model_dump())), own


def new_passphrase(person: str) -> bytes:
    """A passphrase for a key that is about to be made.

    Raises:
        BadInput: when nobody gives one that is long enough.
    """
    secret = _given()
    if secret is None:
        secret = _asked(f"New passphrase for {person}'s key: ")
        if secret and secret != _asked("Once more: "):
            raise BadInput("expected the same passphrase twice, got two: give the command again.")
    if len(secret or b"") < LEAST:
        raise BadInput(
            f"expected a passphrase of at least {LEAST} characters, got {'a shorter one' if secret else 'none'}: give "
            f"the command at a terminal, or set {PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}."
        )
    return secret or b""


def read_public(path: Path) -> tuple[PersonKey, str]:
    """What a person's key says of itself, and the envelope that shows who holds it.

    Raises:
        BadInput: when the file cannot be read, or is something else.
    """
    import base64
    import json

    cure = "hand over the file that 'neorl keys create --person' wrote"
    try:
        envelope = path.read_bytes()
        own = PersonKey.model_validate_json(base64.b64decode(json.loads(envelope)["payload"]))
        public = public_key(own.public)
        TrustRoot({key_id(public): public}, path).unseal(KEY_TYPE, envelope)
    except (OSError, ValueError, LookupError, TypeError, Refused) as error:
        raise BadInput(f"expected a person's public key in {path}, got '{_line(error)}': {cure}.") from error
    return own, envelope.decode()


def unlock(path: Path) -> Signatory:
    """A person with their key, decrypted for this one command.

    Raises:
        BadInput: when there is no key.
        Refused: when the passphrase is wrong or missing, or others may read the key.
    """
    if not path.is_file():
        raise BadInput(f"expected a person's key in {path}, got none: make one with 'neorl keys create --person NAME'.")
    own, _ = read_public(public_file(path))
    pem = read_secret(path)
    passphrase = _given() or _asked(f"Passphrase of {own.person}'s key: ")
    if not passphrase:
        raise Refused(
            f"expected the passphrase of {own.person}'s key, got none: give the command at a terminal, or set "
            f"{PASSPHRASE_FILE} or {PASSPHRASE_COMMAND}."
        )
    key = SigningKey(load_private(path, pem, passphrase, f"correct {PASSPHRASE_FILE}, or type it again"))
    if public_text(key.public) != own.public:
        raise Refused(f"expected {own.person}'s private key in {path}, got another: restore it from its backup.")
    return with_key(own.person, key)


def signatory_of(person: str, path: Path | None = None) -> Signatory | None:
    """The person who acts, with their key where there is one on this machine; None where there is none.

    Args:
        person: who acts.
        path: the private key's file, which must be there then.

    Raises:
        BadInput: when the file's key is another person's.
    """
    private = path or key_file(person)
    if path is None and not private.is_file():
        return None
    own, _ = read_public(public_file(private))
    if folded(own.person) != folded(person):
        raise BadInput(f"expected {person}'s key in {private}, got {own.person}'s: name its person with --by.")
    return unlock(private)


def _asked(prompt: str) -> bytes | None:
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    return getpass.getpass(prompt).encode()


def _given() -> bytes | None:
    """The passphrase from the file or the command that the environment names."""
    sources: tuple[tuple[str, Callable[[str], bytes]], ...] = (
        (PASSPHRASE_FILE, lambda name: Path(name).read_bytes()),
        (PASSPHRASE_COMMAND, _said_by),
    )
    for variable, read in sources:
        if not (named := os.environ.get(variable)):
            continue
        try:
            secret = read(named).strip()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The command's output is left out: it may be the passphrase.
            raise BadInput(f"expected a passphrase by {variable}, got {type(error).__name__}: correct it.") from None
        if not secret:
            raise BadInput(f"expected a passphrase by {variable}, got nothing: correct it.")
        return secret
    return None


def _said_by(command: str) -> bytes:
    return subprocess.run(shlex.split(command), stdout=subprocess.PIPE, check=True, timeout=PATIENCE).stdout


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
