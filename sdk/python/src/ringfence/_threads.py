"""Threads that are begun without a wait, and the log of those that may not wait.

`Thread.start` waits for the new thread, and the handlers of a log have locks, as streams have. The thread of a client may wait for
neither: others have leases that it renews, and a signal handler that has interrupted the owner of such a lock may wait for it.
"""

from __future__ import annotations

import _thread
import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

# The threads of all clients, by their ids. A child has none of them, and may use their ids again.
LOOPS: set[int] = set()


def is_a_loop() -> bool:
    """Whether this is the thread of a client: the garbage collector, or a callback, may call anything there."""
    return _thread.get_ident() in LOOPS


def begin(main: Callable[[], object], name: str) -> bool:
    """Begins a thread. Returns whether this process may have one more."""

    def start() -> None:
        thread = threading.Thread(target=main, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There was room for this one.
            main()

    try:
        _thread.start_new_thread(start, ())
    except RuntimeError:
        return False
    return True


class Line:
    """Calls one after the other, on a thread that ends when there is nothing to call; another begins later."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # Whoever has it calls what is in the queue. Nobody waits for it.
        self._turn = _thread.allocate_lock()

    def __len__(self) -> int:
        return self._calls.qsize()

    def __call__(self, call: Callable[[], object]) -> None:
        """Calls it there. Without room for a thread, a later call does. It raises nothing, and waits for nothing."""
        self._calls.put(call)
        if self._turn.acquire(False) and not begin(self._main, self._name):
            self._turn.release()

    def finish(self, within: float) -> None:
        """Waits until all is called. It calls what no thread does: while a program ends, some Pythons begin none."""
        if self._turn.acquire(timeout=within):
            self._main()

    def _main(self) -> None:
        while True:
            with suppress(queue.Empty):
                while True:
                    call = self._calls.get_nowait()
                    # Nothing that a call raises ends those that follow.
                    with suppress(BaseException):
                        call()
            self._turn.release()
            # Whoever came before that step has begun no thread.
            if self._calls.empty() or not self._turn.acquire(False):
                return


class Log:
    """The log. What a client's own thread writes, another one does."""

    def __init__(self) -> None:
        self._log = logging.getLogger("ringfence")

    def info(self, text: str, *values: object) -> None:
        """Writes a line that only those want who look for it."""
        self._write(logging.INFO, text, values)

    def warning(self, text: str, *values: object, error: BaseException | None = None) -> None:
        """Writes a line that somebody should see."""
        self._write(logging.WARNING, text, values, error)

    def error(self, text: str, *values: object, error: BaseException) -> None:
        """Writes what an error of the user's is about."""
        self._write(logging.ERROR, text, values, error)

    def _write(
        self, level: int, text: str, values: tuple[Any, ...], error: BaseException | None = None
    ) -> None:
        write = partial(self._log.log, level, text, *values, exc_info=error)
        if is_a_loop():
            _WRITERS[0](write)
        else:
            write()


LOG = Log()
_WRITERS = [Line("ringfence-log")]


def written(within: float) -> None:
    """Waits until all is written."""
    _WRITERS[0].finish(within)


def _after_fork() -> None:
    LOOPS.clear()
    _WRITERS[0] = Line("ringfence-log")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
