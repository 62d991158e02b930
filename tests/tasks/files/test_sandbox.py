"""A restricted process attacks its parent, servers and files: every attempt fails, with this machine's own errors."""

from __future__ import annotations

import os
import platform
import re
import select
import socket
import stat
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from configs.errors import Refused
from tasks.files import seccomp
from tasks.files.sandbox import kill_tree, read_back

ROOT = Path(__file__).parents[3]
ATTACKS = {
    "connect to a Unix socket": "socket.socket(socket.AF_UNIX).connect(PLACE + '/server')",
    "connect to a port": "socket.create_connection(('127.0.0.1', int(PORT)), 2)",
    "limit the parent": "resource.prlimit(PARENT, resource.RLIMIT_NOFILE, (50, 50))",
    "slow the parent": "os.setpriority(os.PRIO_PROCESS, PARENT, 19)",
    "move the parent": "os.sched_setaffinity(PARENT, {0})",
    "signal the parent": "os.kill(PARENT, 0)",
    "signal the parent's thread": "call(234, PARENT, PARENT, 0)",
    "change a mode": "os.chmod(PLACE + '/victim', 0o777)",
    "change an owner": "os.chown(PLACE + '/victim', -1, -1)",
    "change a time": "os.utime(PLACE + '/victim', (0, 0))",
    "change an attribute": "os.setxattr(PLACE + '/victim', 'user.x', b'x')",
    "share memory": "call(29, 0x4E52, 100, 0o1600)",
    "open a queue": "call(68, 0x4E52, 0o1600)",
    "open semaphores": "call(64, 0x4E52, 1, 0o1600)",
    "open a POSIX queue": "call(240, b'neorl-test', 0o102, 0o600, None)",
    "add a key": "call(248, b'user', b'neorl', b'x', 1, -2)",
    "read a keyring": "call(250, 0, -2, 0)",
    "trace the parent": "call(101, 16, PARENT, 0, 0)",
    "read the parent's memory": "call(310, PARENT, None, 0, None, 0, 0)",
    "start io_uring": "call(425, 1, ctypes.create_string_buffer(120))",
    "use the x32 interface": "call(0x40000000 + 41, 1, 1, 0)",
    "use a system call of the future": "call(467, 0, 0, 0)",
    "make a user namespace": "call(272, 0x10000000)",
    "clone a user namespace": "os.getpid() == call(56, 0x10000011, 0, 0, 0, 0) or os._exit(0)",
    "list the users": "open('/etc/passwd')",
    "keep on after the parent": "call(157, 1, 0, 0, 0, 0)",
}
"""Attempts; the numbers are those of x86_64."""
CHILD = """
import ctypes, os, resource, socket, sys
sys.path.insert(0, sys.argv[1])
PLACE, PORT, PARENT = sys.argv[2], sys.argv[3], os.getppid()
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    found = libc.syscall(*words)
    if found < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return found
if sys.argv[4] == "restricted":
    from pathlib import Path
    from tasks.files.sandbox import restrict
    print("held:", restrict(Path(PLACE, "box"), Path(sys.argv[1])))
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except OSError as error:
        print(type(error).__name__, error.errno, flush=True)
"""


def attempted(place: Path, port: int, restricted: bool, attacks: dict[str, str]) -> dict[str, str]:
    """Return the results of attacks, by name."""
    words = [sys.executable, "-I", "-c", CHILD, str(ROOT), str(place), str(port), "restricted" if restricted else "no"]
    told = subprocess.run(words, input="\n".join(attacks.values()), capture_output=True, text=True, timeout=60)
    lines = told.stdout.splitlines()[restricted:]
    assert len(lines) == len(attacks), told
    return dict(zip(attacks, lines, strict=True))


