"""How long a lease is certainly live, as far as its holder can know.

The cluster guarantees `expires_in_ms` from when the request was *sent*, because it cannot have received the request earlier. The
holder counts on its own clock, and subtracts an allowance (0.2 % and 5 ms) for clocks that differ and timers that are late:

     sent        renewed            in doubt           until    sent + expires_in
      |------------|------------------|------------------|---------|
      :    1/3     :       1/3        :       1/3        : allowance
           held           held              unsure         lost, for good

Each confirmation gives a bound of its own. The latest bound counts, in whatever order responses arrive. A confirmation that
arrives after `until` does not revive the lease: its loss may have been reported already.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ._clock import Moment
from ._wire import Grant
from .errors import LossReason

MS = 1_000_000
_DRIFT = 500
_LATE = 5 * MS


class State(enum.Enum):
    """How a lease stands, by its holder's own clock."""

    HELD = "held"
    """Confirmed lately: it certainly lives."""
    UNSURE = "unsure"
    """It certainly lives for what remains, but two thirds of its time have passed without a renewal: get ready to stop."""
    LOST = "lost"
    """It has ended, or may have. For good."""
    RELEASED = "released"
    """Its holder released it."""


@dataclass(slots=True)
class Confirmation:
    """A grant, and when the request that it answers was sent."""

    sent: Moment
    grant: Grant

    @property
    def until(self) -> Moment:
        """Until when the lease certainly lives."""
        ns = self.grant.expires_in_ms * MS
        return self.sent.after(max(0, ns - ns // _DRIFT - _LATE))

    def is_fresh(self, now: Moment) -> bool:
        """Whether a holder may begin: at least half of the ttl is left."""
        return self.until.since(now) >= self.grant.ttl_ms * MS // 2


@dataclass(slots=True)
class Lifetime:
    """How long a lease certainly lives, as its holder knows it. What is learned makes a new one."""

    ttl: int
    until: Moment
    hold_until: Moment | None = None
    """When its holder gives it up."""
    renews: bool = True

    @staticmethod
    def of(first: Confirmation) -> Lifetime:
        """That of a lease that was granted."""
        return Lifetime(first.grant.ttl_ms * MS, first.until)

    def confirmed(self, confirmation: Confirmation) -> Lifetime:
        """A longer one, with the ttl that another client may have changed."""
        return replace(self, ttl=confirmation.grant.ttl_ms * MS, until=self.until.max(confirmation.until))

    def loss(self, now: Moment) -> LossReason | None:
        """Why it is over; `None` if it is not. Whoever reports that keeps it: a loss that was reported is final."""
        if not now.has_reached(self.end()):
            return None
        return "max-hold" if self._is_renewed_enough() else "unconfirmed"

    def state(self, now: Moment) -> State:
        """How it stands, if nothing else has ended it."""
        if self.loss(now) is not None:
            return State.LOST
        if self._needs_renewals() and now.has_reached(self.until.after(-self.ttl // 3)):
            return State.UNSURE
        return State.HELD

    def remaining(self, now: Moment) -> int:
        """How much longer it certainly lives, in nanoseconds."""
        return 0 if self.loss(now) is not None else self.end().since(now)

    def due_in(self, now: Moment) -> int | None:
        """How long until it is due to be renewed, a third of its time after the last confirmed request; `None` if it is not."""
        return max(0, self.until.since(now) - self.ttl // 3 * 2) if self._needs_renewals() else None

    def end(self) -> Moment:
        """When it ends by its holder's clock, or its holder gives it up."""
        return self.until if self.hold_until is None else self.hold_until.min(self.until)

    def _needs_renewals(self) -> bool:
        return self.renews and not self._is_renewed_enough()

    def _is_renewed_enough(self) -> bool:
        return self.hold_until is not None and self.until.has_reached(self.hold_until)
