"""The coordinator's file: one training over several sites."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from configs.federation.network import Member, Network, Positive
from configs.federation.terms import Aggregation, Terms
from configs.strict import Count, Name


class Federation(Terms):
    """One training over several sites, as its coordinator runs it."""

    aggregate: Aggregation = Aggregation()
    minimum_sites: Annotated[int, Field(ge=2)] = 2
    """Answers that a round needs; with fewer it is tried again."""
    round_seconds: Positive = 600.0
    """How long a round waits for a site; who is later is left out of it and asked again in the next."""
    tries: Count = 3
    """Rounds in a row that may have too few answers before the run ends."""
    network: Network = Network()
    sites: Annotated[dict[Name, Member], Field(min_length=2)]

    @property
    def terms(self) -> Terms:
        """What the sites are told of it."""
        return Terms(**{name: getattr(self, name) for name in Terms.model_fields})

    @model_validator(mode="after")
    def _parts_go_together(self) -> Federation:
        robust = self.aggregate.kind != "mean" or self.aggregate.largest is not None
        if self.secure_sums and robust:
            raise ValueError(
                "expected aggregate.kind mean without 'largest' where sums are secure, got a robust one, which has to "
                "see each site's change: choose one of the two"
            )
        if self.privacy and robust:
            raise ValueError(
                "expected aggregate.kind mean without 'largest' where sites are private, got a robust one, of which "
                "the accountant knows nothing: choose one of the two"
            )
        if self.privacy and 0.0 < self.privacy.noise < 0.1:
            raise ValueError(
                f"expected a noise of 0.1 at least, below which epsilon is without bound, or of 0, got "
                f"{self.privacy.noise:g}: take more, or none"
            )
        if self.secure_sums and self.method == "fedora":
            raise ValueError(
                "expected a method that weights sites by their rows where sums are secure, got fedora: choose one of "
                "the two"
            )
        if self.secure_sums and 2 * self.minimum_sites <= len(self.sites):
            raise ValueError(
                f"expected minimum_sites above half of the {len(self.sites)} sites where sums are secure, got "
                f"{self.minimum_sites}: with fewer, two halves could unmask a site together"
            )
        if self.minimum_sites > len(self.sites):
            raise ValueError(f"expected minimum_sites of at most {len(self.sites)} sites, got {self.minimum_sites}")
        if self.aggregate.kind == "krum" and self.minimum_sites <= 2 * self.aggregate.hostile + 2:
            raise ValueError(
                f"expected minimum_sites above {2 * self.aggregate.hostile + 2}, which Krum needs against "
                f"{self.aggregate.hostile} hostile sites, got {self.minimum_sites}: name fewer, or take the median"
            )
        if self.network.tls and (unknown := [name for name, site in self.sites.items() if site.key is None]):
            raise ValueError(f"expected the key of every site where TLS is on, got none of {', '.join(unknown)}")
        return self
