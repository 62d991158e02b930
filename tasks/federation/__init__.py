"""Training over several sites whose rows stay where they are: what a site does, and what its coordinator does."""
