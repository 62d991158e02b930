"""Errors that end a command: one sentence that says what was expected, what came, and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def printable(text: str, but: str = "\n\t") -> str:
    r"""A text whose signs show and do nothing: those that a terminal obeys, or that turn its lines, are written out.

    Names and values of a user's files are quoted on terminals, in logs and on pages, whoever made the files.

    Args:
        text: what is going to be shown.
        but: signs of that kind that stay.

    Example:
        >>> printable("\x1b[2J5 °C")
        '\\x1b[2J5 °C'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in but else repr(sign)[1:-1] for sign in text)


class NeoRLError(Exception):
    """An error a user can act on; commands print its message and leave with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, but=""))
        self.found: Mapping[str, object] = {}
        """What a check found before it said no, for programs: `--json` prints it beside the error."""


class Refused(NeoRLError):
    """A gate or a check said no."""

    exit_code = 1


class BadInput(NeoRLError):
    """Wrong usage, configuration or data."""

    exit_code = 2


class ServiceMissing(NeoRLError):
    """A server that the command needs does not answer."""

    exit_code = 3


def nearest(name: str, choices: Iterable[str]) -> str:
    """The cure for a wrong name: the nearest valid one, else all of them.

    Example:
        >>> nearest("chemical_recator", ["chemical_reactor", "double_mass"])
        "did you mean 'chemical_reactor'?"
    """
    # Imported here, for every command imports this module.
    import difflib

    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose from {', '.join(known)}." if known else "none is known here."
