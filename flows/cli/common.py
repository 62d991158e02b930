"""Shared parts of commands: output, command groups, plant names, and the cache of compiled programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from configs.errors import BadInput, NeoRLError, Refused, nearest, printable
from configs.home import LAYOUT_FILE, Home
from tasks.files.canonical import canonical_json
from tasks.files.provenance import COMPILED, compiling

if TYPE_CHECKING:
    from configs.run import Setting
    from tasks.evidence.certificate import Check

MOST_SEED = 2**32 - 1
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON on the standard output.")]
ConfigFile = Annotated[Path, typer.Argument(help="The run's file, such as configs/chemical_reactor.yaml.")]
Logs = Annotated[list[Path] | None, typer.Option("--data", help="Log file, or a dataset's digest; repeatable.")]
Plant = Annotated[str, typer.Argument(help="The plant's name, such as chemical_reactor.")]


class Commands(TyperGroup):
    """Command group that suggests the nearest command if a command is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise BadInput(f"'{ctx.command_path}' has no command '{args[0]}': {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def group(help_text: str, *, completion: bool = False) -> typer.Typer:
    """Return a command group; `completion` adds options for shell completion, for the outermost group only."""
    return typer.Typer(
        cls=Commands, help=help_text, no_args_is_help=True, add_completion=completion, pretty_exceptions_enable=False
    )


def emit(result: object, as_json: bool, lines: Iterable[str] = ()) -> None:
    """Print `result` (a pydantic model or JSON values) as one line of JSON if `as_json`, else print `lines`."""
    if as_json:
        value = json.loads(result.model_dump_json()) if hasattr(result, "model_dump_json") else result
        print(canonical_json(value).decode(), flush=True)
        return
    for line in lines:
        print(printable(line), flush=True)


def emit_or_refuse(refusal: str, as_json: bool, lines: Sequence[str], **result: object) -> None:
    """Print a result. If `refusal` is not empty, raise it as a Refused, which carries the result for --json."""
    if not (refusal and as_json):
        emit(result, as_json, lines)
    if refusal:
        error = Refused(refusal)
        error.found = result
        raise error


def emit_checks(checks: Sequence[Check], as_json: bool) -> None:
    """Print the checks of an audit or a certificate; raise a Refused if a check failed."""
    failures = [check for check in checks if check.passed is False]
    failed = ", ".join(check.name for check in failures)
    marks = {True: "ok  ", False: "FAIL", None: "--  "}
    lines = [f"{marks[check.passed]}  {check.name}: {check.detail}" for check in checks]
    later = any("upgrade NeoRL" in check.detail for check in failures)
    # These compare this machine's software with the certificate's. The files themselves are unaltered.
    software = {check.name for check in failures} <= {"simulator", "shield", "code", "lock", "step", "program"}
    cure = "restore the originals from a backup"
    if later or software:
        cure = "upgrade NeoRL" if later else "use the sources and the lock file that the certificate was written with"
    refusal = f"checks failed: {failed}: {cure}." if failed else ""
    emit_or_refuse(refusal, as_json, lines, passed=not failed, checks=[check._asdict() for check in checks])


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: with borders on a terminal, else as aligned plain text."""
    # Line breaks are escaped, so that a cell cannot fake a row.
    texts = [[printable(str(cell), but="") for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, header_style="bold")
        for row in texts:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(len(row[i]) for row in [list(columns), *texts]) for i in range(len(columns))]
    for row in [list(columns), *texts]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def say(line: str) -> None:
    """Print a progress message on the standard error."""
    print(line, file=sys.stderr, flush=True)


def keep_compiled(*, create_home: bool = False) -> None:
    """Make JAX keep compiled programs in the home, unless the environment names another folder.

    Every command calls this first, because JAX reads the setting on import. If the home is unusable, nothing is set,
    and the command itself reports the problem. `create_home` creates an absent home, for commands that train.
    """
    try:
        home = Home.locate(any_layout=True)
        if create_home:
            home.folder("cache")
        if not (home.root / LAYOUT_FILE).exists() or not os.access(home.root, os.W_OK):
            # JAX would create the home itself, readable by others and without a layout file.
            return
        home.folder("cache", "jax")
    except NeoRLError:
        return
    for name, value in compiling(home).items():
        os.environ.setdefault(name, value)


@contextmanager
def fresh_compilation() -> Iterator[None]:
    """Use an empty compilation cache, here and in child processes.

    JAX does not check cached programs, so a manipulated cache could change the result of a repeated test.
    """
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    def set_cache(folder: str | None) -> None:
        # Child processes read the variable.
        os.environ.pop(COMPILED, None)
        if folder:
            os.environ[COMPILED] = folder
        jax.config.update("jax_compilation_cache_dir", folder)  # type: ignore[no-untyped-call]
        reset_cache()

    before = jax.config.values["jax_compilation_cache_dir"]
    with TemporaryDirectory(prefix="neorl-programs-") as folder:
        set_cache(folder)
        try:
            yield
        finally:
            set_cache(before)


def known_plant(name: str) -> str:
    """Return `name` if a plant of this name is built in, is installed, or has datasets in this home."""
    from neorl_core.plants import NAMES
    from tasks.models.user_code.loading import installed

    datasets = Home.locate().root / "datasets"
    known = {*NAMES, *installed(), *(path.name for path in datasets.glob("*") if path.is_dir())}
    if name not in known:
        raise BadInput(f"unknown plant '{name}': {nearest(name, sorted(known))}")
    return name


def setting(text: str) -> tuple[str, Setting]:
    """Parse `name=value`; the value is JSON if possible, else text.

    Raises:
        BadInput: if the text has another form.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"--set must have the form name=value, got '{text}': write, for example, --set alpha=1.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
