"""One timer per client looks after all its leases: it renews them, with one call for all that are due, and tells those that are lost.

     leases ──due after 1/3, or after 1/6 along with another──▶ POST /v1/renew, up to 1,000 ids ──▶ each confirmed, or lost
                                                                   │              ▲
                                                                   └─ ambiguous ──┘ at once at the next node, then with pauses

An attempt takes at most a quarter of the shortest ttl in it, so that another node is asked in time. Calls run in parallel: one
that hangs delays no other lease. Safety does not depend on this: without it, leases become unsure, then lost, by their clocks alone.

It is a timer because programs cancel tasks that they do not know ("cancel all other tasks"). A call that is cancelled is repeated.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from . import _outcome, _wire
from ._clock import Moment
from ._cluster import ATTEMPT_TIMEOUT, Attempts, Cluster
from ._held import Held
from ._http import Request, Response
from ._lifetime import MS, Confirmation
from ._outcome import Done, Refused
from ._threads import LOG

# Timers stand still while the machine sleeps.
_MAX_NAP = 1_000 * MS
_MIN_NAP = MS
_MAX_BATCH = 1_000
# Nodes answer with 8 MiB at most: what does not fit is not done.
_MAX_ANSWER = 4 << 20


class _Kept:
    def __init__(self, held: Held) -> None:
        self.held = held
        self.is_in_flight = False
        self.not_before: Moment | None = None
        """A pause after the last call, which may have been in vain, or so slow that the lease is due again."""

    def is_ready(self, now: Moment) -> bool:
        return not self.is_in_flight and (self.not_before is None or now.has_reached(self.not_before))


class Keeper:
    """The leases that are renewed, and told of their loss."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._kept: dict[str, _Kept] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf
        # Many clients that began together renew apart.
        self._jitter = random.random()  # noqa: S311

    def add(self, held: Held) -> None:
        """Keeps a lease from now on."""
        kept = self._kept[held.lease_id] = _Kept(held)
        self._look_in(self._next_look(kept, self._cluster.clock()))

    def remove(self, held: Held) -> None:
        """Keeps it no longer."""
        kept = self._kept.get(held.lease_id)
        if kept is not None and kept.held is held:
            del self._kept[held.lease_id]

    def replace(self, held: Held, stand_in: Held) -> None:
        """Keeps another in its place."""
        self.remove(held)
        self.add(stand_in)

    def __len__(self) -> int:
        return len(self._kept)

    def leases(self) -> list[Held]:
        """Those that are kept."""
        return [kept.held for kept in self._kept.values()]

    def wake(self) -> None:
        """Looks at the clock now."""
        self._look_in(0)

    def end(self) -> None:
        """Keeps none any more: the loop ends."""
        self._kept.clear()
        self._stop_timer()

    def _look_in(self, ns: int) -> None:
        # A timer may be slower than the clock of leases, by a tenth.
        looks_at = self._loop.time() + min(max(ns - ns // 8, _MIN_NAP), _MAX_NAP) / 1e9
        if looks_at < self._looks_at:
            self._stop_timer()
            self._looks_at, self._timer = looks_at, self._loop.call_at(looks_at, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at, self._timer = math.inf, None

    def _look(self) -> None:
        """Tells losses, and begins the calls that are due."""
        self._stop_timer()
        now = self._cluster.clock()
        try:
            self._look_at(now)
        finally:
            if self._kept:
                self._look_in(min(self._next_look(kept, now) for kept in self._kept.values()))

    def _look_at(self, now: Moment) -> None:
        for kept in list(self._kept.values()):
            if kept.held.loss() is not None:
                self.remove(kept.held)
                kept.held.tell()
        for chunk in _chunks(self._due(now)):
            for kept in chunk:
                kept.is_in_flight = True
            renewing = self._cluster.spawn(self._renew([kept.held for kept in chunk]))
            renewing.add_done_callback(partial(self._renewed, chunk))

    def _renewed(self, chunk: Sequence[_Kept], _: asyncio.Task[None]) -> None:
        """However the call has ended."""
        now = self._cluster.clock()
        for kept in chunk:
            if kept.is_in_flight:
                kept.is_in_flight, kept.not_before = False, now.after(_pause(kept.held))
        if self._kept:
            self.wake()

    def _due(self, now: Moment) -> list[_Kept]:
        """The leases to renew now: all that are half as old as one that is due. Those with the least time come first."""
        ready = [kept for kept in self._kept.values() if kept.is_ready(now)]
        if all(self._due_in(kept, now) != 0 for kept in ready):
            return []
        due = [kept for kept in ready if self._due_in(kept, now, is_early=True) == 0]
        return sorted(due, key=lambda kept: kept.held.read().until.boot)

    def _due_in(self, kept: _Kept, now: Moment, is_early: bool = False) -> int | None:
        """How long until it is to be renewed, or may be along with another: then half of the way to when it is due. Any later,
        and two groups of leases could follow each other for ever.
        """
        lifetime = kept.held.read()
        due = lifetime.due_in(now)
        if due is None:
            return None
        earlier = int(lifetime.ttl / 12 * self._jitter)
        return max(0, due - (lifetime.ttl // 6 + earlier // 2 if is_early else earlier))

    def _next_look(self, kept: _Kept, now: Moment) -> int:
        """How long until there is something to do for it, if nothing happens."""
        ends_in = kept.held.read().end().since(now)
        due = None if kept.is_in_flight else self._due_in(kept, now)
        if due is None:
            return ends_in
        return min(ends_in, due if kept.not_before is None else max(due, kept.not_before.since(now)))

    async def _renew(self, leases: list[Held]) -> None:
        """Renews these leases together, until an outcome is definite or none of them is left."""
        seconds = min(min(held.read().ttl for held in leases) / 4e9, ATTEMPT_TIMEOUT)
        attempts: Attempts[tuple[Moment, list[dict[str, Any]]]] = Attempts(self._cluster, None)
        attempts.longest_pause = seconds / 2
        while leases := [held for held in leases if self._is_kept(held)]:
            asked = leases
            ids = _wire.text({"lease_ids": [held.lease_id for held in asked]})
            request = Request("POST", "/v1/renew", ids, apart="renewal")

            def read(response: Response, count: int = len(asked)) -> tuple[Moment, list[dict[str, Any]]]:
                return response.sent, response.results(count)

            outcome = await attempts.attempt(request, seconds, read)
            if isinstance(outcome, Done):
                sent, found = outcome.value
                full = [held for held, one in zip(asked, found, strict=True) if _learn(held, sent, one)]
                self._finish(asked, full)
                return
            why = outcome.problem.get("detail", "") if isinstance(outcome, Refused) else outcome.why
            for held in asked:
                held.failed(str(why))
            if isinstance(outcome, Refused):
                LOG.warning(
                    "a renewal of %d leases was refused: %s", len(asked), outcome.problem.get("detail")
                )
                self._finish(asked, [])
                return

    def _is_kept(self, held: Held) -> bool:
        kept = self._kept.get(held.lease_id)
        return kept is not None and kept.held is held and held.loss() is None

    def _finish(self, leases: Sequence[Held], at_once: Sequence[Held]) -> None:
        now = self._cluster.clock()
        for held in leases:
            kept = self._kept.get(held.lease_id)
            if kept is not None and kept.held is held:
                pause = 0 if held in at_once else _pause(held)
                kept.is_in_flight, kept.not_before = False, now.after(pause)


def _pause(held: Held) -> int:
    return min(held.read().ttl // 12, _MAX_NAP)


def _chunks(due: list[_Kept]) -> Iterator[list[_Kept]]:
    """As many as fit into one request and its answer."""
    chunk: list[_Kept] = []
    size = 0
    for kept in due:
        answer = 300 + sum(120 + 6 * len(key) for key in kept.held.fences())
        if chunk and (len(chunk) == _MAX_BATCH or size + answer > _MAX_ANSWER):
            yield chunk
            chunk, size = [], 0
        chunk.append(kept)
        size += answer
    if chunk:
        yield chunk


def _learn(held: Held, sent: Moment, result: dict[str, Any]) -> bool:
    """Learns the result of one lease. Returns whether the answer had no room for it: then it was not done."""
    status, body = result.get("status"), result.get("body")
    if status == 200:
        try:
            held.confirm(Confirmation(sent, _wire.grant(body, held.lease_id)))
        except ValueError as error:
            LOG.warning("the renewal of a lease was unreadable: %s", error)
    elif isinstance(body, dict) and isinstance(body.get("type"), str):
        loss = Refused(body).loss if body["type"].startswith(_outcome.PROBLEM) else None
        if loss is not None:
            held.lose(loss)
        else:
            held.failed(str(body.get("detail", "")))
    return status == 413
