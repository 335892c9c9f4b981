"""The server that the libraries talk to: a real Redis, or a node of Ringfence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
WITHIN = 60


class Unavailable(Exception):
    """Why the server does not run."""


@dataclass
class Server:
    command: list[str]
    # Where clients reach it.
    port: int
    # The address of the HTTP API; empty for a Redis.
    http: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self._own_port = self.port

    @property
    def kind(self) -> str:
        return "ringfence" if self.http else "redis"

    def environment(self) -> dict[str, str]:
        """How a scenario finds the server, and knows what it may ask of it."""
        return {"LOCKS_HOST": HOST, "LOCKS_PORT": str(self.port), "LOCKS_HTTP": self.http}

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        end = time.monotonic() + WITHIN
        # A node that does not lead yet answers PING, too: only a read says that there is a leader.
        while not answers(self._own_port):
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.log.read_text(errors="replace")[-500:]
                raise Unavailable(f"the server did not start: {self.log}: {said}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends it at once, as `kill -9` does."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def check(self) -> None:
        """Raises if the server has ended, or its log speaks of a panic."""
        if self.process.poll() is not None:
            raise Unavailable(f"the server ended with {self.process.returncode}: {self.log}")
        if "panicked" in self.log.read_text(errors="replace"):
            raise Unavailable(f"the server panicked: {self.log}")


@contextmanager
def redis(folder: Path) -> Iterator[Server]:
    """A Redis that keeps nothing on disk, with as many databases as go-redsync's tests have servers."""
    program = shutil.which("redis-server")
    if not program:
        raise Unavailable("redis-server is not installed")
    port = free_port()
    options = ["--bind", HOST, "--port", str(port), "--save", "", "--databases", "64", "--dir", str(folder)]
    yield from run(Server([program, *options], port, "", folder / "redis.log"))


@contextmanager
def ringfence(program: str, folder: Path) -> Iterator[Server]:
    """One node, which founds a cluster of its own."""
    port, http, peer = free_port(), free_port(), free_port()
    shutil.rmtree(folder / "node", ignore_errors=True)
    arguments = ["serve", "--id", "1", "--data", str(folder / "node"), "--peer", f"{HOST}:{peer}"]
    arguments += ["--http", f"{HOST}:{http}", "--resp", f"{HOST}:{port}"]
    yield from run(Server([program, *arguments], port, f"http://{HOST}:{http}", folder / "node.log"))


def run(server: Server) -> Iterator[Server]:
    server.log.unlink(missing_ok=True)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 2) as connection:
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nready\r\n")
            return connection.recv(16).startswith((b"$-1", b"_"))
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return server.getsockname()[1]
