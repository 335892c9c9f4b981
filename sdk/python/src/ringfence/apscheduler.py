"""Jobs of APScheduler that run on one of many schedulers.

    @scheduler.scheduled_job("cron", hour=3)
    @once(client, "jobs/nightly", hold_at_least=60)
    def nightly(lease: ringfence.Lease) -> None:
        write(lease.token)

Each scheduler starts the job, and one gets the lease. The others return `None`, and log that. A job learns of a loss as in any
other block under a lease: a coroutine is cancelled, a function calls `lease.check()`, and the scheduler has the error `Lost`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from . import _once, _sync, aio
from .errors import Held

__all__ = ["once"]


def once(
    client: _sync.Client | aio.Client, key: str, *, hold_at_least: float, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same job, which is skipped while another has the lease. A parameter `lease` gets the lease.

    `hold_at_least`: for how many seconds others are kept away from the start on, so that a quick job does not run again where the
    clock is slow: longer than the clocks differ, and shorter than the time between two runs. `options` are those of `Client.lock`.
    With a client for asyncio the job is a coroutine function, for `AsyncIOScheduler`.
    """
    lock = client.lock(key, hold_at_least=hold_at_least, **options)

    def decorate(job: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(job) is not isinstance(lock, aio.Lock):
            raise TypeError(
                f"{job!r}: coroutine functions need a client for asyncio, and functions the other one"
            )
        return _in_task(lock, key, job) if isinstance(lock, aio.Lock) else _in_thread(lock, key, job)

    return decorate


def _in_thread(lock: _sync.Lock, key: str, job: Callable[..., Any]) -> Callable[..., Any]:
    takes = _once.takes_lease(job)

    @functools.wraps(job)
    def run(*arguments: Any, **named: Any) -> Any:
        try:
            lease = lock.try_acquire()
        except Held as held:
            return _once.skipped(key, held)
        with lease:
            return job(*arguments, **(named | {"lease": lease} if takes else named))

    return run


def _in_task(lock: aio.Lock, key: str, job: Callable[..., Any]) -> Callable[..., Any]:
    takes = _once.takes_lease(job)

    @functools.wraps(job)
    async def run(*arguments: Any, **named: Any) -> Any:
        try:
            lease = await lock.try_acquire()
        except Held as held:
            return _once.skipped(key, held)
        async with lease:
            return await job(*arguments, **(named | {"lease": lease} if takes else named))

    return run
