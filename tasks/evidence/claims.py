"""What a certificate states: an in-toto statement with its claim, counts and materials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.versions.texts import Texts

LOCAL = "neorl.local/"
"""How the name of a witness begins that runs on the machine of those whom it watches."""
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
    """Part of a statement: frozen, of exactly these fields, and nothing is converted."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DrawnConstant(Stated):
    """A constant of the simulator that the domain draws; estimate and factor are the domain's `identified_` fields."""

    name: str
    entry: int | None
    law: Literal["log-normal", "normal"]


class IdentifiedFrom(Stated):
    """Where a domain that draws from a posterior comes from."""

    dataset: str
    """Digest of the logs."""
    constants: tuple[DrawnConstant, ...]
    """In the order in which they are drawn."""


class Claim(Stated):
    """What is to be shown: P(an episode violates phi under the domain) <= p0 with the lineage's confidence."""

    plant: str
    phi: str
    """The limits, such as "316<=T<=332 K"."""
    horizon: int
    """Steps of an episode."""
    family: str
    """Name of the family of operating domains: with plant and limits, the lineage that shares one error probability."""
    domain_name: str
    domain: dict[str, float]
    """The domain's parameters, as the rerun needs them."""
    identified: IdentifiedFrom | None = Field(default=None, exclude_if=lambda found: found is None)
    """What of it is a posterior; nothing, and no key, where all constants were taken as known."""
    p0: float
    confidence: float
    max_episodes: int
    batch: int
    """Episodes that are run together."""
    batch_seconds: float
    """What a batch may take; one that takes longer, or ends in an error, is violated as a whole."""

    def lines(self, composite: str, simulator: str, passed: bool, witnesses: Sequence[str], texts: Texts) -> str:
        """Render the claim, and on a second line the witnesses of the seed.

        Args:
            composite: digest.
            simulator: digest.
            passed: whether the claim was certified.
            witnesses: names of the witnesses whose nonces made the seed.
            texts: wording of the version that writes or wrote it.
        """
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
    """What the sequential test counted, over episodes 0 .. episodes - 1 in the order of their seeds."""

    episodes: int
    violations: int
    violating: tuple[int, ...]
    """Indices of the violated episodes: with `episodes` all that the test needs to be repeated."""
    log_e: float
    log_threshold: float
    """log(1/alpha); certified when `log_e` reaches it."""
    upper_bound: float
    """Clopper-Pearson bound at the same alpha, for information."""
    certified: bool
    stop: str
    min_margins: tuple[float | None, ...]
    """Least finite margin of each constraint, in its unit."""
    handovers: int
    mean_return: float | None
    crashed: int
    """How many of the violations are of batches that ended in an error or took too long."""


class Materials(Stated):
    """Digests of what the counts rest on, and the processor class on which a rerun counts the same."""

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
    """The composite that the statement is about."""

    name: str
    digest: Digest


class NumberedAttempt(Stated):
    """The attempt as the ledger logged it."""

    lineage: str
    number: int
    alpha: float
    entry: str
    opened: str
    """When it was logged."""


class Seed(Stated):
    """The seed, in hexadecimal, and what it was made of, in this order."""

    commitment: str
    """SHA-256 of the secret."""
    record: str
    """The ledger's entry that logged the commitment, whole: it names the witnesses."""
    head: str
    """Checkpoint that contains this entry, countersigned by them; empty where there are none."""
    nonces: tuple[str, ...]
    """Base64, what they gave for the entry."""
    secret: str
    value: str
    """SHA-256("neorl attempt seed v1" LF || secret || nonces)."""


class Predicate(Stated):
    """A safety certificate; its field names are those of the signed JSON."""

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
    """Version whose wording the claim has (`tasks.versions`); no key in certificates of version 1."""


class Statement(Stated):
    """An in-toto statement, v1, with a safety certificate as its predicate."""

    type_: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[Subject]
    predicateType: Literal["https://neorl.dev/attestation/safety-certificate/v4"]
    predicate: Predicate

    model_config = ConfigDict(alias_generator=lambda name: "_type" if name == "type_" else name, populate_by_name=True)

    @property
    def composite(self) -> str:
        """Digest of the composite that the statement is about."""
        return self.subject[0].digest.sha256


def _witnessed(witnesses: Sequence[str], texts: Texts) -> str:
    if not witnesses:
        return texts.unwitnessed
    local = all(name.startswith(LOCAL) for name in witnesses)
    return (texts.witnessed_locally if local else texts.witnessed).format(names=" and ".join(witnesses))


def _short(value: float) -> str:
    """1e-3 rather than 0.001."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
