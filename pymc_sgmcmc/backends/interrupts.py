"""Ctrl-C while numba turns results into Python's arrays.

Python raises `KeyboardInterrupt` in the next Python function that runs. After a compiled call that
is often numba's own, which its machine code calls for each array that it returns, without a look
at whether it has raised: the interrupt is lost, or ends as "SystemError: ... returned a result with
an exception set". There, and there only, the interrupt is put off by some milliseconds.
"""

import _thread
import ctypes
import signal
import threading
from types import FrameType

from numba.core import serialize

DEAF = {serialize._numba_unpickle.__code__, ctypes.cast.__code__}
"""What numba's machine code calls: for arrays that it returns, and generators that it is given."""
SECONDS_PUT_OFF = 0.005


class _Handler:
    """The handler of Ctrl-C that was there, but for moments at which nobody would hear it."""

    def __init__(self, handler):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in DEAF:
            again = threading.Timer(SECONDS_PUT_OFF, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            self.handler(number, frame)


def hear_interrupts() -> None:
    """Have Ctrl-C heard during numba's calls, as far as this thread and its handler allow it."""
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if main and callable(handler) and not isinstance(handler, _Handler):
        signal.signal(signal.SIGINT, _Handler(handler))
