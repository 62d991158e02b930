"""Safety certificates: signing, offline verification, and repetition of the certified test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from configs.errors import BadInput, Refused
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.evidence.attempts import AttemptBody, ResultBody, attempt_alpha, count_lineages
from tasks.evidence.claims import (
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
    Statement,
    Subject,
)
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Certify
from tasks.evidence.ledger.signing import TrustRoot, keyid_of
from tasks.evidence.policies import policy_of, unmet_requirement
from tasks.evidence.witness.seeds import (
    DrawnSeed,
    SeedBody,
    compare_witnesses,
    entry_of_attempt,
    nonces_of,
    seed_fault,
    stated_witnesses,
    witness_names,
)
from tasks.files.canonical import canonical_json, sha256_hex
from tasks.versions.versions import current, newest, version_of

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENTS = {PREDICATE_TYPE: Statement}
"""Format of a certificate -> class that reads it. Classes of earlier formats stay."""

Repeat = Callable[[Predicate, bytes], Mapping[str, Counts]]
"""Function that repeats the certified test: (content of the certificate, seed) -> counts for each repeated program."""


RESTS_ON = ("composite", "simulator", "shield", "code", "lock", "step", "program")
"""Materials that must be the same in a rerun as in the certificate."""
NOT_HERE = {
    "composite": "the bundle is not here: name it with --bundle",
    "simulator": "only a rerun builds the plant: --rerun",
    "shield": "only a rerun builds the bundle: --rerun",
    "code": "only a rerun compares it: --rerun",
    "lock": "only a rerun compares it: --rerun",
    "processor": "only a rerun compares it: --rerun",
    "step": "only a rerun lowers the simulator: --rerun",
    "program": "only a rerun lowers the episode: --rerun",
    "artifact": "only a rerun executes it: --rerun",
    "arguments": "only a rerun executes the program with them: --rerun",
    "isolation": "only a certification isolates",
    "custom_calls": "the program's digest covers them",
    "jax": "only a rerun compares it: --rerun",
    "unmeasured": "names, not a digest",
    "dataset": "the claim is about the simulator, independent of the training data",
    "config": "the run's file is not here; the scope contains the relevant settings",
}
"""Reason why a material is not compared."""


PROGRAMS_SINCE = 3
"""First version of the rules by which certificates bind lowered programs."""


class Check(NamedTuple):
    """Result of one check. `passed` is None if the check was not made, or found a difference that does not matter."""

    name: str
    passed: bool | None
    detail: str


def make_certificate(ledger: Ledger, attempt: str, counts: Counts, materials: Materials) -> bytes:
    """Ask the signer for the certificate of an attempt, whether the attempt passed or not.

    Args:
        attempt: digest of the attempt's ledger entry. The signer reads claim, number, composite and seed itself.
        materials: digests of everything that the counts depend on.

    Returns:
        The signed certificate (a DSSE envelope). The same attempt and ledger head give the same bytes.
    """
    request = Certify(attempt=attempt, counts=counts, materials=materials)
    return ledger.request(request).envelope.encode()


def state(opened: Entry, drawn: DrawnSeed, request: Certify, signed_head: str, history: Sequence[Entry]) -> Statement:
    """Return the content of a certificate before it is signed.

    Args:
        history: entries of the ledger, for the number of lineages.

    Raises:
        Refused: if `verify_certificate` would reject this content.
    """
    attempt, passed, materials = opened.read(AttemptBody), request.counts.certified, request.materials
    claim, witnesses = attempt.scope, witness_names(drawn.record.read(SeedBody).witnesses)
    statement = Statement(
        type_=STATEMENT_TYPE,
        subject=(Subject(name=f"composite/{claim.plant}", digest=Digest(sha256=attempt.composite)),),
        predicateType=PREDICATE_TYPE,
        predicate=Predicate(
            claim=claim.lines(attempt.composite, materials.simulator, passed, witnesses, current().texts),
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
                lineages=count_lineages(history[: opened.sequence + 1]),
            ),
            seed=drawn.stated(),
            counts=request.counts,
            ledgerHead=signed_head,
            rules=newest(),
        ),
    )
    named, logged = (materials.dataset, materials.config), (attempt.dataset, attempt.config)
    if named != logged:
        raise Refused(f"dataset and config of the attempt are {logged}, got {named}: certify again")
    wrong = [check for check in _own_checks(statement) if check.passed is False]
    if wrong:
        raise Refused(f"the counts are inconsistent ({wrong[0].name}: {wrong[0].detail}): certify again")
    return statement


def read_certificate(path: Path, trust: TrustRoot) -> Statement:
    """Verify a certificate's signature and return its content."""
    try:
        envelope = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read the certificate {path} ('{error.strerror}'): check the path") from error
    payload = trust.unseal(PAYLOAD_TYPE, envelope)
    fields = payload if isinstance(payload, dict) else {}
    kinds = str(fields.get("_type")), str(fields.get("predicateType"))
    if kinds[0] != STATEMENT_TYPE or kinds[1] not in STATEMENTS:
        formats = ", ".join(STATEMENTS)
        raise Refused(f"{path.name} has types {kinds}, this NeoRL reads {formats}: check the path, or upgrade NeoRL")
    try:
        return STATEMENTS[kinds[1]].model_validate_json(canonical_json(payload))
    except ValidationError as error:
        raise MalformedStatement(f"a field is missing or malformed ({error.errors(include_url=False)[0]})") from error


