"""HTTP to one node, over connections that are reused, on one event loop.

A failure tells whether any byte of the request was sent, which separates *not done* from *maybe done*. An abandoned request
closes its connection at once, so that the node notices that its client is gone, and its answer reaches nobody else.

A machine that vanishes closes no connection, and the kernel of a process that hangs acknowledges whatever is sent. So a request
that waits, be it for 30 s in the cluster's queue, has the node asked for a sign of life on another connection:

     sent ── 300 ms without a response ──▶ GET /livez ── answered ──▶ 1 s ──▶ GET /livez ── …
                                            └─ not within 1.5 s ──▶ the request is broken, and repeated elsewhere

Its answer says that all threads of the node run. A response to another request says nothing of the thread that has this one.

Whoever has a place in the queue leaves only for another node: the cluster takes the place away soon after the connection is closed.
So a wait asks once more, after a random pause, as a busy leader may be late with thousands of waiters; and when it goes on
elsewhere, its connection stays open until that node has answered.
"""

from __future__ import annotations

import asyncio
import random
import select
import ssl
import time
from collections.abc import Callable

from . import _clock, _fork
from ._batch import Batcher
from ._dial import Names
from ._http import Malformed, Request, Response, ResponseReader
from ._nodes import Url
from ._outcome import Broken, NotSent, Untrusted
from ._tasks import bounded, ended, quiet
from ._tls import Tls, is_refusal

CONNECT_TIMEOUT = 1.0
_PROBE_AFTER = 0.3
_PROBE_INTERVAL = 1.0
_ANSWERS_WITHIN = 1.5
# A node of which a thread has not run for so long does not live: that thread may have the request that waits.
_THREADS_RUN = {"ringfence-within-ms": "1000"}
# How late a busy leader may be.
_LATE = 0.5
_BODY_TIMEOUT = 5.0
_MAX_IDLE = 64
# Nodes close idle connections after 75 s.
_IDLE_FOR = 20.0


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Whether nothing has arrived on the idle connection, not even its end. The loop may not have noticed yet."""
        if self.reader.at_eof() or self.writer.is_closing() or time.monotonic() - self.idle_since > _IDLE_FOR:
            return False
        poll = select.poll()
        poll.register(self.writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes it at once: what was not sent is not sent any more."""
        self.writer.transport.abort()


class Left(Broken):
    """A wait that goes on elsewhere. It keeps its connection `open` until it is cancelled."""

    open: asyncio.Task[Response]


