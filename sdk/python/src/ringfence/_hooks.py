"""What a client tells of its leases, to whoever counts, logs or traces them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ._threads import LOG, Line
from .errors import Invalid, LossReason

_MOST = 10_000
_PAUSE = 1.0
# A thread is kept for a while, as hooks may have connections that belong to their thread.
_LINGERS = 30.0
_NAMES = ("waited", "granted", "renewed", "failed", "lost", "released")
_MAY_BE_DROPPED = ("failed", "renewed")


@dataclass(frozen=True)
class LeaseView:
    """A lease, as hooks see it. Its id is a secret."""

    keys: tuple[str, ...]
    token: int


class Hooks:
    """What a client calls. Override what you need. A function that fails stops nothing, and goes to the log. A lease that was adopted
    was not granted here, and one that is left by its id is not released.

    Client for threads: hooks run one after the other, on a thread that renews nothing, so they may block. The thread ends after half
    a minute without events, and another one begins later. Nobody waits for hooks, not even `close`. Client for asyncio: hooks run on
    the loop, so they must not block.
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


class Deliver(Protocol):
    """Calls something soon, in order."""

    def __call__(self, call: Callable[[], None], *, may_drop: bool) -> None:
        """`may_drop`: nobody counts on it."""


class Teller:
    """Calls hooks. It raises nothing, and waits for nothing: leases are renewed and released whatever becomes of hooks."""

    def __init__(self, hooks: Hooks | None, deliver: Deliver) -> None:
        self._hooks, self._deliver = hooks, deliver

    def __call__(self, name: str, *subject: Any) -> None:
        """Calls one."""
        if self._hooks is not None:
            # The loop may be closed.
            with suppress(Exception):
                self._deliver(partial(self._call, name, subject), may_drop=name in _MAY_BE_DROPPED)

    def _call(self, name: str, subject: tuple[Any, ...]) -> None:
        try:
            hook = getattr(self._hooks, name, None)
            if hook is not None:
                hook(*subject)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 it is the user's, who may call `sys.exit`
            LOG.error("the hook `%s` has failed for %s", name, subject[0], error=error)


class Thread:
    """Calls hooks one after the other, on a thread of their own. Behind a hook that blocks, renewals are left out."""

    def __init__(self) -> None:
        self._line = Line("ringfence-hooks", _LINGERS)
        self._is_full = False
        self._retry: asyncio.TimerHandle | None = None

    def __call__(self, call: Callable[[], None], *, may_drop: bool) -> None:
        """Calls it there. Only the loop calls this."""
        was_full, self._is_full = self._is_full, len(self._line) >= _MOST
        if not (self._is_full and may_drop) and not self._line(call) and self._retry is None:
            self._go_on_later()
        if self._is_full and not was_full:
            LOG.warning("%d events wait for a hook that blocks: renewals are not told", _MOST)

    def end(self) -> None:
        """Ends, as the loop has ended."""
        self._line.end()

    def _go_on_later(self) -> None:
        """Tries again later: there is no room for a thread, and no later event may come that would try."""
        self._retry = asyncio.get_running_loop().call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._retry = None
        if not self._line.go_on():
            self._go_on_later()


def on_the_loop() -> Deliver:
    """Calls on this loop, once whatever is going on is done."""
    loop = asyncio.get_running_loop()

    def deliver(call: Callable[[], None], *, may_drop: bool) -> None:
        loop.call_soon(call)

    return deliver


def check(hooks: Hooks | None) -> Hooks | None:
    """The same, if they can be called."""
    for name in _NAMES:
        if inspect.iscoroutinefunction(getattr(hooks, name, None)):
            raise Invalid("hooks", f"`{name}` is a coroutine function, and nobody would await it")
    return hooks
