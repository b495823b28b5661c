"""Ctrl-C in moments at which nobody would hear it.

Python raises `KeyboardInterrupt` in the next Python function that runs. After a compiled call that
is often numba's own, which its machine code calls for each array that it returns, without a look
at whether it has raised: the interrupt is lost, or ends as "SystemError: ... returned a result with
an exception set". Python itself drops what is raised while an object is deleted. There, and there
only, the interrupt is put off by some milliseconds. What is dropped all the same (callbacks of weak
references, say) is raised again at the chain's next draw.
"""

import _thread
import ctypes
import signal
import threading
import time
import weakref
from types import FrameType

from numba.core import serialize

DEAF = {serialize._numba_unpickle.__code__, ctypes.cast.__code__}
"""What numba's machine code calls: for arrays that it returns, and generators that it is given."""
SECONDS_PUT_OFF = 0.005


class _Handler:
    """A signal's handler that was there, but for moments at which nobody would hear it."""

    def __init__(self, handler):
        self.handler = handler
        self.raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_deaf(frame):
            # Not `threading`, whose locks this thread may hold: it is interrupted here again where
            # the new thread is quicker.
            _thread.start_new_thread(_interrupt_again, (number,))
            return
        try:
            self.handler(number, frame)
        except KeyboardInterrupt:
            self.raised = True
            raise


def _is_deaf(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code in DEAF or code.co_name == "__del__" or code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def _interrupt_again(number: int) -> None:
    time.sleep(SECONDS_PUT_OFF)
    _thread.interrupt_main(signal.Signals(number))


def hear_interrupts(number: int = signal.SIGINT) -> None:
    """Have a signal whose handler raises heard during numba's calls, from the main thread."""
    handler = signal.getsignal(number)
    if isinstance(handler, _Handler):
        handler.raised = False
    main = threading.current_thread() is threading.main_thread()
    if main and callable(handler) and not isinstance(handler, _Handler):
        signal.signal(number, _Handler(handler))


def raise_if_dropped(number: int = signal.SIGINT) -> None:
    """Raise an interrupt again if it was raised, and the chain nevertheless goes on."""
    handler = signal.getsignal(number)
    if isinstance(handler, _Handler) and handler.raised:
        handler.raised = False
        raise KeyboardInterrupt
