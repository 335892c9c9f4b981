"""Stands between the clients and the server, and keeps what the clients send."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections import Counter
from types import TracebackType

from servers import HOST, Server

CALL = re.compile(rb"""redis\.p?call\s*\(\s*['"](\w+)""")
OPTIONS = {"NX", "XX", "PX", "EX", "PXAT", "EXAT", "GET", "KEEPTTL", "IFEQ"}
WITH_SUBCOMMANDS = {"CLIENT", "SCRIPT", "CONFIG", "CLUSTER", "COMMAND", "HELLO", "INFO"}


class Recorder:
    """Clients reach the server by another port while it is open."""

    def __init__(self, server: Server) -> None:
        self._server, self._target, self._listener = server, server.port, socket.create_server((HOST, 0))
        self._counts: Counter[str] = Counter()
        # The commands that a script calls, by the beginning of its SHA-1.
        self._scripts: dict[str, str] = {}

    def __enter__(self) -> Recorder:
        self._server.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.port = self._target
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(client, server, Requests(self._see)), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, None), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: Requests | None) -> None:
        try:
            while received := source.recv(1 << 16):
                if requests:
                    requests.feed(received)
                target.sendall(received)
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _see(self, words: list[bytes]) -> None:
        name = words[0].decode(errors="replace").upper()
        if name in ("EVAL", "EVALSHA"):
            sha = self._script(words[1]) if name == "EVAL" else words[1].decode()[:8]
            shown = f"{name} {sha}, {int(words[2])} keys"
        elif name in WITH_SUBCOMMANDS:
            shown = " ".join([name, *(word.decode(errors="replace").upper() for word in words[1:2])])
            if shown == "SCRIPT LOAD":
                shown += f" {self._script(words[2])}"
        else:
            options = [word.decode(errors="replace").upper() for word in words[2:]]
            shown = " ".join([name, *(word for word in options if word in OPTIONS)])
        self._counts[shown] += 1

    def _script(self, text: bytes) -> str:
        sha = hashlib.sha1(text).hexdigest()[:8]
        calls = dict.fromkeys(call.decode().upper() for call in CALL.findall(text))
        self._scripts[sha] = f"    script {sha} of {len(text)} bytes: {', '.join(calls)}"
        return sha

    def summary(self) -> str:
        """Each kind of command with how often it came, and what the scripts call."""
        commands = [f"    {count:5} {command}" for command, count in sorted(self._counts.items())]
        return "\n".join(commands + sorted(self._scripts.values()))


class Requests:
    """Splits what a client sends into requests: arrays of bulk strings, or lines."""

    def __init__(self, see) -> None:
        self._see, self._buffer = see, b""

    def feed(self, received: bytes) -> None:
        self._buffer += received
        while (found := self._first()) is not None:
            words, length = found
            self._buffer = self._buffer[length:]
            if words:
                self._see(words)

    def _first(self) -> tuple[list[bytes], int] | None:
        line, end, _ = self._buffer.partition(b"\r\n")
        if not end:
            return None
        at = len(line) + 2
        if not line.startswith(b"*"):
            return line.split(), at
        words = []
        for _ in range(int(line[1:])):
            until = self._buffer.find(b"\r\n", at)
            if until < 0:
                return None
            length, at = int(self._buffer[at + 1 : until]), until + 2
            if len(self._buffer) < at + length + 2:
                return None
            words.append(self._buffer[at : at + length])
            at += length + 2
        return words, at
