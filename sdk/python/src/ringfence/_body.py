"""The body of a block under a lease, in asyncio: it is cancelled when the lease is lost. Others may cancel it, too."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from ._tasks import cancellations, take_back_cancellation
from ._threads import LOG

_LOST = "ringfence: the lease is lost"


class Body:
    """The task that works under a lease. It is cancelled by a loss, and known to the lease, not the other way round."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = weakref.ref(task)
        self.outer = cancellations(task)
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancels it, unless it is what has just found out."""
        task = self.task()
        if task is None or task.done():
            LOG.warning(
                "a lease is lost, and nobody could be cancelled: the task that entered its block has ended"
            )
        elif task is not asyncio.current_task():
            self.is_cancelled = True
            task.cancel(_LOST)

    async def absorb(self, error: BaseException | None) -> bool:
        """Takes back our cancellation. Returns whether that is what ended the body, and nobody else wants it."""
        task = self.task()
        if task is None or task is not asyncio.current_task():
            # It was left by another, which nobody has cancelled.
            return False
        was_told = isinstance(error, asyncio.CancelledError)
        if not was_told:
            try:
                # It may arrive yet.
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                if _LOST not in late.args:
                    raise
        left = take_back_cancellation(task)
        if left is None:
            return was_told and error is not None and _LOST in error.args
        if left > self.outer and not was_told:
            raise asyncio.CancelledError
        return left <= self.outer and was_told
