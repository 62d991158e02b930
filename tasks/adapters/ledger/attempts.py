"""Attempts at certification: numbered before their seeds exist, each spending its share of one error probability."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import Refused
from configs.home import Home
from tasks.adapters.files.canonical import digest_json, sha256_hex
from tasks.adapters.files.locks import exclusive
from tasks.adapters.files.secrets import read_secret, write_secret
from tasks.adapters.ledger.ledger import Body, Entry, Ledger
from tasks.adapters.ledger.protocol import Artefact

CERTIFICATES = "certificates/"
"""Where a home keeps its certificates."""


class Inputs(Body):
    """What an attempt is about; the same inputs resume it."""

    lineage: str
    """From `lineage_digest`; its attempts share one error probability."""
    composite: str
    dataset: str
    config: str


class AttemptBody(Inputs):
    """An attempt is about to be made."""

    number: int
    alpha: float
    confidence: float


class SeedBody(Body):
    """A seed has been drawn, whose SHA-256 this is."""

    attempt: str
    commitment: str


class Outcome(Body):
    """What an attempt found; the certificate that it signed says the same."""

    passed: bool
    claim: str = ""
    episodes: int = 0
    violations: int = 0
    upper_bound: float = 1.0
    handovers: int = 0


class ResultBody(Outcome, Inputs):
    """An attempt has ended, and its seed is revealed."""

    attempt: str
    number: int
    alpha: float
    seed: str


class Attempt(NamedTuple):
    """One try at certification: its place in its lineage and the error probability that it may spend."""

    plant: str
    entry: str
    """Digest of the ledger entry that logged it."""
    body: AttemptBody

    @property
    def number(self) -> int:
        """The attempt's place in its lineage, from 1."""
        return self.body.number

    @property
    def alpha(self) -> float:
        """The error probability that it may spend."""
        return self.body.alpha


def lineage_digest(plant: str, phi: str, domain_family: str) -> str:
    """The lineage over which error probability is spent: plant, limits and family of domains, and nothing else.

    Configuration, composite and dataset are left out on purpose, so that a new name cannot buy fresh attempts.

    Args:
        plant: the plant's name.
        phi: its limits, as the claim writes them.
        domain_family: name of the family of operating domains.
    """
    return digest_json({"domain_family": domain_family, "phi": phi, "plant": plant})


def attempt_alpha(confidence: float, number: int) -> float:
    """alpha / (j (j + 1)) of alpha = 1 - confidence, with the rounding noise of the subtraction taken off."""
    # Imported here, for SciPy takes longer to load than the signer to start.
    from neorl_core.safety.bounds import alpha_spent

    return alpha_spent(round(1.0 - confidence, 12), number)


def next_number(history: Sequence[Entry], lineage: str) -> int:
    """The number of the next attempt of a lineage: every logged one counts, abandoned ones too."""
    return 1 + len([entry for entry in history if entry.kind == "attempt" and entry.body["lineage"] == lineage])


def open_attempt(ledger: Ledger, plant: str, inputs: Inputs, confidence: float) -> Attempt:
    """Log an attempt before its seed exists, or resume the one with the same inputs that has no result yet.

    Args:
        ledger: opened to write.
        plant: the plant's name.
        inputs: digests; the same ones resume an attempt with its number and seed.
        confidence: of the whole lineage, such as 0.95.
    """
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        history = ledger.entries()
        last = _latest(history, "attempt", inputs)
        if last is not None and last.body["confidence"] == confidence and _can_go_on(ledger.home, history, last):
            return _attempt(last)

        def counted(history: Sequence[Entry]) -> AttemptBody:
            number = next_number(history, inputs.lineage)
            alpha = attempt_alpha(confidence, number)
            return AttemptBody(**inputs.model_dump(), number=number, alpha=alpha, confidence=confidence)

        return _attempt(ledger.append("attempt", counted, plant=plant))


def draw_seed(ledger: Ledger, attempt: Attempt) -> bytes:
    """The 32 secret bytes that seed an attempt's episodes; their SHA-256 is committed to before they are used.

    Raises:
        Refused: when the kept seed is not the one committed to.
    """
    path = seed_file(ledger.home, attempt.entry)
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        if not path.exists():
            write_secret(path, secrets.token_bytes(32))
        seed = read_secret(path)
        commitment = sha256_hex(seed)
        committed = of_attempt(ledger.entries(), "seed", attempt.entry)
        if committed is None:
            ledger.append("seed", SeedBody(attempt=attempt.entry, commitment=commitment), plant=attempt.plant)
        elif committed.body["commitment"] != commitment:
            raise Refused(
                f"expected the seed that attempt {attempt.number} committed to in {path}, got another: restore it, or "
                "remove the file to abandon the attempt."
            )
    return seed


