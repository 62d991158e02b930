"""Policies on graphs: the same weights at every node and edge, whatever their number, order and switching."""
