"""Seals on cached results: a result is used only while the signed digest matches the file."""

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
    """Signed content: a task, the key of the run, and the SHA-256 of the task's result."""

    stage: str
    key: str
    sha256: str


def result_file(home: Home, stage: str, key: str) -> Path:
    """Return the path of a result's seal."""
    return home.root / "results" / f"{stage}-{key}.dsse.json"


def seal_result(home: Home, stage: str, key: str, sha256: str, ask: Ask | None = None) -> None:
    """Have the signer sign the digest of a task's result, and store the envelope in the home.

    Args:
        stage: name of the task; letters, digits, `_` and `-`.
        key: cache key of the result; same characters.
        ask: sends the request; defaults to the home's signer process.
    """
    request = Seal(stage=stage, key=key, sha256=sha256)
    answer = ask(request) if ask else client.ask(home, request)
    home.folder("results")
    write_atomic(result_file(home, stage, key), answer.envelope.encode())


def verify_result(home: Home, stage: str, key: str, sha256: str, trust: TrustRoot | None = None) -> bool:
    """Return whether a pinned key sealed this result; needs neither the private key nor the signer.

    Returns:
        False also if the seal is missing, malformed or signed by a key that is not pinned.
    """
    try:
        envelope = result_file(home, stage, key).read_bytes()
        root = trust or TrustRoot.locate(home)
        sealed = root.unseal(RESULT_TYPE, envelope)
    except (OSError, NeoRLError):
        return False
    # Seals of ended keys never count: the only cost is computing the result again.
    ended = {pin.id for pin in root.pins if pin.until or pin.revoked}
    return keyid_of(envelope) not in ended and bool(sealed == SealedResult(stage, key, sha256)._asdict())
