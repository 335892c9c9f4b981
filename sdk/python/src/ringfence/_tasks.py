"""Tasks that end in time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def bounded(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Awaits `work`, which is cancelled after this time: then it raises `asyncio.TimeoutError`.

    Unlike `asyncio.wait_for` before Python 3.12, it neither swallows a cancellation nor loses a result that came with it.
    """
    task = quiet(asyncio.get_running_loop().create_task(work))
    try:
        if not await ended(task, seconds):
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


async def ended(work: asyncio.Future[Any], seconds: float | None = None) -> bool:
    """Waits until `work` has ended, but not longer than this. Returns whether it has. A cancellation does not cancel `work`.

    `asyncio.wait` does this for a set. A call waits several times, and saves the cost of the sets.
    """
    if work.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    work.add_done_callback(wake)
    timer = None if seconds is None else loop.call_later(max(0.0, seconds), wake)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        work.remove_done_callback(wake)
    return work.done()


def quiet(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """The same task. Nobody has to look at its failure."""
    task.add_done_callback(look)
    return task


def look(task: asyncio.Task[Any]) -> None:
    """Looks at a task's failure, as perhaps nobody else does."""
    if not task.cancelled():
        task.exception()


def cancellations(task: asyncio.Task[Any]) -> int:
    """How many cancellations of a task nobody has taken back. Before Python 3.11 nobody knows."""
    if sys.version_info >= (3, 11):
        return task.cancelling()
    return 0


def take_back_cancellation(task: asyncio.Task[Any]) -> int | None:
    """Takes one back, and returns how many are left. Before Python 3.11 nobody knows."""
    if sys.version_info >= (3, 11):
        return task.uncancel()
    return None
