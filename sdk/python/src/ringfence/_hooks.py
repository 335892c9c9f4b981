"""What a client tells of its leases, to whoever counts, logs or traces them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .errors import Invalid, LossReason

_LOG = logging.getLogger("ringfence")
_MOST = 10_000
_NAMES = ("waited", "granted", "renewed", "failed", "lost", "released")


@dataclass(frozen=True)
class LeaseView:
    """A lease, as hooks see it. Its id is a secret."""

    keys: tuple[str, ...]
    token: int


class Hooks:
    """What a client calls. Override what you need. A function that fails stops nothing, and goes to the log. A lease that was adopted
    was not granted here, and one that is left by its id is not released.

    Client for threads: all are called on one thread, in order, which renews nothing, so they may block. Nobody waits for them, nor
    does `close`. Client for asyncio: on the loop, so they must not block.
    """

    def waited(self, keys: Sequence[str], seconds: float) -> None:
        """An acquire has stood in the queue for so long, whatever came of it."""

    def granted(self, lease: LeaseView, seconds: float) -> None:
        """A lease was granted, so long after it was asked for."""

    def renewed(self, lease: LeaseView) -> None:
        """A lease was renewed."""

    def failed(self, lease: LeaseView, why: str) -> None:
        """A lease could not be renewed for now."""

    def lost(self, lease: LeaseView, reason: LossReason) -> None:
        """A lease is lost. What had to stop was told before."""

    def released(self, lease: LeaseView) -> None:
        """A lease was released: by its holder, by `close`, or since its handle was dropped."""


Deliver = Callable[[Callable[[], None]], object]
"""Calls something soon, in order."""


class Teller:
    """Calls hooks. It raises nothing, and waits for nothing."""

    def __init__(self, hooks: Hooks | None, deliver: Deliver) -> None:
        self._hooks, self._deliver = hooks, deliver

    def __call__(self, name: str, *subject: Any) -> None:
        """Calls one."""
        if self._hooks is not None:
            self._deliver(partial(self._call, name, subject))

    def end(self) -> None:
        """There is nothing more to tell."""
        if isinstance(self._deliver, Thread):
            self._deliver.end()

    def _call(self, name: str, subject: tuple[Any, ...]) -> None:
        try:
            hook = getattr(self._hooks, name, None)
            if hook is not None:
                hook(*subject)
        except Exception:  # noqa: BLE001 it is the user's
            _LOG.exception("the hook `%s` has failed for %s", name, subject[0])


class Thread:
    """A thread that calls one after the other, from the first on. What a hook that blocks leaves behind is bounded."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_begun = False
        self._is_full = False

    def __call__(self, call: Callable[[], None]) -> None:
        """Calls it there. Only the loop calls this."""
        if not self._is_begun:
            self._is_begun = True
            threading.Thread(target=self._main, name="ringfence-hooks", daemon=True).start()
        is_full, self._is_full = self._is_full, self._calls.qsize() >= _MOST
        if not self._is_full:
            self._calls.put(call)
        elif not is_full:
            _LOG.warning("%d events wait for a hook that blocks: some are not told", _MOST)

    def end(self) -> None:
        """Ends it once all is called."""
        if self._is_begun:
            self._calls.put(None)

    def _main(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def on_the_loop() -> Deliver:
    """Calls on this loop, once whatever is going on is done."""
    return asyncio.get_running_loop().call_soon


def check(hooks: Hooks | None) -> Hooks | None:
    """The same, if they can be called."""
    for name in _NAMES:
        if inspect.iscoroutinefunction(getattr(hooks, name, None)):
            raise Invalid("hooks", f"`{name}` is a coroutine function, and nobody would await it")
    return hooks
