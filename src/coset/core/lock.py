"""Locks, so that one process at a time writes a folder or a file.

A lock is the kernel's, on a file that says who holds it. However its process ends, the lock ends with it, and the file
that a killed process leaves behind hinders nobody.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from coset.core.errors import CosetError

if sys.platform != "win32":
    import fcntl

NAME = ".lock"  # in a folder
LONGEST = 4096  # bytes of the file that are read
WORDS = 120  # characters of a command that are told

# Who cannot write a folder cannot harm what another process writes there.
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)

log = logging.getLogger(__name__)

_scope: ContextVar[ExitStack] = ContextVar("scope")


@contextmanager
def lock_scope() -> Iterator[None]:
    """At the end of the block, files are free that `hold_file` held in it."""
    with ExitStack() as stack:
        token = _scope.set(stack)
        try:
            yield
        finally:
            _scope.reset(token)


def hold_file(file: Path, what: str) -> None:
    """Hold the lock of a file as `locked` does, until the end of the `lock_scope` around."""
    _scope.get().enter_context(locked(file, what))


@contextmanager
def locked(file: Path, what: str) -> Iterator[None]:
    """Hold the lock of a file, which is made for it and removed again; `what` it guards, for messages.

    Between machines it holds where the server of their file system keeps locks, as those of NFS do. Where a file system
    has none, a warning says so. On Windows nothing is locked.

    Raises:
        CosetError: Another process holds it, or another call in this one.
    """
    descriptor = _acquire(file, what)
    if descriptor is None:
        yield
        return
    try:
        _say_who(descriptor)
        yield
    finally:
        with suppress(OSError):
            file.unlink()  # while it is held: whoever waits for this file then sees that it is another
        os.close(descriptor)


def _acquire(file: Path, what: str) -> int | None:
    """The open file with its lock; None where there cannot be one."""
    if sys.platform == "win32":
        return None
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno in UNWRITABLE:
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if isinstance(error, BlockingIOError) or error.errno == errno.EACCES:
                raise CosetError(f"{what} is in use by {holder}: wait until it ends, or name another.") from None
            log.warning("%s cannot be locked (%s): see that nothing else writes there", what, error.strerror)
            with suppress(OSError):
                file.unlink()  # nobody else has it locked either
            return None
        if _is(descriptor, file):
            return descriptor
        os.close(descriptor)  # it was removed by whoever held it


def _is(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _say_who(descriptor: int) -> None:
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "command": shlex.join(sys.argv)[:WORDS]}
    with suppress(OSError):  # on a full disk nobody learns who it is
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode(), 0)


def _holder(descriptor: int) -> str:
    """Who holds a lock, as its file says."""
    try:
        who = json.loads(os.pread(descriptor, LONGEST, 0))
        return f"process {who['pid']} on {who['host']} since {who['since']} ({who['command']})"
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        return "another process"
