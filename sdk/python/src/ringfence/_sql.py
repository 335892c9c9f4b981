"""The guard of PostgreSQL, as `guard/sql/postgres.sql` makes it. Tools for Django and SQLAlchemy share this."""

from __future__ import annotations

from importlib import resources
from typing import Protocol

TOUCH = "SELECT ringfence.touch({0}, {1}, {2})"
CLAIM = "SELECT ringfence.claim({0}, {1}, {2})"
TRIGGERS = ("ringfence_new", "ringfence_old", "ringfence_moved", "ringfence_truncate", "ringfence_claim")
_STALE = "RF412"


class Shown(Protocol):
    """What a guard is shown: a lease of either client."""

    @property
    def token(self) -> int:
        """The fencing token."""

    @property
    def keys(self) -> list[str]:
        """Its keys."""

    def fence(self, key: str | None = None) -> int:
        """The fence of a key."""

    def check(self) -> None:
        """Raises `Lost` if it is lost."""


def install_sql() -> str:
    """The statements that make the guard, or bring it up to date."""
    return resources.files("ringfence").joinpath("postgres.sql").read_text("utf-8")


def arguments(lease: Shown, key: str | None) -> tuple[str, int, int]:
    """Key, token and fence. Raises `Lost` if the lease is known to be lost."""
    lease.check()
    fence = lease.fence(key)
    return key if key is not None else lease.keys[0], lease.token, fence


def is_stale(error: BaseException) -> bool:
    """Whether the database refused the token."""
    found: BaseException | None = error
    while found is not None:
        for name in ("sqlstate", "pgcode"):
            if getattr(found, name, None) == _STALE:
                return True
        inner = getattr(found, "orig", None) or found.__cause__
        found = inner if isinstance(inner, BaseException) else None
    return False
