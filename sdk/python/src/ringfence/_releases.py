"""Releases, which nobody's end may end.

     begin ──▶ DELETE, repeated for 5 s ── done, or refused ──▶ told
                     │                                            ▲
                     └── no outcome: told so, and repeated in ────┘
                         the background, for 30 s in all

A release is no part of whoever asks for it: who is cancelled, or gives up, leaves it alone. `asyncio.run` cancels all tasks at
its end, some of them before their first step, and so do programs that go on. A release that is cancelled, and was not by `close`,
is therefore repeated by another task, at first for a second: the end of the loop waits for as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ._tasks import look
from ._threads import LOG
from .errors import Closed, Error, Lost, Unavailable, Unknown

RELEASE_FOR = 30.0
LAST_CHANCE = 1.0
"""How long clean-up takes that somebody's cancellation or end waits for."""

Send = Callable[[str, float], Coroutine[Any, Any, None]]


class Releases:
    """The releases of a client that are under way."""

    def __init__(self, send: Send, first_for: float) -> None:
        self._send, self._first_for = send, first_for
        self._loop = asyncio.get_running_loop()
        self._open: set[asyncio.Task[None]] = set()
        self._first: set[asyncio.Task[None]] = set()
        self._left: int | None = None

    def begin(self, lease_id: str) -> asyncio.Future[None]:
        """Releases a lease, or leaves the queue. What it returns tells what came of it, and may be left alone."""
        told: asyncio.Future[None] = self._loop.create_future()
        self._start(lease_id, told, self._first_for)
        return told

    def __len__(self) -> int:
        """How many are under way or, after they were cut off, how many that was."""
        return len(self._open) if self._left is None else self._left

    async def settled(self) -> None:
        """Waits until none is left."""
        while self._open:
            await asyncio.wait(set(self._open))

    def hurry(self) -> None:
        """Ends the first attempts: each is repeated for a second."""
        for task in self._first:
            task.cancel()

    def close(self) -> list[asyncio.Task[None]]:
        """Ends them. Returns those that end."""
        ending = list(self._open)
        self._left = len(ending)
        for task in ending:
            task.cancel()
        return ending

    def _start(self, lease_id: str, told: asyncio.Future[None], first_for: float) -> None:
        task = self._loop.create_task(self._release(lease_id, told, first_for))
        # The loop may end without an end of its tasks. What is left was logged.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._open.add(task)
        if first_for > LAST_CHANCE:
            self._first.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._open.discard(task)
            self._first.discard(task)
            if task.cancelled() and self._left is None:
                self._start(lease_id, told, LAST_CHANCE)
            else:
                look(task)
                _tell(told, Closed("the client was closed"))

        task.add_done_callback(done)

    async def _release(self, lease_id: str, told: asyncio.Future[None], first_for: float) -> None:
        try:
            await self._send(lease_id, first_for)
        except (Unknown, Unavailable) as error:
            _tell(told, error)
            await self._go_on(lease_id)
        except Error as error:
            _tell(told, error)
            if not isinstance(error, Lost):
                LOG.warning("a lease could not be released, and ends with its ttl: %s", error)
        else:
            _tell(told, None)

    async def _go_on(self, lease_id: str) -> None:
        try:
            await self._send(lease_id, RELEASE_FOR - self._first_for)
        except Lost:
            pass
        except Error as error:
            LOG.warning("a lease could not be released, and ends with its ttl: %s", error)


def _tell(told: asyncio.Future[None], error: Exception | None) -> None:
    if told.done():
        return
    if error is None:
        told.set_result(None)
    else:
        told.set_exception(error)
        # Marks the error as seen: nobody has to look at it.
        told.exception()
