"""Policies on graphs, with weights shared by all nodes and edges, for any number, order and switching state."""
