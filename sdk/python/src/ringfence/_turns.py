"""Turns, so that there are never more than so many of something at once. First come, first served."""

from __future__ import annotations

import asyncio

from ._tasks import ended


class Turn:
    """The right to do it, as soon as it is `ready`. Has to be ended, also if it is not."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_over = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        """Whether it may begin."""
        return self.ready.done()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits until it is ready, for so long at most. Returns whether it is."""
        return await ended(self.ready, seconds)

    def end(self) -> None:
        """Gives it to the next, or no longer waits for it."""
        if not self._is_over:
            self._is_over = True
            self._turns._ended(self)


class Turns:
    """So many at once."""

    def __init__(self, most: int) -> None:
        self._free = most
        # Those that wait, in order.
        self._queue: dict[Turn, None] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for a turn."""
        return len(self._queue) > 0

    def ask(self) -> Turn:
        """Asks for a turn."""
        turn = Turn(self)
        self._queue[turn] = None
        self._next()
        return turn

    def _ended(self, turn: Turn) -> None:
        if turn in self._queue:
            del self._queue[turn]
        else:
            self._free += 1
            self._next()

    def _next(self) -> None:
        while self._free > 0 and self._queue:
            turn = next(iter(self._queue))
            del self._queue[turn]
            self._free -= 1
            turn.ready.set_result(None)
