"""Errors that end a command: one sentence with the fault, the actual value and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def printable(text: str, but: str = "\n\t") -> str:
    r"""Escape control characters and direction marks, so that text from a file cannot control a terminal.

    Args:
        but: characters to keep.

    Example:
        >>> printable("\x1b[2J5 °C")
        '\\x1b[2J5 °C'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in but else repr(sign)[1:-1] for sign in text)


class NeoRLError(Exception):
    """An error that a user can act on; commands print the message and exit with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, but=""))
        self.found: Mapping[str, object] = {}
        """Results from before the error; `--json` prints them with the error."""


class Refused(NeoRLError):
    """A gate or another check failed."""

    exit_code = 1


class BadInput(NeoRLError):
    """Wrong usage, configuration or data."""

    exit_code = 2


class ServiceMissing(NeoRLError):
    """A required server does not answer."""

    exit_code = 3


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return advice about an unknown name: the most similar valid name, or else all valid names.

    Example:
        >>> nearest("chemical_recator", ["chemical_reactor", "double_mass"])
        "did you mean 'chemical_reactor'?"
    """
    # Imported here because every command imports this module.
    import difflib

    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose from {', '.join(known)}" if known else "no name is known here"
