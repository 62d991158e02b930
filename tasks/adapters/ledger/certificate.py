"""The certificate: an in-toto statement, signed, that can be checked offline and repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from configs.errors import BadInput, Refused
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.adapters.files.canonical import canonical_json, sha256_hex
from tasks.adapters.ledger.attempts import AttemptBody, ResultBody, attempt_alpha, of_attempt
from tasks.adapters.ledger.claims import (
    NON_CLAIMS,
    PREDICATE_TYPE,
    PROTOCOL,
    STATEMENT_TYPE,
    Claim,
    Counts,
    Digest,
    Materials,
    NumberedAttempt,
    Predicate,
    Seed,
    Statement,
    Subject,
)
from tasks.adapters.ledger.ledger import Entry, Ledger
from tasks.adapters.ledger.protocol import Certify
from tasks.adapters.ledger.signing import TrustRoot

PAYLOAD_TYPE = "application/vnd.in-toto+json"

Repeat = Callable[[Predicate, bytes], Counts]
"""(predicate, seed) -> counts: runs the certified test again."""


class Check(NamedTuple):
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str


def make_certificate(ledger: Ledger, attempt: str, claim: Claim, counts: Counts, materials: Materials) -> bytes:
    """Have the signer certify what an attempt found, passed or not.

    Args:
        ledger: opened to write.
        attempt: digest of the entry that logged the attempt; number, composite and seed are looked up there.
        claim: what was to be shown.
        counts: of the test.
        materials: what the counts rest on.

    Returns:
        A DSSE envelope, the same bytes for the same attempt and ledger head.

    Raises:
        Refused: when the counts do not add up, or are not those of this attempt.
    """
    request = Certify(attempt=attempt, claim=claim, counts=counts, materials=materials)
    return ledger.request(request).envelope.encode()


def state(opened: Entry, seed: bytes, request: Certify, signed_head: str) -> Statement:
    """The statement that a certificate signs.

    Args:
        opened: the attempt's entry.
        seed: of the attempt; it is revealed.
        request: claim, counts and materials.
        signed_head: of the ledger now.

    Raises:
        Refused: when the statement would not pass its own verification.
    """
    attempt, passed, claim = opened.read(AttemptBody), request.counts.certified, request.claim
    materials = request.materials
    statement = Statement(
        type_=STATEMENT_TYPE,
        subject=(Subject(name=f"composite/{claim.plant}", digest=Digest(sha256=attempt.composite)),),
        predicateType=PREDICATE_TYPE,
        predicate=Predicate(
            claim=claim.line(attempt.composite, materials.simulator, passed),
            nonClaims=NON_CLAIMS,
            passed=passed,
            scope=claim,
            materials=materials,
            protocol=PROTOCOL,
            attempt=NumberedAttempt(
                lineage=attempt.lineage,
                number=attempt.number,
                alpha=attempt.alpha,
                entry=opened.digest,
                opened=opened.timestamp,
            ),
            seed=Seed(commitment=sha256_hex(seed), value=seed.hex()),
            counts=request.counts,
            ledgerHead=signed_head,
        ),
    )
    named = (claim.plant, claim.confidence, materials.dataset, materials.config)
    logged = (opened.plant, attempt.confidence, attempt.dataset, attempt.config)
    if named != logged:
        raise Refused(f"expected plant, confidence, dataset and config of the attempt, {logged}, got {named}.")
    wrong = [check for check in _own_checks(statement) if not check.passed]
    if wrong:
        raise Refused(f"expected counts that add up, got {wrong[0].name}: {wrong[0].detail}.")
    return statement


def read_certificate(path: Path, trust: TrustRoot) -> Statement:
    """The statement in a certificate whose envelope holds.

    Raises:
        BadInput: when the file is missing.
        Refused: when its bytes or signature do not hold, or it is not a safety certificate.
    """
    try:
        envelope = path.read_bytes()
    except OSError as error:
        raise BadInput(f"expected a certificate at {path}, got '{error.strerror}': check the path.") from error
    payload = trust.unseal(PAYLOAD_TYPE, envelope)
    kinds = (payload.get("_type"), payload.get("predicateType")) if isinstance(payload, dict) else None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise Refused(f"expected a {PREDICATE_TYPE} statement in {path.name}, got {kinds}: check the path.")
    try:
        return Statement.model_validate_json(canonical_json(payload))
    except ValidationError as error:
        raise MalformedStatement(f"a field is missing or malformed ({error.errors(include_url=False)[0]})") from error


class MalformedStatement(Refused):
    """A signed statement that is not of the certificate's shape."""


