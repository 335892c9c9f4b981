"""What clients and nodes say to each other, checked on its way in and out."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .errors import Blocker, Invalid

MAX_TOKEN = 2**53 - 1
MAX_KEYS = 64
_TTL_MS = (100, 86_400_000)
# Some thirty years. Timers take no number that is much larger.
_LONGEST = 1e9
_JSON = json.JSONEncoder(separators=(",", ":")).encode
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Claim:
    """One key that a lease wants: exclusive, shared, or shared by at most `limit` holders."""

    key: str
    shared: bool = False
    limit: int | None = None


@dataclass(slots=True)
class Grant:
    """A granted lease, as a response describes it."""

    lease_id: str
    token: int
    ttl_ms: int
    expires_in_ms: int
    fences: Mapping[str, int]


@dataclass(slots=True)
class Spec:
    """A valid request for a lease. Times are in milliseconds."""

    claims: tuple[Claim, ...]
    ttl_ms: int
    wait_ms: int | None
    max_hold_ms: int | None
    hold_at_least_ms: int
    renews: bool
    text: str
    """What all its acquires have in common, as the inside of a JSON object."""

    def acquire(self, wait_ms: int) -> str:
        """The fields of an acquire that waits this long. Only with a kept place may a node that is cut off end the wait."""
        return f'{self.text},"keep_place":{"true" if wait_ms > 0 else "false"}'


def text(body: object) -> bytes:
    """`body` as JSON."""
    return _JSON(body).encode()


Keys = str | Claim | Sequence[str | Claim]


def spec(
    keys: Keys,
    *,
    ttl: float,
    wait: float | None,
    shared: bool,
    limit: int | None,
    holder: str | None,
    metadata: Mapping[str, str] | None,
    max_hold: float | None,
    hold_at_least: float | None,
    renew: bool,
) -> Spec:
    """Checks a request. Times are in seconds."""
    wait_ms = None if wait is None else _ms("wait", wait)
    max_hold_ms = None if max_hold is None else _ms("max_hold", max_hold)
    if max_hold_ms == 0:
        raise Invalid("max_hold", "must be more than 0")
    least_ms = 0 if hold_at_least is None else _ms("hold_at_least", hold_at_least)
    if least_ms > _TTL_MS[1]:
        raise Invalid("hold_at_least", "is at most 24 h")
    if max_hold_ms is not None and least_ms > max_hold_ms:
        raise Invalid("hold_at_least", "must not be more than max_hold")
    claims = _claims(keys, shared, limit)
    body: dict[str, Any] = {"keys": [_claim_body(claim) for claim in claims], "ttl_ms": ttl_ms(ttl)}
    if holder is not None:
        body["holder"] = _holder(holder)
    if metadata:
        body["metadata"] = _metadata(metadata)
    return Spec(
        claims=claims,
        ttl_ms=body["ttl_ms"],
        wait_ms=wait_ms,
        max_hold_ms=max_hold_ms,
        hold_at_least_ms=least_ms,
        renews=renew,
        text=_JSON(body)[1:-1],
    )


def tried(one: Spec) -> Spec:
    """The same, without a wait."""
    return replace(one, wait_ms=0)


def ttl_ms(ttl: float) -> int:
    """A time-to-live in milliseconds."""
    ms = _ms("ttl", ttl)
    if not _TTL_MS[0] <= ms <= _TTL_MS[1]:
        raise Invalid("ttl", "a time-to-live is from 0.1 s to 24 h")
    return ms


def bound(field: str, seconds: float | None) -> float | None:
    """A number of seconds that bounds a call; `None` for no bound."""
    return None if seconds is None else _ms(field, seconds) / 1_000


def lease_id(text: str) -> str:
    """A lease id in lower case with hyphens."""
    try:
        parsed = uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise Invalid("lease_id", "is not a UUID") from None
    if parsed.int == 0:
        raise Invalid("lease_id", "must not be the nil UUID")
    return str(parsed)


def check_key(key: object, field: str) -> str:
    """The key, if it is one."""
    if not isinstance(key, str):
        raise Invalid(field, f"a key is a text, not {type(key).__name__}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Invalid(field, "a key must be expressible in UTF-8") from None
    if not key:
        raise Invalid(field, "a key must not be empty")
    if size > 512:
        raise Invalid(field, "a key has at most 512 bytes of UTF-8")
    if _CONTROL.search(key):
        raise Invalid(field, f"{key!r}: a key must not contain control characters")
    if any(segment in ("", ".", "..") for segment in key.split("/")):
        raise Invalid(
            field, f"{key!r}: a key must not contain an empty, `.` or `..` segment between its slashes"
        )
    return key


def grant(body: object, expected_id: str) -> Grant:
    """Reads a grant of this lease. Raises `ValueError` if it is none."""
    if not isinstance(body, dict) or body.get("state") != "granted":
        raise ValueError("no grant")
    if body.get("lease_id") != expected_id:
        raise ValueError("the grant of another lease")
    fences: dict[str, int] = {}
    keys = body.get("keys")
    if not isinstance(keys, list):
        raise ValueError("no keys")
    for key in keys:
        if not isinstance(key, dict) or not isinstance(key.get("key"), str):
            raise ValueError("no key")
        fences[key["key"]] = _integer(key.get("fence"), "fence", MAX_TOKEN)
    return Grant(
        lease_id=expected_id,
        token=_integer(body.get("token"), "token", MAX_TOKEN),
        ttl_ms=_integer(body.get("ttl_ms"), "ttl_ms", _TTL_MS[1]),
        expires_in_ms=_integer(body.get("expires_in_ms"), "expires_in_ms", _TTL_MS[1] * 2, least=0),
        fences=fences,
    )


def blockers(body: Mapping[str, Any]) -> tuple[list[Blocker], int]:
    """The leases in the way, and the number of waiters, as far as the problem tells them."""
    found = []
    holders = body.get("holders")
    for one in holders if isinstance(holders, list) else []:
        if isinstance(one, dict) and isinstance(one.get("key"), str) and isinstance(one.get("token"), int):
            holder, limit, ms = one.get("holder"), one.get("limit"), one.get("expires_in_ms")
            found.append(
                Blocker(
                    key=one["key"],
                    token=one["token"],
                    holder=holder if isinstance(holder, str) else None,
                    shared=one.get("mode") == "shared",
                    limit=limit if isinstance(limit, int) else None,
                    expires_in=ms / 1_000 if isinstance(ms, int) else 0.0,
                )
            )
    waiters = body.get("waiters")
    return found, waiters if isinstance(waiters, int) else 0


def _integer(value: object, name: str, most: int, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is no such number")
    return value


def _claim_body(claim: Claim) -> dict[str, Any]:
    body: dict[str, Any] = {"key": claim.key, "mode": "shared" if claim.shared else "exclusive"}
    if claim.limit is not None:
        body["limit"] = claim.limit
    return body


def _claims(keys: Keys, shared: bool, limit: int | None) -> tuple[Claim, ...]:
    if not isinstance(keys, str | Claim | Sequence):
        raise Invalid("keys", "a text, a Claim, or a sequence of them")
    several = [keys] if isinstance(keys, str | Claim) else list(keys)
    if not 1 <= len(several) <= MAX_KEYS:
        raise Invalid("keys", f"a lease has 1 to {MAX_KEYS} keys, not {len(several)}")
    claims: dict[str, Claim] = {}
    for index, one in enumerate(several):
        field = f"keys[{index}]"
        claim = one if isinstance(one, Claim) else Claim(one, shared or limit is not None, limit)
        check_key(claim.key, field)
        if claim.limit is not None:
            place = f"{field}.limit" if isinstance(one, Claim) else "limit"
            if (
                isinstance(claim.limit, bool)
                or not isinstance(claim.limit, int)
                or not 1 <= claim.limit < 2**32
            ):
                raise Invalid(place, "a limit is an integer from 1 to 4294967295")
            if not claim.shared:
                raise Invalid(place, "only a shared key has a limit")
        if claim.key in claims:
            raise Invalid(field, f"{claim.key!r} is there twice")
        claims[claim.key] = claim
    return tuple(claims.values())


def _holder(holder: str | None) -> str | None:
    if holder is not None and (not isinstance(holder, str) or _size("holder", holder) > 256):
        raise Invalid("holder", "a holder is a text of at most 256 bytes")
    return holder


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    entries = dict(metadata or {})
    if not all(isinstance(text, str) for entry in entries.items() for text in entry):
        raise Invalid("metadata", "names and values are texts")
    if sum(_size("metadata", text) for entry in entries.items() for text in entry) > 4_096:
        raise Invalid("metadata", "metadata has at most 4,096 bytes in total")
    return entries


def _size(field: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(field, "must be expressible in UTF-8") from None


def _ms(field: str, seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise Invalid(field, "is a number of seconds")
    if not 0 <= seconds <= _LONGEST:
        raise Invalid(field, "is from 0 to 1e9 seconds")
    # A positive time stays one.
    return math.ceil(seconds * 1_000 - 1e-6)
