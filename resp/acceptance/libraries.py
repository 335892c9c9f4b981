"""The libraries, and how each of them is played."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

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
    # Steps that are left out, since others cannot run after them.
    not_played: list[str] = field(default_factory=list, kw_only=True)

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


def go(name: str, scenario: str) -> Library:
    return Library(name, lambda: [str(installs.go()), scenario])


def java(name: str, scenario: str, artifact: str) -> Library:
    def command() -> list[str]:
        built, versions = installs.java()
        return ["java", "-cp", f"{built}/classes:{built}/lib/*", "acceptance.Main", scenario, versions[artifact]]

    return Library(name, command)


def rust(name: str) -> Library:
    return Library(name, lambda: [str(installs.rust())])