class Server:
    """The connections to one node."""

    def __init__(
        self, url: Url, names: Names, tls: Tls | None, credential: str | None, clock: _clock.Clock
    ) -> None:
        self.url = url
        self._names, self._tls, self._clock = names, tls, clock
        # Over a plain connection anybody could read it.
        self._credential = credential if url.is_https else None
        self._idle: list[_Connection] = []
        # Renewals never stand behind anything else.
        self._idle_renewals: list[_Connection] = []
        self.batcher = Batcher(self.send)
        self._is_closed = False
        self._process = _fork.process()
        # When a probe was answered last.
        self._heard = 0.0
        self._probing: asyncio.Task[Response] | None = None

    async def send(self, request: Request, seconds: float, has_another: Callable[[], bool]) -> Response:
        """Sends a request and reads the whole response, within `seconds` of being connected. Raises `NotSent` or `Broken`.

        If the node falls silent, and `has_another`, it gives up earlier.
        """
        call = _Call()
        task = quiet(asyncio.ensure_future(self._carry(request, call)))
        try:
            await self._watch(task, call, seconds, has_another, waits=request.apart == "wait")
            return task.result()
        except Left as left:
            left.open = task
            raise
        finally:
            if not call.is_left:
                task.cancel()

    async def probe(self) -> Response:
        """Asks whether it lives, at most once at a time. Raises `NotSent`."""
        if self._probing is None or self._probing.done():
            self._probing = quiet(asyncio.ensure_future(self._probe()))
        probing = self._probing
        await ended(probing)
        if probing.cancelled():
            raise NotSent(f"{self.url}: the probe was cancelled")
        return probing.result()

    def close(self) -> None:
        """Closes its idle connections, and others once they are idle."""
        self._is_closed = True
        for idle in (self._idle, self._idle_renewals):
            while idle:
                idle.pop().close()

    async def _watch(
        self,
        task: asyncio.Task[Response],
        call: _Call,
        seconds: float,
        has_another: Callable[[], bool],
        waits: bool,
    ) -> None:
        """Returns once the request has ended. Raises if it takes too long."""
        begun = time.monotonic()
        connect_by = begun + min(seconds, CONNECT_TIMEOUT)
        asked = begun - _PROBE_INTERVAL
        while not task.done():
            now = time.monotonic()
            if call.sent_at is None:
                if now >= connect_by:
                    raise NotSent(f"{self.url}: not connected within {connect_by - begun:g} s")
                await ended(task, min(_PROBE_AFTER, connect_by - now))
                continue
            deadline = call.deadline(seconds)
            if now >= deadline:
                raise Broken(f"{self.url}: no response within {seconds:g} s")
            is_heard = self._heard > call.sent_at
            due = self._heard + _PROBE_INTERVAL if is_heard else call.sent_at + _PROBE_AFTER
            due = max(due, asked + _PROBE_INTERVAL)
            if now < due:
                await ended(task, min(due, deadline) - now)
                continue
            asked = now
            if await self._answers(task) or not has_another():
                continue
            if not waits:
                raise Broken(f"{self.url}: it does not answer")
            await ended(task, random.uniform(0, _LATE))  # noqa: S311
            if not task.done() and not await self._answers(task):
                call.is_left = True
                raise Left(f"{self.url}: it does not answer")

    async def _answers(self, task: asyncio.Task[Response]) -> bool:
        """Whether it gives a sign of life, or the response of `task`."""
        probing = quiet(asyncio.ensure_future(self.probe()))
        try:
            await asyncio.wait({task, probing}, return_when=asyncio.FIRST_COMPLETED)
            return task.done() or probing.cancelled() or not isinstance(probing.exception(), NotSent)
        finally:
            probing.cancel()

    async def _probe(self) -> Response:
        try:
            probe = Request("GET", "/livez", headers=_THREADS_RUN)
            response = await bounded(self._carry(probe, _Call()), _ANSWERS_WITHIN)
        except (asyncio.TimeoutError, Broken):
            raise NotSent(f"{self.url}: it does not answer") from None
        # A node without room for another connection does not say of which cluster it is. One that hangs does.
        has_no_room = response.cluster is None and response.problem() is not None
        if response.status >= 500 and not has_no_room:
            raise NotSent(f"{self.url}: {response.status} of a probe")
        self._heard = time.monotonic()
        return response

    async def _carry(self, request: Request, call: _Call) -> Response:
        """Carries a request over a connection, which is closed unless the response was read in full."""
        idle = self._idle_renewals if request.apart == "renewal" else self._idle
        connection, is_reused = await self._connection(idle)
        try:
            message = request.encode(self.url.authority, self._credential)
            sent, call.sent_at = self._clock(), time.monotonic()
            connection.writer.write(message)
            response = await self._read(connection, sent, call)
        except BaseException as error:
            connection.close()
            self._names.forget(self.url.host, self.url.port)
            if not is_reused and is_refusal(error):
                raise Untrusted(f"{self.url} refuses this client's certificate: {error}") from error
            if isinstance(error, OSError | Malformed):
                raise Broken(f"{self.url}: {error or type(error).__name__}") from error
            raise
        self._keep(connection, response, idle)
        return response

    async def _read(self, connection: _Connection, sent: _clock.Moment, call: _Call) -> Response:
        reader = ResponseReader()
        while True:
            data = await connection.reader.read(64 << 10)
            if not data:
                raise Broken(f"{self.url}: the connection was closed before the end of the response")
            is_complete = reader.feed(data)
            if reader.status is not None and call.head_at is None:
                call.head_at = time.monotonic()
            if is_complete:
                return reader.response(sent)

    def _keep(self, connection: _Connection, response: Response, idle: list[_Connection]) -> None:
        connection.idle_since = time.monotonic()
        if response.keeps_alive and len(idle) < _MAX_IDLE and not self._is_closed:
            idle.append(connection)
        else:
            connection.close()

    async def _connection(self, idle: list[_Connection]) -> tuple[_Connection, bool]:
        """A connection, and whether it has carried a request before. Raises `NotSent`."""
        if _fork.process() != self._process:
            raise NotSent(f"{self.url}: this process was forked from the client's")
        while idle:
            found = idle.pop()
            if found.is_usable():
                return found, True
            found.close()
        connected = await self._connect()
        return connected, False

    async def _connect(self) -> _Connection:
        connected = await self._names.connect(self.url.host, self.url.port)
        try:
            context = self._tls.context() if self._tls is not None and self.url.is_https else None
            reader, writer = await asyncio.open_connection(
                sock=connected,
                ssl=context,
                server_hostname=self.url.host if context is not None else None,
            )
        except BaseException as error:
            connected.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise Untrusted(f"the certificate of {self.url} is not trusted: {error}") from error
            if isinstance(error, OSError):
                raise NotSent(f"{self.url}: {error}") from error
            raise
        return _Connection(reader, writer)


class _Call:
    """How far a request has come."""

    def __init__(self) -> None:
        self.sent_at: float | None = None
        self.head_at: float | None = None
        self.is_left = False
        """Whether it waits in the queue of a node that does not answer, until another does."""

    def deadline(self, seconds: float) -> float:
        """When it takes too long: the rest of a response that has begun may take a while longer."""
        assert self.sent_at is not None, "it was sent"  # noqa: S101
        if self.head_at is None:
            return self.sent_at + seconds
        return self.head_at + _BODY_TIMEOUT
