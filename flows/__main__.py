"""`python -m flows` is the `neorl` command."""

from flows.cli.main import main

main()
