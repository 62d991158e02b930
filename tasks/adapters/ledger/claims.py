"""What a certificate states: an in-toto statement with its claim, counts and materials."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://neorl.dev/attestation/safety-certificate/v2"] = (
    "https://neorl.dev/attestation/safety-certificate/v2"
)
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
    domain_name: str
    domain: dict[str, float]
    """The domain's parameters, as the rerun needs them."""
    identified: IdentifiedFrom | None = Field(default=None, exclude_if=lambda found: found is None)
    """What of it is a posterior; nothing, and no key, where all constants were taken as known."""
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
    """The seed, in hexadecimal, and the SHA-256 that was logged before it was used."""

    commitment: str
    value: str


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


class Statement(Stated):
    """An in-toto statement, v1, with a safety certificate as its predicate."""

    type_: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[Subject]
    predicateType: Literal["https://neorl.dev/attestation/safety-certificate/v2"]
    predicate: Predicate

    model_config = ConfigDict(alias_generator=lambda name: "_type" if name == "type_" else name, populate_by_name=True)

    @property
    def composite(self) -> str:
        """Digest of the composite that the statement is about."""
        return self.subject[0].digest.sha256


def _short(value: float) -> str:
    """1e-3 rather than 0.001."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
