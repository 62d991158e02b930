"""Seals on the results of stages: a cached result counts only while its signed digest is that of its file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from configs.errors import NeoRLError
from configs.home import Home
from tasks.evidence.ledger import client
from tasks.evidence.ledger.protocol import Ask, Seal
from tasks.evidence.ledger.signing import TrustRoot, keyid_of
from tasks.files.canonical import write_atomic

RESULT_TYPE = "application/vnd.neorl.stage-result+json"


class SealedResult(NamedTuple):
    """What is signed: that a stage, run for a key, had a result with this SHA-256."""

    stage: str
    key: str
    sha256: str


def result_file(home: Home, stage: str, key: str) -> Path:
    """Where the seal of a stage's result is kept."""
    return home.root / "results" / f"{stage}-{key}.dsse.json"


def seal_result(home: Home, stage: str, key: str, sha256: str, ask: Ask | None = None) -> None:
    """Have the signer sign the digest of a stage's result, and keep the envelope in the home.

    Args:
        home: whose signer.
        stage: the stage's name, such as "evaluate"; letters, digits, `_` and `-`.
        key: what the result is cached under; of the same characters.
        sha256: of the result's bytes, in hexadecimal.
        ask: answers the request, in place of the home's signer process.

    Raises:
        Refused: when the signer cannot use the key.

    Example:
        >>> seal_result(home, "evaluate", key, sha256_hex(result))  # doctest: +SKIP
    """
    request = Seal(stage=stage, key=key, sha256=sha256)
    answer = ask(request) if ask else client.ask(home, request)
    home.folder("results")
    write_atomic(result_file(home, stage, key), answer.envelope.encode())


def verify_result(home: Home, stage: str, key: str, sha256: str, trust: TrustRoot | None = None) -> bool:
    """Whether a pinned key has signed that this stage had a result with this digest for this key.

    Needs neither the private key nor the signer.

    Args:
        home: where the seal is looked for.
        stage: the stage's name.
        key: what the result is cached under.
        sha256: of the result's bytes as they are now, in hexadecimal.
        trust: the keys whose signatures count; else the project's or the home's.

    Returns:
        False, too, where there is no seal, or it is malformed or signed by a key that is not pinned.
    """
    try:
        envelope = result_file(home, stage, key).read_bytes()
        root = trust or TrustRoot.locate(home)
        sealed = root.unseal(RESULT_TYPE, envelope)
    except (OSError, NeoRLError):
        return False
    # What is computed again costs time alone, so that a key that is out seals nothing, whenever it did.
    ended = {pin.id for pin in root.pins if pin.until or pin.revoked}
    return keyid_of(envelope) not in ended and bool(sealed == SealedResult(stage, key, sha256)._asdict())