@cache
def restrictions() -> str:
    """Return the restrictions of processes on this system."""
    code = "from pathlib import Path; from tasks.files.sandbox import restrict; print(restrict(Path(), Path()))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_attacks_of_a_restricted_process_fail(tmp_path: Path) -> None:
    if not all(word in restrictions() for word in ("no network", "Landlock", "seccomp")):
        pytest.skip(f"this system restricts processes by {restrictions()}")
    (tmp_path / "box").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("")
    victim.chmod(0o600)
    os.utime(victim, (10**9, 10**9))
    limit = Path("/proc/self/limits").read_text()
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as other:
        server.bind(str(tmp_path / "server"))
        server.listen()
        found = attempted(tmp_path, other.getsockname()[1], True, ATTACKS)
        for listening in (server, other):
            listening.settimeout(0.1)
            with pytest.raises(TimeoutError):
                listening.accept()
    assert {name: said for name, said in found.items() if said == "done"} == {}
    assert victim.stat().st_mode == stat.S_IFREG | 0o600
    assert victim.stat().st_mtime == 10**9
    assert os.listxattr(victim) == []
    assert Path("/proc/self/limits").read_text() == limit


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_the_attacks_succeed_without_restrictions(tmp_path: Path) -> None:
    """Otherwise the attacks prove nothing."""
    (tmp_path / "victim").write_text("")
    harmless = "connect to a Unix socket", "connect to a port", "signal the parent", "change a mode", "change a time"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as other:
        server.bind(str(tmp_path / "server"))
        server.listen()
        found = attempted(tmp_path, other.getsockname()[1], False, {name: ATTACKS[name] for name in harmless})
    assert set(found.values()) == {"done"}


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_the_numbers_are_those_of_the_headers(machine: str, header: str) -> None:
    if not Path(header).is_file():
        pytest.skip(f"{header} is not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", Path(header).read_text())
    known = {name: int(number) for name, number in found}
    ours = seccomp.refused_calls(machine)
    assert len(ours) > 80
    assert {name: number for name, number in ours.items() if known.get(name, number) != number} == {}
    assert len(set(ours.values())) == len(ours)


def test_only_small_plain_files_are_read_back(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(secret)
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    for name in ("fifo", "folder", "link", "endless", "sparse", "missing"):
        with pytest.raises(Refused, match=rf"{name} (of .* (not a plain file|has {2**40} bytes)|\(.*\)).*the code$"):
            read_back(tmp_path / name, 100)
    assert read_back(secret, 9) == b"swordfish"
    with pytest.raises(Refused, match="has 9 bytes, the limit is 8"):
        read_back(secret, 8)


LEAVE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tasks.files import sandbox
if sys.argv[3] == "no namespaces":
    sandbox.NEW_USER = -1
sandbox.restrict(Path(sys.argv[2]), Path(sys.argv[1]))
if not os.fork():
    os.setsid()
    if not os.fork():
        with open(sys.argv[2] + "/left", "w", buffering=1) as file:
            while True:
                file.write("x")
                time.sleep(0.02)
                file.flush()
    os._exit(0)
while not os.path.exists(sys.argv[2] + "/left"):
    time.sleep(0.01)
print("started", flush=True)
if sys.argv[4] == "ends":
    os._exit(3)
time.sleep(100)
"""


@pytest.mark.parametrize("namespaces", ["namespaces", "no namespaces"])
@pytest.mark.parametrize("end", ["ends", "is killed", "loses its parent"])
def test_no_process_is_left(tmp_path: Path, namespaces: str, end: str) -> None:
    """The process that is left has a session of its own, and holds the pipe open."""
    words = [sys.executable, "-I", "-c", LEAVE, str(ROOT), str(tmp_path), namespaces, end]
    if end == "loses its parent":
        code = f"import subprocess, sys; subprocess.Popen({words!r}); sys.stdin.read()"
        words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if end == "is killed":
            kill_tree(process)
        elif end == "loses its parent":
            process.kill()
        # The end of the pipe: no process has it open.
        assert select.select([process.stdout], [], [], 10.0)[0]
        assert process.stdout.read() == ""
        assert (process.wait(10) == 3) == (end == "ends")
    size = (tmp_path / "left").stat().st_size
    time.sleep(0.1)
    assert (tmp_path / "left").stat().st_size == size


ALONE = """
import ctypes, os, socket, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tasks.files import sandbox
sandbox.refuse_calls = lambda libc: False
if sys.argv[4] == "Landlock":
    sandbox.NEW_USER = -1
else:
    sandbox._landlock = lambda *_: 0
print(sandbox.restrict(Path(sys.argv[2]), Path(sys.argv[1])), flush=True)
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[3])), 2)
except OSError as error:
    print(type(error).__name__, error.errno)
"""


@pytest.mark.parametrize(
    ("alone", "said"),
    [("Landlock", "PermissionError 13"), ("no network", "OSError 101")],
    ids=["Landlock", "namespace"],
)
def test_each_restriction_alone_refuses_connections(tmp_path: Path, alone: str, said: str) -> None:
    # Version 4 of Landlock was the first with rules for TCP.
    if alone not in restrictions() or re.search(r"Landlock [1-3]\b", restrictions()):
        pytest.skip(f"this system restricts processes by {restrictions()}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [sys.executable, "-I", "-c", ALONE, str(ROOT), str(tmp_path), str(server.getsockname()[1]), alone]
        told = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert told[0].startswith(alone)
    assert told[1:] == [said]
