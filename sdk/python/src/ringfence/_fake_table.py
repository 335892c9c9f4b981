"""The rules by which a cluster grants leases, in memory: tokens that only go up, modes, queues, and the ends of leases.

A set of leases on one key is compatible if it has one member, or if all are shared and their number is within the smallest limit.
A newcomer is granted if it is compatible with all holders and waiters of each key, and a waiter if it is with the holders and with
those before it: first come, first served. Time is passed in, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._wire import Claim

_KEEP_PLACE_MS = 5_000
_REMEMBER_MS = 60_000
# How long after its wait a request may still be answered.
_ANSWERED_MS = 20_000
_STATUS = {
    "invalid-request": 400,
    "not-found": 404,
    "unknown-lease": 404,
    "lease-gone": 410,
    "too-large": 413,
}


class Refusal(Exception):
    """A request that is refused, as a problem says it."""

    def __init__(self, kind: str, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = _STATUS.get(kind, 409)
        kinds = {"type": f"urn:ringfence:problem:{kind}", "title": kind, "status": self.status}
        self.body = {**kinds, "detail": detail, **more}


@dataclass(eq=False)
class Lease:
    """A lease that is live or waits."""

    lease_id: str
    claims: tuple[Claim, ...]
    ttl_ms: int
    holder: str | None
    metadata: dict[str, str]
    until_ms: int
    since_ms: int
    requests: dict[int, int]
    """The acquires that the lease ends with, and until when each keeps the place. One that is live has one at most."""
    number: int = 0
    """Its token; while it waits, its place."""
    waits: bool = False


@dataclass
class Table:
    """Who holds which keys, and who waits for them."""

    now: Callable[[], int]
    revision: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)
    _on: dict[str, list[Lease]] = field(default_factory=dict)
    _ended: dict[str, tuple[str, int]] = field(default_factory=dict)

    def acquire(
        self, lease_id: str, claims: Sequence[Claim], body: dict[str, Any], wait_ms: int, request: int
    ) -> int:
        """Grants a lease, or gives it a place. Returns the status: 201 it was granted, 200 it was before, 202 it waits."""
        self.end_what_is_due()
        keeps = bool(body.get("keep_place"))
        until = self.now() + wait_ms + (_KEEP_PLACE_MS if keeps else 0)
        known = self.leases.get(lease_id)
        if known is not None:
            return self._repeat(known, claims, until, request)
        self._refuse_if_ended(lease_id)
        ttl_ms, holder, metadata = body.get("ttl_ms", 15_000), body.get("holder"), body.get("metadata", {})
        lease = Lease(lease_id, tuple(claims), ttl_ms, holder, metadata, until, self.now(), {request: until})
        fits = self._fits(lease)
        if not fits and wait_ms == 0 and not keeps:
            raise self._held(lease)
        self.leases[lease_id] = lease
        for claim in lease.claims:
            self._on.setdefault(claim.key, []).append(lease)
        if fits:
            self._grant(lease)
            return 201
        self.revision += 1
        lease.number, lease.waits = self.revision, True
        return 202

    def renew(self, lease_id: str, ttl_ms: int | None) -> dict[str, Any]:
        """Renews a live lease. Never moves its end back."""
        self.end_what_is_due()
        lease = self._known(lease_id)
        if lease.waits:
            raise Refusal("not-granted", "the lease is still in the queue: repeat its PUT instead")
        lease.ttl_ms = ttl_ms or lease.ttl_ms
        lease.until_ms = max(lease.until_ms, self.now() + lease.ttl_ms)
        lease.requests.clear()
        return self.shown(lease)

    def release(self, lease_id: str) -> None:
        """Ends a lease, or its wait. An id that is not known yet is remembered."""
        self.end_what_is_due()
        lease = self.leases.get(lease_id)
        if lease is not None:
            self.end(lease, "released")
        elif self._ended.setdefault(lease_id, ("released", self.now()))[0] not in ("released", "timed-out"):
            self._refuse_if_ended(lease_id)

    def detach(self, lease_id: str, request: int) -> None:
        """The connection of an acquire closed before the answer: that ends the lease, unless there was another request."""
        lease = self.leases.get(lease_id)
        if lease is not None and lease.requests.pop(request, None) is not None:
            others = [until for until in lease.requests.values() if until >= self.now()]
            if others:
                lease.until_ms = max(others)
            else:
                self.end(lease, "abandoned")

    def end(self, lease: Lease, reason: str) -> None:
        """Ends a lease, and lets waiters in."""
        self.revision += 1
        del self.leases[lease.lease_id]
        for claim in lease.claims:
            self._on[claim.key].remove(lease)
            if not self._on[claim.key]:
                del self._on[claim.key]
        ended = "timed-out" if lease.waits and reason == "expired" else reason
        self._ended[lease.lease_id] = (ended, self.now())
        for waiter in self.waiters():
            if waiter.until_ms >= self.now() and self._fits(waiter):
                self._grant(waiter)

    def end_what_is_due(self) -> None:
        """Ends what is due, waiters first, and forgets what ended long ago."""
        now = self.now()
        for waits in (True, False):
            due = [one for one in self.leases.values() if one.waits is waits and one.until_ms < now]
            for lease in sorted(due, key=lambda one: (one.until_ms, one.number)):
                self.end(lease, "expired")
        for lease_id, (_, at) in list(self._ended.items()):
            if now - at <= _REMEMBER_MS:
                break
            del self._ended[lease_id]

    def next_due(self) -> int | None:
        """When something ends by itself."""
        return min((one.until_ms + 1 for one in self.leases.values()), default=None)

    def holders(self, key: str) -> list[Lease]:
        """The live leases on a key, the oldest first."""
        return sorted((one for one in self._on.get(key, []) if not one.waits), key=_number)

    def waiters(self, key: str | None = None) -> list[Lease]:
        """The leases that wait, for a key or for any, first come first."""
        among: Iterable[Lease] = self.leases.values() if key is None else self._on.get(key, [])
        return sorted((one for one in among if one.waits), key=_number)

    def keys(self, prefix: str) -> list[str]:
        """The keys that are held or waited for."""
        return sorted((key for key in self._on if key.startswith(prefix)), key=str.encode)

    def state(self, lease_id: str) -> dict[str, Any]:
        """A lease as its owner sees it."""
        return self.shown(self._known(lease_id))

    def shown(self, lease: Lease) -> dict[str, Any]:
        """A lease as its owner sees it."""
        if lease.waits:
            ahead = [
                sum(other.number < lease.number for other in self.waiters(claim.key))
                for claim in lease.claims
            ]
            return {"lease_id": lease.lease_id, "state": "waiting", "ahead": max(ahead)}
        keys = [{"key": one.key, **_mode(one), "fence": self._fence(one.key)} for one in lease.claims]
        grant = {
            "lease_id": lease.lease_id,
            "state": "granted",
            "token": lease.number,
            "holder": lease.holder,
        }
        return {**grant, "ttl_ms": lease.ttl_ms, "expires_in_ms": self._left(lease), "keys": keys}

    def view(self, key: str) -> dict[str, Any]:
        """A key as everybody sees it."""
        holders = [
            {**self._seen(one, key), "ttl_ms": one.ttl_ms, "metadata": one.metadata}
            for one in self.holders(key)
        ]
        waiters = [
            {
                "holder": one.holder,
                "mode": _mode(_claim(one, key))["mode"],
                "waited_ms": self.now() - one.since_ms,
            }
            for one in self.waiters(key)
        ]
        view = {"key": key, "fence": self._fence(key), "revision": self.revision, "holders": holders}
        return {**view, "waiters": waiters, "more_holders": 0, "more_waiters": 0}

    def _repeat(self, known: Lease, claims: Sequence[Claim], until: int, request: int) -> int:
        if set(known.claims) != set(claims):
            raise Refusal("lease-mismatch", "this lease_id was used with other keys: use a new one")
        if not known.waits:
            known.requests.clear()
            return 200
        # If another keeps the place for longer, so does this one: its answer says that the place is kept.
        kept = _KEEP_PLACE_MS if known.until_ms > until else 0
        self._forget_answered(known)
        known.requests[request] = until + kept
        known.until_ms = max(known.requests.values())
        return 202

    def _grant(self, lease: Lease) -> None:
        self.revision += 1
        lease.number, lease.waits = self.revision, False
        lease.until_ms = self.now() + lease.ttl_ms
        self._forget_answered(lease)
        # Any of several may be answered: then it ends with none.
        if len(lease.requests) > 1:
            lease.requests.clear()

    def _forget_answered(self, lease: Lease) -> None:
        answered = [one for one, until in lease.requests.items() if until + _ANSWERED_MS < self.now()]
        for request in answered:
            del lease.requests[request]

    def _fits(self, lease: Lease) -> bool:
        return all(self._admits(claim, lease) for claim in lease.claims)

    def _admits(self, claim: Claim, lease: Lease) -> bool:
        before = [
            _claim(other, claim.key)
            for other in self._on.get(claim.key, [])
            if other is not lease and (not other.waits or not lease.waits or other.number < lease.number)
        ]
        if not before:
            return True
        limits = [one.limit for one in (*before, claim) if one.limit is not None]
        return all(one.shared for one in (*before, claim)) and len(before) < min(limits, default=1 << 32)

    def _held(self, lease: Lease) -> Refusal:
        blocked = [claim.key for claim in lease.claims if not self._admits(claim, lease)]
        holders = [{"key": key, **self._seen(one, key)} for key in blocked for one in self.holders(key)]
        waiters = max(len(self.waiters(claim.key)) for claim in lease.claims)
        return Refusal("held", "another lease holds a key", holders=holders[:16], waiters=waiters)

    def _seen(self, lease: Lease, key: str) -> dict[str, Any]:
        seen = {"token": lease.number, "holder": lease.holder, **_mode(_claim(lease, key))}
        return {**seen, "expires_in_ms": self._left(lease)}

    def _left(self, lease: Lease) -> int:
        return max(0, lease.until_ms - self.now())

    def _fence(self, key: str) -> int:
        return min((one.number for one in self.holders(key)), default=self.revision + 1)

    def _known(self, lease_id: str) -> Lease:
        lease = self.leases.get(lease_id)
        if lease is None:
            self._refuse_if_ended(lease_id)
            raise Refusal("unknown-lease", "no lease with this id exists, or it is forgotten")
        return lease

    def _refuse_if_ended(self, lease_id: str) -> None:
        reason, _ = self._ended.get(lease_id, ("", 0))
        if reason == "timed-out":
            raise Refusal("wait-timeout", "the wait ended before the keys were free")
        if reason:
            raise Refusal("lease-gone", f"the lease has ended: {reason}", reason=reason)


def _number(lease: Lease) -> int:
    return lease.number


def _claim(lease: Lease, key: str) -> Claim:
    return next(one for one in lease.claims if one.key == key)


def _mode(claim: Claim) -> dict[str, Any]:
    return {"mode": "shared" if claim.shared else "exclusive", "limit": claim.limit}
