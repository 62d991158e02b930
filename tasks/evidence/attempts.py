"""Certification attempts. Each attempt gets its number and its error probability before its seed exists."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import Refused
from configs.home import Home
from configs.safety_policy import SafetyPolicy
from tasks.evidence.claims import Claim
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact, Countersign, Nonces
from tasks.evidence.witness.seeds import NonceBody, SeedBody, derive_seed, entry_of_attempt, nonces_of, witness_names
from tasks.files.canonical import digest_json, exclusive, read_secret, sha256_hex, write_secret
from tasks.versions.versions import newest

SHARED_SINCE = 3
"""First version of the rules by which plants with equal limits share a lineage."""
CERTIFICATES = "certificates/"
NUMBER = re.compile(r"-?inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Inputs(Body):
    """SHA-256 digests of an attempt's inputs. An unfinished attempt is resumed if all inputs are the same."""

    lineage: str
    """Result of `lineage_of`. All attempts of a lineage share one allowed error probability."""
    composite: str
    dataset: str
    config: str


class AttemptBody(Inputs):
    """Body of an `attempt` entry. The claim is fixed here, before the results of the episodes are known."""

    number: int
    alpha: float
    scope: Claim


class Outcome(Body):
    """Result of an attempt; the signed certificate contains the same numbers."""

    passed: bool
    claim: str = ""
    episodes: int = 0
    violations: int = 0
    upper_bound: float = 1.0
    handovers: int = 0


class ResultBody(Outcome, Inputs):
    """Body of a `result` entry: an attempt has ended, and its secret is published."""

    attempt: str
    number: int
    alpha: float
    secret: str


class Attempt(NamedTuple):
    """An attempt that is in the ledger."""

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
        return self.body.alpha


def lineage_digest(plant: str, phi: str, domain_family: str) -> str:
    """Return a lineage by rules 1 and 2: plant, limits and family of domains."""
    return digest_json({"domain_family": domain_family, "phi": phi, "plant": plant})


def shared_lineage(phi: str, own: str = "") -> str:
    """Return the lineage of all plants with equal limits: sorted numbers and units, without any name.

    A renamed plant, a copy with an operation without effect, or a site of a fleet therefore gets no error probability
    of its own. Limits count with three digits, so that a shift of a millionth gains nothing either.

    Args:
        phi: limits as in a claim, such as '316 <= reactor_temperature <= 332 K; ...'.
        own: name of a plant that differs, by its policy, from other plants with equal limits.
    """
    limits = sorted(NUMBER.sub(lambda n: f"{float(n[0]):.3g}", re.sub(r"<= .* <=", "<=", x)) for x in phi.split("; "))
    return digest_json({"limits": limits, "plant": own})


def lineage_of(claim: Claim, history: Sequence[Entry] = (), rules: int | None = None) -> str:
    """Return the lineage of a claim.

    Args:
        history: entries before the attempt, with the plant's policy.
        rules: version of the rules, the newest by default.
    """
    if (newest() if rules is None else rules) < SHARED_SINCE:
        return lineage_digest(claim.plant, claim.phi, claim.family)
    policy = next((e for e in reversed(history) if (e.kind, e.plant) == ("policy", claim.plant)), None)
    distinct = policy is not None and SafetyPolicy.model_validate(policy.body["policy"]).own_lineage
    return shared_lineage(claim.phi, claim.plant if distinct else "")


def attempt_alpha(confidence: float, number: int) -> float:
    """Return the error probability of attempt number j: (1 - confidence) / (j (j + 1))."""
    # Imported late: SciPy loads slowly.
    from neorl_core.safety.bounds import alpha_spent

    return alpha_spent(round(1.0 - confidence, 12), number)


def next_number(history: Sequence[Entry], lineage: str) -> int:
    """Return the number of a lineage's next attempt, from 1. Abandoned attempts have numbers too.

    Attempts by rules 1 and 2 count in the lineage that they would have now.
    """
    return 1 + sum(entry.kind == "attempt" and lineage in _lineages(entry) for entry in history)


