"""The client for asyncio: the body of `async with` is cancelled when its lease is lost.

    async with ringfence.aio.Client(urls) as client:
        async with client.lock("accounts/42", ttl=15) as lease:
            await write(lease.token)

Everything happens on the event loop of the caller: a loop that is blocked renews nothing, and its leases end in time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from . import _clock, _fork, _wire
from ._engine import Engine, Settings
from ._held import Held
from ._lease import DEFAULT_TTL, BaseLease, Options
from ._lifetime import State
from ._tasks import cancellations, take_back_cancellation
from .errors import Closed, Error, Lost, Unavailable, Unknown

__all__ = ["Client", "Lease", "Lock"]

T = TypeVar("T")
_LOG = logging.getLogger("ringfence")
_CLOSE_WITHIN = 5.0
# Tells our own cancellation of a body from those of others.
_LOST = "ringfence: the lease is lost"


class Client:
    """A client of the cluster whose nodes are at `urls` (`https://host:port`; some of them are enough). It sends nothing by itself.

    `credential` shows who the client is, `ca` is a file with the authorities of the nodes' certificates (by default those that
    this system trusts), `cert` and `key` are files with the client's certificate and key. All of them are for https URLs.

    A client belongs to one event loop, and one process. Call `close` at the end, or use `async with`.
    """

    def __init__(
        self,
        urls: str | list[str] | tuple[str, ...],
        *,
        credential: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        clock: _clock.Clock = _clock.now,
    ) -> None:
        self._settings = Settings.check(urls, credential, ca, cert, key, clock)
        self._engine: Engine | None = None
        self._is_closed = False

    def lock(
        self,
        keys: _wire.Keys,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        shared: bool = False,
        limit: int | None = None,
        holder: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        hold_at_least: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Lease], Any] | None = None,
    ) -> Lock:
        """A lock on one or several keys, granted together. It can be used again and again, also by several tasks at once.

        Times are in seconds. `ttl`: how long others wait if this process vanishes. `wait`: how long to wait in the queue (by default
        for as long as it takes). `shared`, `limit`: share the keys, with at most so many holders. `holder`, `metadata`: public
        labels. `max_hold`: after this time the lease is lost, even while it is renewed. `hold_at_least`: the lease outlives the
        block until this time has passed since the grant. `renew=False`: do not renew by itself. `on_lost` is called if the lease is
        lost before it is released.
        """
        options = Options(
            keys,
            ttl=ttl,
            wait=wait,
            shared=shared,
            limit=limit,
            holder=holder,
            metadata=metadata,
            max_hold=max_hold,
            hold_at_least=hold_at_least,
            renew=renew,
            on_lost=on_lost,
        )
        return Lock(self, options)

    async def adopt(self, lease_id: str) -> Lease:
        """Takes over a lease by its id, perhaps from another process: renews it once, and from then on.

        Nobody else may renew or release it. Raises `Lost` if it has ended.
        """
        engine = self._on_loop()
        return Lease(engine, await engine.adopt(_wire.lease_id(lease_id)), 0, None)

    async def lead(
        self,
        key: str,
        work: Callable[[Lease], Awaitable[T]],
        *,
        ttl: float = DEFAULT_TTL,
        holder: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
    ) -> T:
        """Runs `work` as the leader, and returns its result.

        If the lease is lost, `work` is cancelled, and once it has ended, it stands for election again. An error of `work` ends it.
        """
        lock = self.lock(key, ttl=ttl, holder=holder, metadata=metadata, max_hold=max_hold)
        while True:
            try:
                lease = await lock.acquire()
            except (Unavailable, Unknown) as error:
                _LOG.warning("cannot stand for election: %s", error)
                await asyncio.sleep(random.uniform(0.5, 1.0))  # noqa: S311
                continue
            try:
                async with lease:
                    return await work(lease)
            except Lost:
                # The caller sees the loss of another lease as an error of `work`.
                if lease.state is State.RELEASED:
                    raise

    async def close(self, within: float = _CLOSE_WITHIN) -> None:
        """Releases all leases, ends what waits, and returns once releases have been answered, after this time at the latest."""
        engine, self._is_closed = self._engine, True
        if engine is not None and engine.process == _fork.process() and not engine.loop.is_closed():
            await self._on_loop().close(within)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    def _on_loop(self) -> Engine:
        """The engine on this loop."""
        engine, loop = self._engine, asyncio.get_running_loop()
        if engine is not None and engine.process == _fork.process():
            if engine.loop is loop:
                return engine
            if not engine.loop.is_closed():
                raise RuntimeError("this client belongs to another event loop: use one client per loop")
        if self._is_closed:
            raise Closed("the client is closed")
        self._engine = Engine(self._settings)
        return self._engine


class Lock:
    """A lock, from `Client.lock`. Each `async with` acquires a lease of its own."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client, self._options = client, options
        self._entered: weakref.WeakKeyDictionary[asyncio.Task[Any], list[Lease]] = weakref.WeakKeyDictionary()

    async def acquire(self) -> Lease:
        """Acquires a lease: waits its turn, first come first served. If it is cancelled, the place, or the grant, is given back."""
        return await self._acquire(self._options.spec)

    async def try_acquire(self) -> Lease:
        """Tries once: raises `Held` if a key is not free."""
        return await self._acquire(_wire.tried(self._options.spec))

    async def _acquire(self, spec: _wire.Spec) -> Lease:
        engine = self._client._on_loop()
        return Lease(engine, await engine.acquire(spec), spec.hold_at_least_ms, self._options.on_lost)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        await lease.__aenter__()
        self._entered.setdefault(_task(), []).append(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leases = self._entered.get(_task())
        if not leases:
            raise RuntimeError("a task leaves only the locks that it has entered")
        await leases.pop().__aexit__(kind, error, traceback)


class Lease(BaseLease):
    """A granted lease. Use it with `async with`, or call `release`. If it is dropped, it is released in the background."""

    def __init__(
        self, engine: Engine, held: Held, hold_at_least_ms: int, on_lost: Callable[[Lease], Any] | None
    ) -> None:
        super().__init__(held)
        self._engine = engine
        self._hold_at_least_ms = hold_at_least_ms
        self._body: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._outer = 0
        self._dropped = weakref.finalize(self, _drop, engine, held)
        self._dropped.atexit = False
        if on_lost is not None:
            _tell(self, on_lost)

    async def renew(self, ttl: float | None = None) -> None:
        """Renews it now, perhaps with another ttl. There is no need to if it renews itself."""
        self.check()
        await self._engine.renew(self._held, None if ttl is None else _wire.ttl_ms(ttl))

    async def release(self) -> None:
        """Releases the keys, also if it is cancelled. A repeat does nothing.

        Raises `Lost` if the lease was lost before: what was done under it may have met another holder. After `Unknown` and
        `Unavailable` the release is repeated in the background.
        """
        if self._held.is_forked:
            raise Lost("forked")
        self._dropped.detach()
        await self._engine.release(self._held)

    def into_id(self) -> str:
        """Leaves the lease as it is, and returns its id: it ends with its ttl unless somebody adopts or releases it."""
        self.check()
        self._dropped.detach()
        self._engine.give_up(self._held)
        return self.lease_id

    async def wait_lost(self) -> str:
        """Returns the reason once the lease is lost or released."""
        lost = asyncio.Event()
        self._held.on_loss(lost.set)
        try:
            while (reason := self._held.loss()) is None:
                left = self._held.remaining() / 1e9
                waiting = asyncio.ensure_future(lost.wait())
                try:
                    await asyncio.wait({waiting}, timeout=min(max(left * 0.875, 0.001), 1.0))
                finally:
                    waiting.cancel()
            return reason
        finally:
            self._held.forget(lost.set)

    async def __aenter__(self) -> Lease:
        if self._body is not None:
            raise RuntimeError("a lease is entered once")
        self.check()
        self._body = _task()
        self._outer = cancellations(self._body)
        self._held.on_loss(self._cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._held.forget(self._cancel)
        reason = self._held.loss() if self.state is not State.RELEASED else None
        is_ours = self._is_cancelled and await self._absorb(error)
        if self._held.is_forked:
            return
        self._dropped.detach()
        try:
            await self._engine.leave(self._held, self._hold_at_least_ms)
        except Error as failure:
            if error is None:
                raise
            if not is_ours:
                _LOG.debug("a lease was not released, and the error of the block says more: %s", failure)
        if reason is not None and (error is None or is_ours):
            raise Lost(reason) from None

    def _cancel(self) -> None:
        if self._body is not None and not self._body.done():
            self._is_cancelled = True
            self._body.cancel(_LOST)

    async def _absorb(self, error: BaseException | None) -> bool:
        """Takes back our cancellation of the body. Returns whether that is what ended the body, and nobody else wants it."""
        assert self._body is not None, "it was entered"  # noqa: S101
        was_told = isinstance(error, asyncio.CancelledError)
        if not was_told:
            try:
                # It may arrive yet.
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                if _LOST not in late.args:
                    raise
        left = take_back_cancellation(self._body)
        if left is None:
            return was_told and error is not None and _LOST in error.args
        if left > self._outer and not was_told:
            raise asyncio.CancelledError
        return left <= self._outer and was_told


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock is used within a task")
    return task


def _tell(lease: Lease, on_lost: Callable[[Lease], Any]) -> None:
    """Calls back without keeping the lease alive."""
    weak = weakref.ref(lease)

    def call() -> None:
        alive = weak()
        if alive is not None:
            on_lost(alive)

    lease._held.on_loss(call)


def _drop(engine: Engine, held: Held) -> None:
    if held.is_forked or engine.loop.is_closed():
        return
    engine.loop.call_soon_threadsafe(engine.drop, held)
