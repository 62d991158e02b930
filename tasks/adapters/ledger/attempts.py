"""Attempts at certification: numbered before their seeds exist, each spending its share of one error probability."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import Refused
from neorl_core.safety.bounds import alpha_spent
from tasks.adapters.files.canonical import digest_json, sha256_hex
from tasks.adapters.ledger.ledger import Entry, Ledger
from tasks.adapters.ledger.signing import locked, read_secret, write_secret


@dataclass(frozen=True)
class Attempt:
    """One try at certification: its place in its lineage and the error probability that it may spend."""

    plant: str
    lineage: str
    number: int
    alpha: float
    confidence: float
    composite: str
    dataset: str
    config: str
    entry: str
    """Digest of the ledger entry that logged it."""


def lineage_digest(plant: str, phi: str, domain_family: Any) -> str:
    """The lineage over which error probability is spent: plant, limits and family of domains, and nothing else.

    Configuration, composite and dataset are left out on purpose, so that a new name cannot buy fresh attempts.
    """
    return digest_json({"domain_family": domain_family, "phi": phi, "plant": plant})


def attempt_alpha(confidence: float, number: int) -> float:
    """alpha / (j (j + 1)) of alpha = 1 - confidence, with the rounding noise of the subtraction taken off."""
    return alpha_spent(round(1.0 - confidence, 12), number)


def open_attempt(
    ledger: Ledger, plant: str, *, lineage: str, composite: str, dataset: str, config: str, confidence: float
) -> Attempt:
    """Log an attempt before its seed exists, or resume the one with the same inputs that has no result yet.

    Args:
        lineage: from `lineage_digest`; its attempts share one error probability.
        composite, dataset, config: digests; the same three resume an attempt with its number and seed.
        confidence: of the whole lineage, such as 0.95.
    """
    inputs = {"lineage": lineage, "composite": composite, "dataset": dataset, "config": config}
    with locked(ledger.home, "seeds"):
        history = ledger.entries()
        last = _latest(history, "attempt", inputs)
        if last is not None and last.body["confidence"] == confidence and _can_go_on(ledger, history, last):
            return _read(last)

        def counted(history: Sequence[Entry]) -> Mapping[str, Any]:
            number = _count(history, lineage) + 1
            return {**inputs, "number": number, "alpha": attempt_alpha(confidence, number), "confidence": confidence}

        return _read(ledger.append("attempt", counted, plant=plant))


def draw_seed(ledger: Ledger, attempt: Attempt) -> bytes:
    """The 32 secret bytes that seed an attempt's episodes; their SHA-256 is committed to before they are used.

    Raises:
        Refused: when the kept seed is not the one committed to.
    """
    path = _seed_path(ledger, attempt.entry)
    with locked(ledger.home, "seeds"):
        if not path.exists():
            write_secret(path, secrets.token_bytes(32))
        seed = read_secret(path)
        commitment = sha256_hex(seed)
        committed = _of_attempt(ledger.entries(), "seed", attempt.entry)
        if committed is None:
            ledger.append("seed", {"attempt": attempt.entry, "commitment": commitment}, plant=attempt.plant)
        elif committed.body["commitment"] != commitment:
            raise Refused(
                f"expected the seed that attempt {attempt.number} committed to in {path}, got another: restore it, or "
                "remove the file to abandon the attempt."
            )
    return seed


def close_attempt(
    ledger: Ledger, attempt: Attempt, body: Mapping[str, Any], artefacts: Sequence[Mapping[str, str]] = ()
) -> Entry:
    """Log an attempt's result and reveal its seed.

    Args:
        body: `passed` and what else was found (episodes, violations, bounds, claim).
        artefacts: the certificate's file.

    Raises:
        Refused: when the attempt already has a result, or its seed is gone.
    """
    path = _seed_path(ledger, attempt.entry)
    inputs = {"composite": attempt.composite, "dataset": attempt.dataset, "config": attempt.config}
    full = {**body, **inputs, "attempt": attempt.entry, "lineage": attempt.lineage, "number": attempt.number}

    def revealed(history: Sequence[Entry]) -> Mapping[str, Any]:
        if _of_attempt(history, "result", attempt.entry) or not path.exists():
            raise Refused(
                f"expected attempt {attempt.number} to have a seed and no result, got the contrary: open another one."
            )
        return {**full, "seed": read_secret(path).hex()}

    entry = ledger.append("result", revealed, plant=attempt.plant, artefacts=artefacts)
    path.unlink(missing_ok=True)
    return entry


def find_result(history: Sequence[Entry], *, lineage: str, composite: str, dataset: str, config: str) -> Entry | None:
    """The latest result for the same inputs: whoever reuses it spends no error probability."""
    inputs = {"lineage": lineage, "composite": composite, "dataset": dataset, "config": config}
    return _latest(history, "result", inputs)


def check_attempt(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an attempt that does not count all earlier ones of its lineage, or takes more than its share.

    Args:
        history: all entries before this one.
    """
    number = _count(history, entry.body["lineage"]) + 1
    alpha = attempt_alpha(entry.body["confidence"], number)
    if (entry.body["number"], entry.body["alpha"]) != (number, alpha):
        raise Refused(
            f"expected attempt {number} of its lineage with alpha {alpha:.6g}, got attempt {entry.body['number']} with "
            f"alpha {entry.body['alpha']:.6g}: every attempt counts, abandoned ones too."
        )


