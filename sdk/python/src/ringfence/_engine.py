"""What a client does on its event loop. The handles of leases, for threads and for tasks, call it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from . import _clock, _fork, _wire
from ._acquire import Acquire
from ._clock import Moment
from ._cluster import Cluster
from ._held import Held
from ._hooks import Deliver, Hooks, Teller, check, on_the_loop
from ._keeper import Keeper
from ._leaving import Leaving
from ._lifetime import MS, Confirmation
from ._nodes import Nodes
from ._releases import LAST_CHANCE
from ._tasks import bounded, ended, look, quiet
from ._threads import LOG
from ._tls import Tls
from ._waiting import read_holders
from .errors import Blocker, Closed, Invalid, LossReason, Lost, TimedOut

T = TypeVar("T")
_HURRIES_AFTER = 0.3


@dataclass(frozen=True)
class Settings:
    """How a client reaches its cluster."""

    urls: tuple[str, ...]
    tls: Tls | None
    credential: str | None = field(repr=False)
    learns: bool
    clock: _clock.Clock
    hooks: Hooks | None

    @staticmethod
    def check(
        urls: str | list[str] | tuple[str, ...],
        credential: str | None,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        clock: _clock.Clock,
        hooks: Hooks | None,
    ) -> Settings:
        """Checks them, and loads the files."""
        texts = tuple([urls] if isinstance(urls, str) else urls)
        is_https = Nodes(texts).is_https
        if credential is not None and not (
            isinstance(credential, str)
            and credential
            and credential.isascii()
            and credential.isprintable()
            and " " not in credential
        ):
            raise Invalid("credential", "must be visible ASCII characters without spaces")
        for name, value in (("credential", credential), ("ca", ca), ("cert", cert), ("key", key)):
            if value is not None and not is_https:
                scheme = urlsplit(texts[0]).scheme
                raise Invalid(
                    name,
                    f"is for https URLs, not {scheme}: over a plain connection anybody could read and write",
                )
        ca, cert, key = (None if path is None else os.fspath(path) for path in (ca, cert, key))
        # With the system's authorities anybody can have a certificate for the host that a response names.
        learns = credential is None or ca is not None
        tls = Tls(ca, cert, key) if is_https else None
        return Settings(texts, tls, credential, learns, clock, check(hooks))


class Engine:
    """A client on one event loop of one process. Make it on that loop."""

    def __init__(self, settings: Settings, deliver: Deliver | None = None) -> None:
        self.tell = Teller(settings.hooks, deliver or on_the_loop())
        self.loop = asyncio.get_running_loop()
        self.process = _fork.process()
        self.cluster = Cluster(
            settings.urls, settings.tls, settings.credential, settings.learns, settings.clock
        )
        self.keeper = Keeper(self.cluster)
        self.leaving = Leaving(self.cluster, self.keeper)
        # It is needed as long as a release goes on.
        self.cluster.owner = self
        self._pending: set[asyncio.Task[Held]] = set()
        self._is_settling = False
        self._closing: asyncio.Task[int] | None = None
        self._unsure = 0
        self._left: int | None = None
        self._end = self._at_the_end()
        # Its first step is what tells the loop of it.
        with suppress(StopIteration):
            self._end.__anext__().send(None)

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self.cluster.is_closed

    async def acquire(self, spec: _wire.Spec, timeout: float | None = None) -> Held:
        """Acquires a lease, and keeps it."""
        return await self._call(partial(self._acquire, spec), timeout)

    async def adopt(self, lease_id: str, timeout: float | None = None) -> Held:
        """Takes over a lease: renews it once, and keeps it."""
        return await self._call(partial(self._adopt, lease_id), timeout)

    async def renew(self, held: Held, ttl_ms: int | None, timeout: float | None = None) -> None:
        """Renews a lease now."""
        self._check(held)
        try:
            renewing = self.cluster.renew(held.lease_id, ttl_ms)
            held.confirm(await (renewing if timeout is None else bounded(renewing, timeout)))
        except asyncio.TimeoutError:
            raise TimedOut(timeout or 0.0, "timeout") from None
        except Lost as lost:
            held.lose(lost.reason)
        self.keeper.wake()
        self._check(held)

    def begin_release(
        self, held: Held, by: Literal["holder", "client"] = "holder"
    ) -> tuple[asyncio.Future[None], LossReason | None]:
        """Releases a lease, whatever becomes of the caller. Returns what tells of it, and why it was lost before, if it was."""
        lost = held.release(by)
        told = self.leaving.begin(held, lost)
        held.tell_hooks()
        return told, lost

    async def release(self, held: Held, timeout: float | None = None) -> None:
        """Releases a lease, and waits for that. Raises `Lost` if it was lost before.

        It is done also if the caller is cancelled, or `timeout` is over: both leave only the answer.
        """
        if held.is_released:
            return
        told, lost = self.begin_release(held)
        try:
            await ended(told, timeout)
        except asyncio.CancelledError:
            # The program may end then.
            await ended(told, LAST_CHANCE)
            raise
        if lost is not None:
            raise Lost(lost)
        if not told.done():
            raise TimedOut(timeout or 0.0, "timeout")
        told.result()

    def drop(self, held: Held) -> None:
        """Releases a lease whose handle is gone, in the background."""
        if not held.is_released:
            self.begin_release(held)

    def give_up(self, held: Held) -> None:
        """Leaves a lease as it is, to whoever has its id."""
        self.keeper.remove(held)
        held.leave()

    async def close(self, within: float) -> int:
        """Ends what waits, releases all leases, and waits for that, within this time. Returns how many are left.

        It goes on if the caller is cancelled: the caller may be the body of a lease that ends here. A repeat waits for the first.
        """
        bound = None if self._closing is None else within
        closing = self.begin_close(within)
        try:
            await ended(closing, bound)
        except asyncio.CancelledError:
            await ended(closing, LAST_CHANCE)
            raise
        return closing.result() if closing.done() and not closing.cancelled() else self.left()

    def begin_close(self, within: float) -> asyncio.Task[int]:
        """Begins to close the engine. A repeat begins nothing."""
        if self._closing is None:
            self.cluster.is_closed = True
            for task in self._pending:
                task.cancel()
            self._take()
            self._closing = quiet(self.loop.create_task(self._close(within)))
        return self._closing

    def left(self) -> int:
        """The number of leases that it has or releases or, once it is closed, could not release. From any thread."""
        if self._left is not None:
            return self._left
        return len(self.keeper) + len(self.cluster.releases) + self._unsure

    def _take(self) -> None:
        """Ends all leases. Who works under one is told before another can have it."""
        for held in self.keeper.leases():
            if not self.leaving.is_left(held):
                self.begin_release(held, by="client")

    async def _close(self, within: float) -> int:
        until = time.monotonic() + within
        waiting = {*self._pending, self.cluster.spawn(self.leaving.settled())}
        await asyncio.wait(waiting, timeout=within)
        self._unsure = self.leaving.end()
        left = self._unsure + await self.cluster.close(until - time.monotonic())
        self.keeper.end()
        self._left = left
        if left:
            LOG.warning("%d leases could not be released in time: they end with their ttl", left)
        with suppress(RuntimeError):
            # The loop may be closing it.
            await self._end.aclose()
        return left

    async def settle(self, within: float) -> None:
        """Ends what waits, and waits for releases, within this time: the program ends."""
        until = time.monotonic() + within
        self._is_settling = True
        pending = set(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=within)
        await self._settle(until - time.monotonic())

    async def _settle(self, within: float) -> None:
        """Waits for releases. The node may hang that was asked first."""
        hurry = self.loop.call_later(_HURRIES_AFTER, self.cluster.releases.hurry)
        try:
            await bounded(self._settled(), within)
        except asyncio.TimeoutError:
            LOG.warning("leases could not be released before the program ended: they end with their ttl")
        finally:
            hurry.cancel()

    async def _settled(self) -> None:
        await self.leaving.settled()
        await self.cluster.releases.settled()

    async def _at_the_end(self) -> AsyncGenerator[None, None]:
        """The end of the loop. `asyncio.run` first cancels all tasks, as programs do that go on; then it closes async generators."""
        try:
            yield
        finally:
            if self._left is None:
                # What was dropped last is told in the next round.
                await asyncio.sleep(0)
                await self._settle(LAST_CHANCE)
                self.keeper.end()
                self.leaving.end()
                await self.cluster.close(0.0)
                # Connections take a round to close.
                await asyncio.sleep(0)

    async def _call(self, work: Callable[[], Coroutine[Any, Any, Held]], timeout: float | None) -> Held:
        """Runs it as a task of its own, which `close` ends. A result that the caller does not get is released.

        If somebody has cancelled that task who did not know it ("cancel all other tasks"), it is begun again.
        """
        begun = time.monotonic()
        while not (self.is_closed or self._is_settling):
            left = None if timeout is None else begun + timeout - time.monotonic()
            task = await self._run(work, timeout, left)
            if not task.cancelled():
                return task.result()
        raise Closed("the client is closed")

    async def _run(
        self, work: Callable[[], Coroutine[Any, Any, Held]], timeout: float | None, left: float | None
    ) -> asyncio.Task[Held]:
        task = self.loop.create_task(work())
        self._pending.add(task)
        task.add_done_callback(self._ended)
        try:
            await ended(task, left)
        except asyncio.CancelledError:
            self._give_back(task)
            # For a second at most. Whoever is cancelled once more does not wait.
            await ended(task)
            raise
        if not task.done():
            self._give_back(task)
            raise TimedOut(timeout or 0.0, "timeout")
        return task

    def _ended(self, task: asyncio.Task[Held]) -> None:
        self._pending.discard(task)
        look(task)

    def _give_back(self, task: asyncio.Task[Held]) -> None:
        """Nobody waits for it any more."""
        if task.cancel():
            # It may be granted all the same.
            task.add_done_callback(self._give_back)
        elif not task.cancelled() and task.exception() is None:
            self.drop(task.result())

    async def _acquire(self, spec: _wire.Spec) -> Held:
        acquire = Acquire(self.cluster, self.keeper, spec, self.tell)
        asked = time.monotonic()
        confirmation = await acquire.run()
        least = spec.hold_at_least_ms * MS
        held = self._hold(confirmation, self.cluster.clock().after(least) if least > 0 else None)
        if spec.max_hold_ms is not None:
            held.give_up_at(confirmation.sent.after(spec.max_hold_ms * MS))
        if not spec.renews:
            held.stop_renewals()
        self.keeper.add(held)
        self.tell("granted", held.view, time.monotonic() - asked)
        return held

    async def holders(self, key: str, timeout: float | None) -> list[Blocker]:
        """The leases that hold a key."""
        if self.is_closed:
            raise Closed("the client is closed")
        try:
            reading = read_holders(self.cluster, key)
            return await (reading if timeout is None else bounded(reading, timeout))
        except asyncio.TimeoutError:
            raise TimedOut(timeout or 0.0, "timeout") from None

    async def _adopt(self, lease_id: str) -> Held:
        held = self._hold(await self.cluster.renew(lease_id))
        self.keeper.add(held)
        return held

    def _hold(self, confirmation: Confirmation, least_until: Moment | None = None) -> Held:
        return Held(confirmation, self.cluster.clock, self.process, least_until, self.tell)

    def _check(self, held: Held) -> None:
        lost = held.loss()
        if lost is not None:
            raise Lost(lost)
