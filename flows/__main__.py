"""`python -m flows` is the `neorl` command."""

from flows.cli.main import main

# A process that is spawned imports this module anew.
if __name__ == "__main__":
    main()
