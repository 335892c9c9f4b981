"""The libraries, and how each of them is played."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import installs
from results import Results
from servers import Server

HERE = installs.HERE
# A scenario that takes longer hangs.
WITHIN = 180


@dataclass
class Library:
    """A scenario of a library: a program that plays its steps."""

    name: str
    # Installs what it needs; the command of the scenario.
    install: Callable[[], list[str]]

    def prepare(self, server: Server) -> list[str]:
        return self.install()

    def play(self, command: list[str], server: Server) -> Results:
        environment = os.environ | server.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WITHIN)
        except subprocess.TimeoutExpired as error:
            results = Results.read((error.stdout or b"").decode(errors="replace"))
            results.fault = f"did not end in {WITHIN} s"
            return results
        results = Results.read(ended.stdout)
        if ended.returncode != 0:
            results.fault = f"ended with {ended.returncode}: {' '.join(ended.stderr.split())[-400:]}"
        return results


def python(name: str, pins: str, scenario: str) -> Library:
    return Library(name, lambda: [str(installs.python(pins)), str(HERE / "python" / f"{scenario}.py")])


def node(name: str, lock: str, scenario: str, *arguments: str) -> Library:
    return Library(name, lambda: ["node", str(installs.node(lock) / f"{scenario}.mjs"), *arguments])


ALL = [
    python("redis-py-8", "redis-8", "redis_py"),
    python("redis-py-5", "redis-5", "redis_py"),
    python("pottery", "redis-8", "pottery_redlock"),
    python("redlock-py", "redis-8", "redlock_py"),
    python("python-redis-lock", "redis-8", "python_redis_lock"),
    python("celery-redbeat", "redis-5", "redbeat_lock"),
    node("node-redlock-4", "old", "redlock4"),
    node("node-redlock-5", "current", "redlock5"),
    node("sesamecare-redlock", "current", "sesamecare_redlock"),
    node("redlock-universal", "current", "universal"),
    node("redis-semaphore", "current", "semaphore"),
    node("node-redis-warlock", "old", "warlock"),
    node("node-redis", "current", "clients", "redis"),
    node("ioredis", "current", "clients", "ioredis"),
    Library("go-redsync", lambda: [str(installs.go()), "redsync"]),
    Library("bsm-redislock", lambda: [str(installs.go()), "redislock"]),
]
