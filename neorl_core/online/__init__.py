"""Learners that learn in a simulator, instead of from logs."""
