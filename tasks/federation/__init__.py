"""Federated learning: a coordinator trains over several sites, whose rows stay at the sites."""
