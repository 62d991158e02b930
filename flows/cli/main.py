"""The `neorl` command: its table of commands, and how errors end it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import FULL, Home
from flows.cli import data as commands_data
from flows.cli import evidence as commands_evidence
from flows.cli import keys as commands_keys
from flows.cli import models as commands_models
from flows.cli import plants as commands_plants
from flows.cli import policy as commands_policy
from flows.cli import services as commands_services
from flows.cli import shadow as commands_shadow
from flows.cli import start as commands_start
from flows.cli import witness as commands_witness
from flows.cli.auditing import bills as commands_bills
from flows.cli.console import emit, group, keep_compiled
from flows.cli.operations import champions as commands_champions
from flows.cli.operations import federation as commands_federation
from flows.cli.operations import fleet as commands_fleet
from flows.cli.operations import home as commands_home
from flows.cli.operations import members as commands_members

ABOUT = "Turn a plant's logs into a certified, registered, explained control policy."
app = group(ABOUT, completion=True)
INTERRUPTED = 130
PANELS: dict[str, list[Callable[..., None]]] = {
    "services": [
        commands_services.up,
        commands_services.down,
        commands_services.status,
        commands_services.watch,
        commands_services.serve,
        commands_services.register,
        commands_services.metrics,
        commands_services.doctor,
    ],
    "home": [commands_home.backup, commands_home.restore, commands_home.migrate, commands_home.prune],
    "data": [
        commands_start.init,
        commands_start.check,
        commands_data.generate,
        commands_data.ingest,
        commands_data.validate,
        commands_data.export,
    ],
    "models": [
        commands_models.train,
        commands_models.retrain,
        commands_members.members,
        commands_models.candidates,
        commands_models.approve,
        commands_models.reject,
        commands_models.withdraw,
        commands_champions.rollback,
        commands_shadow.monitor,
        commands_shadow.shadow,
        commands_shadow.extend,
        commands_champions.history,
    ],
    "evidence": [commands_evidence.report, commands_bills.bom],
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(commands_plants.plants, name="plants", rich_help_panel="data")
app.add_typer(commands_policy.policy, name="policy", rich_help_panel="models")
app.add_typer(commands_federation.federate, name="federate", rich_help_panel="models")
app.add_typer(commands_fleet.fleet, name="fleet", rich_help_panel="models")
for name in ("certificate", "audit"):
    app.add_typer(getattr(commands_evidence, name), name=name, rich_help_panel="evidence")
app.add_typer(commands_witness.witness, name="witness", rich_help_panel="evidence")
app.add_typer(commands_keys.keys, name="keys", rich_help_panel="evidence")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"neorl {metadata.version('neorl')}")
        raise typer.Exit


@app.callback(help=ABOUT)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What goes before a command's name."""
    keep_compiled()


def run(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        Its exit code: 0 done, 1 refused, 2 bad usage or input, 3 a service is missing, 130 interrupted.
    """
    try:
        code = int(app(args=list(arguments), prog_name="neorl", standalone_mode=False) or 0)
        # Typer makes this code of a KeyboardInterrupt, and says nothing.
        return _interrupted(arguments) if code == INTERRUPTED else code
    except NeoRLError as error:
        # What a check found is told: the stack would say nothing of it.
        if os.environ.get("NEORL_DEBUG") and not error.found:
            raise
        return _fail(str(error), error.exit_code, arguments, error)
    except TyperException as error:
        message = " ".join(error.format_message().split())
        context = getattr(error, "ctx", None)
        help_at = f"{context.command_path if context else 'neorl'} --help"
        return _fail(f"{message.rstrip('.')}: see '{help_at}'." if message else "", error.exit_code, arguments)
    except (Abort, KeyboardInterrupt):
        return _interrupted(arguments)
    except Exception as error:
        if os.environ.get("NEORL_DEBUG"):
            raise
        if (sentence := _about_files(error)) is not None:
            return _fail(sentence, BadInput.exit_code, arguments)
        if (sentence := _about_ledger()) is not None:
            return _fail(sentence, Refused.exit_code, arguments)
        raise


def _interrupted(arguments: Sequence[str]) -> int:
    return _fail("interrupted; give the same command again to go on.", INTERRUPTED, arguments)


def _about_files(error: Exception) -> str | None:
    """A sentence on a disk that is full, or on a file that is closed to this account; None for any other error."""
    if (said := _out_of_room(error)) is not None:
        message = f"expected room to write, got '{said}': free some space, or point NEORL_HOME to another disk, then "
        return f"{message}give the same command again; what is finished is kept."
    if isinstance(error, PermissionError) and error.filename:
        return (
            f"expected to be allowed to use {error.filename}, got '{error.strerror}': change its owner or mode, or "
            "give the command as its owner."
        )
    return None


def _about_ledger() -> str | None:
    """A sentence on an entry that the signer would not have signed, and nothing here expects; None where all hold."""
    from tasks.evidence.audit.audit import first_broken

    try:
        broken = first_broken(Home.locate())
    except NeoRLError:
        return None  # there is no ledger to open, so that the error at hand is not of its entries, and is raised
    if broken is None:
        return None
    return (
        f"expected a ledger whose entries all hold, got {broken.rstrip('.')}: see 'neorl audit verify', and bring back "
        "the ledger that was there."
    )


def _out_of_room(error: BaseException | None) -> str | None:
    """What a full disk, a quota or a limit on files said, however deep below; some libraries only quote it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return str(error)
        # Rust's libraries give the number alone in an exception of their own.
        if any(f"(os error {code})" in str(error) for code in FULL):
            return " ".join(str(error).split())
        error = error.__cause__ or error.__context__
    return None


def _fail(message: str, code: int, arguments: Sequence[str], error: NeoRLError | None = None) -> int:
    if message:
        print(f"neorl: {message}", file=sys.stderr)
    if "--json" in arguments:
        emit({**(error.found if error else {}), "error": message, "exit_code": code}, True)
    return code


def main() -> None:
    """Entry point of the `neorl` command."""
    sys.exit(run(sys.argv[1:]))