class MalformedStatement(Refused):
    """Error: the signature is valid, but the signed content is not a certificate."""


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
    """Verify a certificate: signature, digests, seed, error probability, statistics, and optionally the rollouts.

    Args:
        artefacts: digests of what this machine has, keyed by `composite` or the name of a material. Other digests of
            the certificate are not compared; a rerun fails if it needs one of them.
        ledger: ledger that must contain the attempt, its seed and its result; None skips these checks.
        repeat: function that repeats the test, for `rerun` and `challenge`.
        rerun: whether to repeat the test with the same seed; the counts must be the same.
        challenge: new seed; the test must also pass with this seed.

    Returns:
        One check per item. If the signature is invalid, only the check of the signature.

    Raises:
        BadInput: if the file is missing, or a repetition is requested without `repeat`.
    """
    if repeat is None and (rerun or challenge is not None):
        raise BadInput(f"repeating the rollouts (rerun={rerun}) needs the function `repeat`: pass it")
    signed = Check("signature", True, f"canonical envelope, signed by a key pinned in {trust.source}")
    try:
        statement = read_certificate(path, trust)
    except MalformedStatement as error:
        return [signed, Check("statement", False, str(error))]
    except Refused as error:
        return [Check("signature", False, str(error))]
    predicate = statement.predicate
    if predicate.rules > newest():
        detail = f"uses rules version {predicate.rules}, this NeoRL knows up to {newest()}: upgrade NeoRL"
        return [signed, Check("statement", False, detail)]
    again = rerun or challenge is not None
    checks = [
        signed,
        *_signer_now(path, trust, ledger is not None),
        *_digests(statement, artefacts or {}, again),
        *_own_checks(statement),
        Check("witnesses", *compare_witnesses(predicate, trust)),
    ]
    if ledger is not None:
        checks.append(_ledger(ledger, sha256_hex(path.read_bytes()), statement))
        checks.append(_policy(ledger, predicate.scope))
    else:
        checks.append(
            Check("ledger", None, "not looked at: there is none here, so the attempt's number is not checked")
        )
    if not again:
        checks.append(Check("rerun", None, "not repeated: --rerun does"))
    if repeat is not None and rerun:
        checks.append(_rerun(predicate, repeat(predicate, bytes.fromhex(predicate.seed.value))))
    if repeat is not None and challenge is not None:
        checks.append(_challenge(predicate, repeat(predicate, challenge)))
    return checks


