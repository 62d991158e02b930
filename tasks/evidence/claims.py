"""Content of a certificate: an in-toto statement with claim, counts and materials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.versions.texts import Texts

LOCAL = "neorl.local/"
"""Name prefix of witnesses that run on the same machine as the ledger that they watch."""
STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://neorl.dev/attestation/safety-certificate/v4"] = (
    "https://neorl.dev/attestation/safety-certificate/v4"
)
PROTOCOL = (
    "Episodes run on the simulator in the order of the keys that the seed gives; constants and disturbances are drawn "
    "from the operating domain. An e-value bets that the violation probability is p0/10 rather than p0. It is updated "
    "after every episode and certifies when it reaches 1/alpha of the attempt, with alpha_j = alpha/(j(j+1)). An "
    "episode with a non-finite number counts as violated. If a batch ends in an error or takes longer than the scope's "
    "seconds, all its episodes count as violated. A killed process resumes the attempt with the same seed. The attempt "
    "is logged with its whole scope before the seed exists. The seed is the SHA-256 of a secret and of nonces: first "
    "the SHA-256 of the secret is logged with the names of the witnesses, then these countersign a head that contains "
    "it and give the nonces."
)
NON_CLAIMS = (
    "The claim is about the simulator, not about the plant.",
    "It covers only this composite and the named operating domain.",
    "The confidence covers all attempts of the lineage. It is not the probability that this composite is safe.",
    "The e-value decides. The Clopper-Pearson bound is for information only.",
    "The composite is a basic control layer that needs an independent safety system. No SIL is claimed.",
)


class Stated(BaseModel):
    """Base: frozen, strict, unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DrawnConstant(Stated):
    """Simulator constant drawn by the domain; estimate and factor are the domain's `identified_` fields."""

    name: str
    entry: int | None
    law: Literal["log-normal", "normal"]


class IdentifiedFrom(Stated):
    """Source of a domain that draws from a posterior."""

    dataset: str
    """Digest of the logs."""
    constants: tuple[DrawnConstant, ...]
    """In drawing order."""


class Claim(Stated):
    """Claim: P(an episode violates phi under the domain) <= p0 with the lineage's confidence."""

    plant: str
    phi: str
    """Limits, such as "316<=T<=332 K"."""
    horizon: int
    """Episode length in steps."""
    family: str
    """Family of operating domains; plant, limits and family determine the lineage."""
    domain_name: str
    domain: dict[str, float]
    """Parameters of the domain, as a rerun needs them."""
    identified: IdentifiedFrom | None = Field(default=None, exclude_if=lambda found: found is None)
    """Part of the domain that is a posterior; absent if all constants are assumed known."""
    p0: float
    confidence: float
    max_episodes: int
    batch: int
    """Episodes that run together."""
    batch_seconds: float
    """Time limit of a batch; a slower or failed batch counts as violated completely."""

    def lines(self, composite: str, simulator: str, passed: bool, witnesses: Sequence[str], texts: Texts) -> str:
        """Render the claim, and on a second line the witnesses of the seed."""
        claim = texts.claim.format(
            steps=self.horizon,
            domain=self.domain_name,
            limits=self.phi,
            p0=_short(self.p0),
            confidence=100 * self.confidence,
            composite=composite[:12],
            simulator=simulator[:12],
        )
        return f"{claim if passed else texts.not_shown.format(claim=claim)}.\n{_witnessed(witnesses, texts)}"


class Counts(Stated):
    """Counts of the sequential test over episodes 0 to episodes - 1, in the order of their seeds."""

    episodes: int
    violations: int
    violating: tuple[int, ...]
    """Indices of violated episodes; with `episodes` sufficient to repeat the test."""
    log_e: float
    log_threshold: float
    """log(1/alpha); certified when `log_e` reaches it."""
    upper_bound: float
    """Clopper-Pearson bound at the same alpha, for information."""
    certified: bool
    stop: str
    min_margins: tuple[float | None, ...]
    """Smallest finite margin of each constraint, in the constraint's unit."""
    handovers: int
    mean_return: float | None
    crashed: int
    """Number of violations from batches that failed or took too long."""


class Materials(Stated):
    """Digests of everything that the counts depend on, and the processor class with bit-identical counts."""

    dataset: str
    config: str
    code: str
    lock: str
    simulator: str
    shield: str
    processor: str


class Digest(Stated):
    sha256: str


class Subject(Stated):
    """Composite of the statement."""

    name: str
    digest: Digest


class NumberedAttempt(Stated):
    """Attempt, as logged in the ledger."""

    lineage: str
    number: int
    alpha: float
    entry: str
    opened: str
    """Time of the attempt's entry."""


class Seed(Stated):
    """Seed and components, hexadecimal unless stated otherwise."""

    commitment: str
    """SHA-256 of the secret."""
    record: str
    """Complete ledger entry of the commitment, which names the witnesses."""
    head: str
    """Countersigned checkpoint that contains this entry; empty without witnesses."""
    nonces: tuple[str, ...]
    """Base64 of the witnesses' nonces for the entry."""
    secret: str
    value: str
    """SHA-256("neorl attempt seed v1" LF || secret || nonces)."""


class Predicate(Stated):
    """Safety certificate; field names are those of the signed JSON."""

    claim: str
    nonClaims: tuple[str, ...]
    passed: bool
    scope: Claim
    materials: Materials
    protocol: str
    attempt: NumberedAttempt
    seed: Seed
    counts: Counts
    ledgerHead: str
    rules: int = Field(default=1, exclude_if=lambda version: version == 1)
    """Version of the claim's wording (`tasks.versions`); absent in certificates of version 1."""


class Statement(Stated):
    """In-toto statement v1 with a safety certificate as predicate."""

    type_: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[Subject]
    predicateType: Literal["https://neorl.dev/attestation/safety-certificate/v4"]
    predicate: Predicate

    model_config = ConfigDict(alias_generator=lambda name: "_type" if name == "type_" else name, populate_by_name=True)

    @property
    def composite(self) -> str:
        """Digest of the certified composite."""
        return self.subject[0].digest.sha256


def _witnessed(witnesses: Sequence[str], texts: Texts) -> str:
    if not witnesses:
        return texts.unwitnessed
    local = all(name.startswith(LOCAL) for name in witnesses)
    return (texts.witnessed_locally if local else texts.witnessed).format(names=" and ".join(witnesses))


def _short(value: float) -> str:
    """Format 0.001 as 1e-3."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
