"""How a lease is left, whoever does it: its holder, the end of a block, `close`, or the collector that found the handle dropped.

     left, and hold-at-least is over ──────────────────────────────────────▶ DELETE
       │
       └── not yet ──▶ one renewal, for what is left ── confirmed ──▶ nothing renews it; DELETE once the time is over
                         │              ▲
                         └── not now ───┘ after a second. Meanwhile it is renewed as before, and deleted once the time is over

The one renewal keeps others out even if this process ends. Until it is confirmed, only renewals do that. If the lease is lost
meanwhile, nothing more is done, as the one renewal may have been. Nor is anything if its holder's clock alone had ended it before:
the cluster may still keep it. Each step that somebody cancels ("cancel all tasks") is repeated.
"""

from __future__ import annotations

import asyncio

from ._clock import Moment
from ._cluster import Cluster
from ._held import Held
from ._keeper import Keeper
from ._lifetime import MS
from .errors import Closed, Error, LossReason, Lost

_PAUSE = 1.0


class Leaving:
    """The leases of a client that were left."""

    def __init__(self, cluster: Cluster, keeper: Keeper) -> None:
        self._cluster, self._keeper = cluster, keeper
        self._holds: set[_Hold] = set()

    def begin(self, held: Held, lost: LossReason | None = None) -> asyncio.Future[None]:
        """Releases a lease that was left; `lost` says why it had ended before. What it returns tells what came of it."""
        until = held.least_until
        if until is None or until.since(self._cluster.clock()) == 0 or lost not in (None, "unconfirmed"):
            self._keeper.remove(held)
            return self._cluster.releases.begin(held.lease_id)
        if lost is not None:
            self._keeper.remove(held)
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            told.set_result(None)
            return told
        stand_in = held.copy()
        self._keeper.replace(held, stand_in)
        hold = _Hold(self._cluster, self._keeper, stand_in, until, self._holds)
        hold.renew()
        return hold.told

    def is_left(self, held: Held) -> bool:
        """Whether it stands in for one that was left."""
        return any(hold.held is held for hold in self._holds)

    async def settled(self) -> None:
        """Waits until each is either released or held without this process, or its first call has failed."""
        while waiting := {hold.told for hold in self._holds if not hold.told.done()}:
            await asyncio.wait(waiting)

    def end(self) -> int:
        """Nobody goes on with them. Returns how many will not be held for as long as they were to be."""
        unsure = 0
        for hold in list(self._holds):
            unsure += not hold.is_sure
            hold.end()
        return unsure


class _Hold:
    """One that stays held."""

    def __init__(
        self, cluster: Cluster, keeper: Keeper, held: Held, until: Moment, holds: set[_Hold]
    ) -> None:
        self.held, self.is_sure = held, False
        self._cluster, self._keeper, self._until, self._holds = cluster, keeper, until, holds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.told: asyncio.Future[None] = self._loop.create_future()
        self.told.add_done_callback(lambda done: done.cancelled() or done.exception())
        holds.add(self)

    def renew(self) -> None:
        """Makes the one renewal."""
        self._cluster.spawn(self._renew()).add_done_callback(self._go_on)

    def end(self) -> None:
        """Ends it here."""
        self._holds.discard(self)
        self._keeper.remove(self.held)
        if self._timer is not None:
            self._timer.cancel()
        if not self.told.done():
            self.told.set_exception(Closed("the client was closed"))

    def _left(self) -> int:
        return self._until.since(self._cluster.clock())

    async def _renew(self) -> None:
        # The allowance for clocks is part of what remains.
        ttl_ms = min(max(100, self._left() * 501 // 500 // MS + 10), 86_400_000)
        try:
            self.held.confirm(await self._cluster.renew(self.held.lease_id, ttl_ms))
        except Lost as lost:
            self.held.lose(lost.reason)
            if not self.told.done():
                self.told.set_exception(lost)
        except Error:
            # It goes on.
            pass
        else:
            self.is_sure = True
            self._keeper.remove(self.held)
        if not self.told.done():
            self.told.set_result(None)

    def _go_on(self, renewed: asyncio.Task[None]) -> None:
        if self not in self._holds:
            return
        if renewed.cancelled():
            self.renew()
        elif not self.is_sure and self.held.loss() is not None:
            self.end()
        else:
            self._wait()

    def _wait(self) -> None:
        # Timers stand still while the machine sleeps.
        self._timer = self._loop.call_later(min(self._left() / 1e9, _PAUSE), self._look)

    def _look(self) -> None:
        if self._left() == 0:
            self.end()
            self._cluster.releases.begin(self.held.lease_id)
        elif not self.is_sure and self.held.loss() is not None:
            # The renewal may have been done although its answer was lost.
            self.end()
        elif self.is_sure:
            self._wait()
        else:
            self.renew()
