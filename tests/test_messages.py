"""Error messages show the offending value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_structure import ROOT, last, sources

WITHOUT_VALUE: frozenset[str] = frozenset(
    {
        # A command line lacks an argument.
        "--behaviour historian needs a folder for the export: name it with --out.",
        "neither a plant nor --from and --to given: write 'neorl report chemical_reactor'.",
        "a name or a log is needed: give NAME, or --from LOGFILE, or both.",
        # The value is secret.
        "NEORL_LEDGER_URL is not a URL of the form postgresql://USER:PASSWORD@HOST/DATABASE: correct it",
        "NEORL_LEDGER_URL is set, but a backup restores the ledger as a file: unset it",
        "the two passphrases differ: run the command again",
        # The value is in the text.
        "the site's file requires secure sums, but secure_sums is false in the federation: set it to true",
        # There is no value: another process has ended, or no flow is running.
        "NeoRL has ended",
        "the other process closed",
        "the other process closed within a frame",
        "no flow is running: open a session first",
    }
)
"""Messages, reviewed one by one, of faults that have no value to show."""


def messages() -> Iterator[tuple[str, ast.expr]]:
    """Every message of a raise statement above the core, and of BadInput in the core, with its place."""
    for path in sources("neorl_core", "configs", "tasks", "flows"):
        core = path.is_relative_to(ROOT / "neorl_core")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
                continue
            if not core or last(node.exc.func) == "BadInput":
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.exc.args[0]


def constant(message: ast.expr) -> str | None:
    """Return the text of a message that interpolates nothing, else None."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            texts = [part.value for part in values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            return "".join(texts) if len(texts) == len(values) else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = constant(left), constant(right)
            return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]
    return None


def test_error_messages_show_a_value() -> None:
    found = {(place, text) for place, message in messages() if (text := constant(message)) is not None}
    assert sorted(each for each in found if each[1] not in WITHOUT_VALUE) == []
    assert sorted(WITHOUT_VALUE - {text for _, text in found}) == [], "no longer raised: remove from the list"
    assert len(WITHOUT_VALUE) <= 60


def test_no_message_hides_the_value() -> None:
    hiding = ("got another", "got none")
    assert [place for place, message in messages() if any(text in ast.unparse(message) for text in hiding)] == []
