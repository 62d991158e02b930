"""What a federation says: the coordinator's file, and the file of each site, which stays with the site."""

from configs.federation.coordinator import Federation
from configs.federation.site import Site

__all__ = ["Federation", "Site"]
