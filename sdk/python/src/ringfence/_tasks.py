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
        await asyncio.wait({task}, timeout=max(0.0, seconds))
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def quiet(task: asyncio.Task[T]) -> asyncio.Task[T]:
    """The same task. Nobody has to look at its failure."""
    task.add_done_callback(_look)
    return task


def _look(task: asyncio.Task[Any]) -> None:
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
