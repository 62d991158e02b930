"""`python -m flows` is the `neorl` command."""

from flows.cli import main

main()
