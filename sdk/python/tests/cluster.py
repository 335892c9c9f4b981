"""A real cluster: processes of the program, on a loopback address of their own."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
SOON = 60.0


def program() -> str:
    found = os.environ.get("RINGFENCE_UNDER_TEST") or shutil.which("ringfence")
    if not found:
        raise RuntimeError("set RINGFENCE_UNDER_TEST to the program ringfence, or put it into the PATH")
    return found


def until(look: Callable[[], T | None], what: str, seconds: float = SOON) -> T:
    """Looks until there is something. It bounds what should take far less."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def spawn(command: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """A process that ends with this one."""
    with log.open("ab") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command], stdout=output, stderr=output, **options
        )


class Cluster:
    def __init__(self, nodes: int = 3, arguments: Sequence[str] = (), scheme: str = "http") -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="ringfence-py-"))
        self.host, self._claim = claim()
        self.ids = range(1, nodes + 1)
        self.scheme, self.arguments = scheme, list(arguments)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Cluster:
        self.start()
        if self.scheme == "http":
            self.leader()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._claim.close()
        shutil.rmtree(self.dir)

    @property
    def urls(self) -> list[str]:
        return [self.url(one) for one in self.ids]

    def url(self, one: int) -> str:
        return f"{self.scheme}://{self.host}:{7400 + one}"

    def start(self, ids: Sequence[int] = ()) -> None:
        peers = ",".join(f"{one}={self.host}:{7500 + one}" for one in self.ids)
        for one in ids or self.ids:
            node = [f"--id={one}", f"--data={self.dir / str(one)}", f"--peers={peers}"]
            where = [f"--http={self.host}:{7400 + one}", f"--peer={self.host}:{7500 + one}"]
            command = [program(), "serve", *node, *where, *self.arguments]
            self.processes[one] = spawn(command, self.dir / f"{one}.log")

    def kill(self, ids: Sequence[int] = ()) -> None:
        for one in list(ids) or list(self.processes):
            process = self.processes.pop(one)
            process.kill()
            process.wait()

    def stop(self, one: int) -> None:
        """It hangs: its kernel still acknowledges what is sent."""
        self.processes[one].send_signal(signal.SIGSTOP)

    def resume(self, one: int) -> None:
        self.processes[one].send_signal(signal.SIGCONT)

    def leader(self, but: int | None = None) -> int:
        def look() -> int | None:
            for one in self.processes:
                status = get(self.url(one) + "/v1/cluster") if one != but else None
                if status and status["role"] == "leader":
                    return one
            return None

        return until(look, "a leader")

    def holders(self, key: str) -> list[dict[str, Any]]:
        """Who holds a key, as the cluster sees it."""

        def look() -> list[Any] | None:
            for one in self.processes:
                view = get(f"{self.url(one)}/v1/keys/{key}")
                if view is not None:
                    return [view]
            return None

        holders: list[dict[str, Any]] = until(look, "a node that answers")[0]["holders"]
        return holders

    def revoke(self, key: str, token: int) -> None:
        environment = {**os.environ, "RINGFENCE_URLS": ",".join(self.urls)}
        subprocess.run(
            [program(), "revoke", key, str(token)], env=environment, check=True, capture_output=True
        )

    def waiters(self, key: str) -> int:
        view = get(f"{self.url(self.leader())}/v1/keys/{key}")
        return len(view["waiters"]) if view else 0


def get(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except (OSError, urllib.error.HTTPError, ValueError):
        return None


def claim() -> tuple[str, socket.socket]:
    """An address that no other cluster has: whoever listens on this port owns it."""
    for _ in range(100):
        host = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        claim = socket.socket()
        try:
            claim.bind((host, 7399))
            claim.listen()
        except OSError:
            claim.close()
        else:
            return host, claim
    raise RuntimeError("no loopback address is free")