def _signer_now(path: Path, trust: TrustRoot, with_ledger: bool) -> list[Check]:
    """Report a replaced or revoked signing key if there is no ledger, which alone proves the time of signing."""
    name = keyid_of(path.read_bytes())
    pin = next((pin for pin in trust.pins if pin.id == name), None)
    if with_ledger or pin is None or not (pin.until or pin.revoked):
        return []
    if pin.revoked:
        return [Check("key", False, f"key {name} is revoked from {pin.revoked} on: only the ledger shows what counts")]
    return [Check("key", None, f"key {name} was replaced at {pin.until}: only the ledger shows that it signed before")]


def _own_checks(statement: Statement) -> list[Check]:
    predicate = statement.predicate
    try:
        return [_seed(predicate), _alpha(predicate), _statistics(predicate), _claim(statement), _identity(predicate)]
    except (IndexError, ValueError) as error:
        return [Check("statement", False, f"a field is malformed ({error!r})")]


def _digests(statement: Statement, found: Mapping[str, str], again: bool) -> list[Check]:
    stated = {"composite": statement.composite, **statement.predicate.materials.model_dump()}
    checks = []
    for name, there in stated.items():
        here = found.get(name)
        if not there:
            continue
        if here is None:
            failed = False if again and name in RESTS_ON else None
            checks.append(Check(name, failed, f"certificate {there[:20]}, not compared: {NOT_HERE[name]}"))
        elif here != there and name in ("processor", "jax"):
            checks.append(Check(name, None, f"certificate {there}, here {here}: counts may differ in their last bits"))
        else:
            checks.append(Check(name, here == there, f"certificate {there[:20]}, here {here[:20]}"))
    return checks


def _seed(predicate: Predicate) -> Check:
    detail = f"secret committed as {predicate.seed.commitment[:12]}, nonces of {len(predicate.seed.nonces)} witnesses"
    fault = seed_fault(predicate)
    return Check("seed", fault is None, fault or detail)


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
    # The test must have stopped at the first episode at which the e-value reaches 1/alpha.
    reached = np.flatnonzero(np.arange(1, n + 1) >= boundaries[np.minimum(lost, k)])
    certified = bool(reached.size) and int(reached[0]) + 1 == n
    log_e = log_e_value(n - k, k, p0)
    agree = (
        len(set(violating)) == k == len(violating)
        and all(0 <= index < n for index in violating)
        and 0 <= counts.crashed <= k
        and n <= predicate.scope.max_episodes
        and math.isclose(log_e, counts.log_e, rel_tol=1e-9, abs_tol=1e-12)
        and math.isclose(-math.log(alpha), counts.log_threshold, rel_tol=1e-12)
        and math.isclose(clopper_pearson_upper(k, n, alpha), counts.upper_bound, rel_tol=1e-9)
        and certified is counts.certified is predicate.passed
        and (certified or not reached.size)
    )
    horizon = predicate.scope.horizon
    if predicate.rules >= PROGRAMS_SINCE:
        # Only a violated episode may be shorter than the horizon.
        agree = agree and (n - k) * horizon <= counts.steps <= n * horizon
    steps = f" of {counts.steps:,} steps" if counts.steps else ""
    verdict = "reaches" if certified else "does not reach"
    return Check(
        "statistics",
        agree,
        f"{k} violations in {n} episodes{steps}: log e-value {log_e:.4f} {verdict} {-math.log(alpha):.4f}",
    )


def _claim(statement: Statement) -> Check:
    predicate = statement.predicate
    names = witness_names(stated_witnesses(predicate))
    texts, simulator = version_of(predicate.rules).texts, predicate.materials.simulator
    lines = predicate.scope.lines(statement.composite, simulator, predicate.passed, names, texts)
    return Check("claim", lines == predicate.claim, " ".join(lines.split()))


