"""Writes that PostgreSQL refuses once their lease has ended, for `AsyncSession` and `AsyncConnection` of SQLAlchemy.

    async with client.lock(f"accounts/{id}") as lease:
        await touch(engine, lease)                     # before the first read
        async with AsyncSession(engine) as session, guarded(session, lease):
            (await session.get(Account, id)).balance += 1

`ringfence.sqlalchemy` installs the guard, and protects tables. A stale token is `ringfence.Stale`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from . import _sql, sqlalchemy

__all__ = ["claim", "guarded", "touch"]


async def touch(engine: AsyncEngine, lease: _sql.Shown, key: str | None = None) -> None:
    """As `ringfence.sqlalchemy.touch`."""
    async with engine.begin() as connection:
        await connection.run_sync(sqlalchemy._show, _sql.TOUCH, lease, key)


@asynccontextmanager
async def guarded(
    target: AsyncConnection | AsyncSession, lease: _sql.Shown, key: str | None = None
) -> AsyncIterator[None]:
    """As `ringfence.sqlalchemy.guarded`."""
    async with target.begin():
        await claim(target, lease, key)
        yield


async def claim(target: AsyncConnection | AsyncSession, lease: _sql.Shown, key: str | None = None) -> None:
    """As `ringfence.sqlalchemy.claim`."""
    await target.run_sync(sqlalchemy.claim, lease, key)
