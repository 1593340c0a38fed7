"""Prevents a process that runs a rung of unknown origin from sending signals to other processes, and from accessing
their memory and limits: a checker that dies has no verdict. Linux only; elsewhere nothing is confined.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Iterator

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_GET_DUMPABLE = 1, 4, 3
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
CAP_KILL, CAP_SYS_PTRACE = 5, 19
CAPABILITIES = 0x20080522  # the version of the structures
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # of the filter's instructions: a word, comparisons, an end
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # REFUSE: with EPERM
NUMBER, ARCHITECTURE, FIRST = 0, 4, 16  # offsets of a call's number and of the lower half of its arguments

# Numbers of system calls by machine: those that are always refused, and those that a process may only use on itself.
REFUSED = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "tkill": 200},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "tkill": 130},
}
# So that no child leaves the process's group, by which all are ended.
LEAVING = {"x86_64": {"setsid": 112, "setpgid": 109}, "aarch64": {"setsid": 157, "setpgid": 154}}
EVERYWHERE = {"pidfd_open": 434, "pidfd_send_signal": 424, "pidfd_getfd": 438}
ON_ITSELF = {
    "x86_64": {"kill": 62, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "prlimit64": 302},
    "aarch64": {"kill": 129, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261},
}
OWNERS = {"x86_64": 72, "aarch64": 25}  # fcntl, whose F_SETOWN and F_SETOWN_EX cause signals
SET_OWNER = (8, 15)
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
OTHER_NUMBERS = 0x40000000  # from here on x86 has the same calls again


def end_with_parent(number: int) -> None:
    """This process gets this signal when its parent ends."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def confine() -> None:
    """From now on this process and its children can send signals to this process only, access no other's memory, and
    not leave its group."""
    machine = platform.machine()
    if machine not in MACHINES:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _drop(libc, CAP_KILL, CAP_SYS_PTRACE)
    program = _program(machine, os.getpid())

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    filtered = Program(len(program) // 8, program)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filtered), 0, 0)


def _program(machine: str, own: int) -> bytes:
    """The filter: eight bytes per instruction (code, jump if true, jump if false, number)."""
    found: list[tuple[int, int, int, int]] = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, MACHINES[machine])]
    found += [(RETURN, 0, 0, REFUSE), (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, OTHER_NUMBERS), (RETURN, 0, 0, REFUSE)]
    for number in [*REFUSED[machine].values(), *LEAVING[machine].values(), *EVERYWHERE.values()]:
        found += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE)]
    for number in ON_ITSELF[machine].values():  # 0: this process, or its own group
        found += [(EQUAL, 0, 5, number), (LOAD, 0, 0, FIRST), (EQUAL, 2, 0, own), (EQUAL, 1, 0, 0)]
        found += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    found += [(EQUAL, 0, 5, OWNERS[machine]), (LOAD, 0, 0, FIRST + 8)]
    found += [(EQUAL, 1, 0, SET_OWNER[0]), (EQUAL, 0, 1, SET_OWNER[1]), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *one) for one in [*found, (RETURN, 0, 0, ALLOW)])


def _drop(libc: ctypes.CDLL, *capabilities: int) -> None:
    """Drop these capabilities, which root has beyond other users."""
    header = struct.pack("Ii", CAPABILITIES, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data):
        return
    words = list(struct.unpack("6I", data.raw))  # effective, permitted, inheritable; again for the next 32
    for capability in capabilities:
        for place in range(3):
            words[place] &= ~(1 << capability) & 0xFFFFFFFF
    libc.capset(header, struct.pack("6I", *words))


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Inside, no unprivileged process can read or write this one's memory."""
    libc = ctypes.CDLL(None)
    before = libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) if platform.system() == "Linux" else -1
    if before == 1:
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        if before == 1:
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
