"""The client for asyncio: the body of `async with` is cancelled when its lease is lost.

    async with ringfence.aio.Client(urls) as client:
        async with client.lock("accounts/42", ttl=15) as lease:
            await write(lease.token)

Everything happens on the event loop of the caller: a loop that is blocked renews nothing, and its leases end in time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import _clock, _fork, _wire
from ._blocks import Blocks, Place, caller
from ._body import Body
from ._engine import Engine, Settings
from ._held import Held, guarded
from ._hooks import Hooks
from ._lease import DEFAULT_TTL, BaseLease, OnError, Options, Outcome, TermOptions, report_leak
from ._releases import LAST_CHANCE
from .errors import Blocker, Closed, Error, LossReason, Lost, TimedOut, Unavailable, Unknown

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Client", "Lease", "Lock"]

T = TypeVar("T")
P = ParamSpec("P")
_LOG = logging.getLogger("ringfence")
_CLOSE_WITHIN = 5.0


class Client:
    """A client of the cluster whose nodes are at `urls` (`https://host:port`; some of them are enough). It sends nothing by itself.

    `credential` shows who the client is, `ca` is a file with the authorities of the nodes' certificates (by default those that
    this system trusts), `cert` and `key` are files with the client's certificate and key. All of them are for https URLs.
    `hooks` tell what becomes of leases, on the loop.

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
        hooks: Hooks | None = None,
    ) -> None:
        self._settings = Settings.check(urls, credential, ca, cert, key, clock, hooks)
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

    async def adopt(self, lease_id: str, *, timeout: float | None = None) -> Lease:
        """Takes over a lease by its id, perhaps from another process: renews it once, and from then on.

        Nobody else may renew or release it. Raises `Lost` if it has ended.
        """
        engine, bound = self._on_loop(), _wire.bound("timeout", timeout)
        return Lease(engine, await engine.adopt(_wire.lease_id(lease_id), bound), None)

    async def holders(self, key: str, *, timeout: float | None = None) -> list[Blocker]:
        """Who holds the key now, as the cluster says: none if it is free. It may be another by the time that you look."""
        checked, bound = _wire.check_key(key, "key"), _wire.bound("timeout", timeout)
        return await self._on_loop().holders(checked, bound)

    async def lead(
        self,
        key: str,
        work: Callable[[Lease], Awaitable[T]],
        *,
        on_error: OnError | None = None,
        **term: Unpack[TermOptions],
    ) -> T:
        """Runs `work` as the leader, and returns its result. `ttl`, `holder`, `metadata` and `max_hold` are those of its leases.

        If the lease is lost, `work` is cancelled, and once it has ended, it stands for election again. What `work` raises then,
        and a guard's `Stale` at any time, goes to `on_error`, or to the log. Any other error of `work` ends it, as does a
        cancellation.
        """
        lock = self.lock(key, **term)
        while True:
            try:
                lease = await lock.acquire()
            except (Unavailable, Unknown) as error:
                _LOG.warning("cannot stand for election: %s", error)
                await _pause()
                continue
            outcome = Outcome(on_error)
            with outcome.until_lost():
                async with lease:
                    with outcome.of_work():
                        result = await work(lease)
            if outcome.is_last():
                return result
            if outcome.has_failed:
                await _pause()

    async def close(self, within: float = _CLOSE_WITHIN) -> int:
        """Releases all leases, ends what waits, and returns once releases have been answered, after this time at the latest.

        Whoever works under a lease is told that it is lost (`released`). Returns how many leases it could not release, which end with
        their ttl.
        """
        bound = _wire.bound("within", within) or 0.0
        engine, self._is_closed = self._engine, True
        if engine is None or engine.process != _fork.process() or engine.loop.is_closed():
            return 0
        return await self._on_loop().close(bound)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close()

    def _on_loop(self) -> Engine:
        """The engine on this loop."""
        engine, loop = self._engine, asyncio.get_running_loop()
        if engine is not None and engine.process == _fork.process():
            if engine.loop is loop and (self._is_closed or not engine.is_closed):
                return engine
            if engine.loop is not loop and not engine.loop.is_closed():
                raise RuntimeError("this client belongs to another event loop: use one client per loop")
        if self._is_closed:
            raise Closed("the client is closed")
        self._engine = Engine(self._settings)
        return self._engine


