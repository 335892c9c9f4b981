"""The guard of PostgreSQL, as `guard/sql/postgres.sql` makes it. Tools for Django and SQLAlchemy share this."""

from __future__ import annotations

from importlib import resources
from typing import Protocol

TOUCH = "SELECT ringfence.touch({0}, {1}, {2})"
CLAIM = "SELECT ringfence.claim({0}, {1}, {2})"
TRIGGERS = ("ringfence_new", "ringfence_old", "ringfence_moved", "ringfence_truncate", "ringfence_claim")
SETTING = "-c ringfence.may_claim="
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


def merged(inherited: str, own: str) -> str:
    """The options that are there, with the claims of `own`.

    PostgreSQL takes the last of two settings: so the claims of an outer lease move to the new one, unless their key has a newer one.
    """
    before, found, rest = inherited.rpartition(SETTING)
    if not found:
        return f"{inherited} {own}".lstrip()
    outer, _, after = rest.partition(" ")
    claims = own.removeprefix(SETTING).split(",")
    newer = {claim.partition("=")[0] for claim in claims}
    claims += [claim for claim in outer.split(",") if claim and claim.partition("=")[0] not in newer]
    return f"{before}{after} {SETTING}{','.join(claims)}".lstrip()


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
