"""What threads wait on. No thread ever has a lock that another needs, so a signal handler may interrupt anyone and call anything.

`threading.Event` and `concurrent.futures.Future` have such a lock. A signal handler runs between two instructions of the main
thread, which may have it; the loop then waits for the lock, and the handler for the loop, for ever.
"""

from __future__ import annotations

import _thread
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Flag:
    """Is set once, and wakes all who wait for it."""

    def __init__(self) -> None:
        self._is_set = False
        # Each belongs to one waiter, who has it until it is woken.
        self._waiters: list[Any] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Sets it, once. Never waits."""
        self._is_set = True
        with suppress(IndexError):
            while True:
                self._waiters.pop().release()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is set, for so long at most. Returns whether it is."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        # Either this look sees that it is set, or whoever sets it sees the waiter.
        if not self._is_set:
            waiter.acquire(True, -1 if seconds is None else min(max(seconds, 0.0), _thread.TIMEOUT_MAX))
        if not self._is_set:
            try:
                self._waiters.remove(waiter)
            except ValueError:
                # It was set just now.
                return True
        return self._is_set


class Result(Generic[T]):
    """What a call on the loop has come to."""

    def __init__(self) -> None:
        self.done = Flag()
        self._values: list[T] = []
        self._error: BaseException | None = None

    def succeed(self, value: T) -> None:
        """It has come to this."""
        self._values.append(value)
        self.done.set()

    def fail(self, error: BaseException) -> None:
        """It has failed."""
        self._error = error
        self.done.set()

    def get(self) -> T:
        """The value, once it is there. Raises an error only the first time."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The error knows this frame.
                self._error = None
        return self._values[0]

    def peek(self) -> T | None:
        """The value, if there is one."""
        return self._values[0] if self._values else None