class Lock:
    """A lock, from `Client.lock`. Each `async with` acquires a lease of its own."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client, self._options = client, options
        self._blocks: Blocks[Lease] = Blocks()

    async def acquire(self, *, timeout: float | None = None) -> Lease:
        """Acquires a lease: waits its turn, first come first served. `timeout` bounds the whole call, in seconds.

        If it is cancelled, the place, or the grant, is given back.
        """
        return await self._acquire(self._options.spec, timeout)

    async def try_acquire(self, *, timeout: float | None = None) -> Lease:
        """Tries once: raises `Held` if a key is not free. `timeout` bounds the whole call, in seconds."""
        return await self._acquire(_wire.tried(self._options.spec), timeout)

    async def _acquire(self, spec: _wire.Spec, timeout: float | None) -> Lease:
        engine, bound = self._client._on_loop(), _wire.bound("timeout", timeout)
        held = await engine.acquire(spec, bound)
        return Lease(engine, held, self._options.on_lost)

    def __call__(self, work: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """The same coroutine function, each call of which has a lease of its own, and is cancelled when that is lost."""

        @functools.wraps(work)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self:
                return await work(*args, **kwargs)

        return locked

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        # What awaits it may be a task of `wait_for`. The body is in the task that asks.
        return self._enter(caller(), _task())

    async def _enter(self, place: Place | None, task: asyncio.Task[Any]) -> Lease:
        lease = await self.acquire()
        lease._enter(task)
        self._blocks.enter(place, id(task), lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = self._blocks.leave(caller(), id(asyncio.current_task()))
        await lease.__aexit__(kind, error, traceback)


class Lease(BaseLease):
    """A granted lease. Use it with `async with`, or call `release`. If it is dropped, it is released in the background."""

    def __init__(self, engine: Engine, held: Held, on_lost: Callable[[Lease], Any] | None) -> None:
        super().__init__(held)
        self._engine = engine
        self._body: Body | None = None
        self._dropped = weakref.finalize(self, _drop, engine, held)
        self._dropped.atexit = False
        # Its object may have the lease: nothing that outlives the handle refers to it.
        self._on_lost = on_lost
        if on_lost is not None:
            _tell(self)

    async def renew(self, ttl: float | None = None, *, timeout: float | None = None) -> None:
        """Renews it now, perhaps with another ttl. There is no need to if it renews itself. `timeout` bounds the call."""
        self.check()
        ttl_ms, bound = None if ttl is None else _wire.ttl_ms(ttl), _wire.bound("timeout", timeout)
        await self._engine.renew(self._held, ttl_ms, bound)

    async def release(self, *, timeout: float | None = None) -> None:
        """Releases the keys, also if it is cancelled. A repeat does nothing. `timeout` bounds the call, in seconds.

        Raises `Lost` if the lease was lost before: what was done under it may have met another holder. After `Unknown`,
        `Unavailable` and `TimedOut` the release is repeated in the background. With `hold_at_least` the keys stay held until that
        time has passed since the grant.
        """
        if self._held.is_forked:
            raise Lost("forked")
        bound = _wire.bound("timeout", timeout)
        self._dropped.detach()
        await self._engine.release(self._held, bound)

    def into_id(self) -> str:
        """Leaves the lease as it is, and returns its id: it ends with its ttl unless somebody adopts or releases it."""
        self.check()
        self._dropped.detach()
        self._engine.give_up(self._held)
        return self.lease_id

    async def wait_lost(self) -> LossReason:
        """Returns the reason once the lease is lost or released."""
        return await _wait_lost(self._held)

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        return self._entered(_task())

    async def _entered(self, task: asyncio.Task[Any]) -> Lease:
        self._enter(task)
        return self

    def _enter(self, task: asyncio.Task[Any]) -> None:
        if self._body is not None:
            raise RuntimeError("a lease is entered once")
        self.check()
        self._body = Body(task)
        self._held.on_loss(self._body.cancel)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        body, reason = self._body, self._loss()
        is_ours = False
        try:
            if body is not None:
                self._held.forget(body.cancel)
                is_ours = body.is_cancelled and await body.absorb(error)
        finally:
            # Whatever ends the block, the lease is not kept.
            if not self._held.is_forked:
                self._dropped.detach()
                await self._leave(error, is_ours)
        if reason is not None and (error is None or is_ours):
            raise Lost(reason) from None

    async def _leave(self, error: BaseException | None, is_ours: bool) -> None:
        try:
            # Whoever was cancelled may have to end: it does not wait for as long as others.
            is_cancelled = isinstance(error, asyncio.CancelledError) and not is_ours
            await self._engine.release(self._held, LAST_CHANCE if is_cancelled else None)
        except (Unknown, Unavailable, TimedOut):
            # It goes on in the background.
            return
        except Error as failure:
            if error is None:
                raise
            if not is_ours:
                _LOG.debug("a lease was not released, and the error of the block says more: %s", failure)


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock is used within a task")
    return task


async def _pause() -> None:
    await asyncio.sleep(random.uniform(0.5, 1.0))  # noqa: S311


async def _wait_lost(held: Held) -> LossReason:
    """Returns the reason once it is lost or released."""
    lost = asyncio.Event()
    held.on_loss(lost.set)
    try:
        while (reason := held.loss()) is None:
            waiting = asyncio.ensure_future(lost.wait())
            try:
                await asyncio.wait({waiting}, timeout=held.nap())
            finally:
                waiting.cancel()
        return reason
    finally:
        held.forget(lost.set)


def _tell(lease: Lease) -> None:
    """Calls back without keeping the lease alive, in the round after the body was cancelled: code that blocks delays nobody's end."""
    weak = weakref.ref(lease)

    def call() -> None:
        alive = weak()
        if alive is not None and alive._on_lost is not None:
            alive._engine.loop.call_soon(guarded, partial(alive._on_lost, alive))

    lease._held.on_told(call)


def _drop(engine: Engine, held: Held) -> None:
    if held.is_forked:
        return
    is_leak = held.loss() is None
    if not engine.loop.is_closed():
        engine.loop.call_soon_threadsafe(engine.drop, held)
    if is_leak:
        report_leak(held)
