"""One acquire, from the request to a lease that is safe to use.

                ┌─ 202: the place is kept ◀─┐
                ▼                           │
     new id ─▶ PUT, waiting up to 30 s ─────┼─ 201, 200 ─▶ fresh? ─▶ granted
       ▲       ▲        │                   │                └─ no ─▶ renew once ───▶ granted
       │       └────────┘ ambiguous: the same PUT elsewhere, for 5 s
       └── the lease ended unused (its connection was lost for long)

An acquire that was in the queue has reached the cluster, so during an outage it retries until its wait is over. After a PUT
without a definite outcome, and at a node that has had none yet, a PUT waits only briefly, to learn the state of the lease soon.

However the acquire ends, the lease is released as long as it may be granted or in the queue: in the background, or, if the
acquire is cancelled, before it ends, for a second at most. The time of a grant counts from when *its* PUT was sent. After a wait
that is too long ago to begin work, so the client renews once.

The first PUT waits only briefly, and may share its request with others. Whoever is in the queue has a connection for its wait, or,
if too many wait, asks for its place every second, and four times within its ttl: a grant ends that nobody has seen by then. Who
has had a connection for a while gives it to the next.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Any

from . import _wire
from ._cluster import ATTEMPT_TIMEOUT, RETRY_FOR, Attempts, Backoff, Cluster
from ._hooks import Teller
from ._http import Request, Response
from ._keeper import Keeper
from ._lifetime import Confirmation
from ._outcome import Ambiguous, Done, NotDone, Refused
from ._releases import LAST_CHANCE
from ._tasks import ended
from ._turns import Turn
from ._waiting import tell_of_wait
from .errors import Held, Lost, TimedOut

# Proxies often close connections that are silent for a minute.
_SLICE_MS = 30_000
_PROBE_MS = 100
# While others want its connection.
_TURN_MS = 2_000
# A place is kept for 5 s.
_POLL = 1.0
_TELLS_AFTER = 5.0


class _UnusedError(Exception):
    """The lease ended unused: another id may do, after this pause, if time is left."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause


class Acquire:
    """An acquire, under one id after the other."""

    def __init__(self, cluster: Cluster, keeper: Keeper, spec: _wire.Spec, tell: Teller) -> None:
        self._cluster, self._keeper, self._spec, self._tell = cluster, keeper, spec, tell
        self._begun = time.monotonic()
        self._has_waited = False
        self._is_try = spec.wait_ms == 0
        self._attempt: _Attempt | None = None
        self._telling: asyncio.TimerHandle | None = None

    async def run(self) -> Confirmation:
        """Acquires. Raises an `Error`."""
        try:
            return await self._run()
        finally:
            if self._telling is not None:
                self._telling.cancel()

    async def _run(self) -> Confirmation:
        # A lookup is not part of the wait.
        await self._cluster.resolve()
        self._begun = time.monotonic()
        backoff = Backoff()
        while True:
            try:
                self._attempt = _Attempt(self, str(uuid.uuid4()))
                return await self._attempt.run()
            except _UnusedError as unused:
                pause = max(backoff.next(), unused.pause)
            if self._is_try:
                # It was granted, for less time than it takes to make sure of that.
                if time.monotonic() - self._begun >= RETRY_FOR:
                    raise Lost("unconfirmed")
            elif self.is_over():
                raise self.timed_out()
            left = self.left_ms()
            await asyncio.sleep(pause if left is None or self._is_try else min(pause, left / 1_000))

    @property
    def is_try(self) -> bool:
        """Whether it does not wait."""
        return self._is_try

    def waits(self) -> None:
        """It is in the queue, perhaps for so long that somebody wants to know for whom."""
        self._has_waited = True
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(_TELLS_AFTER, self._tell_of_wait)

    def _tell_of_wait(self) -> None:
        # If nodes give no definite outcome, it is not the queue that it waits for.
        if self._attempt is not None and self._attempt._unanswered_since is None:
            own = {held.token for held in self._keeper.leases()}
            self._cluster.spawn(tell_of_wait(self._cluster, self._spec, own))

    def left_ms(self) -> int | None:
        """How much longer it may wait; `None` for ever."""
        if self._spec.wait_ms is None:
            return None
        return max(0, self._spec.wait_ms - int((time.monotonic() - self._begun) * 1_000))

    def is_over(self) -> bool:
        """Whether its time has passed."""
        return self.left_ms() == 0

    def timed_out(self) -> TimedOut:
        """The error of a wait that was in vain."""
        return TimedOut((self._spec.wait_ms or 0) / 1_000)


