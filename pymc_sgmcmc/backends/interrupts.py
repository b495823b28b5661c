"""Ctrl-C at any moment: it breaks no compiled call, and loses no draw.

Python raises `KeyboardInterrupt` in whichever Python function runs next. That may be one that
numba's machine code calls without checking whether it raised: the interrupt is lost, or ends as
"SystemError: ... returned a result with an exception set". Here a signal's handler, which raises
the exception, is called where that does no harm:

- Within `deferred`, a signal is only recorded. Its handler is called when the block ends, or by
  `raise_deferred` within it. A second signal is not deferred.
- Elsewhere (such as in PyMC's own compiled functions) it is called at once, or, within a function
  that machine code has called, on the next line of the Python code that called the machine code.
- A `KeyboardInterrupt` that Python drops, as in `__del__`, is raised again on the next line.
"""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from sys import monitoring
from types import CodeType, FrameType
from typing import Any

from pymc_sgmcmc.internals_used import available

CALLED_BY_MACHINE_CODE = {ctypes.cast.__code__}
"""Code called by machine code, for arrays that a function returns and its generators."""
if available("backends/interrupts.py", "Ctrl-C may end a run with a SystemError"):
    from numba.core import serialize

    CALLED_BY_MACHINE_CODE.add(serialize._numba_unpickle.__code__)
NEXT = (monitoring.events.LINE, monitoring.events.JUMP, monitoring.events.PY_RETURN)
"""Events at which Python code continues: another line, the same line in a loop, or its end."""


class _State(threading.local):
    """The signals that a thread has deferred; they are handled in the main thread."""

    depth = 0
    """Number of nested `deferred` blocks."""
    recorded: Callable[[], object] | None = None
    """Calls the handler of the signal that arrived within these blocks."""


_state = _State()


class _Deferred:
    def __enter__(self) -> None:
        _state.depth += 1

    def __exit__(self, *exception: object) -> None:
        _state.depth -= 1
        if not _state.depth and _state.recorded is not None:
            raise_deferred()


deferred = _Deferred()
"""A block in which a signal is only recorded; for nested blocks, the outermost one counts."""


def raise_deferred() -> None:
    """Call the handler of a deferred signal, if there is one; most handlers raise an exception."""
    if (handler := _state.recorded) is not None:
        _state.recorded = None
        handler()


def leave_to_parent() -> None:
    """Defer signals for good, because the parent process receives them too and ends this one."""
    _state.depth += 1


def handle(number: int = signal.SIGINT) -> None:
    """Call a signal's present handler only where that does no harm, if this is the main thread."""
    handler = signal.getsignal(number)
    main = threading.current_thread() is threading.main_thread()
    if main and callable(handler) and not isinstance(handler, _Handler):
        signal.signal(number, _Handler(handler))
    if main and getattr(sys.unraisablehook, "func", None) is not _raise_again:
        sys.unraisablehook = partial(_raise_again, sys.unraisablehook)


@contextmanager
def handled(number: int) -> Generator[None]:
    """Call a signal's handler only where that does no harm, like `handle`, until the block ends."""
    before = signal.getsignal(number)
    handle(number)
    ours = signal.getsignal(number)
    try:
        yield
    finally:
        if ours is not before and signal.getsignal(number) is ours:
            signal.signal(number, before)


class _Handler:
    """Replaces the handler that a signal had."""

    def __init__(self, handler: Callable):
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _state.depth and _state.recorded is None:
            _state.recorded = partial(self.handler, number, None)
        elif (caller := _caller_of_machine_code(frame)) is not None:
            _call_next(caller.f_code, partial(self, number, None))
        else:
            _state.recorded = None  # one call serves both signals
            self.handler(number, frame)


def _caller_of_machine_code(frame: FrameType | None) -> FrameType | None:
    """Return the Python frame that called the machine code within which this frame runs, if any."""
    caller = None
    while frame is not None:
        if frame.f_code in CALLED_BY_MACHINE_CODE:
            caller = frame.f_back
        frame = frame.f_back
    return caller


def _raise_again(previous: Callable, unraisable: Any) -> None:
    """Replace `sys.unraisablehook`, which receives the exceptions that Python drops."""
    frame = sys._getframe().f_back  # for example, code that ran when an object was deleted
    if not isinstance(unraisable.exc_value, KeyboardInterrupt) or frame is None:
        previous(unraisable)  # without a frame, Python is ending
        return
    caller = _caller_of_machine_code(frame) or frame
    _call_next(caller.f_code, partial(signal.default_int_handler, signal.SIGINT, None))


def _call_next(code: CodeType, function: Callable[[], object]) -> None:
    """Call a function in this thread as soon as the Python code that now runs in it continues."""
    tool = next(tool for tool in range(6) if monitoring.get_tool(tool) is None)
    thread = threading.get_ident()

    def call(*event: object) -> None:
        if threading.get_ident() == thread:
            watch(None)
            monitoring.free_tool_id(tool)
            function()

    def watch(call: Callable | None) -> None:
        for event in NEXT:
            monitoring.register_callback(tool, event, call)
        monitoring.set_local_events(tool, code, sum(NEXT) if call else monitoring.events.NO_EVENTS)

    monitoring.use_tool_id(tool, __name__)
    watch(call)
