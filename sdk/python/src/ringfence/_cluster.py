"""Calls to the cluster: attempts at one node after another, until an outcome is definite.

**Ambiguity is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about it; only *done* or
*refused* resolves it. All attempts of a call together take 5 s, far less than the 60 s after which the cluster may forget an id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from . import _clock, _outcome, _wire
from ._dial import Names
from ._http import Request, Response
from ._lifetime import Confirmation
from ._nodes import Entry, Nodes, Url
from ._outcome import Ambiguous, Broken, Done, NotDone, NotSent, Outcome, Refused, Untrusted
from ._releases import Releases
from ._server import Server
from ._tasks import bounded, quiet
from ._tls import Tls
from .errors import Error, Lost, Rejected, Unauthorized, Unavailable, Unknown

T = TypeVar("T")
_LOG = logging.getLogger("ringfence")

RETRY_FOR = 5.0
"""How long a call is repeated without a definite outcome."""
ATTEMPT_TIMEOUT = 2.0
"""How long one node may take if another can be asked."""
_LOOKUP_TIMEOUT = 15.0
_LONGEST_PAUSE = 1.0
MAX_BATCH = 1_000


class Backoff:
    """Random pauses that grow up to a second. They start low, because most elections take less."""

    def __init__(self) -> None:
        self._pauses = 0

    def next(self) -> float:
        """From half to all of a time that doubles, so that clients that failed together return apart."""
        most: float = min(0.04 * 2 ** min(self._pauses, 8), _LONGEST_PAUSE)
        self._pauses += 1
        return most * random.uniform(0.5, 1.0)  # noqa: S311


class Cluster:
    """The cluster, as the leases of one client on one event loop share it."""

    def __init__(
        self, urls: Sequence[str], tls: Tls | None, credential: str | None, learns: bool, clock: _clock.Clock
    ) -> None:
        self.clock = clock
        self._tls, self._credential = tls, credential
        self._loop = asyncio.get_running_loop()
        self._names = Names(self._loop)
        self.nodes = Nodes(
            urls, learns=learns, is_resolved=lambda url: self._names.is_resolved(url.host, url.port)
        )
        self._servers: dict[Url, Server] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self.releases = Releases(self._release, RETRY_FOR)
        self.is_closed = False
        self.owner: object = None
        """Lives as long as what goes on here."""

    def server(self, node: Entry) -> Server:
        """The connections to a node."""
        if node.url not in self._servers:
            self._servers[node.url] = Server(node.url, self._names, self._tls, self._credential, self.clock)
        return self._servers[node.url]

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` in the background, until the client is closed."""
        task = quiet(self._loop.create_task(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def resolve(self) -> None:
        """Waits until a node can be connected to without a lookup. If none can, the next attempt fails, and says why."""
        best = self.nodes.best(time.monotonic()).url
        if self._names.is_resolved(best.host, best.port):
            return
        lookups = {
            quiet(
                self._loop.create_task(self._names.resolve(entry.url.host, entry.url.port, _LOOKUP_TIMEOUT))
            )
            for entry in self.nodes.entries
        }
        try:
            while lookups:
                done, lookups = await asyncio.wait(lookups, return_when=asyncio.FIRST_COMPLETED)
                if any(lookup.exception() is None for lookup in done):
                    return
        finally:
            for lookup in lookups:
                lookup.cancel()

    async def meet(self, node: Entry) -> None:
        """Asks a node for a sign of life of this client's cluster. Raises `NotSent`."""
        response = await self.server(node).probe()
        self.nodes.check_cluster(node, response.cluster, is_definite=False)
        self.nodes.met(node)

    async def renew(self, lease_id: str, ttl_ms: int | None = None) -> Confirmation:
        """Renews a lease by its id."""
        request = Request(
            "POST", f"/v1/leases/{lease_id}/renew", {} if ttl_ms is None else {"ttl_ms": ttl_ms}
        )

        def read(response: Response) -> Confirmation:
            return Confirmation(response.sent, _wire.grant(response.json(), lease_id))

        attempts: Attempts[Confirmation] = Attempts(self, lease_id)
        return await attempts.call(request, read, RETRY_FOR)

    async def _release(self, lease_id: str, seconds: float) -> None:
        attempts: Attempts[None] = Attempts(self, lease_id)
        await attempts.call(Request("DELETE", f"/v1/leases/{lease_id}"), no_content, seconds)

    async def release_many(self, lease_ids: Sequence[str], seconds: float) -> None:
        """Releases leases with few requests, best effort."""
        self.releases.batched.update(lease_ids)
        for start in range(0, len(lease_ids), MAX_BATCH):
            together = lease_ids[start : start + MAX_BATCH]
            for lease_id in await self._release_together(together, seconds):
                self.releases.begin(lease_id)
            self.releases.batched.difference_update(together)

    async def _release_together(self, lease_ids: Sequence[str], seconds: float) -> Sequence[str]:
        """Returns the leases whose release has no definite outcome."""
        request = Request(
            "POST", "/v1/batch", {"operations": [{"release": {"lease_id": one}} for one in lease_ids]}
        )
        attempts: Attempts[list[str]] = Attempts(self, None)
        try:
            return await attempts.call(request, lambda response: _unreleased(response, lease_ids), seconds)
        except Error:
            return lease_ids

    async def close(self, within: float) -> int:
        """Ends all that goes on: releases first, within this time. Returns how many are left."""
        self.is_closed = True
        try:
            await bounded(self.releases.settled(), within)
        except asyncio.TimeoutError:
            pass
        finally:
            left = len(self.releases)
            tasks = {*self.releases.close(), *(self._background - {asyncio.current_task()})}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            self.disconnect()
        return left

    def disconnect(self) -> None:
        """Closes the connections."""
        for server in self._servers.values():
            server.close()


class Attempts(Generic[T]):
    """The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows."""

    def __init__(self, cluster: Cluster, lease_id: str | None, is_of_a_lease: bool = True) -> None:
        self._cluster, self._nodes = cluster, cluster.nodes
        self.is_of_a_lease = is_of_a_lease
        """Whether it concerns a lease that may be held: then it goes on, as certificates may be replaced."""
        self._lease_id = lease_id
        self._failed = 0
        self._backoff = Backoff()
        self._last_failure = "no attempt was made"
        self._ask_after: float | None = None
        self.longest_pause = float("inf")
        self._distrusted: frozenset[Url] = frozenset()
        self.maybe_done = False
        """Whether an attempt may have been done."""

    async def attempt(self, request: Request, seconds: float, read: Callable[[Response], T]) -> Outcome[T]:
        """One attempt."""
        await self._pause()
        node = self._nodes.best(time.monotonic())
        asked = time.monotonic()
        silent_since: float | None = None
        leader: str | None = None
        outcome: Outcome[T]
        is_untrusted = False
        try:
            response = await self._send(node, request, seconds)
            outcome, leader = self._judge(node, response, read), response.leader
        except NotSent as error:
            outcome, silent_since = NotDone(str(error)), asked
            is_untrusted = isinstance(error, Untrusted)
        except Broken as error:
            outcome, silent_since = Ambiguous(str(error)), asked
        now = time.monotonic()
        if isinstance(outcome, Done | Refused):
            stranger = self._nodes.responded(node, leader, now)
            if stranger is not None:
                self._cluster.spawn(self._cluster.meet(stranger))
        elif not (isinstance(outcome, NotDone) and outcome.retry_after is not None):
            self._nodes.failed(node, silent_since, now)
        self._record(outcome)
        self._distrusted = self._distrusted | {node.url} if is_untrusted else frozenset()
        return outcome

    @property
    def is_distrusted(self) -> bool:
        """Whether each node was asked in vain, as one side did not trust the other, and nothing else has happened."""
        return all(entry.url in self._distrusted for entry in self._nodes.entries[: self._nodes.configured])

    def _judge(self, node: Entry, response: Response, read: Callable[[Response], T]) -> Outcome[T]:
        outcome = _outcome.of(response, read)
        try:
            self._nodes.check_cluster(node, response.cluster, isinstance(outcome, Done | Refused))
        except NotSent as stranger:
            return NotDone(str(stranger))
        return outcome

    async def call(self, request: Request, read: Callable[[Response], T], retry_for: float) -> T:
        """Attempts until the outcome is definite, or `retry_for` is over."""
        # The time for that is not taken from the attempts.
        await self._cluster.resolve()
        begun = time.monotonic()
        while True:
            left = max(retry_for - (time.monotonic() - begun), 0.1)
            has_another = self._nodes.has_another(time.monotonic())
            outcome = await self.attempt(
                request, min(left, ATTEMPT_TIMEOUT if has_another else RETRY_FOR), read
            )
            if isinstance(outcome, Done):
                return outcome.value
            if isinstance(outcome, Refused):
                raise self.refused(outcome)
            if time.monotonic() - begun >= retry_for or (not self.is_of_a_lease and self.is_distrusted):
                raise self.error()

    def refused(self, refused: Refused) -> Error:
        """The error of a refusal. A denial says nothing of attempts that may have been done."""
        if refused.is_denial and self.maybe_done:
            return Unknown(f"the outcome is unknown: {refused.problem.get('detail')}", self._lease_id)
        if refused.loss is not None:
            return Lost(refused.loss)
        return Unauthorized(refused.problem) if refused.is_denial else Rejected(refused.problem)

    def error(self) -> Error:
        """The error of a call without a definite outcome."""
        if self.maybe_done:
            return Unknown(f"the outcome is unknown: {self._last_failure}", self._lease_id)
        return Unavailable(f"the cluster is not available: {self._last_failure}")

    async def _pause(self) -> None:
        pause = 0.0
        if self._failed > 0 and self._failed % self._nodes.configured == 0:
            pause = min(self._backoff.next(), self.longest_pause)
        if self._ask_after is not None:
            pause = max(pause, min(self._ask_after, RETRY_FOR, self.longest_pause))
        if pause > 0:
            await asyncio.sleep(pause)

    async def _send(self, node: Entry, request: Request, seconds: float) -> Response:
        # Once sent to a node that hangs or that is of another cluster, it could not be sent to another.
        if not node.is_met:
            await self._cluster.meet(node)

        def has_another() -> bool:
            return self._nodes.has_usable_besides(node, time.monotonic())

        return await self._cluster.server(node).send(request, seconds, has_another)

    def _record(self, outcome: Outcome[T]) -> None:
        self._ask_after = None
        if isinstance(outcome, Done | Refused):
            self._failed, self._backoff = 0, Backoff()
            return
        self._failed += 1
        self._last_failure = outcome.why
        if isinstance(outcome, Ambiguous):
            self.maybe_done = True
        else:
            self._ask_after = outcome.retry_after


def no_content(response: Response) -> None:
    """Reads a response without a body."""
    if response.status != 204:
        raise ValueError(f"expected 204, not {response.status}")


def results(response: Response, count: int) -> list[dict[str, Any]]:
    """Reads the results of as many operations, each with its status and body."""
    body = response.json()
    found = body.get("results") if isinstance(body, dict) else None
    if not isinstance(found, list) or len(found) != count or not all(isinstance(one, dict) for one in found):
        raise ValueError("not as many results as operations")
    return found


def _unreleased(response: Response, lease_ids: Sequence[str]) -> list[str]:
    """The leases whose release has no definite outcome."""
    found = zip(lease_ids, results(response, len(lease_ids)), strict=True)
    return [lease_id for lease_id, one in found if one.get("status") not in (204, 410)]
