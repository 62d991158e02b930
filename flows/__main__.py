"""`python -m flows` runs the `neorl` command."""

from flows.cli.main import main

# Spawned processes import this module again.
if __name__ == "__main__":
    main()
