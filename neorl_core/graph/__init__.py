"""Policies on graphs. All nodes and edges share weights, so a policy fits any number of nodes and any edges."""
