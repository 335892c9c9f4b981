"""The state of a lease. Its handle, the keeper and those who wait for its loss share it, perhaps on two threads.

**No lock.** The loop alone learns what the cluster says: it swaps one snapshot for another. Readers, on any thread and in signal
handlers, read one snapshot. A lock would have to be waited for, perhaps by the loop, perhaps for a thread that a signal handler
has interrupted.

**A loss is final.** Whoever finds one, by the clock or by an answer, stores it, and the first one counts: `dict.setdefault` is one
step. A confirmation that arrives later finds it there.

**Safety first, then user code.** `tell` first wakes and cancels what has to stop (`on_loss`), and then calls the user's callbacks
(`on_told`). Each is guarded: none keeps another from running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from . import _clock, _fork
from ._clock import Moment
from ._hooks import LeaseView, Teller
from ._lifetime import Confirmation, Lifetime, State
from ._signal import Flag
from ._threads import LOG
from .errors import LossReason


@dataclass(slots=True)
class _Seen:
    """What is known of a lease."""

    lifetime: Lifetime
    fences: Mapping[str, int]
    """As last confirmed."""


@dataclass(slots=True)
class _End:
    reason: LossReason
    released_by: Literal["holder", "client"] | None = None


class Held:
    """A lease that was granted."""

    def __init__(
        self,
        first: Confirmation,
        clock: _clock.Clock,
        process: tuple[int, int],
        least_until: Moment | None = None,
        hook: Teller | None = None,
    ) -> None:
        self.lease_id = first.grant.lease_id
        self.token = first.grant.token
        self.least_until = least_until
        """Until when its keys stay held, whenever its holder releases it."""
        self.told = Flag()
        """Set once the loss was told, or the lease released. Time alone sets nothing: who waits has a timer, too."""
        self._seen = _Seen(Lifetime.of(first), first.grant.fences)
        self._clock = clock
        self._hook = hook
        self.view = LeaseView(tuple(first.grant.fences), self.token)
        """It, as hooks see it."""
        # That which asked: another may have been forked since.
        self._process = process
        self._ends: dict[str, _End] = {}
        self._stops: list[Callable[[], None]] = []
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the holder."""
        return _fork.process() != self._process

    @property
    def is_taken(self) -> bool:
        """Whether the client released it, under its holder."""
        end = self._ends.get("end")
        return end is not None and end.released_by == "client"

    @property
    def is_released(self) -> bool:
        """Whether its holder, or the client, released it."""
        end = self._ends.get("end")
        return end is not None and end.released_by is not None and not self.is_forked

    def state(self) -> State:
        """How it stands now: it reads the clock, whatever timers did."""
        # A snapshot that is newer than the time says nothing wrong, and an older one could.
        now = self._clock()
        if self.loss() is not None:
            return State.RELEASED if self.is_released else State.LOST
        state = self._seen.lifetime.state(now)
        return State.UNSURE if state is State.LOST else state

    def loss(self) -> LossReason | None:
        """Why it is lost, or `released`; `None` while it lives."""
        if self.is_forked:
            return "forked"
        end = self._ends.get("end")
        if end is not None:
            return end.reason
        now = self._clock()
        reason = self._seen.lifetime.loss(now)
        return None if reason is None else self._end(reason).reason

    def remaining(self) -> int:
        """How much longer it certainly lives, in nanoseconds."""
        now = self._clock()
        return 0 if self.loss() is not None else self._seen.lifetime.remaining(now)

    def fences(self) -> Mapping[str, int]:
        """The fence of each key, as last confirmed."""
        return self._seen.fences

    def read(self) -> Lifetime:
        """Its lifetime, for the keeper."""
        return self._seen.lifetime

    def wait_lost(self, timeout: float | None = None) -> LossReason | None:
        """Waits until it is lost or released, and returns the reason; `None` after this many seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while (reason := self.loss()) is None:
            # A timer may be slower than the clock of leases.
            nap = self.nap()
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                nap = min(nap, left)
            self.told.wait(nap)
        return reason

    def nap(self) -> float:
        """When to look at the clock again, in seconds."""
        return min(max(self.remaining() / 1e9 * 0.875, 0.001), 1.0)

    def copy(self) -> Held:
        """One that lives on when its holder has left this one."""
        copy = object.__new__(Held)
        copy.__dict__.update(self.__dict__)
        copy.told, copy._ends, copy._stops, copy._callbacks = Flag(), {}, [], []
        copy._hook = None
        return copy

    # What follows is called on the loop.

    def give_up_at(self, hold_until: Moment) -> None:
        """Its holder gives it up then."""
        self._seen = replace(self._seen, lifetime=replace(self._seen.lifetime, hold_until=hold_until))

    def stop_renewals(self) -> None:
        """Nobody renews it: it is held until it ends."""
        self._seen = replace(self._seen, lifetime=replace(self._seen.lifetime, renews=False))

    def confirm(self, confirmation: Confirmation) -> None:
        """Learns that it lives. Too late a confirmation changes nothing, and an older one takes nothing back."""
        if self.loss() is not None:
            return
        seen = self._seen
        is_latest = confirmation.until.has_reached(seen.lifetime.until)
        fences = confirmation.grant.fences if is_latest else seen.fences
        self._seen = _Seen(seen.lifetime.confirmed(confirmation), fences)
        if self._hook is not None:
            self._hook("renewed", self.view)

    def failed(self, why: str) -> None:
        """It could not be renewed for now."""
        if self._hook is not None:
            self._hook("failed", self.view, why)

    def lose(self, reason: LossReason) -> None:
        """It has ended."""
        if self.loss() is None:
            self._end(reason)

    def release(self, by: Literal["holder", "client"] = "holder") -> LossReason | None:
        """Ends it. Returns why it was lost before, if it was. What has to stop is told if it is not its holder who ends it.

        Whoever calls this lets the hooks know, once the release has begun.
        """
        if self.loss() is None:
            self._ends.setdefault("end", _End("released", by))
        end = self._ends.get("end")
        lost = None if end is None or end.released_by is not None else end.reason
        self._stop()
        return lost

    def leave(self) -> None:
        """Its holder leaves it to whoever has its id."""
        self._hook = None
        self.release()

    def on_loss(self, stop: Callable[[], None]) -> None:
        """Calls it once, if the lease ends before its holder has released it: it stops what must not go on."""
        self._stops.append(stop)

    def on_told(self, callback: Callable[[], None]) -> None:
        """Calls it once, after all that has to stop was told."""
        self._callbacks.append(callback)

    def forget(self, stop: Callable[[], None]) -> None:
        """Calls it no more."""
        if stop in self._stops:
            self._stops.remove(stop)

    def tell(self) -> None:
        """Tells that it has ended."""
        self._stop()
        self.tell_hooks()

    def tell_hooks(self) -> None:
        """Tells the hooks that it has ended."""
        hook, self._hook = self._hook, None
        end = self._ends.get("end")
        if hook is not None and end is not None:
            is_release = end.released_by is not None
            hook("released", self.view) if is_release else hook("lost", self.view, end.reason)

    def _stop(self) -> None:
        self.told.set()
        stops, self._stops = self._stops, []
        callbacks, self._callbacks = self._callbacks, []
        end = self._ends.get("end")
        if end is None or end.released_by != "holder":
            for call in (*stops, *callbacks):
                guarded(call)

    def _end(self, reason: LossReason) -> _End:
        return self._ends.setdefault("end", _End(reason))


def guarded(call: Callable[[], object]) -> None:
    """Calls what the user may have written."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 it must not keep others from being called
        LOG.error("a callback for the loss of a lease failed", error=error)
