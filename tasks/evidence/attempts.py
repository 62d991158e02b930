"""Attempts at certification: numbered before their seeds exist, each spending its share of one error probability."""

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
from tasks.files.canonical import digest_json, sha256_hex
from tasks.files.locks import exclusive
from tasks.files.secrets import read_secret, write_secret

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
    """An attempt is about to be made, at exactly this claim: none can be chosen once the episodes are known."""

    number: int
    alpha: float
    scope: Claim


class Outcome(Body):
    """What an attempt found; the certificate that it signed says the same."""

    passed: bool
    claim: str = ""
    episodes: int = 0
    violations: int = 0
    upper_bound: float = 1.0
    handovers: int = 0


class ResultBody(Outcome, Inputs):
    """An attempt has ended, and its secret is revealed."""

    attempt: str
    number: int
    alpha: float
    secret: str


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


def lineage_of(claim: Claim) -> str:
    """The lineage that a claim belongs to."""
    return lineage_digest(claim.plant, claim.phi, claim.family)


def attempt_alpha(confidence: float, number: int) -> float:
    """alpha / (j (j + 1)) of alpha = 1 - confidence, with the rounding noise of the subtraction taken off."""
    # Imported here, for SciPy takes longer to load than the signer to start.
    from neorl_core.safety.bounds import alpha_spent

    return alpha_spent(round(1.0 - confidence, 12), number)


def next_number(history: Sequence[Entry], lineage: str) -> int:
    """The number of the next attempt of a lineage: every logged one counts, abandoned ones too."""
    return 1 + len([entry for entry in history if entry.kind == "attempt" and entry.body["lineage"] == lineage])


