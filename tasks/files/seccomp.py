"""Refuse system calls that reach other processes or the metadata of files, by a seccomp filter of Linux.

Landlock and namespaces do not restrict these calls. Refused calls fail with EPERM; the process goes on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

REFUSED = """
socket 41 198  socketpair 53 199
chmod 90 -  fchmod 91 52  fchmodat 268 53  fchmodat2 452 452  chown 92 -  fchown 93 55  fchownat 260 54
lchown 94 -  utime 132 -  utimes 235 -  futimesat 261 -  utimensat 280 88  setxattr 188 5  lsetxattr 189 6
fsetxattr 190 7  removexattr 197 14  lremovexattr 198 15  fremovexattr 199 16
shmget 29 194  shmat 30 196  shmctl 31 195  shmdt 67 197  semget 64 190  semop 65 193  semctl 66 191
semtimedop 220 192  msgget 68 186  msgsnd 69 189  msgrcv 70 188  msgctl 71 187  mq_open 240 180  mq_unlink 241 181
ptrace 101 117  process_vm_readv 310 270  process_vm_writev 311 271  process_madvise 440 440
process_mrelease 448 448  kcmp 312 272  pidfd_open 434 434  pidfd_getfd 438 438  pidfd_send_signal 424 424
tkill 200 130  rt_sigqueueinfo 129 138  rt_tgsigqueueinfo 297 240  setpriority 141 140  ioprio_set 251 30
sched_setscheduler 144 119  sched_setparam 142 118  sched_setattr 314 274  migrate_pages 256 238
move_pages 279 239
add_key 248 217  request_key 249 218  keyctl 250 219  io_uring_setup 425 425  io_uring_enter 426 426
io_uring_register 427 427  bpf 321 280  perf_event_open 298 241  userfaultfd 323 282  fanotify_init 300 262
name_to_handle_at 303 264  open_by_handle_at 304 265  quotactl 179 60  quotactl_fd 443 443
unshare 272 97  setns 308 268  mount 165 40  umount2 166 39  pivot_root 155 41  chroot 161 51  move_mount 429 429
open_tree 428 428  fsopen 430 430  fsconfig 431 431  fsmount 432 432  fspick 433 433  mount_setattr 442 442
acct 163 89  reboot 169 142  swapon 167 224  swapoff 168 225  kexec_load 246 104  kexec_file_load 320 294
init_module 175 105  finit_module 313 273  delete_module 176 106  settimeofday 164 170  clock_settime 227 112
adjtimex 159 171  clock_adjtime 305 266  sethostname 170 161  setdomainname 171 162  syslog 103 116
vhangup 153 58  iopl 172 -  ioperm 173 -
"""
"""System calls with their numbers on x86_64 and aarch64. The groups are: sockets; metadata of files; shared memory and
messages; other processes; interfaces of the kernel that Python does not use; rights of root."""
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Architectures as the kernel writes them, in the order of the columns."""
FIRST_UNKNOWN = 463
"""The first system call newer than `REFUSED`. The calls of the x32 interface also have greater numbers."""
CLONE3 = 435
"""The flags of clone3 are in memory, which a filter cannot read; without clone3, the C library calls clone."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = FAIL | errno.EPERM, FAIL | errno.ENOSYS
NEW_NAMESPACES = 0x7E020000
"""Flags of clone for new namespaces."""
PARENT_DEATH_SIGNAL = 1
"""Option of prctl."""
TERMINAL = (0x5450, 0x5451, 0x5401, 0x5413, 0x541B)
"""Requests of ioctl that Python uses: inheritance of a file, and whether a file is a terminal."""
SET_SECCOMP, FILTER = 22, 2

Instruction = tuple[int, int, int, int]
"""Operation, number of instructions to skip if it is true and if it is false, and operand."""


class _Rule(NamedTuple):
    """A system call that depends on an argument."""

    numbers: tuple[int, int]
    """On x86_64 and aarch64."""
    argument: int
    comparison: int
    values: tuple[int, ...]
    matched: int
    """Result if the comparison with any value is true."""
    otherwise: int


def refuse_calls(libc: ctypes.CDLL) -> bool:
    """Install the filter, also for later children and threads.

    Returns:
        Whether the system accepted the filter. The caller has set PR_SET_NO_NEW_PRIVS.
    """
    machine = platform.machine()
    if machine not in MACHINES or struct.calcsize("P") != 8:
        return False
    instructions = list(_filter(machine, os.getpid()))
    packed = b"".join(struct.pack("<HBBI", *each) for each in instructions)
    code = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("<HxxxxxxQ", len(instructions), ctypes.addressof(code))
    return bool(libc.prctl(SET_SECCOMP, FILTER, program, 0, 0) == 0)


def _filter(machine: str, own: int) -> Iterator[Instruction]:
    column = list(MACHINES).index(machine)
    yield from ((LOAD, 0, 0, 4), (EQUAL, 1, 0, MACHINES[machine]), (RETURN, 0, 0, EPERM))
    yield from ((LOAD, 0, 0, 0), (AT_LEAST, 0, 1, FIRST_UNKNOWN), (RETURN, 0, 0, ENOSYS))
    yield from ((EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ENOSYS))
    for number in refused_calls(machine).values():
        yield from ((EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM))
    for rule in (
        # Signals, limits and processors of this process only.
        _Rule((62, 129), 0, EQUAL, (own,), ALLOW, EPERM),
        _Rule((234, 131), 0, EQUAL, (own,), ALLOW, EPERM),
        _Rule((302, 261), 0, EQUAL, (0,), ALLOW, EPERM),
        _Rule((203, 122), 0, EQUAL, (0,), ALLOW, EPERM),
        _Rule((16, 29), 1, EQUAL, TERMINAL, ALLOW, EPERM),
        _Rule((56, 220), 0, ANY_BIT, (NEW_NAMESPACES,), EPERM, ALLOW),
        _Rule((157, 167), 0, EQUAL, (PARENT_DEATH_SIGNAL,), EPERM, ALLOW),
    ):
        count = len(rule.values)
        yield (EQUAL, 0, count + 3, rule.numbers[column])
        # The low half of an argument: the kernel ignores the high half of these arguments.
        yield (LOAD, 0, 0, 16 + 8 * rule.argument)
        for number, value in enumerate(rule.values):
            yield (rule.comparison, count - number, 0, value)
        yield from ((RETURN, 0, 0, rule.otherwise), (RETURN, 0, 0, rule.matched))
    yield (RETURN, 0, 0, ALLOW)


def refused_calls(machine: str) -> dict[str, int]:
    """Return the numbers of the calls that are always refused, by name."""
    words, column = REFUSED.split(), list(MACHINES).index(machine)
    rows = zip(words[::3], words[1 + column :: 3], strict=True)
    return {name: int(number) for name, number in rows if number != "-"}
