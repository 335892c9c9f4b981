"""The clock that leases are measured on.

It keeps running while the machine sleeps (`CLOCK_BOOTTIME`), and nobody can slow it down. A time service may slew that clock by
up to 10 %, so that a holder would count too long. It does not touch `CLOCK_MONOTONIC_RAW`, which stands still while the machine
sleeps. So each reading is of both, and an instant has come once it has come by either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_RAW: int | None = getattr(time, "CLOCK_MONOTONIC_RAW", None)


# Nobody changes one. Frozen, as others of which each request makes some, it would cost twice as much.
@dataclass(slots=True)
class Moment:
    """An instant on both clocks, in nanoseconds. Two instants have no order: the clocks may disagree."""

    boot: int
    raw: int

    def has_reached(self, other: Moment) -> bool:
        """Whether `other` has come, by either clock."""
        return self.boot >= other.boot or self.raw >= other.raw

    def since(self, earlier: Moment) -> int:
        """How much later this is than `earlier`, by the clock on which it is less; 0 if that is later."""
        return max(0, min(self.boot - earlier.boot, self.raw - earlier.raw))

    def after(self, ns: int) -> Moment:
        """The instant `ns` later; earlier if that is negative."""
        return Moment(self.boot + ns, self.raw + ns)

    def min(self, other: Moment) -> Moment:
        """The earlier one, by each clock."""
        return Moment(min(self.boot, other.boot), min(self.raw, other.raw))

    def max(self, other: Moment) -> Moment:
        """The later one, by each clock."""
        return Moment(max(self.boot, other.boot), max(self.raw, other.raw))


Clock = Callable[[], Moment]


def now() -> Moment:
    """Reads the system's clocks. Where it has only one that does not jump, that one counts twice."""
    if _BOOT is None or _RAW is None:
        ns = time.monotonic_ns()
        return Moment(ns, ns)
    # In this order a pause between two of them makes the reading older, never newer.
    raw = time.clock_gettime_ns(_RAW)
    boot = time.clock_gettime_ns(_BOOT)
    monotonic = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return Moment(boot, raw + boot - monotonic)
