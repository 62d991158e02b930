"""A site's file, which the coordinator never sees."""

from __future__ import annotations

from configs.federation.network import Coordinator
from configs.run import Fraction
from configs.strict import Count, Name, Strict


class Site(Strict):
    """What a site brings, and on which terms; the coordinator never sees this file."""

    site: Name
    """Its name in the coordinator's file."""
    plant: Name
    dataset: str = ""
    """First digits of a dataset's digest in this site's home; the newest of the plant by default."""
    held_out: Fraction = 0.2
    """Share of episodes kept from training, for the site's own selection afterwards."""
    least_rows: Count = 100
    """Rows below which the site tells no sums: those of few rows say much of each."""
    secure_sums: bool = False
    """Take part only where the coordinator sees sums alone."""
    private: bool = False
    """Take part only where changes are clipped and get noise."""
    coordinator: Coordinator = Coordinator()