def check_result(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a result whose attempt or commitment came later, whose seed differs, or that is the attempt's second.

    Args:
        history: all entries before this one.
    """
    digest = entry.body["attempt"]
    attempt = next((earlier for earlier in history if earlier.kind == "attempt" and earlier.digest == digest), None)
    seed = _of_attempt(history, "seed", digest)
    if attempt is None or seed is None or _of_attempt(history, "result", digest):
        raise Refused(
            "expected a result after one logged attempt and its seed's commitment, got it out of order: void it."
        )
    revealed = sha256_hex(bytes.fromhex(entry.body["seed"]))
    if revealed != seed.body["commitment"]:
        raise Refused(
            f"expected a seed with the committed SHA-256 {seed.body['commitment'][:12]}, got {revealed[:12]}: void it."
        )
    for name in ("lineage", "number", "composite", "dataset", "config"):
        if entry.body[name] != attempt.body[name]:
            raise Refused(f"expected the {name} of its attempt, {attempt.body[name]}, got {entry.body[name]}: void it.")


def _seed_path(ledger: Ledger, attempt: str) -> Path:
    return ledger.home.root / "keys" / "seeds" / f"{attempt}.seed"


def _can_go_on(ledger: Ledger, history: Sequence[Entry], attempt: Entry) -> bool:
    """Whether an attempt has no result, and its seed is not drawn yet or still here."""
    if _of_attempt(history, "result", attempt.digest):
        return False
    return _of_attempt(history, "seed", attempt.digest) is None or _seed_path(ledger, attempt.digest).exists()


def _count(history: Sequence[Entry], lineage: str) -> int:
    return sum(entry.kind == "attempt" and entry.body["lineage"] == lineage for entry in history)


def _read(entry: Entry) -> Attempt:
    return Attempt(plant=entry.plant, entry=entry.digest, **entry.body)


def _latest(history: Sequence[Entry], kind: str, inputs: Mapping[str, str]) -> Entry | None:
    """The last entry of a kind with the given inputs."""
    matching = (
        entry
        for entry in reversed(history)
        if entry.kind == kind and all(entry.body[key] == value for key, value in inputs.items())
    )
    return next(matching, None)


def _of_attempt(history: Sequence[Entry], kind: str, attempt: str) -> Entry | None:
    return next((entry for entry in history if entry.kind == kind and entry.body["attempt"] == attempt), None)