class _Attempt:
    """The use of one id."""

    def __init__(self, acquire: Acquire, lease_id: str) -> None:
        self._acquire, self._lease_id = acquire, lease_id
        self._cluster = acquire._cluster
        self._attempts: Attempts[Confirmation | None] = Attempts(
            acquire._cluster, lease_id, is_of_a_lease=False
        )
        self._has_place = False
        self._begun = time.monotonic()
        # Since when there was no definite outcome, if the last was none.
        self._unanswered_since: float | None = None
        # Its connection for waiting, once it has a place.
        self._turn: Turn | None = None
        # Whether the lease may be granted or in the queue.
        self._is_armed = True

    async def run(self) -> Confirmation:
        try:
            while True:
                confirmation = await self._put()
                if confirmation is not None:
                    confirmation = await self._freshen(confirmation)
                    self._is_armed = False
                    return confirmation
        except asyncio.CancelledError:
            if self._is_armed:
                self._is_armed = False
                await ended(self._cluster.releases.begin(self._lease_id), LAST_CHANCE)
            raise
        finally:
            self._attempts.leave()
            if self._turn is not None:
                self._turn.end()
            if self._is_armed:
                self._cluster.releases.begin(self._lease_id)
            if self._has_place:
                keys = tuple(claim.key for claim in self._acquire._spec.claims)
                self._acquire._tell("waited", keys, time.monotonic() - self._begun)

    async def _put(self) -> Confirmation | None:
        """One PUT. Returns the grant, or `None` to go on."""
        node = self._cluster.nodes.best(time.monotonic())
        is_brief = not self._has_place or self._unanswered_since is not None or not node.is_proven
        may_wait = not is_brief and await self._has_turn()
        left_ms = self._acquire.left_ms()
        wait_ms = slice_ms(left_ms, not may_wait, self._cluster.waits.is_wanted)
        if left_ms is not None and not self._acquire.is_try:
            self._attempts.longest_pause = max(left_ms / 1_000, _PROBE_MS / 1_000)
        put_at, idle = time.monotonic(), self._attempts.idle
        request = self._request(wait_ms, may_wait)
        outcome = await self._attempts.attempt(request, wait_ms / 1_000 + ATTEMPT_TIMEOUT, self._read)
        self._pass_turn(may_wait)
        put_at += self._attempts.idle - idle
        if isinstance(outcome, Refused):
            self._refused(outcome)
        elif isinstance(outcome, NotDone):
            # Whoever asks too often waits as long as the cluster says.
            if outcome.retry_after is None or self._acquire.is_try or self._acquire.is_over():
                self._unanswered(put_at)
        elif isinstance(outcome, Ambiguous):
            # A node that held the request for longer than it looks for a leader had it in the queue.
            if time.monotonic() - put_at > RETRY_FOR:
                self._acquire._has_waited = True
            # How a long wait ended says nothing of how long the cluster has been silent.
            self._unanswered(max(put_at, time.monotonic() - ATTEMPT_TIMEOUT))
        elif outcome.value is None:
            self._unanswered_since, self._has_place = None, True
            self._acquire.waits()
            if self._acquire.is_over():
                await self._leave()
                raise self._acquire.timed_out()
        if isinstance(outcome, Done):
            return outcome.value
        self._check_time()
        return None

    def _request(self, wait_ms: int, may_wait: bool) -> Request:
        acquire = self._acquire._spec.acquire(wait_ms)
        operation = f'{{"acquire":{{"lease_id":"{self._lease_id}",{acquire}}}}}'
        return Request(
            "PUT",
            f"/v1/leases/{self._lease_id}",
            f'{{{acquire},"wait_ms":{wait_ms}}}'.encode(),
            operation=None if may_wait else operation.encode(),
            wait_ms=wait_ms,
            apart="wait" if may_wait else None,
        )

    async def _has_turn(self) -> bool:
        """Whether a connection is free for a wait."""
        if self._turn is None:
            self._turn = self._cluster.waits.ask()
        left_ms = self._acquire.left_ms()
        poll = min(_POLL, self._acquire._spec.ttl_ms / 4_000) * random.uniform(0.75, 1.0)  # noqa: S311
        return await self._turn.wait(poll if left_ms is None else min(poll, left_ms / 1_000))

    def _pass_turn(self, has_used_it: bool) -> None:
        """Gives its connection to the next that wants it, and asks for another."""
        if self._turn is not None and has_used_it and self._cluster.waits.is_wanted:
            self._turn.end()
            self._turn = None

    def _read(self, response: Response) -> Confirmation | None:
        body: Any = response.json()
        if response.status in (200, 201):
            return Confirmation(response.sent, _wire.grant(body, self._lease_id))
        is_waiting = isinstance(body, dict) and body.get("state") == "waiting"
        if response.status == 202 and is_waiting and body.get("lease_id") == self._lease_id:
            return None
        raise ValueError(f"{response.status} is no response to an acquire")

    def _unanswered(self, since: float) -> None:
        if self._unanswered_since is None:
            self._unanswered_since = since

    def _check_time(self) -> None:
        """Gives up after 5 s without a definite outcome; if it was in the queue, once the wait is over."""
        if self._attempts.is_distrusted and not self._has_place:
            self._is_armed = self._attempts.maybe_done
            raise self._attempts.error()
        retries = self._acquire._has_waited and not self._acquire.is_over()
        since = self._unanswered_since
        if retries or since is None or time.monotonic() - since < RETRY_FOR:
            return
        # The place may still stand.
        self._attempts.maybe_done = self._attempts.maybe_done or self._has_place
        self._is_armed = self._attempts.maybe_done
        raise self._attempts.error()

    def _refused(self, refused: Refused) -> None:
        acquire, kind = self._acquire, refused.kind
        # An abandoned PUT may still arrive, and find the key free.
        if refused.is_denial and self._has_place:
            self._attempts.maybe_done = True
        self._is_armed = self._attempts.maybe_done
        if kind == "held" and acquire.is_try:
            raise Held(*_wire.blockers(refused.problem))
        if kind in ("held", "wait-timeout"):
            # The place is lost: no PUT came for it in time, or this was the last one.
            raise acquire.timed_out() if acquire.is_over() else _UnusedError()
        if refused.loss in ("expired", "abandoned"):
            raise _UnusedError
        if kind == "overloaded" and not acquire.is_try and not acquire.is_over():
            raise _UnusedError(refused.retry_after or 1.0)
        raise self._attempts.refused(refused)

    async def _leave(self) -> None:
        """The caller may end now, or ask again: no place may stay behind. After a while that goes on in the background."""
        self._is_armed = False
        await ended(self._cluster.releases.begin(self._lease_id), LAST_CHANCE)

    async def _freshen(self, confirmation: Confirmation) -> Confirmation:
        """Renews a lease that is not fresh enough to begin work."""
        if confirmation.is_fresh(self._cluster.clock()):
            return confirmation
        try:
            return await self._cluster.renew(self._lease_id)
        except Lost as lost:
            self._is_armed = self._attempts.maybe_done
            if lost.reason in ("expired", "abandoned", "forgotten"):
                raise _UnusedError from None
            raise


def slice_ms(left_ms: int | None, is_probe: bool, is_wanted: bool = False) -> int:
    """How long one PUT waits, perhaps on a connection that others want."""
    most = _PROBE_MS if is_probe else _TURN_MS if is_wanted else _SLICE_MS
    return most if left_ms is None else min(left_ms, most)