def close_attempt(ledger: Ledger, attempt: Attempt, outcome: Outcome, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log an attempt's result and reveal its seed.

    Args:
        ledger: opened to write.
        attempt: from `open_attempt`.
        outcome: what was found.
        artefacts: the certificate's file, without which nothing passes.

    Raises:
        Refused: when the attempt already has a result, or its seed is gone.
    """
    path = seed_file(ledger.home, attempt.entry)

    def revealed(history: Sequence[Entry]) -> ResultBody:
        if of_attempt(history, "result", attempt.entry) or not path.exists():
            raise Refused(
                f"expected attempt {attempt.number} to have a seed and no result, got the contrary: open another one."
            )
        opened = attempt.body.model_dump(exclude={"confidence"})
        return ResultBody(**outcome.model_dump(), **opened, attempt=attempt.entry, seed=read_secret(path).hex())

    entry = ledger.append("result", revealed, plant=attempt.plant, artefacts=artefacts)
    path.unlink(missing_ok=True)
    return entry


def find_result(history: Sequence[Entry], inputs: Inputs) -> Entry | None:
    """The latest result for the same inputs: whoever reuses it spends no error probability."""
    return _latest(history, "result", inputs)


def check_attempt(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an attempt that does not count all earlier ones of its lineage, or takes more than its share.

    Args:
        history: all entries before this one.
        entry: the attempt.
    """
    body = entry.read(AttemptBody)
    number = next_number(history, body.lineage)
    alpha = attempt_alpha(body.confidence, number)
    if (body.number, body.alpha) != (number, alpha):
        raise Refused(
            f"expected attempt {number} of its lineage with alpha {alpha:.6g}, got attempt {body.number} with "
            f"alpha {body.alpha:.6g}: every attempt counts, abandoned ones too."
        )


def check_seed(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a commitment to a seed without an attempt, or a second one for the same attempt.

    Args:
        history: all entries before this one.
        entry: the seed.
    """
    body = entry.read(SeedBody)
    if _opened(history, body.attempt) is None or of_attempt(history, "seed", body.attempt):
        raise Refused("expected the first seed of a logged attempt, got another: open an attempt, and draw one seed.")


def check_result(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a result whose attempt or commitment came later, whose seed differs, or that is the attempt's second.

    A result that passed must name its certificate's file.

    Args:
        history: all entries before this one.
        entry: the result.
    """
    body = entry.read(ResultBody)
    attempt, seed = _opened(history, body.attempt), of_attempt(history, "seed", body.attempt)
    if attempt is None or seed is None or of_attempt(history, "result", body.attempt):
        raise Refused(
            "expected a result after one logged attempt and its seed's commitment, got it out of order: void it."
        )
    revealed = sha256_hex(bytes.fromhex(body.seed))
    if revealed != seed.body["commitment"]:
        raise Refused(
            f"expected a seed with the committed SHA-256 {seed.body['commitment'][:12]}, got {revealed[:12]}: void it."
        )
    for name in ("lineage", "number", "alpha", "composite", "dataset", "config"):
        if entry.body[name] != attempt.body[name]:
            raise Refused(f"expected the {name} of its attempt, {attempt.body[name]}, got {entry.body[name]}: void it.")
    if entry.plant != attempt.plant:
        raise Refused(f"expected the plant of its attempt, {attempt.plant}, got {entry.plant}: void it.")
    if body.passed and certificate_file(entry) is None:
        raise Refused("expected a passed result to name its certificate's file, got none: certify again.")


def certificate_file(result: Entry) -> Artefact | None:
    """The certificate that a result names."""
    return next((file for file in result.artefacts if file.path.startswith(CERTIFICATES)), None)


def of_attempt(history: Sequence[Entry], kind: str, attempt: str) -> Entry | None:
    """The seed or result of the attempt that an entry with this digest logged."""
    return next((entry for entry in history if entry.kind == kind and entry.body["attempt"] == attempt), None)


def seed_file(home: Home, attempt: str) -> Path:
    """Where the secret seed of an open attempt is kept."""
    return home.root / "keys" / "seeds" / f"{attempt}.seed"


def _opened(history: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in history if entry.kind == "attempt" and entry.digest == digest), None)


def _can_go_on(home: Home, history: Sequence[Entry], attempt: Entry) -> bool:
    """Whether an attempt has no result, and its seed is not drawn yet or still here."""
    if of_attempt(history, "result", attempt.digest):
        return False
    return of_attempt(history, "seed", attempt.digest) is None or seed_file(home, attempt.digest).exists()


def _attempt(entry: Entry) -> Attempt:
    return Attempt(entry.plant, entry.digest, entry.read(AttemptBody))


def _latest(history: Sequence[Entry], kind: str, inputs: Inputs) -> Entry | None:
    """The last entry of a kind with the given inputs."""
    wanted = {name: getattr(inputs, name) for name in Inputs.model_fields}.items()
    return next((entry for entry in reversed(history) if entry.kind == kind and wanted <= entry.body.items()), None)
