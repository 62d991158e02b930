"""Fleets: the state of each site, the comparison of sites, the fleet report, and the shared policy."""
