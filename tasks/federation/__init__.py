"""Federated learning: a coordinator trains over several sites, and rows stay at the sites."""
