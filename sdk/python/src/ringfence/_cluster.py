"""Calls to the cluster: attempts at one node after another, until an outcome is definite.

**Ambiguity is sticky.** If one attempt may have been done, the outcome *not done* of a repeat says nothing about it; only *done* or
*refused* resolves it. All attempts of a call together take 5 s, far less than the 60 s after which the cluster may forget an id.
"""

from __future__ import annotations

import asyncio
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
from ._server import Left, Server
from ._tasks import bounded, quiet
from ._tls import Tls
from ._turns import Turn, Turns
from .errors import Error, Lost, Rejected, Unauthorized, Unavailable, Unknown

T = TypeVar("T")

RETRY_FOR = 5.0
"""How long a call is repeated without a definite outcome."""
ATTEMPT_TIMEOUT = 2.0
"""How long one node may take if another can be asked."""
_LOOKUP_TIMEOUT = 15.0
_LONGEST_PAUSE = 1.0
# With two requests of a batch and a probe these are 64 connections to a node at most; renewals have their own. When calls go on at
# another node, connections to the first are idle, or left until there is an answer: for a while there are twice as many.
_MOST_ALONE = 29
_MOST_WAITS = 32


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
        self.alone, self.waits = Turns(_MOST_ALONE), Turns(_MOST_WAITS)
        self.answered_at = 0.0
        """When a call last had a definite outcome."""
        self.is_closed = False
        self.owner: object = None
        """Lives as long as what goes on here."""

    def server(self, node: Entry) -> Server:
        """The connections to a node."""
        server = self._servers.get(node.url)
        if server is None:
            server = Server(node.url, self._names, self._tls, self._credential, self.clock)
            self._servers[node.url] = server
        return server

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
        body = {} if ttl_ms is None else {"ttl_ms": ttl_ms}
        operation = _wire.text({"renew": {"lease_id": lease_id, **body}})
        request = Request("POST", f"/v1/leases/{lease_id}/renew", _wire.text(body), operation=operation)

        def read(response: Response) -> Confirmation:
            return Confirmation(response.sent, _wire.grant(response.json(), lease_id))

        attempts: Attempts[Confirmation] = Attempts(self, lease_id)
        return await attempts.call(request, read, RETRY_FOR)

    async def _release(self, lease_id: str, seconds: float) -> None:
        attempts: Attempts[None] = Attempts(self, lease_id)
        # An id needs no escapes in JSON.
        operation = f'{{"release":{{"lease_id":"{lease_id}"}}}}'.encode()
        request = Request("DELETE", f"/v1/leases/{lease_id}", operation=operation)
        await attempts.call(request, no_content, seconds)

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


class _NoTurn(Exception):
    """Other calls have all connections, and none gets an answer."""


class Attempts(Generic[T]):
    """The attempts of one call, each at the node that is best at the time. When all nodes have had their turn, a pause follows.

    Attempts may share requests with others. If that has brought an odd answer from each node, they are alone: something in between
    may not let a batch pass.
    """

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
        self.idle = 0.0
        """How long it has waited for a turn while others got answers. The cluster is not to blame for that."""
        # How many answers to a shared request say nothing.
        self._odd = 0
        # Waits that go on elsewhere.
        self._left: dict[Url, asyncio.Task[Response]] = {}

    async def attempt(self, request: Request, seconds: float, read: Callable[[Response], T]) -> Outcome[T]:
        """One attempt."""
        if self._failed > 0:
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
        except _NoTurn:
            outcome = NotDone("no call gets an answer")
            self._record(outcome)
            return outcome
        except NotSent as error:
            outcome, silent_since = NotDone(str(error)), asked
            is_untrusted = isinstance(error, Untrusted)
        except Broken as error:
            outcome, silent_since = Ambiguous(str(error)), asked
            if isinstance(error, Left):
                self._leave(node.url)
                self._left[node.url] = error.open
        now = time.monotonic()
        if isinstance(outcome, Done | Refused):
            self._cluster.answered_at = now
            self.leave()
            stranger = self._nodes.responded(node, leader, now)
            if stranger is not None:
                self._cluster.spawn(self._cluster.meet(stranger))
        elif not (isinstance(outcome, NotDone) and outcome.retry_after is not None):
            self._nodes.failed(node, silent_since, now)
        self._record(outcome)
        self._distrusted = self._distrusted | {node.url} if is_untrusted else frozenset()
        return outcome

    def leave(self) -> None:
        """No wait is kept open any more: another node has answered, or nobody waits."""
        for url in list(self._left):
            self._leave(url)

    def _leave(self, url: Url) -> None:
        left = self._left.pop(url, None)
        if left is not None:
            left.cancel()

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
            left = max(retry_for - (time.monotonic() - begun - self.idle), 0.1)
            has_another = self._nodes.has_another(time.monotonic())
            outcome = await self.attempt(
                request, min(left, ATTEMPT_TIMEOUT if has_another else RETRY_FOR), read
            )
            if isinstance(outcome, Done):
                return outcome.value
            if isinstance(outcome, Refused):
                raise self.refused(outcome)
            is_over = time.monotonic() - begun - self.idle >= retry_for
            if is_over or (not self.is_of_a_lease and self.is_distrusted):
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
        if self._failed % self._nodes.configured == 0:
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

        server = self._cluster.server(node)
        if request.operation is not None and self._odd < self._nodes.configured:
            try:
                response = await server.batcher.send(request, seconds, has_another)
            except Broken:
                self._odd += 1
                raise
            if response is not None:
                self._odd += response.status >= 300 and response.problem() is None
                return response
        if request.apart is not None:
            return await server.send(request, seconds, has_another)
        turn = self._cluster.alone.ask()
        try:
            await self._wait(turn, seconds)
            return await server.send(request, seconds, has_another)
        finally:
            turn.end()

    async def _wait(self, turn: Turn, seconds: float) -> None:
        """Waits for a turn, for so long at most while no call gets an answer. Raises `_NoTurn`."""
        begun = time.monotonic()
        last = begun
        while not await turn.wait(last + seconds - time.monotonic()):
            if self._cluster.answered_at <= last:
                break
            last = self._cluster.answered_at
        self.idle += max(self._cluster.answered_at - begun, 0.0)
        if not turn.is_ready:
            raise _NoTurn

    def _record(self, outcome: Outcome[T]) -> None:
        self._ask_after = None
        if isinstance(outcome, Done | Refused):
            self._failed, self._odd, self._backoff = 0, 0, Backoff()
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
