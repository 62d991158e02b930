"""Measure the simulated plants and write docs/studies/plants.md."""
