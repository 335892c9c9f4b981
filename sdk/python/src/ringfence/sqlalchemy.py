"""Writes that PostgreSQL refuses once their lease has ended, for SQLAlchemy.

    # once, as in a migration of Alembic
    install(op.get_bind())
    protect(op.get_bind(), "accounts", "accounts/", "id")

    # the work
    with client.lock(f"accounts/{id}") as lease:
        touch(engine, lease)                           # before the first read
        with Session(engine) as session, guarded(session, lease):
            session.get(Account, id).balance += 1

A stale token is `ringfence.Stale`. A write to a protected table without a claim is a database error (RF428). A session that has
read already is in a transaction, and takes `claim(session, lease)` instead of the block. For `AsyncSession` there is
`ringfence.sqlalchemy_asyncio`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from . import _sql
from .errors import Stale

__all__ = ["claim", "guarded", "install", "protect", "touch"]


def touch(engine: Engine, lease: _sql.Shown, key: str | None = None) -> None:
    """Shows the guard the token in a transaction of its own, before the first read.

    Reads of transactions that begin later see all that older holders wrote. The key can be left out if the lease has one only.
    Raises `Stale`, or `Lost` if the lease is known to be lost.
    """
    with engine.begin() as connection:
        _show(connection, _sql.TOUCH, lease, key)


@contextmanager
def guarded(target: Connection | Session, lease: _sql.Shown, key: str | None = None) -> Iterator[None]:
    """A transaction that begins with the claim of a key: what the block writes lands if the token is live, or not at all.

    The connection or session must not be in a transaction yet: a session that has read is, and takes `claim`.
    """
    with target.begin():
        claim(target, lease, key)
        yield


def claim(target: Connection | Session, lease: _sql.Shown, key: str | None = None) -> None:
    """Claims a key for the later writes of the transaction that is open, or that this begins: whoever commits it keeps them.

    Raises `Stale`, and then the transaction has failed. What it read before the claim was safe only after a `touch`.
    """
    _show(target, _sql.CLAIM, lease, key)


def install(connection: Connection) -> None:
    """Makes the schema `ringfence`, or brings it up to date, which keeps all numbers. In the caller's transaction."""
    _demand_postgres(connection)
    connection.execution_options(no_parameters=True).exec_driver_sql(_sql.install_sql())


def protect(
    connection: Connection,
    table: str,
    key: str,
    id_column: str | None = None,
    *,
    by_connection: bool = False,
) -> None:
    """Refuses writes to a table without a claim, in the caller's transaction.

    With `id_column`, each row has a key of its own, `key` followed by its id; without, `key` is that of the whole table. `table` is
    written as in SQL, with quotes where they are needed. With `by_connection`, a connection can claim by its options.
    """
    _demand_postgres(connection)
    statement = text(
        "SELECT ringfence.protect(CAST(:table AS regclass), :key, CAST(:id_column AS name), :by_connection)"
    )
    shown = {"table": table, "key": key, "id_column": id_column, "by_connection": by_connection}
    connection.execute(statement, shown)


def _show(target: Connection | Session, statement: str, lease: _sql.Shown, key: str | None) -> None:
    names = ("key", "token", "fence")
    shown = dict(zip(names, _sql.arguments(lease, key), strict=True))
    try:
        target.execute(text(statement.format(*(f":{name}" for name in names))), shown)
    except DBAPIError as error:
        if _sql.is_stale(error):
            raise Stale(str(error.orig).splitlines()[0]) from error
        raise


def _demand_postgres(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        raise ValueError(f"the guard is for PostgreSQL, not {connection.dialect.name}")
