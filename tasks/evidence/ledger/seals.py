"""Seals: signed digests of cached results. A cached result is used only if its digest has a valid seal."""

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
    """Content of a seal: name of the task, cache key, and SHA-256 of the task's result."""

    stage: str
    key: str
    sha256: str


def result_file(home: Home, stage: str, key: str) -> Path:
    return home.root / "results" / f"{stage}-{key}.dsse.json"


def seal_result(home: Home, stage: str, key: str, sha256: str, ask: Ask | None = None) -> None:
    """Have the signer sign the digest of a task's result, and store the envelope in the home.

    Args:
        stage: name of the task; letters, digits, `_` and `-`.
        key: cache key of the result; same characters.
    """
    request = Seal(stage=stage, key=key, sha256=sha256)
    answer = ask(request) if ask else client.ask(home, request)
    home.folder("results")
    write_atomic(result_file(home, stage, key), answer.envelope.encode())


def verify_result(home: Home, stage: str, key: str, sha256: str, trust: TrustRoot | None = None) -> bool:
    """Return whether a pinned key sealed this result; neither the private key nor the signer is needed.

    Returns:
        False if the seal is missing or malformed, names another digest, or is not signed by a valid pinned key.
    """
    try:
        envelope = result_file(home, stage, key).read_bytes()
        root = trust or TrustRoot.locate(home)
        sealed = root.unseal(RESULT_TYPE, envelope)
    except (OSError, NeoRLError):
        return False
    # Seals by replaced or revoked keys never count; the only cost is that the result is computed again.
    ended = {pin.id for pin in root.pins if pin.until or pin.revoked}
    return keyid_of(envelope) not in ended and bool(sealed == SealedResult(stage, key, sha256)._asdict())