def verify_certificate(
    path: Path,
    trust: TrustRoot,
    *,
    artefacts: Mapping[str, str] | None = None,
    ledger: Ledger | None = None,
    repeat: Repeat | None = None,
    rerun: bool = False,
    challenge: bytes | None = None,
) -> list[Check]:
    """Check a certificate again: signature, digests, seed, error probability, statistics, and on request the rollouts.

    Args:
        path: the certificate.
        trust: the keys whose signatures count.
        artefacts: digests found on this machine, by name (`composite` or one of the materials).
        ledger: where given, the attempt, commitment and result must be its entries.
        repeat: runs the test again, for `rerun` and `challenge`.
        rerun: whether the same seed must give the same counts.
        challenge: a fresh seed with which the test must pass again.

    Returns:
        One check per item, failed ones included; only the signature's when that fails.

    Raises:
        BadInput: when the file is missing, or a repetition is asked for without `repeat`.
    """
    if repeat is None and (rerun or challenge is not None):
        raise BadInput("expected a function that repeats the rollouts, got none: pass `repeat`.")
    signed = Check("signature", True, f"canonical envelope, signed by a key pinned in {trust.source}")
    try:
        statement = read_certificate(path, trust)
    except MalformedStatement as error:
        return [signed, Check("statement", False, str(error))]
    except Refused as error:
        return [Check("signature", False, str(error))]
    predicate = statement.predicate
    checks = [signed, *_digests(statement, artefacts or {}), *_own_checks(statement)]
    if ledger is not None:
        checks.append(_ledger(ledger, sha256_hex(path.read_bytes()), statement))
    if repeat is not None and rerun:
        checks.append(_rerun(predicate, repeat))
    if repeat is not None and challenge is not None:
        checks.append(_challenge(predicate, repeat, challenge))
    return checks


def _own_checks(statement: Statement) -> list[Check]:
    """What a statement shows by itself."""
    predicate = statement.predicate
    try:
        return [_seed(predicate), _alpha(predicate), _statistics(predicate), _claim(statement)]
    except (IndexError, ValueError) as error:
        return [Check("statement", False, f"a field is malformed ({error!r})")]


def _digests(statement: Statement, found: Mapping[str, str]) -> list[Check]:
    stated = {**statement.predicate.materials.model_dump(), "composite": statement.composite}
    return [
        Check(name, stated[name] == digest, f"certificate {stated[name][:20]}, here {digest[:20]}")
        for name, digest in found.items()
    ]


def _seed(predicate: Predicate) -> Check:
    seed = predicate.seed
    digest = sha256_hex(bytes.fromhex(seed.value))
    return Check("seed", digest == seed.commitment, f"committed to {seed.commitment[:12]}, revealed {digest[:12]}")


def _alpha(predicate: Predicate) -> Check:
    attempt = predicate.attempt
    alpha = attempt_alpha(predicate.scope.confidence, attempt.number)
    return Check("alpha", alpha == attempt.alpha, f"attempt {attempt.number} may spend {alpha:.6g}")


