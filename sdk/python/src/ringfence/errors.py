"""Errors, as a holder sees them.

Each tells what became of the call: refused or not done (`Held`, `TimedOut`, `Invalid`, `Rejected`, `Unavailable`), unknown
(`Unknown`), or done and over (`Lost`). They cross processes: the `args` of each are what it was made with, also as JSON,
but for the id of the lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

__all__ = [
    "Blocker",
    "Closed",
    "Error",
    "Held",
    "Invalid",
    "LossReason",
    "Lost",
    "Rejected",
    "Stale",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unknown",
]


class Error(Exception):
    """The base of all errors of this package."""


class Invalid(Error, ValueError):
    """The request is invalid, and nothing was sent. `field` says where: `ttl`, `keys[2]`, `urls[0]`."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}"


class Blocker(NamedTuple):
    """A live lease in the way."""

    key: str
    token: int
    holder: str | None
    shared: bool
    limit: int | None
    expires_in: float
    """In seconds."""


class Held(Error):
    """A key was not free, and the acquire did not wait."""

    def __init__(self, holders: Sequence[Blocker], waiters: int) -> None:
        # What has crossed processes as JSON has lists in it.
        self.holders = tuple(Blocker(*one) for one in holders)
        """Some of the leases in the way; none if only earlier waiters are, or if you may not read the keys."""
        self.waiters = waiters
        """The number of waiters in the longest of the queues."""
        super().__init__(self.holders, waiters)

    def __str__(self) -> str:
        return _held(self.holders, self.waiters)


class TimedOut(Error):
    """Not done in time. `reason` is `wait`, if that was over: the place in the queue is given up. Or it is `timeout`, the bound of
    the whole call: what may have been granted is given back in the background, where a release goes on, too.
    """

    def __init__(self, waited: float, reason: Literal["wait", "timeout"] = "wait") -> None:
        super().__init__(waited, reason)
        self.waited = waited
        self.reason: Literal["wait", "timeout"] = reason

    def __str__(self) -> str:
        return f"not {'granted' if self.reason == 'wait' else 'done'} within {self.waited:g} s"


LossReason = Literal[
    "expired", "revoked", "released", "abandoned", "forgotten", "unconfirmed", "max-hold", "forked"
]
"""Why a lease is lost: see `Lost`."""


class Lost(Error):
    """The lease has ended, or may have: what was done under it may have met another holder.

    `reason` is one of `expired`, `revoked`, `released` and `abandoned` (the cluster said so), `forgotten` (the cluster no longer
    knows it), `unconfirmed` (the time in which it certainly lived passed without a renewal), `max-hold`, and `forked`
    (this process is a child of the holder).
    """

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason

    def __str__(self) -> str:
        return f"the lease is lost: {_REASONS[self.reason]}"


class Unavailable(Error):
    """No node was reachable, or none found a leader, for as long as the client retries. Nothing was done."""


class Unknown(Error):
    """It may or may not have been done: no repeat had a definite response for as long as the client retries.

    After an acquire or a release, the lease is being released in the background. If that fails, too, it ends with its ttl.
    """

    def __init__(self, message: str, lease_id: str | None = None) -> None:
        # `args` get into logs and stores of results, and the id is a secret.
        super().__init__(message)
        self.lease_id = lease_id


class Rejected(Error):
    """The cluster refused the request, and did nothing. `kind` is the end of the problem's `type`, as in `overloaded`."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        self.kind = str(problem.get("type", "")).rsplit(":", 1)[-1]
        super().__init__(self.problem)

    def __str__(self) -> str:
        detail = self.problem.get("detail")
        return detail if isinstance(detail, str) else "the cluster refused the request"


class Unauthorized(Rejected):
    """The caller has no valid credential (401), or lacks a right (403)."""


class Stale(Error):
    """The storage refused a write or a read, because its token is stale: the lease has ended, and a later one is in use.

    Stop, acquire a new lease, and read again. A repeat cannot succeed.
    """


class Closed(Error):
    """The client is closed."""


_REASONS: dict[LossReason, str] = {
    "released": "it was released",
    "expired": "it has expired",
    "revoked": "an operator revoked it",
    "abandoned": "its connection was lost before the response",
    "forgotten": "the cluster no longer knows it",
    "unconfirmed": "no renewal was confirmed in time",
    "max-hold": "it reached its maximum hold time",
    "forked": "this process was forked from its holder",
}


def _held(holders: Sequence[Blocker], waiters: int) -> str:
    if not holders:
        return f"{waiters} earlier waiters come first"
    first = holders[0]
    # Another client chose the name: it must not reach terminals and logs unescaped.
    by = "" if first.holder is None else f" by {first.holder.encode('unicode_escape').decode()}"
    return f"{first.key} is held{by} with token {first.token}"
