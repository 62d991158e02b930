"""Fleets: state of each site, comparison of sites, fleet report, and shared policy."""
