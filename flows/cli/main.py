"""The `neorl` command: table of commands, error messages and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import FULL, Home
from flows.cli.audit import audit
from flows.cli.bom import bom
from flows.cli.certificate import certificate
from flows.cli.check import check
from flows.cli.common import emit, group, keep_compiled
from flows.cli.data import export, generate, ingest, validate
from flows.cli.decisions import approve, candidates, reject, rollback, withdraw
from flows.cli.doctor import doctor
from flows.cli.federate import federate
from flows.cli.fleet import fleet
from flows.cli.history import history
from flows.cli.home import backup, migrate, prune, restore
from flows.cli.init import init
from flows.cli.keys import keys
from flows.cli.learn import learn
from flows.cli.plants import plants
from flows.cli.policy import policy
from flows.cli.report import report
from flows.cli.retrain import members, retrain
from flows.cli.services import down, metrics, register, serve, status, up, watch
from flows.cli.shadow import extend, monitor, shadow
from flows.cli.train import train
from flows.cli.tune import tune
from flows.cli.witness import witness

ABOUT = "Turn a plant's logs into a certified, registered, explained control policy."
app = group(ABOUT, completion=True)
INTERRUPTED = 130
PANELS: dict[str, list[Callable[..., None]]] = {
    "services": [up, down, status, watch, serve, register, metrics, doctor],
    "home": [backup, restore, migrate, prune],
    "data": [init, check, generate, ingest, validate, export],
    "models": [
        tune,
        learn,
        train,
        retrain,
        members,
        candidates,
        approve,
        reject,
        withdraw,
        rollback,
        monitor,
        shadow,
        extend,
        history,
    ],
    "evidence": [report, bom],
}
GROUPS: dict[str, dict[str, typer.Typer]] = {
    "data": {"plants": plants},
    "models": {"policy": policy, "federate": federate, "fleet": fleet},
    "evidence": {"certificate": certificate, "audit": audit, "witness": witness, "keys": keys},
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for panel, groups in GROUPS.items():
    for name, each in groups.items():
        app.add_typer(each, name=name, rich_help_panel=panel)


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
    """Handle options before the command's name."""
    keep_compiled()


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code.

    Exit codes: 0 done, 1 refused, 2 bad usage or input, 3 service missing, 130 interrupted.
    """
    try:
        code = int(app(args=list(arguments), prog_name="neorl", standalone_mode=False) or 0)
        # Typer turns a KeyboardInterrupt into this code, without a message.
        return _interrupted(arguments) if code == INTERRUPTED else code
    except NeoRLError as error:
        # A traceback instead of the message would hide the result that the error carries.
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
    return _fail("interrupted: repeat the command.", INTERRUPTED, arguments)


def _about_files(error: Exception) -> str | None:
    """Return a message about a full disk or an inaccessible file; None for other errors."""
    if (reason := _disk_full(error)) is not None:
        return (
            f"cannot write ({reason}): free some space, or set NEORL_HOME to another disk, then repeat the command. "
            "Finished work is kept."
        )
    if isinstance(error, PermissionError) and error.filename:
        return (
            f"cannot access {error.filename} ({error.strerror}): change its owner or mode, or run the command as its "
            "owner."
        )
    return None


def _about_ledger() -> str | None:
    """Return a message about the first invalid ledger entry, a possible cause of any error; None if all are valid."""
    from tasks.evidence.audit.audit import first_broken

    try:
        broken = first_broken(Home.locate())
    except NeoRLError:
        return None  # without a readable ledger the error has another cause
    if broken is None or "upgrade NeoRL" in broken:
        return broken
    return (
        f"invalid ledger entry ({broken.rstrip('.')}): run 'neorl audit verify', then restore the ledger from a backup."
    )


def _disk_full(error: BaseException | None) -> str | None:
    """Return the message of a full disk, quota or file limit in a chain of errors."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return str(error)
        # Rust libraries raise exceptions of their own with the number in the message.
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
    """Run the `neorl` command; a termination (SIGTERM) ends it like an interruption, with a message."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))
