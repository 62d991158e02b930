"""Content of a certificate: claim, counts and materials, in the in-toto format for signed statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.versions.texts import Texts

LOCAL = "neorl.local/"
"""Prefix in the names of witnesses that run on the same machine as their ledger."""
STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://neorl.dev/attestation/safety-certificate/v4"] = (
    "https://neorl.dev/attestation/safety-certificate/v4"
)
PROTOCOL = (
    "Episodes run on the simulator in the order of the keys that the seed gives; constants and disturbances are drawn "
    "from the operating domain. An e-value bets that the violation probability is p0/10 rather than p0. It is updated "
    "after every episode and certifies when it reaches 1/alpha of the attempt, with alpha_j = alpha/(j(j+1)). An "
    "episode counts as violated by a negative margin, by an observation beyond the limit that it shows, by a "
    "non-finite number, and by an end before the horizon. If a batch ends in an error or takes longer than the scope's "
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
    """Base class: values cannot be changed, types are not converted, and unknown fields are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DrawnConstant(Stated):
    """Simulator constant that each episode draws at random; the domain's `identified_` fields give its distribution."""

    name: str
    entry: int | None
    law: Literal["log-normal", "normal"]


class IdentifiedFrom(Stated):
    """Constants that were identified from logs, if the operating domain draws them from their posterior."""

    dataset: str
    """Digest of the logs."""
    constants: tuple[DrawnConstant, ...]
    """Constants, in the order in which they are drawn."""


class Claim(Stated):
    """Claim, with confidence `confidence`: P(an episode under the operating domain violates `phi`) <= `p0`."""

    plant: str
    phi: str
    """Limits, such as "316<=T<=332 K"."""
    horizon: int
    """Episode length in steps."""
    family: str
    """Family of operating domains; plant, limits and family determine the lineage."""
    domain_name: str
    domain: dict[str, float]
    """Parameters of the operating domain; a rerun needs all of them."""
    identified: IdentifiedFrom | None = Field(default=None, exclude_if=lambda found: found is None)
    """Constants that the domain draws from a posterior; None if all constants are assumed to be known."""
    step: str = Field(default="", exclude_if=lambda digest: not digest)
    """Digest of the lowered program of the simulator's step; empty in claims by rules 1 and 2."""
    p0: float
    confidence: float
    max_episodes: int
    batch: int
    """Number of episodes that run at the same time."""
    batch_seconds: float
    """Time limit of a batch. All episodes of a slower or failed batch count as violations."""

    def lines(self, composite: str, simulator: str, passed: bool, witnesses: Sequence[str], texts: Texts) -> str:
        """Return the claim as a sentence, and a second line about the witnesses of the seed."""
        claim = texts.claim.format(
            steps=self.horizon,
            domain=self.domain_name,
            limits=self.phi,
            # Claims by rules 1 and 2 have no step and show six digits.
            p0=repr(self.p0) if self.step and float(_short(self.p0)) != self.p0 else _short(self.p0),
            confidence=100 * self.confidence,
            composite=composite[:12],
            simulator=simulator[:12],
        )
        return f"{claim if passed else texts.not_shown.format(claim=claim)}.\n{_witnessed(witnesses, texts)}"


class Counts(Stated):
    """Counts of the sequential test. Episodes are numbered from 0, in the order of their seeds."""

    episodes: int
    violations: int
    violating: tuple[int, ...]
    """Numbers of the episodes that violated a limit."""
    log_e: float
    log_threshold: float
    """log(1/alpha); the test certifies when `log_e` reaches this threshold."""
    upper_bound: float
    """Clopper-Pearson upper bound of the violation probability at the same alpha; for information only."""
    certified: bool
    stop: str
    min_margins: tuple[float | None, ...]
    """Smallest finite distance to each limit over all episodes, in the limit's unit."""
    handovers: int
    mean_return: float | None
    crashed: int
    """Number of violations from batches that failed or took too long."""
    steps: int = Field(default=0, exclude_if=lambda number: not number)
    """Simulated steps of all episodes; 0 in certificates by rules 1 and 2, which do not count them."""


class Materials(Stated):
    """Digests of everything that the counts depend on, and the class of processors that repeat them bit by bit."""

    dataset: str
    config: str
    code: str
    lock: str
    simulator: str
    shield: str
    processor: str
    step: str = Field(default="", exclude_if=lambda digest: not digest)
    """Lowered program of the simulator's step; empty in certificates of rules 1 and 2, which bind the source only."""
    program: str = Field(default="", exclude_if=lambda digest: not digest)
    """Lowered program of the whole episode, with constants."""
    artifact: str = Field(default="", exclude_if=lambda digest: not digest)
    """File of the episode's program, which a rerun executes."""
    arguments: str = Field(default="", exclude_if=lambda digest: not digest)
    """File of the program's arguments: the composite and the operating domain as plain arrays."""
    isolation: str = Field(default="", exclude_if=lambda said: not said)
    """Restrictions of the process that lowered the programs a second time."""
    custom_calls: str = Field(default="", exclude_if=lambda said: not said)
    """Compiled functions of other libraries that the episode's program calls, such as LAPACK's."""
    jax: str = Field(default="", exclude_if=lambda said: not said)
    """Versions of jax and jaxlib."""
    unmeasured: str = Field(default="", exclude_if=lambda said: not said)
    """Limits that no observation shows: the plant's own margins alone decide about them."""


class Digest(Stated):
    sha256: str


class Subject(Stated):
    name: str
    digest: Digest


class NumberedAttempt(Stated):
    """The attempt, as the ledger states it."""

    lineage: str
    number: int
    alpha: float
    entry: str
    opened: str
    """Time of the attempt's entry."""
    lineages: int = Field(default=0, exclude_if=lambda number: not number)
    """Lineages of the home at the attempt; the probability of any false certificate is at most lineages * (1 -
    confidence). 0 in certificates by rules 1 and 2."""


class Seed(Stated):
    """Seed of the episodes and the parts that it is derived from; hexadecimal unless stated otherwise."""

    commitment: str
    """SHA-256 of the secret."""
    record: str
    """Complete ledger entry that states the commitment and names the witnesses."""
    head: str
    """Countersigned checkpoint that contains the entry in `record`; empty without witnesses."""
    nonces: tuple[str, ...]
    """Base64 of the witnesses' nonces for the entry in `record`."""
    secret: str
    value: str
    """The seed: SHA-256 over "neorl attempt seed v1", a line feed, the secret and the nonces."""


class Predicate(Stated):
    """Content of a safety certificate; the field names are the names in the signed JSON."""

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
    """Signed document (in-toto statement v1): the certified composite and the content of its certificate."""

    type_: Literal["https://in-toto.io/Statement/v1"]
    subject: tuple[Subject]
    predicateType: Literal["https://neorl.dev/attestation/safety-certificate/v4"]
    predicate: Predicate

    model_config = ConfigDict(alias_generator=lambda name: "_type" if name == "type_" else name, populate_by_name=True)

    @property
    def composite(self) -> str:
        return self.subject[0].digest.sha256


def _witnessed(witnesses: Sequence[str], texts: Texts) -> str:
    if not witnesses:
        return texts.unwitnessed
    local = all(name.startswith(LOCAL) for name in witnesses)
    return (texts.witnessed_locally if local else texts.witnessed).format(names=" and ".join(witnesses))


def exact(value: float) -> str:
    """Format a number with as few digits as give it exactly."""
    return short if float(short := f"{value:g}") == value else repr(value)


def _short(value: float) -> str:
    """Format 0.001 as 1e-3."""
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
