"""A node in memory: HTTP before a table, as much of it as clients need. It forgets everything when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
import weakref
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from . import _wire
from ._fake_table import Refusal, Table
from .errors import Invalid

_ABANDONED_AFTER = 2.0
# In how many rounds of the loop a connection that was accepted is there.
_ACCEPTS_IN = 4
_MAX_HEAD = 64 << 10
_MAX_BODY = 1 << 20
_MAX_WAIT_MS = 60_000
_MAX_BATCH = 1_000

Answer = tuple[int, dict[str, Any] | None]


class Node:
    """Answers requests. All of it runs on one loop."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.table = Table(now)
        self.cluster = str(uuid.uuid4())
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def answer(self, method: str, target: str, body: Any) -> Answer:
        """The status and the body of the answer to a request."""
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        try:
            return await self._route(method, parts, parse_qs(url.query), body)
        except Refusal as refusal:
            return refusal.status, refusal.body
        except Invalid as error:
            return 400, Refusal("invalid-request", error.detail, field=error.field).body
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return 400, Refusal("invalid-request", f"the body is not as it has to be: {error!r}").body
        finally:
            self.look()

    def look(self) -> None:
        """Ends what is due, wakes those who wait, and looks again once something is due."""
        self.table.end_what_is_due()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        due = self.table.next_due()
        if due is not None:
            self._timer = self._loop.call_later(max(0, due - self._now()) / 1_000, self.look)

    async def _route(self, method: str, parts: list[str], query: dict[str, list[str]], body: Any) -> Answer:
        match method, *parts:
            case _, "v1", "leases", lease_id, *rest:
                return await self._of_lease(method, _wire.lease_id(lease_id), rest, body)
            case "POST", "v1", "renew":
                return self._run([{"renew": {"lease_id": one}} for one in _several(body, "lease_ids")])
            case "POST", "v1", "batch":
                return self._run(_several(body, "operations"))
            case "GET", "v1", "keys":
                keys = [self.table.view(key) for key in self.table.keys(query.get("prefix", [""])[0])]
                return 200, {"keys": keys, "next": None, "revision": self.table.revision}
            case "GET", "v1", "keys", *key:
                return 200, self.table.view(_wire.check_key("/".join(key), "key"))
            case "POST", "v1", "revoke":
                return self._revoke(body["key"], body["token"])
            case "GET", "v1", "cluster":
                return 200, self._status()
            case "GET", "livez" | "readyz":
                return 200, {"status": "live"}
        raise _no_route(method)

    async def _of_lease(self, method: str, lease_id: str, rest: list[str], body: Any) -> Answer:
        match method, *rest:
            case ("PUT",):
                return await self._acquire(lease_id, body)
            case ("GET",):
                return 200, self.table.state(lease_id)
            case ("DELETE",):
                self.table.release(lease_id)
                return 204, None
            case "POST", "renew":
                return 200, self.table.renew(lease_id, _ttl_ms(body or {}))
        raise _no_route(method)

    async def _acquire(self, lease_id: str, body: dict[str, Any]) -> Answer:
        self._requests += 1
        request, claims, wait_ms = self._requests, _claims(body), _wait_ms(body)
        until = self._now() + wait_ms
        status = self.table.acquire(lease_id, claims, body, wait_ms, request)
        try:
            while status == 202 and (lease := self.table.leases.get(lease_id)) and lease.waits:
                left = until - self._now()
                if left <= 0 and lease.until_ms > until:
                    return 202, self.table.shown(lease)
                await self._change(max(left, 1) / 1_000)
        except asyncio.CancelledError:
            self._loop.call_later(_ABANDONED_AFTER, self._abandon, lease_id, request)
            raise
        return (201 if status == 202 else status), self.table.state(lease_id)

    def _abandon(self, lease_id: str, request: int) -> None:
        self.table.detach(lease_id, request)
        self.look()

    async def _change(self, seconds: float) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            self._waiting.discard(waiting)
        self.table.end_what_is_due()

    def _run(self, operations: list[dict[str, Any]]) -> Answer:
        results = []
        for operation in operations:
            try:
                status, body = self._one(operation)
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
            results.append({"status": status, "body": body})
        return 200, {"results": results}

    def _one(self, operation: dict[str, Any]) -> Answer:
        [(name, body)] = operation.items()
        lease_id = _wire.lease_id(body["lease_id"])
        if name == "renew":
            return 200, self.table.renew(lease_id, _ttl_ms(body))
        if name == "release":
            self.table.release(lease_id)
            return 204, None
        self._requests += 1
        status = self.table.acquire(lease_id, _claims(body), body, 0, self._requests)
        return status, self.table.state(lease_id)

    def _revoke(self, key: str, token: int) -> Answer:
        self.table.end_what_is_due()
        for lease in self.table.holders(key):
            if lease.number == token:
                self.table.end(lease, "revoked")
                return 204, None
        raise Refusal("not-live", "no live lease holds this key with this token: nothing was revoked")

    def _status(self) -> dict[str, Any]:
        table, waiters = self.table, len(self.table.waiters())
        who = {
            "cluster_id": self.cluster,
            "node_id": 1,
            "role": "leader",
            "term": 1,
            "leader": 1,
            "members": {},
        }
        log = {"last_log_index": None, "committed_index": None, "applied_index": None, "mirror": None}
        counts = {"live_leases": len(table.leases) - waiters, "waiters": waiters}
        return {**who, **log, **counts, "revision": table.revision, "at_ms": self._now(), "version": "fake"}


