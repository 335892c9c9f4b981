"""TCP connections to a host by name.

A name server may hang, and a name may have addresses that lead nowhere. So a lookup is apart from connecting: it has a thread of
its own, at most one per name and client, and goes on when its caller gives up. The last good addresses are used at once while
another lookup renews them. All addresses are tried, 250 ms apart, and the one that answered last is the first.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import os
import socket
import time
from contextlib import suppress

from ._outcome import NotSent
from ._tasks import bounded
from ._threads import begin

_STAGGER = 0.25
_LOOKUP_INTERVAL = 1.0
# How long the other host may be silent; a stopped process does not count. It also ends a connection that was closed: otherwise
# an abandoned request could arrive more than a minute later, when the cluster has forgotten that its lease was released.
_GONE_AFTER_MS = 2_000


class Names:
    """What is known of names, for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known: dict[tuple[str, int], _Name] = {}

    def is_resolved(self, host: str, port: int) -> bool:
        """Whether addresses are known. If not, a lookup goes on in the background."""
        return _literal(host) is not None or self._name(host, port).has_addresses()

    async def resolve(self, host: str, port: int, within: float) -> None:
        """Waits until addresses are known. Raises `NotSent`."""
        if _literal(host) is None:
            await self._name(host, port).addresses(within)

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connects to the address that accepts first. Raises `NotSent`. The caller bounds it."""
        literal = _literal(host)
        if literal is not None:
            family = socket.AF_INET6 if literal.version == 6 else socket.AF_INET
            return await self._race([(family, (str(literal), port))], f"{host}:{port}")
        name = self._name(host, port)
        connected = await self._race(await name.addresses(1.0), f"{host}:{port}")
        name.answered = connected.getpeername()[0]
        return connected

    def forget(self, host: str, port: int) -> None:
        """Its connection brought nothing: begin with another address next time."""
        name = self._known.get((host, port))
        if name is not None:
            name.failed()

    def _name(self, host: str, port: int) -> _Name:
        return self._known.setdefault((host, port), _Name(host, port, self._loop))

    async def _race(self, addresses: list[_Address], what: str) -> socket.socket:
        """Tries all of them, staggered, until one accepts."""
        attempts: set[asyncio.Task[socket.socket]] = set()
        left, failures = list(addresses), list[str]()
        try:
            while attempts or left:
                if left:
                    attempts.add(self._loop.create_task(self._connect(*left.pop(0))))
                done, attempts = await asyncio.wait(
                    attempts, timeout=_STAGGER if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                failures += [_why(error) for error in (attempt.exception() for attempt in done) if error]
                connected = [attempt.result() for attempt in done if not attempt.exception()]
                for late in connected[1:]:
                    late.close()
                if connected:
                    return connected[0]
        finally:
            for attempt in attempts:
                # The caller may be cancelled when a connection has just been made.
                if not attempt.cancel() and not attempt.cancelled() and attempt.exception() is None:
                    attempt.result().close()
        raise NotSent(f"{what}: {', '.join(failures)}")

    async def _connect(self, family: int, address: tuple[str, int]) -> socket.socket:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            _tune(connection)
            await self._loop.sock_connect(connection, address)
        except OSError as error:
            connection.close()
            # asyncio says only that connecting failed.
            raise OSError(error.errno, os.strerror(error.errno or errno.EIO)) from error
        except BaseException:
            connection.close()
            raise
        return connection


_Address = tuple[int, tuple[str, int]]


class _Name:
    """One name."""

    def __init__(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._host, self._port, self._loop = host, port, loop
        self._found: list[_Address] = []
        self._failure = "not looked up"
        self._began: float | None = None
        self._is_pending = False
        self._waiting: set[asyncio.Future[None]] = set()
        self.answered: str | None = None

    def has_addresses(self) -> bool:
        if not self._found:
            self._look_up()
        return bool(self._found)

    def failed(self) -> None:
        if self.answered is not None:
            self._found.sort(key=lambda one: one[1][0] == self.answered)
            self.answered = None

    async def addresses(self, within: float) -> list[_Address]:
        """The last good addresses, while a lookup in the background renews them. Waits for the first lookup."""
        self._look_up()
        if not self._found and self._is_pending:
            ended = self._loop.create_future()
            self._waiting.add(ended)
            with suppress(asyncio.TimeoutError):
                await bounded(_wait(ended), within)
            self._waiting.discard(ended)
        if not self._found:
            raise NotSent(f"{self._host} was not resolved: {self._failure}")
        return sorted(self._found, key=lambda one: one[1][0] != self.answered)

    def _look_up(self) -> None:
        now = time.monotonic()
        if self._is_pending or (self._began is not None and now - self._began < _LOOKUP_INTERVAL):
            return
        self._began, self._is_pending = now, True
        # A daemon, because a lookup may never end, and nothing may wait for it then.
        if not begin(self._ask, "ringfence-lookup"):
            self._is_pending, self._failure = False, "there is no room for another thread"

    def _ask(self) -> None:
        found: list[_Address] = []
        failure = "it has no address"
        try:
            for family, _, _, _, address in socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM
            ):
                found.append((int(family), (str(address[0]), self._port)))
        except (OSError, UnicodeError) as error:
            failure = str(error)
        # The loop may have ended meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._learn, found, failure)

    def _learn(self, found: list[_Address], failure: str) -> None:
        self._is_pending = False
        self._failure = failure
        # A lookup that failed takes no good address away.
        self._found = found or self._found
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


async def _wait(ended: asyncio.Future[None]) -> None:
    await ended


def _why(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@functools.lru_cache(256)
def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _tune(connection: socket.socket) -> None:
    """Sends small messages at once, and has the kernel end the connection when the other host has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", _GONE_AFTER_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