def unfinished(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt | None:
    """The attempt that can go on: the last one with the same inputs, where it is at this claim and has no result.

    Args:
        ledger: which is only read.
        inputs: digests.
        scope: what is to be shown; how many episodes it may take follows from the attempt's number.
    """
    history = ledger.entries()
    last = _latest(history, "attempt", inputs)
    if last is not None and _same_claim(_attempt(last), scope) and _can_go_on(ledger.home, history, last):
        return _attempt(last)
    return None


def open_attempt(ledger: Ledger, inputs: Inputs, scope: Claim) -> Attempt:
    """Log an attempt before its seed exists, or resume the one with the same inputs that has no result yet.

    Args:
        ledger: opened to write.
        inputs: digests; the same ones resume an attempt with its number, claim and seed.
        scope: what is to be shown; its confidence is that of the whole lineage.
    """
    with exclusive(ledger.home.folder("locks") / "seeds.lock"):
        if (begun := unfinished(ledger, inputs, scope)) is not None:
            return begun

        def counted(history: Sequence[Entry]) -> AttemptBody:
            number = next_number(history, inputs.lineage)
            alpha = attempt_alpha(scope.confidence, number)
            return AttemptBody(**inputs.model_dump(), number=number, alpha=alpha, scope=scope)

        return _attempt(ledger.append("attempt", counted, plant=scope.plant))


def draw_seed(ledger: Ledger, attempt: Attempt) -> bytes:
    """The 32 bytes that seed an attempt's episodes, of a secret and the nonces of witnesses.

    A secret is drawn and its SHA-256 logged, with the witnesses whose nonces are to count. They countersign a head that
    contains this entry, and give their nonces, which are logged, too. Killed at any point, the same call goes on.

    Raises:
        Refused: when the kept secret is not the one committed to, or a witness does not answer.
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
                f"expected the seed that attempt {attempt.number} committed to in {path}, got another: restore it, or "
                "remove the file to abandon the attempt."
            )
        found = nonces_of(ledger.entries(), attempt.entry)
        if found is None:
            found = NonceBody.model_validate_json(ledger.request(Nonces(attempt=attempt.entry)).envelope)
            ledger.append("nonce", found, plant=attempt.plant)
    return derive_seed(secret, found.nonces)


def witnesses_of(ledger: Ledger, attempt: Attempt) -> list[str]:
    """Names of the witnesses whose nonces made an attempt's seed."""
    record = entry_of_attempt(ledger.entries(), "seed", attempt.entry)
    return witness_names(record.read(SeedBody).witnesses) if record else []


def close_attempt(ledger: Ledger, attempt: Attempt, outcome: Outcome, artefacts: Sequence[Artefact] = ()) -> Entry:
    """Log an attempt's result and reveal its secret.

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
        if entry_of_attempt(history, "result", attempt.entry) or not path.exists():
            raise Refused(
                f"expected attempt {attempt.number} to have a seed and no result, got the contrary: open another one."
            )
        opened = attempt.body.model_dump(exclude={"scope"})
        return ResultBody(**outcome.model_dump(), **opened, attempt=attempt.entry, secret=read_secret(path).hex())

    entry = ledger.append("result", revealed, plant=attempt.plant, artefacts=artefacts)
    path.unlink(missing_ok=True)
    return entry


def find_result(history: Sequence[Entry], inputs: Inputs) -> Entry | None:
    """The latest result for the same inputs: whoever reuses it spends no error probability."""
    return _latest(history, "result", inputs)


def check_attempt(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse an attempt that does not count all earlier ones of its claim's lineage, or takes more than its share.

    Args:
        history: all entries before this one.
        entry: the attempt.
    """
    body = entry.read(AttemptBody)
    number = next_number(history, body.lineage)
    alpha = attempt_alpha(body.scope.confidence, number)
    if (body.number, body.alpha) != (number, alpha):
        raise Refused(
            f"expected attempt {number} of its lineage with alpha {alpha:.6g}, got attempt {body.number} with "
            f"alpha {body.alpha:.6g}: every attempt counts, abandoned ones too."
        )
    if (entry.plant, body.lineage) != (body.scope.plant, lineage_of(body.scope)):
        raise Refused(
            f"expected the lineage of {body.scope.plant} within {body.scope.phi}, got {body.lineage[:12]}: a lineage "
            "of its own would buy an attempt fresh error probability."
        )


def check_result(history: Sequence[Entry], entry: Entry) -> None:
    """Refuse a result whose attempt or commitment came later, whose seed differs, or that is the attempt's second.

    A result that passed must name its certificate's file.

    Args:
        history: all entries before this one.
        entry: the result.
    """
    body = entry.read(ResultBody)
    attempt, seed = _opened(history, body.attempt), entry_of_attempt(history, "seed", body.attempt)
    if attempt is None or seed is None or entry_of_attempt(history, "result", body.attempt):
        raise Refused(
            "expected a result after one logged attempt and its seed's commitment, got it out of order: void it."
        )
    if nonces_of(history, body.attempt) is None:
        raise Refused("expected a result after the nonces of its seed's witnesses, got none: void it.")
    revealed = sha256_hex(bytes.fromhex(body.secret))
    if revealed != seed.body["commitment"]:
        raise Refused(
            f"expected a secret with the committed SHA-256 {seed.body['commitment'][:12]}, got {revealed[:12]}: "
            "void it."
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


def seed_file(home: Home, attempt: str) -> Path:
    """Where the secret seed of an open attempt is kept."""
    return home.root / "keys" / "seeds" / f"{attempt}.seed"


def _opened(history: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in history if entry.kind == "attempt" and entry.digest == digest), None)


def _can_go_on(home: Home, history: Sequence[Entry], attempt: Entry) -> bool:
    """Whether an attempt has no result, and its seed is not drawn yet or still here."""
    if entry_of_attempt(history, "result", attempt.digest):
        return False
    return entry_of_attempt(history, "seed", attempt.digest) is None or seed_file(home, attempt.digest).exists()


def _same_claim(attempt: Attempt, scope: Claim) -> bool:
    """Whether an attempt is at this claim, however many episodes it may take."""
    return attempt.body.scope == scope.model_copy(update={"max_episodes": attempt.body.scope.max_episodes})


def _attempt(entry: Entry) -> Attempt:
    return Attempt(entry.plant, entry.digest, entry.read(AttemptBody))


def _latest(history: Sequence[Entry], kind: str, inputs: Inputs) -> Entry | None:
    """The last entry of a kind with the given inputs."""
    wanted = {name: getattr(inputs, name) for name in Inputs.model_fields}.items()
    return next((entry for entry in reversed(history) if entry.kind == kind and wanted <= entry.body.items()), None)
