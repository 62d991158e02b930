"""A fleet's file: what it may say, and each of its sites as a run."""
