"""Certification attempts: numbered before their seeds exist, each with a share of the lineage's error probability."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import Refused
from configs.home import Home
from tasks.evidence.claims import Claim
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact, Countersign, Nonces
from tasks.evidence.witness.seeds import NonceBody, SeedBody, derive_seed, entry_of_attempt, nonces_of, witness_names
from tasks.files.canonical import digest_json, exclusive, read_secret, sha256_hex, write_secret

CERTIFICATES = "certificates/"
"""Folder of certificates in a home."""


class Inputs(Body):
    """Digests of an attempt's inputs; the same inputs resume an attempt."""

    lineage: str
    """From `lineage_digest`; all attempts of a lineage share one error budget."""
    composite: str
    dataset: str
    config: str


class AttemptBody(Inputs):
    """Entry: an attempt starts with a fixed claim, so that none can be chosen after the episodes are known."""

    number: int
    alpha: float
    scope: Claim


class Outcome(Body):
    """Result of an attempt; the signed certificate states the same."""

    passed: bool
    claim: str = ""
    episodes: int = 0
    violations: int = 0
    upper_bound: float = 1.0
    handovers: int = 0


class ResultBody(Outcome, Inputs):
    """Entry: an attempt has ended; the secret is revealed."""

    attempt: str
    number: int
    alpha: float
    secret: str


class Attempt(NamedTuple):
    """A logged attempt."""

    plant: str
    entry: str
    """Digest of the attempt's entry."""
    body: AttemptBody

    @property
    def number(self) -> int:
        """Number within the lineage, from 1."""
        return self.body.number

    @property
    def alpha(self) -> float:
        """Error probability of this attempt."""
        return self.body.alpha


def lineage_digest(plant: str, phi: str, domain_family: str) -> str:
    """Return the lineage that shares an error budget: plant, limits and family of domains.

    Configuration, composite and dataset are excluded, so that a new name does not give new attempts.
    """
    return digest_json({"domain_family": domain_family, "phi": phi, "plant": plant})


def lineage_of(claim: Claim) -> str:
    """Return the lineage of a claim."""
    return lineage_digest(claim.plant, claim.phi, claim.family)


def attempt_alpha(confidence: float, number: int) -> float:
    """Return alpha / (j (j + 1)) for alpha = 1 - confidence, rounded to remove the noise of the subtraction."""
    # Imported late: SciPy takes longer to load than the signer to start.
    from neorl_core.safety.bounds import alpha_spent

    return alpha_spent(round(1.0 - confidence, 12), number)


def next_number(history: Sequence[Entry], lineage: str) -> int:
    """Return the number of a lineage's next attempt; abandoned attempts count."""
    return 1 + len([entry for entry in history if entry.kind == "attempt" and entry.body["lineage"] == lineage])


