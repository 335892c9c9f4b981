"""The state of a lease. Its handle, the keeper and those who wait for its loss share it, perhaps on two threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from . import _clock, _fork
from ._clock import Moment
from ._lifetime import Confirmation, Lifetime, State


class Held:
    """A lease that was granted."""

    def __init__(self, first: Confirmation, clock: _clock.Clock, granted_at: Moment) -> None:
        self.lease_id = first.grant.lease_id
        self.token = first.grant.token
        self.granted_at = granted_at
        """When the request was sent that was granted."""
        self.told = threading.Event()
        """Set once the loss was told, or the lease released. Time alone sets nothing: who waits has a timer, too."""
        self._fences = first.grant.fences
        self._lifetime = Lifetime(first)
        self._clock = clock
        self._process = _fork.process()
        self._lock = threading.Lock()
        self._is_released = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the holder. Another thread may have had the lock when it was forked."""
        return _fork.process() != self._process

    def state(self) -> State:
        """How it stands now: it reads the clock, whatever timers did."""
        if self.is_forked:
            return State.LOST
        with self._lock:
            state = self._lifetime.state(self._clock())
            return State.RELEASED if self._is_released else state

    def loss(self) -> str | None:
        """Why it is lost, or `released`; `None` while it lives."""
        if self.is_forked:
            return "forked"
        with self._lock:
            self._lifetime.state(self._clock())
            return self._lifetime.lost

    def remaining(self) -> int:
        """How much longer it certainly lives, in nanoseconds."""
        if self.is_forked:
            return 0
        with self._lock:
            return self._lifetime.remaining(self._clock())

    def fences(self) -> Mapping[str, int]:
        """The fence of each key, as last confirmed."""
        return self._fences

    def read(self) -> Lifetime:
        """Its lifetime, for the keeper."""
        return self._lifetime

    def give_up_at(self, hold_until: Moment) -> None:
        """Its holder gives it up then."""
        self._lifetime.hold_until = hold_until

    def stop_renewals(self) -> None:
        """Nobody renews it: it is held until it ends."""
        with self._lock:
            self._lifetime.renews = False

    def confirm(self, confirmation: Confirmation) -> None:
        """Learns that it lives. Too late a confirmation changes nothing, and an older one takes nothing back."""
        with self._lock:
            is_latest = confirmation.until.has_reached(self._lifetime.until)
            if self._lifetime.confirm(confirmation, self._clock()) and is_latest:
                self._fences = confirmation.grant.fences

    def lose(self, reason: str) -> None:
        """It has ended."""
        with self._lock:
            self._lifetime.lose(reason, self._clock())

    def release(self) -> str | None:
        """Ends it, as its holder wants. Returns why it was lost before, if it was."""
        with self._lock:
            now = self._clock()
            self._lifetime.state(now)
            lost = self._lifetime.lost
            if lost is None:
                self._is_released = True
                self._lifetime.lose("released", now)
        self.told.set()
        return lost

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Calls it once, on the keeper's thread, if the lease is lost before it is released."""
        self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Calls it no more."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def tell(self) -> None:
        """Tells the loss. On the keeper's thread."""
        self.told.set()
        callbacks, self._callbacks = self._callbacks, []
        if not self._is_released:
            for callback in callbacks:
                callback()
