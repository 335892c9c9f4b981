"""What the scenarios of Python libraries share. A step is a function that is called with a new key, and fails by an exception."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import time
import traceback
import urllib.request
import uuid
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

T = TypeVar("T")
HOST, PORT = os.environ["LOCKS_HOST"], int(os.environ["LOCKS_PORT"])
# The address of the node's HTTP API; empty if the server is a Redis.
HTTP = os.environ["LOCKS_HTTP"]
ON_RINGFENCE = bool(HTTP)


def play(package: str, *steps: Callable[[str], Any]) -> None:
    """Plays the steps, and tells the runner how each of them went."""
    print("version", version(package), flush=True)
    for step in steps:
        name = step.__name__
        try:
            done = step(f"{name}-{uuid.uuid4()}")
            if inspect.iscoroutine(done):
                asyncio.run(done)
        except Exception as error:
            # An assertion often says no more than its line does.
            line = traceback.extract_tb(error.__traceback__)[-1].line
            print(f"failed {name}: {type(error).__name__}: {error} ({line})".replace("\n", " "), flush=True)
        else:
            print("ok", name, flush=True)


def until(look: Callable[[], T], what: str, seconds: float = 20) -> T:
    """Looks until there is something."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def raises(kind: type[Exception], call: Callable[[], Any]) -> Exception:
    """The exception of that kind that the call raises."""
    try:
        returned = call()
    except kind as error:
        return error
    raise AssertionError(f"returned {returned!r}, but should raise {kind.__name__}")


def is_refused(error: Exception) -> None:
    """Whether the error is one of Ringfence that says why."""
    assert "ringfence" in str(error), f"says no reason: {error}"


def token(client: Any, key: str, value: Any) -> int:
    """The token of the lock with this value."""
    found = client.execute_command("RINGFENCE.TOKEN", key, value)
    assert isinstance(found, int) and found > 0, f"no token: {found!r}"
    return found


def revoke(key: str, token: int) -> None:
    """Ends a lease as an operator does."""
    body = json.dumps({"key": key, "token": token}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{HTTP}/v1/revoke", body), timeout=10).close()
