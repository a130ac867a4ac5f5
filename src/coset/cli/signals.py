"""Signals that end a command: it stops as by Ctrl-C, with whole files, and says where it was."""

from __future__ import annotations

import signal
from types import FrameType

ENDS = ("SIGINT", "SIGTERM", "SIGHUP")  # of which not every system has all


class StopSignal(KeyboardInterrupt):
    """A signal asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """As shells count: 128 and the number of the signal."""
    return 128 + (stop.number if isinstance(stop, StopSignal) else signal.SIGINT)


def stop_by_exception() -> None:
    """Let signals raise, but for those that somebody ignores, such as nohup; a second one ends the process at once."""
    for name in ENDS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for name in ENDS:
        each = getattr(signal, name, None)
        if each is not None and signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_DFL)
    raise StopSignal(number)
