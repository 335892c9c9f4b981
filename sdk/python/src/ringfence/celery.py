"""Celery: tasks that run once at a time, and one beat of many that is active.

    @app.task(bind=True)
    @once(client, lambda self, day: f"reports/{day}")
    def report(self, day: str, *, lease: ringfence.Lease) -> None:
        for part in parts(day):
            lease.check()
            write(part, lease.headers())

    app.conf.beat_scheduler = one_beat(client, "beat/shop")

A client may be made when the module is imported: each worker process makes connections of its own.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

from celery import current_task
from celery.beat import PersistentScheduler, Scheduler

from . import _once, _sync
from .errors import Error, Held, TimedOut

__all__ = ["once", "one_beat"]

_LOG = logging.getLogger("ringfence")
# Wrappers made by `functools.wraps` have this attribute, too.
_MARK = "_ringfence_once"
_BEAT_TIMEOUT = 2.0
_BEAT_PAUSE = 5.0


def once(
    client: _sync.Client,
    key: str | Callable[..., str],
    *,
    wait: float = 0.0,
    countdown: float | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The same task, under a lease. Write it below `@app.task`. A parameter `lease` gets the lease.

    `key` is one for all runs, or a function of the task's arguments. While another run has it, the task waits for `wait` seconds,
    which takes a place of the worker. Then a worker retries it after `countdown` seconds, as often as its `max_retries` says.
    Without `countdown`, it fails with `Held`, or with `TimedOut` if it has waited. It fails so, too, if no worker runs it: if it is
    called directly or eagerly, or if another task with `once` calls its `run`. If a task without `once` calls it, as a subclass does
    by `super().run()`, that task is retried. A task that is delivered again after its worker was killed (`acks_late`) finds its own
    lease, which lives on for the `ttl`, so it needs a `countdown`. `countdown` is for nothing else: name `Unavailable` and `Unknown`,
    which an outage raises, in the task's `autoretry_for`.

    A run learns of a loss by `lease.check()`, or at its end: the task then fails with `Lost`, so `autoretry_for` may name it.
    """

    def decorate(task: Callable[..., Any]) -> Callable[..., Any]:
        takes = _once.takes_lease(task)

        @functools.wraps(task)
        def run(*arguments: Any, **named: Any) -> Any:
            own = key if isinstance(key, str) else key(*arguments, **named)
            try:
                lease = client.lock(own, wait=wait, **options).acquire()
            except (Held, TimedOut) as held:
                if countdown is None or not _is_of_worker(run):
                    raise
                raise current_task.retry(exc=held, countdown=countdown) from None
            with lease:
                return task(*arguments, **(named | {"lease": lease} if takes else named))

        # By this, Celery checks the arguments when a task is sent.
        signature = inspect.signature(task)
        given = [one for one in signature.parameters.values() if one.name != "lease"]
        run.__signature__ = signature.replace(parameters=given)  # type: ignore[attr-defined]
        setattr(run, _MARK, run)
        return run

    return decorate


def one_beat(
    client: _sync.Client, key: str, *, base: type[Scheduler] = PersistentScheduler, **options: Any
) -> type[Scheduler]:
    """A class for `beat_scheduler`: all beats follow the schedule, and the one that has the lease sends the tasks.

    `base` is `PersistentScheduler`, `Scheduler`, or a class of these with the same `tick`, `reserve` and `apply_entry`. Others are
    refused: RedBeat sends tasks in a tick of its own, and has a lock; django-celery-beat writes what a standby skips to the database.

    A beat that ends releases the lease, and another goes on at the next task that is due. What comes due while a beat that vanished
    still has the lease, for the `ttl` at most, nobody sends. Beats whose clocks differ may send a task twice, or not, when the lease
    changes hands. While the cluster is away, nobody sends once the lease has ended.
    """
    for name in ("tick", "reserve", "apply_entry"):
        if getattr(base, name) is not getattr(Scheduler, name):
            raise TypeError(f"{base.__qualname__} has a {name} of its own, so it cannot have a standby")
    lock = client.lock(key, **options)

    class OneBeat(base):  # type: ignore[misc]
        """A scheduler of which one is active."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            # It may take what is due already.
            self.turn = _Turn(lock)
            super().__init__(*arguments, **named)

        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            """Sends a task that is due, if this one is active."""
            if self.turn.is_ours():
                super().apply_entry(entry, producer)
            else:
                _LOG.info("this beat is not active, and does not send %r", entry.name)

        def close(self) -> None:
            """Ends, and lets another one go on."""
            self.turn.end()
            super().close()

    return OneBeat


def _is_of_worker(run: Callable[..., Any]) -> bool:
    """Whether a worker runs `run` as its current task: another task may call it, too."""
    # A retry of an eager task is made at once, without end.
    if not current_task or current_task.request.called_directly or current_task.request.is_eager:
        return False

    marks: list[Any] = []
    # Celery wraps `run` for `autoretry_for`, and a task may have several wrappers.
    inspect.unwrap(current_task.run, stop=lambda function: marks.append(getattr(function, _MARK, None)))
    # Without any mark, the task may still call `run`: a subclass by `super().run()`, or a wrapper without `functools.wraps`.
    return run in marks or not any(marks)


class _Turn:
    """Which of many is active: the one that has the lease."""

    def __init__(self, lock: _sync.Lock) -> None:
        self._lock = lock
        self._lease: _sync.Lease | None = None
        self._away_until = 0.0

    def is_ours(self) -> bool:
        """Whether it is this one, which tries to be if it is not."""
        if self._lease is not None and self._lease.lost_reason is None:
            return True
        self._lease = None
        if time.monotonic() < self._away_until:
            return False
        try:
            self._lease = self._lock.try_acquire(timeout=_BEAT_TIMEOUT)
        except Held:
            return False
        except Error as error:
            # The next tasks that are due must not wait for that, too.
            self._away_until = time.monotonic() + _BEAT_PAUSE
            _LOG.warning("this beat cannot become active: %s", error)
            return False
        _LOG.info("this beat is active, with token %d", self._lease.token)
        return True

    def end(self) -> None:
        """Lets another one have it."""
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                lease.release(timeout=_BEAT_TIMEOUT)
        except Error as error:
            _LOG.warning("this beat ends without a release: %s", error)
