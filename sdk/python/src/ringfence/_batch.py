"""Acquires, renewals and releases of one turn of the loop share a request: most of what a call costs is per request.

     a call ──▶ the queue ── at the end of the turn, if a permit is free ──▶ alone, by itself ──▶ its own request
                   ▲                                                          └── several ──────▶ POST /v1/batch
                   └── a permit becomes free, and what its answer resumed has asked for more

A *permit* is the right to have a request under way. Two are enough: while one is answered, the other is filled, and a busy client
sends ever larger batches instead of more of them. Nothing waits in a batch. An acquire that waits is answered with a place in the
cluster's queue, where it waits with a request of its own; one that is alone may wait briefly in its own request, but never with
the last permit.

Each call gets the response that it would have got alone. If a batch gets none, none of its calls does. If a node refuses it as a
whole, for example as it does not know a field, each call is sent alone. What a proxy answers is in doubt for each call, which is
repeated. A call that is given up leaves the others alone; only when all are given up, the request is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from ._http import Request, Response
from ._outcome import Broken, NotSent

_PERMITS = 2
# What one request may have: a node takes 1,000 operations and 1 MiB.
_MAX_BATCH = 1_000
_MAX_BYTES = 512 << 10

HasAnother = Callable[[], bool]
Send = Callable[[Request, float, HasAnother], Coroutine[Any, Any, Response]]


class _Call:
    def __init__(
        self, request: Request, seconds: float, has_another: HasAnother, told: asyncio.Future[Response | None]
    ) -> None:
        self.request, self.seconds, self.has_another, self.told = request, seconds, has_another, told
        self.text = request.operation or b""
        # The request that this call shares with others, once it is in one.
        self.shared: _Shared | None = None

    @property
    def waits(self) -> bool:
        return self.request.wait_ms > 0


class _Shared:
    def __init__(self, count: int, sending: asyncio.Task[None]) -> None:
        self._count, self._sending = count, sending

    def left(self) -> None:
        """One of its calls was given up: ends the request if that was the last."""
        self._count -= 1
        if self._count == 0:
            self._sending.cancel()


class Batcher:
    """The calls to one node that may share requests."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._permits = _PERMITS
        self._is_waiting = False
        self._is_about_to = False

    async def send(self, request: Request, seconds: float, has_another: HasAnother) -> Response | None:
        """Sends it, perhaps with others. `None`: nothing was done, and it has to be sent alone. Raises `NotSent` or `Broken`.

        `has_another` says whether another node would do if this one is silent.
        """
        call = _Call(request, seconds, has_another, self._loop.create_future())
        self._queue.append(call)
        self._soon()
        try:
            return await call.told
        except asyncio.CancelledError:
            if call.shared is not None:
                call.shared.left()
            raise

    def _soon(self) -> None:
        """Sends what is in the queue once all that runs in this turn has asked."""
        if not self._is_about_to and self._permits > 0 and self._queue:
            self._is_about_to = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_about_to = False
        while self._permits > 0 and (calls := self._take()):
            is_alone = len(calls) == 1 and not (calls[0].waits and self._is_waiting)
            waits = is_alone and calls[0].waits
            self._permits -= 1
            self._is_waiting = self._is_waiting or waits
            sending = self._loop.create_task(self._one(calls[0]) if is_alone else self._several(calls))
            shared = _Shared(len(calls), sending)
            for call in calls:
                call.shared = shared
            sending.add_done_callback(partial(self._sent, calls, waits))

    def _take(self) -> list[_Call]:
        """What fits into one request, without those that were given up."""
        calls: list[_Call] = []
        size = 0
        while self._queue and len(calls) < _MAX_BATCH:
            call = self._queue[0]
            if not call.told.done():
                size += len(call.text) + 1
                if size > _MAX_BYTES and calls:
                    break
                calls.append(call)
            self._queue.popleft()
        return calls

    def _sent(self, calls: Sequence[_Call], waits: bool, sending: asyncio.Task[None]) -> None:
        """However it has ended, also if somebody has cancelled it who did not know it."""
        self._permits += 1
        self._is_waiting = self._is_waiting and not waits
        error = Broken("the request was cancelled") if sending.cancelled() else sending.exception()
        if error is not None:
            for call in calls:
                _fail(call, error)
        if isinstance(error, NotSent | Broken):
            # They do not wait for the same again, and go elsewhere at once.
            unsent = error if isinstance(error, NotSent) else NotSent(str(error))
            while self._queue and not sending.cancelled():
                _fail(self._queue.popleft(), unsent)
        self._soon()

    async def _one(self, call: _Call) -> None:
        _tell(call, await self._send(call.request, call.seconds, call.has_another))

    async def _several(self, calls: Sequence[_Call]) -> None:
        text = b'{"operations":[' + b",".join(call.text for call in calls) + b"]}"
        seconds = max(call.seconds - call.request.wait_ms / 1_000 for call in calls)
        request = Request("POST", "/v1/batch", text)
        response = await self._send(request, seconds, calls[0].has_another)
        for call, part in zip(calls, _split(response, len(calls)), strict=True):
            _tell(call, part)


def _tell(call: _Call, response: Response | None) -> None:
    if not call.told.done():
        call.told.set_result(response)


def _fail(call: _Call, error: BaseException) -> None:
    if not call.told.done():
        # Whoever raises it adds to its traceback.
        call.told.set_exception(type(error)(*error.args))


def _split(response: Response, count: int) -> list[Response | None]:
    """The response to each of so many operations; `None` for one that has to be sent alone."""
    status = response.status
    if status != 200:
        is_refused = 400 <= status < 500 and status != 429 and response.problem() is not None
        return [None if is_refused else response] * count
    try:
        found = response.results(count)
    except ValueError as error:
        raise Broken(f"unreadable response to a batch: {error}") from None
    # The others' results left no room for those, which were not done.
    return [None if one.get("status") == 413 else response.part(one) for one in found]
