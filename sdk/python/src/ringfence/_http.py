"""HTTP/1.1 without I/O: the bytes of a request, and a response out of bytes.

It is stricter than common HTTP clients. A response whose end is not certain is no response: its request may have been done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._clock import Moment

_MAX_HEAD = 64 << 10
# A listing of many holders is as long as that.
MAX_BODY = 64 << 20
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |$)")


class Malformed(ValueError):
    """What arrived is no HTTP/1.1, or too much of it."""


@dataclass(slots=True)
class Request:
    """A request that any node can take."""

    method: str
    path: str
    body: bytes = b""
    """JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    operation: bytes | None = None
    """The request as an operation of a batch, as JSON."""
    wait_ms: int = 0
    """How long it waits in the cluster's queue."""
    apart: Literal["renewal", "wait"] | None = None
    """Whether it has a connection that others do not have to share: that of the renewals, or one for a wait."""

    def encode(self, authority: str, credential: str | None) -> bytes:
        """Its bytes. `authority` and `credential` were checked when they were set."""
        head = [f"{self.method} {self.path} HTTP/1.1", f"host: {authority}"]
        head.extend(f"{name}: {value}" for name, value in self.headers.items())
        if credential is not None:
            head.append(f"authorization: Bearer {credential}")
        if self.body:
            head.append("content-type: application/json")
        if self.body or self.method != "GET":
            head.append(f"content-length: {len(self.body)}")
        return "\r\n".join([*head, "", ""]).encode() + self.body


@dataclass(slots=True)
class Response:
    """A whole response, and when its request was sent."""

    sent: Moment
    status: int
    headers: Mapping[str, str]
    body: bytes
    keeps_alive: bool = field(default=True)
    parsed: Any = None
    """The body, if it was read already: that of one operation of a batch."""

    def results(self, count: int) -> list[dict[str, Any]]:
        """Reads the results of as many operations, each with its status and body. Raises `ValueError`."""
        body = self.json()
        found = body.get("results") if isinstance(body, dict) else None
        if not isinstance(found, list) or len(found) != count:
            raise ValueError("not as many results as operations")
        if not all(isinstance(one, dict) and isinstance(one.get("status"), int) for one in found):
            raise ValueError("a result without a status")
        return found

    def part(self, result: Mapping[str, Any]) -> Response:
        """The response that one operation of a batch would have got alone."""
        return Response(self.sent, result["status"], self.headers, b"", parsed=result.get("body"))

    @property
    def leader(self) -> str | None:
        """The leader's URL, if the node knows it."""
        return self.headers.get("ringfence-leader")

    @property
    def cluster(self) -> str | None:
        """The id of the node's cluster, unless the node is old or belongs to none."""
        return self.headers.get("ringfence-cluster")

    def json(self) -> Any:
        """Reads the body. Raises `ValueError`."""
        if self.parsed is not None:
            return self.parsed
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def problem(self) -> dict[str, Any] | None:
        """The problem it reports, if a node of Ringfence wrote it rather than something in between."""
        try:
            problem = self.json()
        except ValueError:
            return None
        if not isinstance(problem, dict) or problem.get("status") != self.status:
            return None
        kind = problem.get("type")
        return problem if isinstance(kind, str) and kind.startswith("urn:ringfence:problem:") else None

    @property
    def retry_after(self) -> float | None:
        """How long to wait before a repeat, in seconds, if it says so. An hour at most."""
        text = self.headers.get("retry-after", "")
        return min(float(text), 3_600.0) if re.fullmatch("[0-9]{1,9}", text) else None


class ResponseReader:
    """Makes a response of the bytes that arrive. `feed` them until it returns `True`; an early end is the caller's to notice."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._body = bytearray()
        self.status: int | None = None
        """Known once the head has arrived."""
        self._headers: dict[str, str] = {}
        self._left = 0
        self._chunks: str | None = None
        self._is_done = False

    def feed(self, data: bytes) -> bool:
        """Takes bytes, and returns whether the response is complete. Raises `Malformed`."""
        self._buffer += data
        while not self._is_done and self._step():
            pass
        if self._is_done and self._buffer:
            raise Malformed("bytes after the response")
        return self._is_done

    def response(self, sent: Moment) -> Response:
        """The complete response."""
        assert self.status is not None, "feed has returned True"  # noqa: S101
        keeps_alive = self._headers.get("connection", "").lower() != "close"
        return Response(sent, self.status, self._headers, bytes(self._body), keeps_alive)

    def _step(self) -> bool:
        """Whether it came further."""
        if self.status is None:
            return self._head()
        if self._chunks == "size":
            return self._chunk_size()
        if self._chunks == "trailer":
            return self._trailer()
        return self._data()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > _MAX_HEAD:
            if len(self._buffer) > _MAX_HEAD:
                raise Malformed("a head of more than 64 KiB")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        first = _STATUS.match(lines[0])
        if first is None:
            raise Malformed("no status line")
        status = int(first[1])
        if status < 200:
            # An interim response; the response follows.
            return True
        self._headers = _headers(lines[1:])
        self.status = status
        self._begin_body(status)
        return True

    def _begin_body(self, status: int) -> None:
        length, coding = self._headers.get("content-length"), self._headers.get("transfer-encoding")
        if status in (204, 304):
            self._is_done = True
        elif coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise Malformed("a body of unclear length")
            self._chunks = "size"
        elif length is None or not re.fullmatch("[0-9]{1,9}", length):
            raise Malformed("a body of unknown length")
        else:
            self._left = self._bounded(int(length))
            self._is_done = self._left == 0

    def _data(self) -> bool:
        taken = min(self._left, len(self._buffer))
        self._body += self._buffer[:taken]
        del self._buffer[:taken]
        self._left -= taken
        if self._left > 0:
            return False
        if self._chunks is None:
            self._is_done = True
            return True
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise Malformed("a chunk is longer than it says")
        del self._buffer[:2]
        self._chunks = "size"
        return True

    def _chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        size = line.split(b";")[0].strip()
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            raise Malformed("a chunk without a size")
        self._left = self._bounded(int(size, 16))
        self._chunks = "trailer" if self._left == 0 else "data"
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._is_done = line == b""
        return True

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > 1_024:
                raise Malformed("a line of more than 1 KiB")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _bounded(self, more: int) -> int:
        if len(self._body) + more > MAX_BODY:
            raise Malformed("a body of more than 64 MiB")
        return more


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        key = name.decode("latin-1").lower()
        if not colon or not key or key != key.strip():
            raise Malformed("a line that is no header")
        text = value.strip().decode("latin-1")
        if headers.get(key, text) != text and key in ("content-length", "transfer-encoding"):
            raise Malformed(f"two different headers {key}")
        headers.setdefault(key, text)
    return headers
