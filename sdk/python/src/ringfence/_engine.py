"""What a client does on its event loop. The handles of leases, for threads and for tasks, call it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from . import _clock, _fork, _wire
from ._acquire import Acquire
from ._clock import Moment
from ._cluster import Cluster
from ._held import Held
from ._keeper import Keeper
from ._lifetime import MS, Confirmation, State
from ._nodes import Nodes
from ._releases import LAST_CHANCE
from ._tasks import bounded, quiet
from ._tls import Tls
from ._waiting import read_holders, tell_of_wait
from .errors import Blocker, Closed, Error, Invalid, Lost, TimedOut

T = TypeVar("T")
_LOG = logging.getLogger("ringfence")
_TELLS_AFTER = 5.0


@dataclass(frozen=True)
class Settings:
    """How a client reaches its cluster."""

    urls: tuple[str, ...]
    tls: Tls | None
    credential: str | None = field(repr=False)
    learns: bool
    clock: _clock.Clock

    @staticmethod
    def check(
        urls: str | list[str] | tuple[str, ...],
        credential: str | None,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        clock: _clock.Clock,
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
        return Settings(texts, Tls(ca, cert, key) if is_https else None, credential, learns, clock)


class Engine:
    """A client on one event loop of one process. Make it on that loop."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.get_running_loop()
        self.process = _fork.process()
        self.cluster = Cluster(
            settings.urls, settings.tls, settings.credential, settings.learns, settings.clock
        )
        self.keeper = Keeper(self.cluster)
        self._pending: set[asyncio.Task[Any]] = set()
        # Their holders have left them, and they end later.
        self._outliving: set[Held] = set()
        self._guard = quiet(self.loop.create_task(self._until_the_loop_ends()))
        # A loop may end without an end of its tasks.
        self._guard._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self.cluster.is_closed

    async def acquire(self, spec: _wire.Spec, timeout: float | None = None) -> Held:
        """Acquires a lease, and keeps it."""
        return await self._call(self._acquire(spec), timeout)

    async def adopt(self, lease_id: str, timeout: float | None = None) -> Held:
        """Takes over a lease: renews it once, and keeps it."""
        return await self._call(self._adopt(lease_id), timeout)

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

    async def release(self, held: Held, hold_at_least_ms: int, timeout: float | None = None) -> None:
        """Releases a lease, at the earliest after this time from the grant. Raises `Lost` if it was lost before.

        It is done also if the caller is cancelled, or `timeout` is over: both leave only the answer.
        """
        if held.state() is State.RELEASED:
            return
        until = held.granted_at.after(hold_at_least_ms * MS)
        if held.loss() is None and until.since(self.cluster.clock()) > 0:
            stand_in = held.copy()
            self.keeper.replace(held, stand_in)
            held.release()
            told: asyncio.Future[None] = self.cluster.spawn(self._outlive(stand_in, until))
            self._outliving.add(stand_in)
        else:
            self.keeper.remove(held)
            lost = held.release()
            told = self.cluster.releases.begin(held.lease_id)
            if lost is not None:
                await self._answer(told, timeout, quietly=True)
                raise Lost(lost)
        await self._answer(told, timeout)

    async def _answer(self, told: asyncio.Future[None], timeout: float | None, quietly: bool = False) -> None:
        """Waits for it. Who is cancelled waits for a second more: the program may end then."""
        try:
            await asyncio.wait({told}, timeout=timeout)
        except asyncio.CancelledError:
            await asyncio.wait({told}, timeout=LAST_CHANCE)
            raise
        if quietly:
            return
        if not told.done():
            raise TimedOut(timeout or 0.0, "timeout")
        if told.cancelled():
            raise Closed("the client was closed")
        told.result()

    def drop(self, held: Held) -> None:
        """Releases a lease whose handle is gone, in the background."""
        self.keeper.remove(held)
        if held.state() is not State.RELEASED:
            held.release()
            self.cluster.releases.begin(held.lease_id)

    def give_up(self, held: Held) -> None:
        """Leaves a lease as it is, to whoever has its id."""
        self.keeper.remove(held)
        held.release()

    async def close(self, within: float) -> int:
        """Ends what waits, releases all leases, and waits for that, within this time. Returns how many are left."""
        if self.is_closed:
            return 0
        self.cluster.is_closed = True
        until = time.monotonic() + within
        self._guard.cancel()
        for task in self._pending:
            task.cancel()
        kept = [held for held in self.keeper.leases() if held not in self._outliving]
        leases = [held for held in kept if held.release() is None]
        for held in leases:
            self.keeper.remove(held)
        releasing = {*self._pending}
        if leases:
            work = self.cluster.release_many([one.lease_id for one in leases], within)
            releasing.add(self.cluster.spawn(work))
        if releasing:
            await asyncio.wait(releasing, timeout=within)
        left = await self.cluster.close(until - time.monotonic())
        if left:
            _LOG.warning("%d leases could not be released in time: they end with their ttl", left)
        return left

    async def settle(self, within: float) -> None:
        """Ends what waits, and waits for releases, within this time: the program, or the loop, ends."""
        until = time.monotonic() + within
        pending = set(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=within)
        try:
            await bounded(self.cluster.releases.settled(), until - time.monotonic())
        except asyncio.TimeoutError:
            _LOG.warning("leases could not be released before the program ended: they end with their ttl")

    async def _until_the_loop_ends(self) -> None:
        """`asyncio.run` cancels all tasks at its end, and waits for those. So this one waits for the others' clean-up."""
        try:
            await self.loop.create_future()
        except asyncio.CancelledError:
            if not self.is_closed:
                # What was dropped last is told in the next round.
                await asyncio.sleep(0)
                await self.settle(LAST_CHANCE)
                self.cluster.disconnect()
                await asyncio.sleep(0)
            raise

    async def _call(self, work: Coroutine[Any, Any, Held], timeout: float | None) -> Held:
        """Runs it as a task of its own, which `close` ends. A result that the caller does not get is released."""
        if self.is_closed:
            work.close()
            raise Closed("the client is closed")
        task = quiet(self.loop.create_task(work))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        try:
            await asyncio.wait({task}, timeout=timeout)
        except asyncio.CancelledError:
            task.cancel()
            # It gives back what it has, for a second at most.
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                self.drop(task.result())
            raise
        if not task.done():
            task.cancel()
            raise TimedOut(timeout or 0.0, "timeout")
        if task.cancelled():
            raise Closed("the client was closed")
        return task.result()

    async def _acquire(self, spec: _wire.Spec) -> Held:
        telling = self.loop.call_later(_TELLS_AFTER, self._tell_of_wait, spec)
        try:
            confirmation = await Acquire(self.cluster, spec).run()
        finally:
            telling.cancel()
        held = self._hold(confirmation)
        if spec.max_hold_ms is not None:
            held.give_up_at(confirmation.sent.after(spec.max_hold_ms * MS))
        if not spec.renews:
            held.stop_renewals()
        self.keeper.add(held)
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

    def _tell_of_wait(self, spec: _wire.Spec) -> None:
        self.cluster.spawn(tell_of_wait(self.cluster, spec, {held.token for held in self.keeper.leases()}))

    async def _adopt(self, lease_id: str) -> Held:
        held = self._hold(await self.cluster.renew(lease_id))
        self.keeper.add(held)
        return held

    def _hold(self, confirmation: Confirmation) -> Held:
        # The request may have waited for the grant for long.
        return Held(confirmation, self.cluster.clock, self.cluster.clock())

    async def _outlive(self, held: Held, until: Moment) -> None:
        """Has the lease last until then, even if this process ends, and then has it released."""
        try:
            is_sure = await self._lasts(held, until)
        except asyncio.CancelledError:
            if not self.is_closed:
                await bounded(self._lasts(held, until), LAST_CHANCE)
            raise
        if is_sure:
            self.keeper.remove(held)
        if held.loss() is not None:
            self._outliving.discard(held)
            self._check(held)
        # If it is not sure, it is renewed as before, as long as this process lives.
        self.cluster.spawn(self._release_at(held, until, is_sure))

    async def _lasts(self, held: Held, until: Moment) -> bool:
        """Renews it for what is left until then. Returns whether the cluster has confirmed that."""
        left = until.since(self.cluster.clock())
        # The allowance for clocks is part of what remains.
        ttl_ms = min(max(100, left * 501 // 500 // MS + 10), 86_400_000)
        try:
            await self.cluster.renew(held.lease_id, ttl_ms)
        except Lost as lost:
            held.lose(lost.reason)
        except Error:
            return False
        return True

    async def _release_at(self, held: Held, until: Moment, is_sure: bool) -> None:
        while (left := until.since(self.cluster.clock())) > 0:
            if not is_sure and held.loss() is None and await self._lasts(held, until):
                is_sure = True
                self.keeper.remove(held)
            await asyncio.sleep(min(left / 1e9, 1.0))
        self._outliving.discard(held)
        self.keeper.remove(held)
        held.release()
        self.cluster.releases.begin(held.lease_id)

    def _check(self, held: Held) -> None:
        lost = held.loss()
        if lost is not None:
            raise Lost(lost)