def _identity(predicate: Predicate) -> Check:
    """Check that a certificate binds programs, or say that it is older and binds the source only."""
    materials = predicate.materials
    if predicate.rules < PROGRAMS_SINCE:
        return Check("identity", None, "written before programs were bound: the simulator is bound by its source only")
    bound = all((materials.step, materials.program, materials.artifact, materials.isolation))
    same = predicate.scope.identified is not None or predicate.scope.step == materials.step
    detail = f"programs lowered twice, the second time with {materials.isolation}" if bound else "binds no programs"
    return Check("identity", bound and same, detail if same else "the claim is about another program of the simulator")


def _ledger(ledger: Ledger, sha256: str, statement: Statement) -> Check:
    predicate, attempt = statement.predicate, statement.predicate.attempt
    try:
        ledger.verify([predicate.ledgerHead])
        opened, history = ledger.entry(attempt.entry), ledger.entries()
        logged = opened.read(AttemptBody)
        seed, result = (entry_of_attempt(history, kind, attempt.entry) for kind in ("seed", "result"))
        agree = (
            (logged.composite, logged.lineage, logged.scope) == (statement.composite, attempt.lineage, predicate.scope)
            and (logged.dataset, logged.config) == (predicate.materials.dataset, predicate.materials.config)
            and (logged.number, logged.alpha, opened.timestamp) == (attempt.number, attempt.alpha, attempt.opened)
            and attempt.lineages
            == (count_lineages(history[: opened.sequence + 1]) if predicate.rules >= PROGRAMS_SINCE else 0)
            and seed is not None
            and seed.envelope.decode() == predicate.seed.record
            and (given := nonces_of(history, attempt.entry)) is not None
            and (given.head, given.nonces) == (predicate.seed.head, predicate.seed.nonces)
            and result is not None
            and says_the_same(result, predicate)
            and any(file.sha256 == sha256 for file in result.artefacts)
        )
    except (Refused, BadInput, ValidationError) as error:
        return Check("ledger", False, str(error))
    family = attempt.lineages * (1 - predicate.scope.confidence)
    over = f"; {attempt.lineages} lineage(s), so any certificate is false with probability <= {family:.2g}"
    detail = f"entries for attempt {attempt.number}, seed and result with this file"
    return Check("ledger", agree, detail + (over if attempt.lineages else ""))


def _policy(ledger: Ledger, claim: Claim) -> Check:
    """Compare a claim with the plant's policy in force. A difference is no failure, because the claim stays true."""
    try:
        policy = policy_of(ledger.entries(), claim.plant)
    except (Refused, ValidationError) as error:
        return Check("policy", None, f"not compared: {error}")
    if policy is None:
        return Check("policy", None, f"not compared: {claim.plant} has none")
    fault = unmet_requirement(policy, claim)
    return Check("policy", None if fault else True, fault or f"the claim meets the policy of {claim.plant} in force")


def says_the_same(result: Entry, predicate: Predicate) -> bool:
    """Return whether a result entry states the same claim and numbers as a certificate."""
    body, counts = result.read(ResultBody), predicate.counts
    stated = (body.attempt, body.passed, body.claim, body.episodes, body.violations, body.upper_bound, body.handovers)
    return stated == (
        predicate.attempt.entry,
        predicate.passed,
        predicate.claim,
        counts.episodes,
        counts.violations,
        counts.upper_bound,
        counts.handovers,
    )


def _rerun(predicate: Predicate, repeated: Mapping[str, Counts]) -> Check:
    stated = predicate.counts
    agree = all((c.episodes, c.violating) == (stated.episodes, stated.violating) for c in repeated.values())
    found = ", ".join(f"{name} {c.violations} in {c.episodes}" for name, c in repeated.items())
    missing = ", stored program not here" if predicate.materials.artifact and len(repeated) == 1 else ""
    return Check("rerun", agree, f"certificate {stated.violations} in {stated.episodes}, {found}{missing}")


def _challenge(predicate: Predicate, repeated: Mapping[str, Counts]) -> Check:
    found = ", ".join(
        f"{name} {c.violations} violations in {c.episodes} fresh episodes (upper bound {c.upper_bound:.3g})"
        for name, c in repeated.items()
    )
    return Check("challenge", all(c.certified for c in repeated.values()) or not predicate.passed, found)
