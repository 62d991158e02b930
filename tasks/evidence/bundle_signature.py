"""OpenSSF model signatures of bundles, which `model_signing verify key` checks without NeoRL.

A signature and its public key lie in a folder beside the bundle. The candidate's signed entry names both files.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from configs.home import Home
from tasks.evidence.ledger import client
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.protocol import Ask, SignBundle
from tasks.evidence.ledger.signing import SigningKey
from tasks.files.canonical import sha256_hex, write_atomic, write_secret

NAME = "openssf"
"""Name of the files in ledger entries, of the folder in MLflow's models, and end of the folder's name in a home."""
SIGNATURE, KEY = "model.sig", "model-key.pem"


def bundle_folder(home: Home, plant: str, composite: str) -> Path:
    return home.root / "bundles" / plant / composite[:24]


def public_pem(key: SigningKey) -> bytes:
    """Return the public key for bundles; its SHA-256 is the key's name in signatures."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.model_key().public_key().public_bytes(serialization.Encoding.PEM, form)


def signed(key: SigningKey, bundle: Path) -> str:
    """Sign all files of a bundle; return the content of `model.sig`."""
    from model_signing import signing

    # The package reads keys from files only, so the file is encrypted with a password that is not stored.
    password = secrets.token_bytes(32)
    form = serialization.BestAvailableEncryption(password)
    pem = key.model_key().private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
    with tempfile.TemporaryDirectory(prefix="neorl-") as name:
        file, signature = Path(name) / "key.pem", Path(name) / SIGNATURE
        write_secret(file, pem)
        config: Any = signing.Config  # untyped; the password must be bytes, although its annotation says text
        config().use_elliptic_key_signer(private_key=file, password=password).sign(bundle, signature)
        return signature.read_text()


def sign_bundle(home: Home, plant: str, composite: str, ask: Ask | None = None) -> Path:
    """Have the signer sign a bundle, and return the folder with signature and public key.

    A valid signature by the same key is kept, because ECDSA signatures differ each time.
    """
    request = SignBundle(plant=plant, composite=composite)
    answer = ask(request) if ask else client.ask(home, request)
    bundle = bundle_folder(home, plant, composite)
    name = f"{bundle.name}.{NAME}-{sha256_hex(answer.public.encode())[:8]}"
    folder = home.folder("bundles", plant, name)
    if not (folder / KEY).is_file() or fault_of(bundle, folder) is not None:
        write_atomic(folder / SIGNATURE, answer.envelope.encode())
        write_atomic(folder / KEY, answer.public.encode())
    return folder


def signatures_of(bundle: Path) -> list[Path]:
    """Return the folders with signatures of a bundle, one for each key."""
    return sorted(bundle.parent.glob(f"{bundle.name}.{NAME}-*"))


def signatures_named(home: Home, entry: Entry) -> Iterator[tuple[Path, Path]]:
    """Yield (bundle, folder of its signature) that a candidate's entry names."""
    for file in entry.artefacts:
        if file.name == f"{NAME}/{SIGNATURE}":
            folder = (home.root / file.path).parent
            yield folder.with_name(folder.name.partition(".")[0]), folder


def fault_of(bundle: Path, folder: Path) -> str | None:
    """Verify a bundle's signature with the public key beside it; return what is wrong, or None."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    config: Any = verifying.Config
    try:
        config().use_elliptic_key_verifier(public_key=folder / KEY).verify(bundle, folder / SIGNATURE)
    except InvalidSignature:
        return f"{folder / SIGNATURE} was not made with the key {folder / KEY}"
    except Exception as error:  # the package raises errors of several libraries for malformed files
        return f"{folder / SIGNATURE} does not fit {bundle} ({' '.join(str(error).split())[:200]})"
    return None


def check_signatures(bundle: Path) -> str | None:
    """Return what is wrong with a bundle's signatures, or None; a bundle without signatures is right."""
    return next((fault for folder in signatures_of(bundle) if (fault := fault_of(bundle, folder))), None)
