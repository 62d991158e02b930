"""The certificate: an in-toto statement, signed, that can be checked offline and repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.errors import BadInput, Refused
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.adapters.files.canonical import sha256_hex
from tasks.adapters.ledger.attempts import Attempt, attempt_alpha
from tasks.adapters.ledger.ledger import Ledger
from tasks.adapters.ledger.signing import TrustRoot

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://neorl.dev/attestation/safety-certificate/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MATERIALS = ("dataset", "config", "code", "lock", "simulator", "shield", "processor")
COUNTS = ("episodes", "violations", "violating", "log_e", "log_threshold", "upper_bound", "certified", "stop")
PROTOCOL = (
    "Episodes are run on the simulator in the order of keys derived from the seed, with constants and disturbances "
    "drawn from the domain. A bet that their violation probability is p0/10 rather than p0 is looked at after every "
    "episode, and certifies when its e-value reaches 1/alpha of the attempt, alpha_j = alpha/(j(j+1)). NaN, crash and "
    "time-out count as violations. The attempt is logged before the seed exists, and the seed's SHA-256 before it is "
    "used."
)
NON_CLAIMS = (
    "It is a claim about the simulator, not about the plant.",
    "Nothing is claimed outside the named operating domain, nor for another composite.",
    "The confidence is over all attempts of the lineage; it is not the probability that this composite is safe.",
    "The Clopper-Pearson bound is for information: the verdict rests on the e-value.",
    "It is for a basic control layer behind an independent safety system, and claims no SIL.",
)

Repeat = Callable[[Mapping[str, Any], bytes], Mapping[str, Any]]
"""(predicate, seed) -> counts: runs the certified test again."""


class Check(NamedTuple):
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Claim:
    """What is to be shown: P(an episode violates phi under the domain) <= p0 with the lineage's confidence."""

    plant: str
    phi: str
    """The limits, such as "316<=T<=332 K"."""
    horizon: int
    """Steps of an episode."""
    domain_name: str
    domain: dict[str, Any]
    """Its parameters, as the rerun needs them."""
    p0: float
    confidence: float
    max_episodes: int

    def line(self, composite: str, simulator: str, passed: bool) -> str:
        """The claim in one line, for people."""
        text = (
            f"P(an episode of {self.horizon} steps under {self.domain_name} violates {self.phi}) <= "
            f"{_short(self.p0)} with confidence {100 * self.confidence:g} %, for composite {composite[:12]} on "
            f"simulator {simulator[:12]}"
        )
        return text if passed else f"Not shown: {text}"


def make_certificate(
    ledger: Ledger,
    attempt: Attempt,
    seed: bytes,
    claim: Claim,
    counts: Mapping[str, Any],
    materials: Mapping[str, str],
) -> bytes:
    """Sign what an attempt at certification found, passed or not.

    Args:
        seed: from `draw_seed`; revealed in the certificate.
        counts: the fields of `CertificationCounts`.
        materials: digests of dataset, config, code, lock, simulator and shield, and the processor class on which a
            rerun counts the same.

    Returns:
        A DSSE envelope, the same bytes for the same attempt and ledger head.

    Raises:
        ValueError: when a material or a count is missing.
    """
    missing = [name for name in MATERIALS if name not in materials] + [name for name in COUNTS if name not in counts]
    if missing:
        raise ValueError(f"expected materials and counts with {', '.join(missing)}, got none: pass them")
    passed = bool(counts["certified"])
    opened = ledger.entry(attempt.entry)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"composite/{claim.plant}", "digest": {"sha256": attempt.composite}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "claim": claim.line(attempt.composite, materials["simulator"], passed),
            "nonClaims": list(NON_CLAIMS),
            "passed": passed,
            "scope": asdict(claim),
            "materials": dict(materials),
            "protocol": PROTOCOL,
            "attempt": {
                "lineage": attempt.lineage,
                "number": attempt.number,
                "alpha": attempt.alpha,
                "entry": attempt.entry,
                "opened": opened.timestamp,
            },
            "seed": {"commitment": sha256_hex(seed), "value": seed.hex()},
            "counts": {name: list(value) if isinstance(value, tuple) else value for name, value in counts.items()},
            "ledgerHead": ledger.signed_head(),
        },
    }
    return ledger.seal(PAYLOAD_TYPE, statement)


