"""The adapter of the conformance suite speaks its protocol, for both clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import SOON, Cluster

import ringfence

HERE = Path(__file__).parent.parent


class Adapter:
    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parent.parent)}
        command = [sys.executable, str(HERE / "conformance_adapter.py"), *arguments]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.lines: list[dict[str, Any]] = []
        self.number = 0

    def send(self, op: str, **request: Any) -> int:
        self.number += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": self.number, "op": op, **request}) + "\n")
        self.process.stdin.flush()
        return self.number

    def wait(self, **known: Any) -> dict[str, Any]:
        """The next line with this in it, in whatever order lines come."""
        assert self.process.stdout is not None
        while True:
            for line in self.lines:
                if all(line.get(name) == value for name, value in known.items()):
                    self.lines.remove(line)
                    return line
            self.lines.append(json.loads(self.process.stdout.readline()))

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        answer = self.wait(id=self.send(op, **request))
        found: dict[str, Any] = answer.get("ok", answer.get("error"))
        return found


@pytest.mark.parametrize("arguments", [(), ("--threads",)])
def test_the_adapter_speaks_the_protocol(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    adapter = Adapter(*arguments)
    request = {"client": "c", "keys": [{"key": "adapter/a", "limit": 1}], "ttl_ms": 10_000, "wait_ms": None}
    assert adapter.ask("open", client="c", urls=cluster.urls, clock="played") == {}
    granted = adapter.ask("acquire", lease="L1", **request)
    assert granted["state"] == "held"
    assert granted["fences"] == {"adapter/a": granted["token"]}
    assert adapter.ask("try", lease="L2", **request)["kind"] == "Held"
    assert adapter.ask("headers", lease="L1", key="adapter/a")["headers"]["Ringfence-Key"] == "adapter%2Fa"
    assert adapter.ask("fence", lease="L1", key="adapter/a") == {"fence": granted["token"]}
    assert adapter.ask("fork", lease="L1") == {"child": {"state": "lost", "reason": "forked"}}
    assert adapter.ask("renew", lease="L1", ttl_ms=20_000) == {}
    assert adapter.ask("block", ms=1) == {}
    assert adapter.ask("state", lease="L1")["state"] == "held"
    if not arguments:
        waiting = adapter.send("acquire", lease="L3", **request)
        assert adapter.ask("cancel", target=waiting) == {}
        assert adapter.wait(id=waiting)["error"]["kind"] == "Cancelled"
    assert adapter.ask("clock", advance_ms=30_000) == {}
    assert adapter.ask("state", lease="L1") == {
        "state": "lost",
        "remaining_ms": 0,
        "reason": "unconfirmed",
    }
    assert adapter.wait(event="lost") == {"event": "lost", "lease": "L1", "reason": "unconfirmed"}
    assert adapter.ask("release", lease="L1")["kind"] == "Lost"
    assert adapter.ask("using", lease="L4", body="raise", **request)["kind"] == "Body"
    assert adapter.ask("using", lease="L4", body="ok", **request) == {}
    assert (
        adapter.ask("using", lease="L4", body="until_lost", max_hold_ms=100, **request)["reason"]
        == "max-hold"
    )
    assert adapter.ask("close", client="c") == {"left": 0}
    assert adapter.ask("try", lease="L5", **request)["kind"] == "Closed"
    adapter.send("exit")
    assert adapter.process.wait(SOON) == 0
    adapter.process.communicate()
