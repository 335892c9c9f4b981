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
import time
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
        except Exception:  # noqa: BLE001 the program may have patched it
            # There was room for this one.
            if thread.ident is None:
                main()

    try:
        _thread.start_new_thread(start, ())
    except (RuntimeError, MemoryError):
        return False
    return True


class Line:
    """Calls functions in turn, on a thread that ends after `lingers` seconds with nothing to call. Another one begins later."""

    def __init__(self, name: str, lingers: float = 0.0) -> None:
        self._name, self._lingers = name, lingers
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # Whoever holds this lock calls what is in the queue. Only `finish` waits for it.
        self._turn = _thread.allocate_lock()

    def __len__(self) -> int:
        return self._calls.qsize()

    def __call__(self, call: Callable[[], object]) -> bool:
        """Has `call` called there. Raises nothing, and waits for nothing. Returns false if there is no room for a thread."""
        self._calls.put(call)
        return self.go_on()

    def go_on(self) -> bool:
        """Has a thread call what is in the queue. Returns false if there is no room for one."""
        if not self._turn.acquire(False):
            return True
        is_begun = begin(self._main, self._name)
        if not is_begun:
            self._turn.release()
        return is_begun

    def end(self) -> None:
        """Ends the thread once the queue is empty: nothing more will come."""
        self._lingers = 0.0
        if self._turn.locked():
            # Wakes the thread.
            self._calls.put(lambda: None)

    def finish(self, within: float) -> int:
        """Waits until all is called. Calls what is left by itself: while a program ends, some Pythons begin no thread. Begins no call
        after this time, and returns how many calls it has dropped.
        """
        until = time.monotonic() + within
        dropped = 0
        while self._turn.acquire(timeout=max(until - time.monotonic(), 0.0)):
            try:
                dropped += self._drain(until)
            finally:
                self._turn.release()
            if self._calls.empty():
                break
        return dropped

    def _drain(self, until: float) -> int:
        dropped = 0
        with suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if time.monotonic() >= until:
                    dropped += 1
                    continue
                # Ctrl-C may end this loop, as it runs on a thread of the program.
                with suppress(Exception):
                    call()
        return dropped

    def _main(self) -> None:
        while True:
            while self._call_next():
                pass
            self._turn.release()
            # Whoever came before that step has begun no thread.
            if self._calls.empty() or not self._turn.acquire(False):
                return

    def _call_next(self) -> bool:
        try:
            call = self._calls.get(timeout=self._lingers)
        except queue.Empty:
            return False
        # Whatever a call raises, the next ones follow.
        with suppress(BaseException):
            call()
        return True


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
    """Waits until all is written, but not longer than this."""
    dropped = _WRITERS[0].finish(within)
    if dropped:
        LOG.warning(
            "%d lines of this log are missing, as it was too slow for the end of the program", dropped
        )


def _after_fork() -> None:
    LOOPS.clear()
    _WRITERS[0] = Line("ringfence-log")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