def count_lineages(history: Sequence[Entry]) -> int:
    """Return the number of lineages with an attempt, for the family-wise bound over a home."""
    return len({_lineages(entry)[-1] for entry in history if entry.kind == "attempt"})


def _lineages(attempt: Entry) -> tuple[str, ...]:
    """Return the logged lineage, and for older rules the one that the attempt would have now."""
    logged = str(attempt.body["lineage"])
    if attempt.rules >= SHARED_SINCE:
        return (logged,)
    return logged, shared_lineage(attempt.body["scope"]["phi"])


def unfinished(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt | None:
    """Return the last attempt with these inputs if it can be resumed: same claim, no result, and secret not lost.

    Args:
        scope: the claim. `scope.max_episodes` is not compared, because it depends on the attempt's number.
    """
    history = ledger.entries()
    last = _latest(history, "attempt", inputs)
    if last is not None and _same_claim(_attempt(last), scope) and _can_go_on(ledger.home, history, last):
        return _attempt(last)
    return None


def open_attempt(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt:
    """Return the unfinished attempt with these inputs; if there is none, log a new attempt."""
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        if (begun := unfinished(ledger, inputs, scope)) is not None:
            return begun

        def counted(history: Sequence[Entry]) -> AttemptBody:
            number = next_number(history, inputs.lineage)
            alpha = attempt_alpha(scope.confidence, number)
            return AttemptBody(**inputs.model_dump(), number=number, alpha=alpha, scope=scope)

        return _attempt(ledger.append("attempt", counted, plant=scope.plant))


def draw_seed(ledger: Ledger, attempt: Attempt) -> bytes:
    """Return the 32-byte seed of an attempt's episodes, derived from a secret and from random numbers of the witnesses.

    First the SHA-256 of a random secret is logged, with the names of the witnesses. Then the witnesses countersign a
    head with this entry and give random numbers (nonces), which are logged too. After a kill, another call continues.
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
                f"the secret in {path} does not match the SHA-256 that the ledger states for attempt {attempt.number}: "
                "restore the file from a backup, or remove it to abandon the attempt"
            )
        found = nonces_of(ledger.entries(), attempt.entry)
        if found is None:
            found = NonceBody.model_validate_json(ledger.request(Nonces(attempt=attempt.entry)).envelope)
            ledger.append("nonce", found, plant=attempt.plant)
    return derive_seed(secret, found.nonces)


def witnesses_of(ledger: Ledger, attempt: Attempt) -> list[str]:
    record = entry_of_attempt(ledger.entries(), "seed", attempt.entry)
    return witness_names(record.read(SeedBody).witnesses) if record else []


def close_attempt(ledger: Ledger, attempt: Attempt, outcome: Outcome, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log an attempt's result together with its secret.

    Args:
        artefacts: the certificate's file; required if the attempt passed.
    """
    path = seed_file(ledger.home, attempt.entry)

    def revealed(history: Sequence[Entry]) -> ResultBody:
        if entry_of_attempt(history, "result", attempt.entry) or not path.exists():
            raise Refused(f"attempt {attempt.number} already has a result, or {path} is missing: certify again")
        opened = attempt.body.model_dump(exclude={"scope"})
        return ResultBody(**outcome.model_dump(), **opened, attempt=attempt.entry, secret=read_secret(path).hex())

    entry = ledger.append("result", revealed, plant=attempt.plant, artefacts=artefacts)
    path.unlink(missing_ok=True)
    return entry


def find_result(history: Sequence[Entry], inputs: Inputs) -> Entry | None:
    """Return the latest result with the same inputs, or None. Reusing a result spends no error probability."""
    return _latest(history, "result", inputs)


def check_attempt(history: Sequence[Entry], entry: Entry) -> None:
    """Check that a new attempt has the next number of its claim's lineage and the right error probability."""
    body = entry.read(AttemptBody)
    number = next_number(history, body.lineage)
    alpha = attempt_alpha(body.scope.confidence, number)
    if (body.number, body.alpha) != (number, alpha):
        raise Refused(
            f"the next attempt of this lineage is number {number} with alpha {alpha:.6g}, got number {body.number} "
            f"with alpha {body.alpha:.6g}: repeat the run; abandoned attempts have numbers too"
        )
    lineage = lineage_of(body.scope, history, entry.rules)
    if (entry.plant, body.lineage) != (body.scope.plant, lineage):
        raise Refused(
            f"the attempt has lineage {body.lineage[:12]} and plant {entry.plant}, but its claim has lineage "
            f"{lineage[:12]} and plant {body.scope.plant}: repeat the run"
        )


def check_result(history: Sequence[Entry], entry: Entry) -> None:
    """Check a result: its attempt has seed, nonces and no other result, and inputs and secret match the attempt.

    A result that passed must name a certificate.
    """
    body = entry.read(ResultBody)
    attempt, seed = _opened(history, body.attempt), entry_of_attempt(history, "seed", body.attempt)
    if attempt is None or seed is None or entry_of_attempt(history, "result", body.attempt):
        raise Refused(
            f"attempt {body.attempt[:12]} is not in the ledger, has no seed, or already has a result: certify again"
        )
    if nonces_of(history, body.attempt) is None:
        raise Refused(f"attempt {body.attempt[:12]} has no nonces of the witnesses: repeat the run")
    revealed = sha256_hex(bytes.fromhex(body.secret))
    if revealed != seed.body["commitment"]:
        raise Refused(
            f"the secret has SHA-256 {revealed[:12]}, but the attempt's seed entry states "
            f"{seed.body['commitment'][:12]}: restore the secret from a backup"
        )
    for name in ("lineage", "number", "alpha", "composite", "dataset", "config"):
        if entry.body[name] != attempt.body[name]:
            raise Refused(
                f"{name} must be {attempt.body[name]} as in the attempt, got {entry.body[name]}: certify again"
            )
    if entry.plant != attempt.plant:
        raise Refused(f"plant must be {attempt.plant} as in the attempt, got {entry.plant}: certify again")
    if body.passed and certificate_file(entry) is None:
        raise Refused(f"the passed result of attempt {body.number} names no certificate: certify again")


def certificate_file(result: Entry) -> Artefact | None:
    return next((file for file in result.artefacts if file.path.startswith(CERTIFICATES)), None)


def seed_file(home: Home, attempt: str) -> Path:
    """Return the path of an unfinished attempt's secret, given the digest of the attempt's entry."""
    return home.root / "keys" / "seeds" / f"{attempt}.seed"


def _opened(history: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in history if entry.kind == "attempt" and entry.digest == digest), None)


def _can_go_on(home: Home, history: Sequence[Entry], attempt: Entry) -> bool:
    if entry_of_attempt(history, "result", attempt.digest):
        return False
    return entry_of_attempt(history, "seed", attempt.digest) is None or seed_file(home, attempt.digest).exists()


def _same_claim(attempt: Attempt, scope: Claim) -> bool:
    """Return whether an attempt has this claim, ignoring the maximum number of episodes."""
    return attempt.body.scope == scope.model_copy(update={"max_episodes": attempt.body.scope.max_episodes})


def _attempt(entry: Entry) -> Attempt:
    return Attempt(entry.plant, entry.digest, entry.read(AttemptBody))


def _latest(history: Sequence[Entry], kind: str, inputs: Inputs) -> Entry | None:
    wanted = {name: getattr(inputs, name) for name in Inputs.model_fields}.items()
    return next((entry for entry in reversed(history) if entry.kind == kind and wanted <= entry.body.items()), None)
