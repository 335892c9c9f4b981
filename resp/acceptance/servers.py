"""The server that the libraries talk to: a real Redis, or a node of Ringfence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
WITHIN = 60


class Unavailable(Exception):
    """Why the server does not run."""


@dataclass
class Server:
    port: int
    # The address of the HTTP API; empty for a Redis.
    http: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def kind(self) -> str:
        return "ringfence" if self.http else "redis"

    def environment(self) -> dict[str, str]:
        """How a scenario finds the server, and knows what it may ask of it."""
        return {"LOCKS_HOST": HOST, "LOCKS_PORT": str(self.port), "LOCKS_HTTP": self.http}

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
    with run([program, *options], folder / "redis.log") as (process, log):
        until(lambda: pings(port), process, log)
        yield Server(port, "", process, log)


@contextmanager
def ringfence(program: str, folder: Path) -> Iterator[Server]:
    """One node, which founds a cluster of its own."""
    port, http, peer = free_port(), free_port(), free_port()
    shutil.rmtree(folder / "node", ignore_errors=True)
    arguments = ["serve", "--id", "1", "--data", str(folder / "node"), "--peer", f"{HOST}:{peer}"]
    arguments += ["--http", f"{HOST}:{http}", "--resp", f"{HOST}:{port}"]
    with run([program, *arguments], folder / "node.log") as (process, log):
        until(lambda: "this node leads" in log.read_text() and pings(port), process, log)
        yield Server(port, f"http://{HOST}:{http}", process, log)


@contextmanager
def run(command: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


def until(look: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + WITHIN
    while not look():
        if process.poll() is not None or time.monotonic() > end:
            raise Unavailable(f"the server did not start: {log}: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)


def pings(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        return server.getsockname()[1]
