"""Restrict a process to reading NeoRL and Python, and to writing one folder, by Linux's own means.

No means needs privileges. Landlock (Linux 5.13) limits files and signals. A user namespace with an empty network
namespace removes every network interface. A seccomp filter refuses system calls that the others do not restrict. Call
this before the process starts a thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from configs.errors import Refused
from tasks.files.seccomp import refuse_calls

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, equal on every architecture."""
PARENT_DEATH_SIGNAL, ADOPT_ORPHANS, NO_NEW_PRIVS = 1, 36, 38
"""Options of prctl."""
NEW_USER, NEW_NETWORK, NEW_IPC, NEW_PROCESSES = 0x10000000, 0x40000000, 0x08000000, 0x20000000
PATH_BENEATH = 1
EXECUTE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
READ = EXECUTE | READ_FILE | READ_FOLDER
RIGHTS = ((5, 1 << 16), (3, 1 << 15), (2, 1 << 14), (1, 1 << 13))
"""(Version of Landlock, first bit beyond the file rights that it knows), newest first."""
NETWORK = 4
"""Version of Landlock that limits TCP; a ruleset then has a second field."""
SCOPES = 6
"""Version that limits signals to other processes; a ruleset then has a third field."""
SYSTEM = (
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/sys/devices/system/cpu",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/dev/null",
    "/dev/urandom",
)
"""Paths that Python, JAX and XLA read."""
WRITTEN = 2**28
"""Limit in bytes of each file that a restricted process writes."""
HELD = r"none: [A-Za-z ,]+|(no network|Landlock [0-9]{1,3}|seccomp)(; (Landlock [0-9]{1,3}|seccomp))*"
"""Pattern of the result of `restrict`."""


def restrict(folder: Path, code: Path) -> str:
    """Allow this process to read Python and NeoRL, to write `folder`, and nothing else, as far as the system allows.

    The restricted process is a child, in which this function returns. The calling process waits for the child, then
    ends with the child's status and with all processes that the child left. The child also ends if the calling process
    or its parent ends.

    Args:
        folder: the only folder to write in.
        code: folder with NeoRL's packages; user code beside them stays hidden.

    Returns:
        The restrictions that hold, for a certificate, such as 'no network; Landlock 7; seccomp'.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (WRITTEN, WRITTEN))
    libc = ctypes.CDLL(None, use_errno=True)
    held = []
    spaces = NEW_USER | NEW_NETWORK | NEW_IPC
    if libc.unshare(spaces | NEW_PROCESSES) == 0 or libc.unshare(spaces) == 0:
        held.append("no network")
    _continue_in_child(libc)
    version = _landlock(libc, folder, code)
    if version:
        held.append(f"Landlock {version}")
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if refuse_calls(libc):
        held.append("seccomp")
    return "; ".join(held) or "none: this system has neither user namespaces, nor Landlock, nor seccomp"


def _continue_in_child(libc: ctypes.CDLL) -> None:
    """Fork, and supervise the child, in which this function returns."""
    parent = os.getppid()
    libc.prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    # `sigtimedwait` needs a blocked signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.fork()
    if not child:
        # The seccomp filter keeps the child from taking this back.
        libc.prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.setsid()
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = 1
    while os.getppid() == parent:
        ended, found = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            status = os.waitstatus_to_exitcode(found)
            break
        if not ended:
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)
    _kill_children()
    os._exit(status if status >= 0 else 128 - status)


def _kill_children() -> None:
    """Kill this process's children until none is left; their orphans become children of this process."""
    while True:
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                each.kill()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def kill_tree(popen: subprocess.Popen[Any]) -> None:
    """Kill a restricted process with all its descendants, and wait for the end."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(popen.pid).children()
        for each in children:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        if children:
            # The supervisor ends the rest. Without a child, it is not restricted yet.
            with suppress(subprocess.TimeoutExpired):
                popen.wait(10.0)
    popen.kill()
    popen.wait()


def _landlock(libc: ctypes.CDLL, folder: Path, code: Path) -> int:
    """Return the version of Landlock that limits this process; 0 if none does."""
    version = int(libc.syscall(CREATE_RULESET, None, 0, 1))
    if version < 1:
        return 0
    rights = next(bits for least, bits in RIGHTS if version >= least) - 1
    # Rights on files, on TCP, and the scopes: abstract sockets and signals.
    fields = (rights, 0b11, 0b11)[: 1 + (version >= NETWORK) + (version >= SCOPES)]
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    ruleset = int(libc.syscall(CREATE_RULESET, attributes, len(attributes), 0))
    if ruleset < 0:
        return 0
    python = [sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")]
    packages = [code / name for name in ("neorl_core", "configs", "tasks")]
    for path in [*map(Path, [*python, *SYSTEM]), *packages]:
        _allow(libc, ruleset, path, READ)
    _allow(libc, ruleset, folder, rights)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    done = libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return version if done else 0


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a path that this system does not have
    allowed = rights if path.is_dir() else rights & (EXECUTE | READ_FILE)
    libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("<Qi", allowed, opened), 0)
    os.close(opened)


def open_back(path: Path, limit: int) -> BinaryIO:
    """Open a file that a restricted process wrote. The process may have written anything in its place.

    Args:
        limit: largest number of bytes.

    Raises:
        Refused: if this is not a plain file, or larger.
    """
    try:
        # A FIFO would block, a link could lead to a secret.
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise Refused(f"the isolated process left no file {path.name} ({error.strerror}): correct the code") from error
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return file
    file.close()
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{path.name} of the isolated process is not a plain file: correct the code")
    raise Refused(
        f"{path.name} of the isolated process has {status.st_size} bytes, the limit is {limit}: simplify the code"
    )


def read_back(path: Path, limit: int) -> bytes:
    """Return the content of a file that a restricted process wrote.

    Raises:
        Refused: as in `open_back`.
    """
    with open_back(path, limit) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused(f"{path.name} of the isolated process has more than {limit} bytes: simplify the code")
    return data
