"""What a client does on its event loop. The handles of leases, for threads and for tasks, call it."""

from __future__ import annotations

import asyncio
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
from ._tasks import quiet
from ._tls import Tls
from .errors import Closed, Error, Invalid, Lost, Unavailable, Unknown

T = TypeVar("T")


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

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more calls."""
        return self.cluster.is_closed

    async def acquire(self, spec: _wire.Spec) -> Held:
        """Acquires a lease, and keeps it."""
        return await self._call(self._acquire(spec))

    async def adopt(self, lease_id: str) -> Held:
        """Takes over a lease: renews it once, and keeps it."""
        return await self._call(self._adopt(lease_id))

    async def renew(self, held: Held, ttl_ms: int | None) -> None:
        """Renews a lease now."""
        self._check(held)
        try:
            held.confirm(await self.cluster.renew(held.lease_id, ttl_ms))
        except Lost as lost:
            held.lose(lost.reason)
        self.keeper.wake()
        self._check(held)

    async def release(self, held: Held) -> None:
        """Releases a lease, also if the caller is cancelled. Raises `Lost` if it was lost before."""
        if held.state() is State.RELEASED:
            return
        task = quiet(asyncio.ensure_future(self._release(held)))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        await asyncio.shield(task)

    async def leave(self, held: Held, hold_at_least_ms: int) -> None:
        """Leaves a block: releases the lease, at the earliest after this time from the grant."""
        until = held.granted_at.after(hold_at_least_ms * MS)
        if held.loss() is None and until.since(self.cluster.clock()) > 0:
            await asyncio.shield(quiet(self.cluster.spawn(self._outlive(held, until))))
            return
        try:
            await self.release(held)
        except (Unknown, Unavailable):
            # It goes on in the background.
            return

    def drop(self, held: Held) -> None:
        """Releases a lease whose handle is gone, in the background."""
        self.keeper.remove(held)
        if held.state() is not State.RELEASED:
            held.release()
            self.cluster.release_in_background(held.lease_id)

    def give_up(self, held: Held) -> None:
        """Leaves a lease as it is, to whoever has its id."""
        self.keeper.remove(held)
        held.release()

    async def close(self, within: float) -> None:
        """Ends what waits, releases all leases, and waits for that, within this time."""
        if self.is_closed:
            return
        self.cluster.is_closed = True
        until = time.monotonic() + within
        pending = set(self._pending)
        for task in pending:
            if task.get_name() == "ringfence-call":
                task.cancel()
        kept = [held for held in self.keeper.leases() if held not in self._outliving]
        leases = [held for held in kept if held.release() is None]
        for held in leases:
            self.keeper.remove(held)
        if leases:
            pending.add(
                quiet(
                    asyncio.ensure_future(self.cluster.release_many([one.lease_id for one in leases], within))
                )
            )
        if pending:
            await asyncio.wait(pending, timeout=within)
        await self.cluster.close(until - time.monotonic())

    async def _call(self, work: Coroutine[Any, Any, Held]) -> Held:
        """Runs it as a task of its own, which `close` ends. A result that the caller does not get is released."""
        if self.is_closed:
            work.close()
            raise Closed("the client is closed")
        task = quiet(self.loop.create_task(work, name="ringfence-call"))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if not task.cancel() and not task.cancelled() and task.exception() is None:
                self.drop(task.result())
            raise
        if task.cancelled():
            raise Closed("the client was closed")
        return task.result()

    async def _acquire(self, spec: _wire.Spec) -> Held:
        confirmation = await Acquire(self.cluster, spec).run()
        held = self._hold(confirmation)
        if spec.max_hold_ms is not None:
            held.give_up_at(confirmation.sent.after(spec.max_hold_ms * MS))
        if not spec.renews:
            held.stop_renewals()
        self.keeper.add(held)
        return held

    async def _adopt(self, lease_id: str) -> Held:
        held = self._hold(await self.cluster.renew(lease_id))
        self.keeper.add(held)
        return held

    def _hold(self, confirmation: Confirmation) -> Held:
        # The request may have waited for the grant for long.
        return Held(confirmation, self.cluster.clock, self.cluster.clock())

    async def _release(self, held: Held) -> None:
        self.keeper.remove(held)
        lost = held.release()
        try:
            await self.cluster.release(held.lease_id)
        except (Unknown, Unavailable):
            if not self.is_closed or lost is None:
                self.cluster.release_in_background(held.lease_id)
            if lost is None:
                raise
        except Lost:
            if lost is None:
                raise
        if lost is not None:
            raise Lost(lost)

    async def _outlive(self, held: Held, until: Moment) -> None:
        """Has the lease last until then, even if this process ends, and then releases it."""
        self._outliving.add(held)
        left = until.since(self.cluster.clock())
        if held.remaining() < left:
            # The allowance for clocks is part of what remains.
            ttl_ms = min(max(100, left * 501 // 500 // MS + 10), 86_400_000)
            try:
                held.confirm(await self.cluster.renew(held.lease_id, ttl_ms))
            except Lost as lost:
                held.lose(lost.reason)
            except Error:
                # It is renewed as before, as long as this process lives.
                self.cluster.spawn(self._release_at(held, until))
                return
        self._check(held)
        self.keeper.remove(held)
        held.release()
        self.cluster.spawn(self._release_at(held, until))

    async def _release_at(self, held: Held, until: Moment) -> None:
        while (left := until.since(self.cluster.clock())) > 0:  # noqa: ASYNC110 a clock tells no event
            await asyncio.sleep(min(left / 1e9, 1.0))
        self._outliving.discard(held)
        self.keeper.remove(held)
        held.release()
        self.cluster.release_in_background(held.lease_id)

    def _check(self, held: Held) -> None:
        lost = held.loss()
        if lost is not None:
            raise Lost(lost)
