"""The server that the libraries talk to: a real Redis, or a cluster of Ringfence."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
WITHIN = 60


class Unavailable(Exception):
    """Why the server does not run."""


@dataclass
class Process:
    """A Redis, or a node."""

    command: list[str]
    port: int
    # The address of the HTTP API; empty for a Redis.
    http: str
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.running = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def wait(self) -> None:
        """Waits until it answers."""
        end = time.monotonic() + WITHIN
        # A node answers PING without a leader, too: only a read says that there is one.
        while not answers(self.port):
            if self.running.poll() is not None or time.monotonic() > end:
                raise Unavailable(f"no start: {self.log}: {self.log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self.running:
            self.running.kill()
            self.running.wait()


class Server:
    def __init__(self, processes: list[Process], leads: bool = False) -> None:
        self.processes = processes
        for process in processes:
            process.log.unlink(missing_ok=True)
        self.start()
        # What a node must pass on to another is harder.
        chosen = next((process for process in processes if is_leader(process) == leads), processes[0])
        # Where clients reach it.
        self.port, self.http = chosen.port, chosen.http

    @property
    def kind(self) -> str:
        return "ringfence" if self.http else "redis"

    def environment(self) -> dict[str, str]:
        """How a scenario finds the server, and knows what it may ask of it."""
        return {"LOCKS_HOST": HOST, "LOCKS_PORT": str(self.port), "LOCKS_HTTP": self.http}

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        for process in self.processes:
            process.start()
        for process in self.processes:
            process.wait()

    def kill(self) -> None:
        """Ends all of it at once, as `kill -9` does."""
        for process in self.processes:
            process.kill()

    def check(self) -> None:
        """Raises if a process has ended, or its log speaks of a panic."""
        for process in self.processes:
            if process.running.poll() is not None:
                raise Unavailable(f"it ended with {process.running.returncode}: {process.log}")
            if "panicked" in process.log.read_text(errors="replace"):
                raise Unavailable(f"it panicked: {process.log}")


@contextmanager
def redis(folder: Path, *more: str) -> Iterator[Server]:
    """A Redis that keeps nothing on disk, unless by `more` options, with as many databases as go-redsync's tests have servers."""
    program = shutil.which("redis-server")
    if not program:
        raise Unavailable("redis-server is not installed")
    port = free_port()
    options = ["--bind", HOST, "--port", str(port), "--save", "", "--databases", "64", "--dir", str(folder), *more]
    yield from run([Process([program, *options], port, "", folder / "redis.log")])


@contextmanager
def ringfence(program: str, folder: Path, leads: bool = False) -> Iterator[Server]:
    """Three nodes, which found a cluster of their own. Clients are to talk to the one that leads, or else to another."""
    shutil.rmtree(folder / "nodes", ignore_errors=True)
    ids = (1, 2, 3)
    places = {id: f"{HOST}:{free_port()}" for id in ids}
    peers = ",".join(f"{id}={place}" for id, place in places.items())
    processes = []
    for id in ids:
        port, http = free_port(), f"{HOST}:{free_port()}"
        arguments = ["serve", "--id", str(id), "--data", str(folder / f"nodes/{id}"), "--peer", places[id]]
        arguments += ["--peers", peers, "--http", http, "--resp", f"{HOST}:{port}"]
        processes.append(Process([program, *arguments], port, f"http://{http}", folder / f"node-{id}.log"))
    yield from run(processes, leads)


def run(processes: list[Process], leads: bool = False) -> Iterator[Server]:
    try:
        yield Server(processes, leads)
    finally:
        for process in processes:
            process.kill()


def is_leader(process: Process) -> bool:
    if not process.http:
        return True
    with urllib.request.urlopen(f"{process.http}/v1/cluster", timeout=10) as response:
        return json.load(response)["role"] == "leader"


def answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 2) as connection:
            connection.sendall(b"*2\r\n$3\r\nGET\r\n$5\r\nready\r\n")
            return connection.recv(16).startswith((b"$-1", b"_"))
    except OSError:
        return False


def free_port() -> int:
    """A port that no client is given, so that a server that is started again finds it free."""
    while True:
        port = random.randrange(22_000, 32_000)
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return port
