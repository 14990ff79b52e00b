"""A wall around a process that runs foreign code on files from outside (Linux).

Landlock takes away all files but those named, new connections and signals to others; seccomp takes
away sockets, other programs, the user's keys, memory and queues that processes share by number, and
every way to reach into another process. Both hold for threads and programs that the process begins
later, and for ever; what files were open before grow no larger than a limit. Elsewhere there is no
wall yet, and `enclose` says so.

Sources: the kernel's documentation of Landlock (userspace-api/landlock) and seccomp_filter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_FILE_RULE, _PORT_RULE = 1, 2
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Kinds of access to files that a version of Landlock knows, a bit each; later ones as the last."""
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_BIND = 1
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _NOT_PERMITTED = 0x7FFF0000, 0x80000000, 0x00050001
_X32 = 0x40000000
_LISTENING = ("socket", "bind", "listen")
_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "bind": 49, "listen": 50, "connect": 42, "socketpair": 53, "execve": 59,
            "kill": 62, "ptrace": 101, "chroot": 161, "mount": 165, "unshare": 272,
            "perf_event_open": 298, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
            "bpf": 321, "execveat": 322, "userfaultfd": 323, "io_uring_setup": 425,
            "pidfd_getfd": 438, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
            "pidfd_send_signal": 424, "add_key": 248, "request_key": 249, "keyctl": 250,
            "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66,
            "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240,
            "syslog": 103, "acct": 163, "settimeofday": 164, "swapon": 167, "reboot": 169,
            "sethostname": 170, "init_module": 175, "delete_module": 176, "clock_settime": 227,
            "kexec_load": 246, "open_by_handle_at": 304, "finit_module": 313,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "bind": 200, "listen": 201, "connect": 203, "socketpair": 199,
            "execve": 221, "kill": 129, "ptrace": 117, "chroot": 51, "mount": 40, "unshare": 97,
            "perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
            "bpf": 280, "execveat": 281, "userfaultfd": 282, "io_uring_setup": 425,
            "pidfd_getfd": 438, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240,
            "pidfd_send_signal": 424, "add_key": 217, "request_key": 218, "keyctl": 219,
            "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190, "semop": 193,
            "semctl": 191, "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187,
            "mq_open": 180, "syslog": 116, "acct": 89, "settimeofday": 170, "swapon": 224,
            "reboot": 142, "sethostname": 161, "init_module": 105, "delete_module": 106,
            "clock_settime": 112, "kexec_load": 104, "open_by_handle_at": 265, "finit_module": 273,
        },
    ),
}  # fmt: skip
"""By processor: its number in seccomp, and the system calls that are refused."""
_OF_ITSELF = {"x86_64": (302, 234), "aarch64": (261, 131)}
"""prlimit64, which names this process by 0, and tgkill, by its number: refused for others."""
_LARGEST_FILE = 16 << 20
"""Bytes; what such a process writes to is what it says."""
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/opt", "/etc/ld.so.cache", "/etc/localtime", "/proc/self",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/sys/devices/system",
    "/sys/fs/cgroup", "/sys/kernel/mm", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip
"""What programs and their libraries read, none of which is the user's."""


def folders_of(path: Path) -> list[Path]:
    """Where a file and those beside it are, by links and where the links lead."""
    return [path.parent, path.resolve().parent]


def enclose(readable: Iterable[Path], *, port: int | None = None) -> bool:
    """Leave this process nothing but reading these files and folders, Python's own and the
    system's; with a port, also listening there. False where the system has no such wall, or half
    of one.
    """
    if not sys.platform.startswith("linux"):
        return False
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return False
    own = (sys.prefix, sys.base_prefix, *filter(None, sys.path))
    places = [*map(Path, _SYSTEM), *map(Path, own), *readable]
    _keep_small()
    kept = _keep_files(kernel, places, port), _keep_calls(kernel, port is not None)
    return all(kept)


def _keep_small() -> None:
    """Nor can files that are open already fill the disk."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = _LARGEST_FILE if most == resource.RLIM_INFINITY else min(most, _LARGEST_FILE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _keep_files(kernel: ctypes.CDLL, places: Iterable[Path], port: int | None) -> bool:
    version = kernel.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return False
    files = (1 << _FILE_BITS.get(version, 16)) - 1
    attributes = struct.pack(
        "<QQQ", files, 3 * (version >= _NETWORK_SINCE), 3 * (version >= _SCOPES_SINCE)
    )
    size = 8 + 8 * (version >= _NETWORK_SINCE) + 8 * (version >= _SCOPES_SINCE)
    rules = kernel.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for place in places:
            with suppress(OSError):  # what is not there needs no permission
                _permit(kernel, rules, place)
        if port is not None and version >= _NETWORK_SINCE:
            rule = struct.pack("<QQ", _BIND, port)
            kernel.syscall(_ADD_RULE, rules, _PORT_RULE, rule, 0)
        return bool(kernel.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _permit(kernel: ctypes.CDLL, rules: int, place: Path) -> None:
    """Reading one file, or all below a folder."""
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        access = _READ_FILE | (_READ_FOLDER if place.is_dir() else 0)
        if place == Path(os.devnull):
            access |= _WRITE_FILE
        rule = struct.pack("<Qi", access, descriptor)
        kernel.syscall(_ADD_RULE, rules, _FILE_RULE, rule, 0)
    finally:
        os.close(descriptor)


def _keep_calls(kernel: ctypes.CDLL, listens: bool) -> bool:
    """Refuse the system calls that nothing here needs; what another processor would call is the
    end of the process.
    """
    if platform.machine() not in _CALLS:
        return False
    machine, calls = _CALLS[platform.machine()]
    refused = [number for name, number in calls.items() if not (listens and name in _LISTENING)]
    number_at, machine_at, first_argument_at = 0, 4, 16
    steps = [
        (_LOAD, 0, 0, machine_at),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, number_at),
    ]
    limits, signals = _OF_ITSELF[platform.machine()]
    own = [
        (_EQUAL, 0, 2, limits),
        (_LOAD, 0, 0, first_argument_at),
        (_EQUAL, 3, 4, 0),
        (_EQUAL, 0, 2, signals),
        (_LOAD, 0, 0, first_argument_at),
        (_EQUAL, 0, 1, os.getpid()),
    ]
    # Each jump counts the steps to the refusal, which stands after the permission.
    behind = len(refused) + len(own) + 1
    steps.append((_AT_LEAST, behind, 0, _X32))
    steps += [(_EQUAL, behind - 1 - place, 0, number) for place, number in enumerate(refused)]
    steps += [*own, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOT_PERMITTED)]
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(steps), ctypes.addressof(held))
    return bool(kernel.prctl(_SET_SECCOMP, _FILTER, program, 0, 0) == 0)
