"""Errors that end a command: one sentence that says what was expected, what came, and the cure."""


class NeoRLError(Exception):
    """An error a user can act on; commands print its message and leave with `exit_code`."""

    exit_code = 1


class Refused(NeoRLError):
    """A gate or a check said no."""

    exit_code = 1


class BadInput(NeoRLError):
    """Wrong usage, configuration or data."""

    exit_code = 2


class ServiceMissing(NeoRLError):
    """A server that the command needs does not answer."""

    exit_code = 3
