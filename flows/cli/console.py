"""How commands speak: plain lines or a table for people, one JSON object for programs, one sentence for errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from configs.errors import BadInput, NeoRLError, nearest, printable
from configs.home import LAYOUT_FILE, Home
from tasks.files.canonical import canonical_json
from tasks.files.provenance import COMPILED, compiling

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line and nothing else.")]
ConfigFile = Annotated[Path, typer.Argument(help="The run's YAML, such as configs/chemical_reactor.yaml.")]


class Commands(TyperGroup):
    """A group whose unknown commands get the nearest known one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            cure = nearest(args[0], self.commands)
            raise BadInput(f"expected a command of '{ctx.command_path}', got '{args[0]}': {cure}")
        return super().resolve_command(ctx, args)


def group(help_text: str, *, completion: bool = False) -> typer.Typer:
    """A group of commands in the project's manner.

    Args:
        help_text: what the group is for.
        completion: also offer to install completion for shells, which only the outermost group can.
    """
    return typer.Typer(
        cls=Commands, help=help_text, no_args_is_help=True, add_completion=completion, pretty_exceptions_enable=False
    )


def emit(result: object, as_json: bool, lines: Iterable[str] = ()) -> None:
    """End a command: JSON for programs, lines for people.

    Args:
        result: a model, or what else can be written as JSON.
        as_json: print it, and nothing else.
        lines: what people read instead.
    """
    if as_json:
        value = json.loads(result.model_dump_json()) if hasattr(result, "model_dump_json") else result
        print(canonical_json(value).decode(), flush=True)
        return
    for line in lines:
        print(printable(line), flush=True)


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on a terminal; aligned plain lines where the output is read by a program."""
    # A line's end in a cell would make a row of its own.
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


def keep_compiled(*, from_the_first: bool = False) -> None:
    """Have JAX keep what it compiles in the home, unless it keeps it elsewhere already.

    JAX reads this when it is imported, which even reading a run's file may do: every command begins with it. Whether
    the home is one that the command can use is for the command to say.

    Args:
        from_the_first: also where there is no home yet, which is made then: for commands that train.
    """
    try:
        home = Home.locate(any_layout=True)
        if from_the_first:
            home.folder("cache")
        if not (home.root / LAYOUT_FILE).exists() or not os.access(home.root, os.W_OK):
            # JAX would make the home itself: open to others, and without saying how it is laid out.
            return
        home.folder("cache", "jax")
    except NeoRLError:
        return
    for name, value in compiling(home).items():
        os.environ.setdefault(name, value)


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Have JAX keep what it compiles, here and in processes that begin here, in a folder of this command's own.

    A compiled program is executed as it is found: a test that is repeated shows nothing where whoever made it first has
    put the programs there.
    """
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    def keep_in(folder: str | None) -> None:
        # The variable is for processes that begin here.
        os.environ.pop(COMPILED, None)
        if folder:
            os.environ[COMPILED] = folder
        jax.config.update("jax_compilation_cache_dir", folder)  # type: ignore[no-untyped-call]
        reset_cache()

    before = jax.config.values["jax_compilation_cache_dir"]
    with TemporaryDirectory(prefix="neorl-programs-") as folder:
        keep_in(folder)
        try:
            yield
        finally:
            keep_in(before)


def known_plant(name: str) -> str:
    """The name of a plant that exists: ours, an installed package's, or one that this home has data of.

    Raises:
        BadInput: with the nearest name.
    """
    from neorl_core.plants import NAMES
    from tasks.models.user_code.loading import installed

    held = Home.locate().root / "datasets"
    known = {*NAMES, *installed(), *(path.name for path in held.glob("*") if path.is_dir())}
    if name not in known:
        raise BadInput(f"expected a known plant, got '{name}': {nearest(name, sorted(known))}")
    return name