def unfinished(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt | None:
    """Return the last attempt with these inputs if it has this claim and no result; it can be resumed.

    Args:
        scope: the claim; the maximum number of episodes is ignored, because it depends on the attempt's number.
    """
    history = ledger.entries()
    last = _latest(history, "attempt", inputs)
    if last is not None and _same_claim(_attempt(last), scope) and _can_go_on(ledger.home, history, last):
        return _attempt(last)
    return None


def open_attempt(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt:
    """Log an attempt before the seed exists, or return the unfinished one with the same inputs."""
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        if (begun := unfinished(ledger, inputs, scope)) is not None:
            return begun

        def counted(history: Sequence[Entry]) -> AttemptBody:
            number = next_number(history, inputs.lineage)
            alpha = attempt_alpha(scope.confidence, number)
            return AttemptBody(**inputs.model_dump(), number=number, alpha=alpha, scope=scope)

        return _attempt(ledger.append("attempt", counted, plant=scope.plant))


def draw_seed(ledger: Ledger, attempt: Attempt) -> bytes:
    """Return the 32-byte seed of an attempt's episodes, derived from a secret and witnesses' nonces.

    The SHA-256 of a random secret is logged together with the names of the witnesses. They countersign a
    head that contains this entry, and give nonces, which are logged too. After a kill, call again to continue.
    """
    path = seed_file(ledger.home, attempt.entry)
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        if not path.exists():
            write_secret(path, secrets.token_bytes(32))
        secret = read_secret(path)
        commitment = sha256_hex(secret)
        committed = entry_of_attempt(ledger.entries(), "seed", attempt.entry)
        if committed is None:
            chosen = ledger.request(Countersign()).witnesses
            body = SeedBody(attempt=attempt.entry, commitment=commitment, witnesses=chosen)
            ledger.append("seed", body, plant=attempt.plant)
        elif committed.body["commitment"] != commitment:
            raise Refused(
                f"{path} is not the seed that attempt {attempt.number} committed to: restore it, or remove the file to "
                "abandon the attempt"
            )
        found = nonces_of(ledger.entries(), attempt.entry)
        if found is None:
            found = NonceBody.model_validate_json(ledger.request(Nonces(attempt=attempt.entry)).envelope)
            ledger.append("nonce", found, plant=attempt.plant)
    return derive_seed(secret, found.nonces)


def witnesses_of(ledger: Ledger, attempt: Attempt) -> list[str]:
    """Return the names of the witnesses of an attempt's seed."""
    record = entry_of_attempt(ledger.entries(), "seed", attempt.entry)
    return witness_names(record.read(SeedBody).witnesses) if record else []


def close_attempt(ledger: Ledger, attempt: Attempt, outcome: Outcome, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log an attempt's result and reveal the secret.

    Args:
        artefacts: file of the certificate; required for a pass.
    """
    path = seed_file(ledger.home, attempt.entry)

    def revealed(history: Sequence[Entry]) -> ResultBody:
        if entry_of_attempt(history, "result", attempt.entry) or not path.exists():
            raise Refused(f"attempt {attempt.number} has a result already, or no seed in {path}: open another attempt")
        opened = attempt.body.model_dump(exclude={"scope"})
        return ResultBody(**outcome.model_dump(), **opened, attempt=attempt.entry, secret=read_secret(path).hex())

    entry = ledger.append("result", revealed, plant=attempt.plant, artefacts=artefacts)
    path.unlink(missing_ok=True)
    return entry


def find_result(history: Sequence[Entry], inputs: Inputs) -> Entry | None:
    """Return the latest result for the same inputs; reusing it spends no error probability."""
    return _latest(history, "result", inputs)


def check_attempt(history: Sequence[Entry], entry: Entry) -> None:
    """Check number, share of the error budget and lineage of a new attempt."""
    body = entry.read(AttemptBody)
    number = next_number(history, body.lineage)
    alpha = attempt_alpha(body.scope.confidence, number)
    if (body.number, body.alpha) != (number, alpha):
        raise Refused(
            f"the next attempt of this lineage is number {number} with alpha {alpha:.6g}, got number {body.number} "
            f"with alpha {body.alpha:.6g}: every attempt counts, abandoned ones too"
        )
    if (entry.plant, body.lineage) != (body.scope.plant, lineage_of(body.scope)):
        raise Refused(
            f"the attempt has lineage {body.lineage[:12]} and plant {entry.plant}, but the claim has "
            f"{lineage_of(body.scope)[:12]} and {body.scope.plant}: another lineage would give new error probability"
        )


def check_result(history: Sequence[Entry], entry: Entry) -> None:
    """Check a result: first of the attempt, after seed and nonces, with the attempt's inputs and the committed secret.

    A passed result must name a certificate.
    """
    body = entry.read(ResultBody)
    attempt, seed = _opened(history, body.attempt), entry_of_attempt(history, "seed", body.attempt)
    if attempt is None or seed is None or entry_of_attempt(history, "result", body.attempt):
        raise Refused(
            f"attempt {body.attempt[:12]} is not logged, has no committed seed, or already has a result: do not log it"
        )
    if nonces_of(history, body.attempt) is None:
        raise Refused(f"attempt {body.attempt[:12]} has no nonces of the witnesses: do not log the result")
    revealed = sha256_hex(bytes.fromhex(body.secret))
    if revealed != seed.body["commitment"]:
        raise Refused(f"the revealed secret has SHA-256 {revealed[:12]}, committed was {seed.body['commitment'][:12]}")
    for name in ("lineage", "number", "alpha", "composite", "dataset", "config"):
        if entry.body[name] != attempt.body[name]:
            raise Refused(
                f"{name} must be {attempt.body[name]} as in the attempt, got {entry.body[name]}: do not log it"
            )
    if entry.plant != attempt.plant:
        raise Refused(f"plant must be {attempt.plant} as in the attempt, got {entry.plant}: do not log it")
    if body.passed and certificate_file(entry) is None:
        raise Refused(f"the passed result of attempt {body.number} names no certificate: certify again")


def certificate_file(result: Entry) -> Artefact | None:
    """Return the certificate that a result names."""
    return next((file for file in result.artefacts if file.path.startswith(CERTIFICATES)), None)


def seed_file(home: Home, attempt: str) -> Path:
    """Return the path of an open attempt's secret."""
    return home.root / "keys" / "seeds" / f"{attempt}.seed"


def _opened(history: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in history if entry.kind == "attempt" and entry.digest == digest), None)


def _can_go_on(home: Home, history: Sequence[Entry], attempt: Entry) -> bool:
    """Return whether an attempt has no result, and the secret is not drawn yet or still stored."""
    if entry_of_attempt(history, "result", attempt.digest):
        return False
    return entry_of_attempt(history, "seed", attempt.digest) is None or seed_file(home, attempt.digest).exists()


def _same_claim(attempt: Attempt, scope: Claim) -> bool:
    """Return whether an attempt has this claim, ignoring the maximum number of episodes."""
    return attempt.body.scope == scope.model_copy(update={"max_episodes": attempt.body.scope.max_episodes})


def _attempt(entry: Entry) -> Attempt:
    return Attempt(entry.plant, entry.digest, entry.read(AttemptBody))


def _latest(history: Sequence[Entry], kind: str, inputs: Inputs) -> Entry | None:
    """Return the last entry of a kind with these inputs."""
    wanted = {name: getattr(inputs, name) for name in Inputs.model_fields}.items()
    return next((entry for entry in reversed(history) if entry.kind == kind and wanted <= entry.body.items()), None)
