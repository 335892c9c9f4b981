"""The tests that the libraries' authors wrote, which are fetched when they are played, and are not kept here."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

import installs
from installs import HERE, TARGET
from libraries import Library
from results import Results
from servers import HOST, Server

WITHIN = 600


def run(command: list[str | Path], cwd: Path, server: Server, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs tests, which may fail."""
    given = os.environ | server.environment() | {"PYTHONDONTWRITEBYTECODE": "1"} | environment
    try:
        return subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, timeout=WITHIN)
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 1, "", f"did not end in {WITHIN} s: {error.stdout or ''}"[-400:])


@dataclass(kw_only=True)
class Pytest(Library):
    """Files of tests from the source of a package of PyPI."""

    pins: str
    package: str
    files: list[str]

    def play(self, command: list[str], server: Server) -> Results:
        source = installs.source_of(self.pins, self.package)
        report = TARGET / f"{self.pins}.xml"
        report.unlink(missing_ok=True)
        arguments = [
            "-q",
            "-p",
            "no:cacheprovider",
            f"--redis-url=redis://{HOST}:{server.port}/0",
            f"--junit-xml={report}",
        ]
        # Beside each other, files of one name are one module.
        arguments += ["--import-mode=importlib", "-p", "adapted", "-o", "asyncio_mode=auto"]
        ended = run([*command, *arguments, *self.files], source, server, PYTHONPATH=str(HERE / "python"))
        results = Results(version=source.name.rpartition("-")[2])
        if not report.exists():
            results.fault = f"ended with {ended.returncode}: {' '.join((ended.stdout + ended.stderr).split())[-400:]}"
            return results
        for case in xml.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            problem = next((child for child in case if child.tag in ("failure", "error")), None)
            if not any(child.tag == "skipped" for child in case):
                results.steps[name] = "" if problem is None else " ".join((problem.get("message") or "failed").split())
        return results


@dataclass(kw_only=True)
class GoTest(Library):
    """The tests of a Go module, which are to find their server at this port."""

    module: str
    # What is replaced in the module's tests, such as the address of their server (`{address}`).
    changes: dict[str, str] = field(default_factory=dict)
    # Has a `redis-server` that leads to the server.
    has_shim: bool = False

    def play(self, command: list[str], server: Server) -> Results:
        version, source = installs.module(self.module)
        for test in source.glob("*_test.go"):
            text = test.read_text()
            for old, new in self.changes.items():
                text = text.replace(old, new.format(address=f"{HOST}:{server.port}"))
            test.write_text(text)
        environment = {"PATH": f"{HERE / 'shim'}:{os.environ['PATH']}"} if self.has_shim else {}
        skipped = "|".join(f"^{name}$" for name in self.not_played)
        arguments = ["test", "-count=1", "-json", *([f"-skip={skipped}"] if skipped else []), "."]
        ended = run([*command, *arguments], source, server, **environment)
        return go_results(version, ended)


def go_results(version: str, ended: subprocess.CompletedProcess[str]) -> Results:
    results, said = Results(version), {}
    for line in ended.stdout.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        test = event.get("Test")
        match event.get("Action"):
            case "output":
                said[test] = said.get(test, "") + event["Output"]
            case "pass" if test:
                results.steps[test] = ""
            case "fail" if test:
                results.steps[test] = " ".join(said.get(test, "").split())
    # A test with subtests fails with them.
    for test in [test for test, reason in results.steps.items() if reason]:
        if any(other.startswith(f"{test}/") and reason for other, reason in results.steps.items()):
            del results.steps[test]
    if ended.returncode != 0 and not any(results.steps.values()):
        results.fault = (
            f"ended with {ended.returncode}: {' '.join((ended.stderr or said.get(None, '')).split())[-400:]}"
        )
    return results


# The error of a redlock test whose earlier test has failed.
FOLLOWS = "Could not run because a required previous test failed."


@dataclass(kw_only=True)
class Mocha(Library):
    """A file of tests that a package of npm has."""

    package: str
    file: str

    def play(self, command: list[str], server: Server) -> Results:
        package = installs.node("old") / "node_modules" / self.package
        ended = run([*command, "--exit", "--reporter", "json", package / self.file], package, server)
        results = Results(json.loads((package / "package.json").read_text())["version"])
        start = ended.stdout.find("{\n")
        if start < 0:
            results.fault = f"ended with {ended.returncode}: {' '.join((ended.stderr or ended.stdout).split())[-400:]}"
            return results
        report = json.loads(ended.stdout[start:])
        for test in report["passes"] + report["failures"]:
            reason = " ".join(test["err"].get("message", "").split())
            if reason != FOLLOWS:
                results.steps[test["fullTitle"]] = reason
        return results
