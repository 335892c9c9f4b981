"""The outcome of one attempt. Nothing else interprets responses.

response                                       outcome     what follows
2xx that reads as expected                     Done        the end
4xx with a `type` of Ringfence                 Refused     the end
503 `unavailable`; 429 `rate-limited`;         NotDone     repeat elsewhere
nothing was sent
504; 3xx; a 4xx or 5xx of a proxy; an          Ambiguous   repeat elsewhere
unreadable 2xx; no complete response
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ._http import Response
from .errors import LossReason

T = TypeVar("T")
PROBLEM = "urn:ringfence:problem:"
_TOLD: dict[str, LossReason] = {
    "released": "released",
    "expired": "expired",
    "revoked": "revoked",
    "abandoned": "abandoned",
}


@dataclass(slots=True)
class Done(Generic[T]):
    """It was done."""

    value: T


@dataclass(slots=True)
class Refused:
    """It was not done, for the reason of this problem."""

    problem: dict[str, Any]
    retry_after: float | None = None

    @property
    def kind(self) -> str:
        """The end of the problem's `type`."""
        return str(self.problem["type"]).rsplit(":", 1)[-1]

    @property
    def is_denial(self) -> bool:
        """Whether the caller may not do this: which says nothing of attempts before, as the right may have been lost in between."""
        return self.kind in ("unauthenticated", "forbidden")

    @property
    def loss(self) -> LossReason | None:
        """Why the lease is lost, if this says that it is."""
        if self.kind == "unknown-lease":
            return "forgotten"
        if self.kind != "lease-gone":
            return None
        return _TOLD.get(str(self.problem.get("reason")), "forgotten")


@dataclass(slots=True)
class NotDone:
    """Certainly not done, for now."""

    why: str
    retry_after: float | None = None


@dataclass(slots=True)
class Ambiguous:
    """It may have been done."""

    why: str


Outcome = Done[T] | Refused | NotDone | Ambiguous


class NotSent(Exception):
    """There is no response, and nothing was sent."""


class Untrusted(NotSent):
    """One side refused the other's certificate: no repeat mends that."""


class Broken(Exception):
    """There is no response, and some of the request may have been sent."""


def of(response: Response, read: Callable[[Response], T]) -> Outcome[T]:
    """The outcome that a response tells. `read` reads a 2xx, and raises `ValueError`."""
    status = response.status
    if 200 <= status < 300:
        try:
            return Done(read(response))
        except ValueError as error:
            return Ambiguous(f"unreadable {status}: {error}")
    problem = response.problem()
    if problem is None:
        return Ambiguous(f"a {status} that no node wrote")
    refused = Refused(problem, response.retry_after)
    detail = str(problem.get("detail", refused.kind))
    if refused.kind == "rate-limited":
        return NotDone(detail, response.retry_after)
    if refused.kind == "unavailable":
        # It asks for a second, and most elections take less.
        return NotDone(detail)
    return refused if 400 <= status < 500 else Ambiguous(detail)