def _statistics(predicate: Predicate) -> Check:
    counts, alpha, p0 = predicate.counts, predicate.attempt.alpha, predicate.scope.p0
    n, k, violating = counts.episodes, counts.violations, list(counts.violating)
    lost = np.zeros(n, dtype=np.int64)
    lost[violating] = 1
    lost = np.cumsum(lost)
    boundaries = np.array([betting_episodes(p0, violations, alpha) for violations in range(k + 1)])
    # The stop is at the first episode where the e-value reaches 1/alpha, so nothing was chosen after looking.
    reached = np.flatnonzero(np.arange(1, n + 1) >= boundaries[np.minimum(lost, k)])
    certified = bool(reached.size) and int(reached[0]) + 1 == n
    log_e = log_e_value(n - k, k, p0)
    agree = (
        len(set(violating)) == k == len(violating)
        and all(0 <= index < n for index in violating)
        and n <= predicate.scope.max_episodes
        and math.isclose(log_e, counts.log_e, rel_tol=1e-9, abs_tol=1e-12)
        and math.isclose(-math.log(alpha), counts.log_threshold, rel_tol=1e-12)
        and math.isclose(clopper_pearson_upper(k, n, alpha), counts.upper_bound, rel_tol=1e-9)
        and certified is counts.certified is predicate.passed
        and (certified or not reached.size)
    )
    verdict = "reaches" if certified else "does not reach"
    return Check(
        "statistics",
        agree,
        f"{k} violations in {n} episodes: log e-value {log_e:.4f} {verdict} {-math.log(alpha):.4f}",
    )


def _claim(statement: Statement) -> Check:
    predicate = statement.predicate
    line = predicate.scope.line(statement.composite, predicate.materials.simulator, predicate.passed)
    return Check("claim", line == predicate.claim, line)


def _ledger(ledger: Ledger, sha256: str, statement: Statement) -> Check:
    predicate, attempt = statement.predicate, statement.predicate.attempt
    try:
        ledger.verify([predicate.ledgerHead])
        opened, history = ledger.entry(attempt.entry), ledger.entries()
        logged = opened.read(AttemptBody)
        seed, result = (of_attempt(history, kind, attempt.entry) for kind in ("seed", "result"))
        agree = (
            (logged.composite, logged.lineage) == (statement.composite, attempt.lineage)
            and (logged.number, logged.alpha) == (attempt.number, attempt.alpha)
            and seed is not None
            and seed.body["commitment"] == predicate.seed.commitment
            and result is not None
            and says_the_same(result, predicate)
            and any(file.sha256 == sha256 for file in result.artefacts)
        )
    except (Refused, BadInput, ValidationError) as error:
        return Check("ledger", False, str(error))
    return Check("ledger", agree, f"entries for attempt {attempt.number}, its seed and its result with this file")


def says_the_same(result: Entry, predicate: Predicate) -> bool:
    """Whether a result's numbers are those of its certificate."""
    body, counts = result.read(ResultBody), predicate.counts
    return (body.attempt, body.passed, body.claim, body.episodes, body.violations, body.upper_bound) == (
        predicate.attempt.entry,
        predicate.passed,
        predicate.claim,
        counts.episodes,
        counts.violations,
        counts.upper_bound,
    )


def _rerun(predicate: Predicate, repeat: Repeat) -> Check:
    stated, counts = predicate.counts, repeat(predicate, bytes.fromhex(predicate.seed.value))
    agree = (counts.episodes, counts.violating) == (stated.episodes, stated.violating)
    return Check(
        "rerun",
        agree,
        f"certificate {stated.violations} in {stated.episodes}, rerun {counts.violations} in {counts.episodes}",
    )


def _challenge(predicate: Predicate, repeat: Repeat, seed: bytes) -> Check:
    counts = repeat(predicate, seed)
    return Check(
        "challenge",
        counts.certified or not predicate.passed,
        f"{counts.violations} violations in {counts.episodes} fresh episodes, upper bound {counts.upper_bound:.3g}",
    )