class Listener:
    """Has a node answer at a port of its own, which it keeps while it refuses connections."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        self._node = node
        if port:
            # Another fake would share it.
            _socket(host, port, shares=False).close()
        # Never listens.
        self._place = _socket(host, port)
        self.address: tuple[str, int] = self._place.getsockname()[:2]
        self._server: asyncio.Server | None = None
        self._listening: socket.socket | None = None
        self._open: set[Connection] = set()
        _LISTENERS.add(self)

    @property
    def is_open(self) -> bool:
        """Whether it accepts connections."""
        return self._server is not None

    async def accept(self) -> None:
        """Accepts connections."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._listening = _socket(*self.address)
            self._server = await loop.create_server(
                lambda: Connection(self._node, self._open), sock=self._listening, backlog=1_024
            )

    async def refuse(self) -> None:
        """Refuses connections, and ends those that there are."""
        if self._server is not None and self._listening is not None:
            # Those that were accepted first: a server that is closed loses them without a word, and open.
            asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(_ACCEPTS_IN):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        while self._open:
            for connection in self._open:
                connection.abort()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Ends it."""
        await self.refuse()
        self._place.close()

    def forked(self) -> None:
        """In a child that was forked: what it has open would keep connections, and accept others, which nobody answers."""
        for one in (self._place, self._listening, *(connection.socket for connection in self._open)):
            if one is not None:
                one.close()


class Connection(asyncio.Protocol):
    """Takes one request after the other. If it ends, so does the request."""

    def __init__(self, node: Node, among: set[Connection]) -> None:
        self._node, self._among = node, among
        self._read = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        assert isinstance(transport, asyncio.Transport), "a stream"  # noqa: S101
        self._transport = transport
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        self._read += data
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        """It ends."""
        self._among.discard(self)
        if self._answering is not None:
            self._answering.cancel()

    @property
    def socket(self) -> socket.socket | None:
        """What it reads and writes."""
        found = self._transport and self._transport.get_extra_info("socket")
        # What the loop hands out cannot be closed.
        return getattr(found, "_sock", None)

    def abort(self) -> None:
        """Ends it."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._answering is not None:
            return
        try:
            request = self._request()
        except (ValueError, RecursionError):
            self.abort()
            return
        if request is not None:
            self._answering = asyncio.get_running_loop().create_task(self._answer(*request))

    def _request(self) -> tuple[str, str, Any] | None:
        """The next request, if it is here. Raises `ValueError` if that is none."""
        end = self._read.find(b"\r\n\r\n")
        if end < 0:
            if len(self._read) > _MAX_HEAD:
                raise ValueError("a head of more than 64 KiB")
            return None
        first, *lines = self._read[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= _MAX_BODY:
            raise ValueError("a body of more than 1 MiB")
        if len(self._read) < end + 4 + length:
            return None
        text = bytes(self._read[end + 4 : end + 4 + length])
        del self._read[: end + 4 + length]
        return method, target, json.loads(text) if text else None

    async def _answer(self, method: str, target: str, body: Any) -> None:
        try:
            status, said = await self._node.answer(method, target, body)
            text = b"" if said is None else json.dumps(said).encode()
        except BaseException:
            # Otherwise, the client would wait for the response for ever.
            self.abort()
            raise
        kind = "application/problem+json" if status >= 400 else "application/json"
        head = (
            f"HTTP/1.1 {status} Fake\r\nringfence-cluster: {self._node.cluster}\r\ncontent-type: {kind}\r\n"
        )
        length = "" if status == 204 else f"content-length: {len(text)}\r\n"
        self._answering = None
        if self._transport is not None:
            self._transport.write(f"{head}{length}\r\n".encode() + text)
        self._next()


def _leave_to_the_parent() -> None:
    for listener in list(_LISTENERS):
        listener.forked()


_LISTENERS: weakref.WeakSet[Listener] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _no_route(method: str) -> Refusal:
    return Refusal("not-found", f"a fake has no such route for {method}")


def _claims(body: dict[str, Any]) -> tuple[_wire.Claim, ...]:
    """The keys of an acquire, which is within the bounds of the client, as a node's are the same."""
    claims = []
    for one in body["keys"]:
        wanted: dict[str, Any] = {"key": one} if isinstance(one, str) else one
        mode = wanted.get("mode", "exclusive")
        if mode not in ("exclusive", "shared"):
            raise Invalid("keys.mode", "is `exclusive` or `shared`")
        claims.append(_wire.Claim(wanted["key"], mode == "shared", wanted.get("limit")))
    ttl_ms = _ttl_ms(body)
    spec = _wire.spec(
        claims,
        ttl=15.0 if ttl_ms is None else ttl_ms / 1_000,
        wait=0.0,
        shared=False,
        limit=None,
        holder=body.get("holder"),
        metadata=body.get("metadata"),
        max_hold=None,
        hold_at_least=None,
        renew=True,
    )
    return spec.claims


def _ttl_ms(body: dict[str, Any]) -> int | None:
    ttl_ms = body.get("ttl_ms")
    if ttl_ms is None:
        return None
    try:
        return _wire.ttl_ms(_whole(body, "ttl_ms") / 1_000)
    except Invalid as error:
        raise Invalid("ttl_ms", error.detail) from None


def _wait_ms(body: dict[str, Any]) -> int:
    wait_ms = _whole(body, "wait_ms")
    if not 0 <= wait_ms <= _MAX_WAIT_MS:
        raise Invalid("wait_ms", "one request waits for 60,000 ms at most")
    return wait_ms


def _whole(body: dict[str, Any], field: str) -> int:
    value = body.get(field, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(field, "is a whole number")
    return value


def _several(body: dict[str, Any], field: str) -> list[Any]:
    found = body[field]
    if not isinstance(found, list) or len(found) > _MAX_BATCH:
        raise Invalid(field, f"is a list of at most {_MAX_BATCH}")
    return found


def _socket(host: str, port: int, shares: bool = True) -> socket.socket:
    """One that shares its port with others that are made here."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shares:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