def read_certificate(path: Path, trust: TrustRoot) -> dict[str, Any]:
    """The statement in a certificate whose envelope holds.

    Raises:
        BadInput: when the file is missing.
        Refused: when its bytes or signature do not hold, or it is not a safety certificate.
    """
    try:
        envelope = path.read_bytes()
    except OSError as error:
        raise BadInput(f"expected a certificate at {path}, got '{error.strerror}': check the path.") from error
    statement: dict[str, Any] = trust.unseal(PAYLOAD_TYPE, envelope)
    kinds = (statement.get("_type"), statement.get("predicateType")) if isinstance(statement, dict) else None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise Refused(f"expected a {PREDICATE_TYPE} statement in {path.name}, got {kinds}: check the path.")
    return statement


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
    try:
        statement = read_certificate(path, trust)
    except Refused as error:
        return [Check("signature", False, str(error))]
    checks = [Check("signature", True, f"canonical envelope, signed by a key pinned in {trust.source}")]
    try:
        composite, predicate = statement["subject"][0]["digest"]["sha256"], statement["predicate"]
        checks += _digests(composite, predicate["materials"], artefacts or {})
        checks += [_seed(predicate), _alpha(predicate), _statistics(predicate), _claim(composite, predicate)]
        if ledger is not None:
            checks.append(_ledger(ledger, sha256_hex(path.read_bytes()), composite, predicate))
        if repeat is not None and rerun:
            checks.append(_rerun(predicate, repeat))
        if repeat is not None and challenge is not None:
            checks.append(_challenge(predicate, repeat, challenge))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        checks.append(Check("statement", False, f"a field is missing or malformed ({error!r})"))
    return checks


def _digests(composite: str, materials: Mapping[str, str], found: Mapping[str, str]) -> list[Check]:
    stated = {**materials, "composite": composite}
    return [
        Check(name, stated[name] == digest, f"certificate {stated[name][:20]}, here {digest[:20]}")
        for name, digest in found.items()
    ]


def _seed(predicate: Mapping[str, Any]) -> Check:
    seed = predicate["seed"]
    digest = sha256_hex(bytes.fromhex(seed["value"]))
    return Check(
        "seed", digest == seed["commitment"], f"committed to {seed['commitment'][:12]}, revealed {digest[:12]}"
    )


def _alpha(predicate: Mapping[str, Any]) -> Check:
    attempt = predicate["attempt"]
    alpha = attempt_alpha(predicate["scope"]["confidence"], attempt["number"])
    return Check("alpha", alpha == attempt["alpha"], f"attempt {attempt['number']} may spend {alpha:.6g}")


def _statistics(predicate: Mapping[str, Any]) -> Check:
    counts, alpha, p0 = predicate["counts"], predicate["attempt"]["alpha"], predicate["scope"]["p0"]
    n, k, violating = counts["episodes"], counts["violations"], counts["violating"]
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
        and n <= predicate["scope"]["max_episodes"]
        and math.isclose(log_e, counts["log_e"], rel_tol=1e-9, abs_tol=1e-12)
        and math.isclose(-math.log(alpha), counts["log_threshold"], rel_tol=1e-12)
        and math.isclose(clopper_pearson_upper(k, n, alpha), counts["upper_bound"], rel_tol=1e-9)
        and certified is counts["certified"] is predicate["passed"]
        and (certified or not reached.size)
    )
    verdict = "reaches" if certified else "does not reach"
    return Check(
        "statistics",
        agree,
        f"{k} violations in {n} episodes: log e-value {log_e:.4f} {verdict} {-math.log(alpha):.4f}",
    )


def _claim(composite: str, predicate: Mapping[str, Any]) -> Check:
    line = Claim(**predicate["scope"]).line(composite, predicate["materials"]["simulator"], predicate["passed"])
    return Check("claim", line == predicate["claim"], line)


def _ledger(ledger: Ledger, sha256: str, composite: str, predicate: Mapping[str, Any]) -> Check:
    attempt = predicate["attempt"]
    try:
        ledger.verify([predicate["ledgerHead"]])
        logged = {entry.kind: entry for entry in ledger.entries() if entry.body.get("attempt") == attempt["entry"]}
        opened = ledger.entry(attempt["entry"])
    except (Refused, BadInput) as error:
        return Check("ledger", False, str(error))
    agree = (
        opened.body["composite"] == composite
        and all(opened.body[name] == attempt[name] for name in ("lineage", "number", "alpha"))
        and "seed" in logged
        and logged["seed"].body["commitment"] == predicate["seed"]["commitment"]
        and "result" in logged
        and logged["result"].body["passed"] is predicate["passed"]
        and any(file["sha256"] == sha256 for file in logged["result"].artefacts)
    )
    return Check("ledger", agree, f"entries for attempt {attempt['number']}, its seed and its result with this file")


def _rerun(predicate: Mapping[str, Any], repeat: Repeat) -> Check:
    stated, counts = predicate["counts"], repeat(predicate, bytes.fromhex(predicate["seed"]["value"]))
    agree = (counts["episodes"], list(counts["violating"])) == (stated["episodes"], stated["violating"])
    return Check(
        "rerun",
        agree,
        f"certificate {stated['violations']} in {stated['episodes']}, rerun {counts['violations']} in "
        f"{counts['episodes']}",
    )


def _challenge(predicate: Mapping[str, Any], repeat: Repeat, seed: bytes) -> Check:
    counts = repeat(predicate, seed)
    return Check(
        "challenge",
        bool(counts["certified"]) or not predicate["passed"],
        f"{counts['violations']} violations in {counts['episodes']} fresh episodes, upper bound "
        f"{counts['upper_bound']:.3g}",
    )


def _short(value: float) -> str:
    """1e-3 rather than 0.001."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
