"""What the handles of a lease have in common, for threads and for tasks."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypedDict
from urllib.parse import quote

from . import _sql, _wire
from ._held import Held, guarded
from ._lifetime import State
from .errors import Error, Invalid, LossReason, Lost, Stale

_LOG = logging.getLogger("ringfence")
DEFAULT_TTL = 15.0
_MAX_CLAIMS = 8_192


class BaseLease:
    """A granted lease. It is renewed until it is released."""

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def token(self) -> int:
        """The fencing token: send it with every access to what the lease protects."""
        return self._held.token

    @property
    def lease_id(self) -> str:
        """Its id. Anyone who knows it can renew and release the lease: keep it out of logs."""
        return self._held.lease_id

    @property
    def keys(self) -> list[str]:
        """Its keys, in the order of the request."""
        return list(self._held.fences())

    @property
    def state(self) -> State:
        """How it stands now, by the clock."""
        return self._held.state()

    @property
    def remaining(self) -> float:
        """How many seconds it certainly lives on; 0 once it is lost."""
        return self._held.remaining() / 1e9

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it is lost (see `Lost.reason`); `released` once it is released; `None` while it lives."""
        return self._held.loss()

    def fence(self, key: str | None = None) -> int:
        """The lowest token that may still be live on `key`, as last confirmed. The key can be left out if there is one only."""
        return self._held.fences()[self._one_of(key)]

    def headers(self, key: str | None = None) -> dict[str, str]:
        """The headers that show a guarded HTTP resource this lease. Raises `Lost` if it is lost."""
        self.check()
        one = self._one_of(key)
        return {
            "Ringfence-Key": quote(one, safe=""),
            "Ringfence-Token": str(self.token),
            "Ringfence-Fence": str(self.fence(one)),
        }

    def postgres_options(self) -> str:
        """The `options` of a connection to PostgreSQL, or the variable PGOPTIONS of a program, whose writes then claim by themselves.

        The table is to be protected `by_connection`. Connect anew for each lease, and `CALL ringfence.touch_all()` before
        the first read. Raises `Lost` if it is lost, and `Invalid` if an older holder shares a key, as its fence rises and
        options do not, or if the keys take more than 8 KiB.
        """
        self.check()
        fences = self._held.fences()
        if any(fence != self.token for fence in fences.values()):
            raise Invalid(
                "fence", "rises, and the options of a connection do not: an older holder shares a key"
            )
        claims = ",".join(f"{quote(key, safe='')}={self.token}" for key in sorted(fences))
        if len(claims) > _MAX_CLAIMS:
            raise Invalid("keys", f"take {len(claims)} of {_MAX_CLAIMS} bytes as options of a connection")
        return f"{_sql.SETTING}{claims}"

    def check(self) -> None:
        """Raises `Lost` if it is lost or released. No check stops a process that is paused after it: send the token."""
        reason = self._held.loss()
        if reason is not None:
            raise Lost(reason)

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} keys={self.keys!r} token={self.token} {self.state.value}>"

    def _loss(self) -> LossReason | None:
        """Why it ended before its holder released it."""
        is_left = self._held.is_released and not self._held.is_taken
        return None if is_left else self._held.loss()

    def _one_of(self, key: str | None) -> str:
        keys = self.keys
        if key is None and len(keys) == 1:
            return keys[0]
        if key is None or key not in keys:
            raise Invalid("key", f"is one of the lease's keys: {keys!r}")
        return key


def report_leak(held: Held) -> None:
    """Tells the program of a handle that it has dropped: it has to release, also when something fails."""
    keys = ", ".join(map(repr, held.fences()))
    warnings.warn(
        f"ringfence: a lease on {keys} was dropped without a release: it is released in the background",
        ResourceWarning,
        stacklevel=2,
    )


class TermOptions(TypedDict, total=False):
    """Options of the leases of whoever leads, as `Client.lock` has them."""

    ttl: float
    holder: str | None
    metadata: Mapping[str, str] | None
    max_hold: float | None


OnError = Callable[[Exception], Any]


class Outcome:
    """What became of a term of work that leads, which ends with its lease. The end of the block may be the first to tell."""

    def __init__(self, on_error: OnError | None) -> None:
        self._on_error = on_error
        self._failure: Exception | None = None
        self._is_lost = False

    @contextmanager
    def until_lost(self) -> Iterator[None]:
        """Around the block: it ends with `Lost` if the lease was lost, whoever said so first."""
        try:
            yield
        except Lost:
            self._is_lost = True
        except Error:
            if self._failure is None:
                raise

    @contextmanager
    def of_work(self) -> Iterator[None]:
        """Around the work in the block, which sees no error of it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 it is raised or reported
            self._failure = error

    @property
    def has_failed(self) -> bool:
        """Whether the work has raised something."""
        return self._failure is not None

    def is_last(self) -> bool:
        """Whether the race is over. Raises what has ended it. Work that failed as it leads no longer is reported.

        A guard's refusal is often the first to say so. A `Lost` may be of another lease.
        """
        failure = self._failure
        if failure is None:
            return not self._is_lost
        if not self._is_lost and not isinstance(failure, Stale):
            raise failure
        if not isinstance(failure, Lost):
            self._report(failure)
        return False

    def _report(self, failure: Exception) -> None:
        if self._on_error is None:
            _LOG.warning(
                "work failed after its lease was lost, and stands for election again", exc_info=failure
            )
        else:
            guarded(partial(self._on_error, failure))


class Options:
    """A checked request for leases, which can be used again and again."""

    def __init__(
        self,
        keys: _wire.Keys,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        shared: bool = False,
        limit: int | None = None,
        holder: str | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        hold_at_least: float | None = None,
        renew: bool = True,
        on_lost: Callable[..., Any] | None = None,
    ) -> None:
        if on_lost is not None and (not callable(on_lost) or inspect.iscoroutinefunction(on_lost)):
            raise Invalid("on_lost", "is a function, and no coroutine function")
        self.on_lost = on_lost
        self.spec = _wire.spec(
            keys,
            ttl=ttl,
            wait=wait,
            shared=shared,
            limit=limit,
            holder=holder,
            metadata=metadata,
            max_hold=max_hold,
            hold_at_least=hold_at_least,
            renew=renew,
        )
