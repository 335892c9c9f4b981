"""A node that a test plays, on plain sockets, and the client's calls beside it."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ringfence

SOON = 60.0
Background = Callable[[Callable[[], Any]], "Future[Any]"]
CLUSTER = "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10"


class Asked:
    """A request, and the connection for its answer."""

    def __init__(
        self, connection: socket.socket, method: str, path: str, headers: dict[str, str], body: Any
    ) -> None:
        self.connection, self.method, self.path, self.headers, self.body = (
            connection,
            method,
            path,
            headers,
            body,
        )

    @property
    def lease_id(self) -> str:
        return self.path.split("/")[3]

    def raw(self, data: bytes) -> None:
        # A client that has given up asks again.
        with suppress(ConnectionError):
            self.connection.sendall(data)

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        headers = {"ringfence_cluster": CLUSTER, "content_length": str(len(text)), **headers}
        lines = [
            f"HTTP/1.1 {status} X",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        self.raw("\r\n".join([*lines, "", ""]).encode() + text)

    def problem(self, status: int, kind: str, more: dict[str, Any] | None = None, **headers: str) -> None:
        self.answer(status, problem(status, kind, **(more or {})), **headers)

    def grant(self, token: int = 7, ttl_ms: int | None = None, **changes: Any) -> None:
        keys = [one["key"] for one in self.body["keys"]] if self.body and "keys" in self.body else ["a"]
        ttl_ms = ttl_ms or (self.body or {}).get("ttl_ms", 15_000)
        status = 201 if self.method == "PUT" else 200
        self.answer(status, grant(self.lease_id, token, ttl_ms, keys, **changes))

    def renew_all(self, token: int = 7, ttl_ms: int = 15_000) -> None:
        results = [
            {"status": 200, "body": grant(one, token, ttl_ms, ["a"])} for one in self.body["lease_ids"]
        ]
        self.answer(200, {"results": results})

    def drop(self) -> None:
        # The client may already have closed the connection.
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def is_closed(self) -> bool:
        """Waits until the client has closed the connection."""
        self.connection.settimeout(SOON)
        try:
            return self.connection.recv(1) == b""
        except ConnectionResetError:
            return True


def problem(status: int, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "type": f"urn:ringfence:problem:{kind}",
        "title": kind,
        "status": status,
        "detail": f"why {kind}",
        **more,
    }


def grant(lease_id: str, token: int, ttl_ms: int, keys: list[str], **changes: Any) -> dict[str, Any]:
    fences = [{"key": key, "mode": "exclusive", "limit": None, "fence": token} for key in keys]
    found = {"lease_id": lease_id, "state": "granted", "token": token, "holder": None, "keys": fences}
    return {**found, "ttl_ms": ttl_ms, "expires_in_ms": ttl_ms, **changes}


class Played:
    """By itself it answers only probes, unless it hangs."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._asked: queue.Queue[Asked] = queue.Queue()
        self._connections: list[socket.socket] = []
        self.hangs = False
        self.probes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuses connections from now on."""
        with suppress(OSError):
            # Closing alone would let the thread that accepts take one more.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def receive(self, method: str = "", path: str = "") -> Asked:
        """The next request that is no probe, and what it has to be."""
        asked = self._asked.get(timeout=SOON)
        assert asked.method.startswith(method), (asked.method, asked.path)
        assert path in asked.path, (asked.method, asked.path)
        return asked

    def is_quiet(self) -> bool:
        return self._asked.empty()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        file = connection.makefile("rb")
        try:
            while line := file.readline().decode():
                method, path, _ = line.split(" ")
                headers = {}
                while (header := file.readline().decode().strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = file.read(int(headers.get("content-length", "0")))
                asked = Asked(connection, method, path, headers, json.loads(body) if body else None)
                if path == "/livez":
                    self.probes += 1
                    if not self.hangs:
                        asked.answer(200, {})
                else:
                    self._asked.put(asked)
        except (OSError, ValueError):
            return


def acquire(background: Background, *nodes: Played, **options: Any) -> Future[Any]:
    client = ringfence.Client([node.url for node in nodes])
    return background(client.lock("a", **{"wait": SOON, **options}).acquire)


def released(asked: Asked, lease_id: str) -> None:
    assert (asked.method, asked.path) == ("DELETE", f"/v1/leases/{lease_id}")
    asked.answer(204)


def renewal(lease: Any) -> Callable[[], bool]:
    """Whether the lease was renewed since now."""
    before = lease._held.read().until
    return lambda: lease._held.read().until != before


def granted(background: Background, client: ringfence.Client, node: Played, **options: Any) -> Any:
    call = background(client.lock("a", **options).acquire)
    while (asked := node.receive()).method != "PUT":
        # On a busy machine an earlier lease is due by now.
        asked.renew_all(ttl_ms=int(options.get("ttl", 15) * 1_000))
    asked.grant()
    return call.result(SOON)
