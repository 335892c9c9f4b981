"""Writes that PostgreSQL refuses once their lease has ended, for Django.

    # migrations
    operations = [InstallGuard(), ProtectTable("account", "accounts/", "id")]

    # the work
    with client.lock(f"accounts/{id}") as lease:
        touch(lease)                                   # before the first read
        account = Account.objects.get(id=id)
        guarded_update(Account.objects.filter(id=id), lease, balance=account.balance + 1)

A stale token is `ringfence.Stale`. A write to a protected table without a claim is a database error (RF428). The guard is for
synchronous views and commands, as Django's transactions are. `Locked` gives a management command the option `--lock`.

    # code that claims nothing, with ProtectTable("account", "accounts/", "id", by_connection=True)
    with client.lock(f"accounts/{id}") as lease, by_connection(lease):
        account.save()
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, DatabaseError, NotSupportedError, connections, transaction
from django.db.migrations.operations.base import Operation
from django.dispatch import receiver

from . import _lease, _sql, _sync
from .errors import Error, Stale

__all__ = [
    "InstallGuard",
    "Locked",
    "ProtectTable",
    "by_connection",
    "client",
    "guarded",
    "guarded_update",
    "touch",
]


@functools.cache
def client() -> _sync.Client:
    """The client of this process, with the arguments in the setting `RINGFENCE`: `{"urls": ["https://…"], "ca": "…"}`."""
    return _sync.Client(**settings.RINGFENCE)


@receiver(setting_changed)  # type: ignore[untyped-decorator]
def _forget(*, setting: str, **_: Any) -> None:
    """Tests change settings."""
    if setting == "RINGFENCE" and client.cache_info().currsize:
        old = client()
        client.cache_clear()
        old.close()


def touch(lease: _sql.Shown, key: str | None = None, *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Shows the guard the token, before the first read. Reads that follow see all that older holders wrote.

    The key can be left out if the lease has one only. Raises `Stale`, or `Lost` if the lease is known to be lost.
    """
    _show(_sql.TOUCH, lease, key, using)


@contextmanager
def guarded(lease: _sql.Shown, key: str | None = None, *, using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """A transaction that begins with the claim of a key: what the block writes lands if the token is live, or not at all."""
    with transaction.atomic(using=using):
        _show(_sql.CLAIM, lease, key, using)
        yield


def guarded_update(queryset: Any, lease: _sql.Shown, key: str | None = None, /, **values: Any) -> int:
    """`queryset.update(**values)` under the claim of a key, in one transaction. Returns the number of rows."""
    queryset = queryset.all()
    # As `update` itself does, so that routers name the same database.
    queryset._for_write = True
    with guarded(lease, key, using=queryset.db):
        updated: int = queryset.update(**values)
        return updated


@contextmanager
def by_connection(lease: _lease.BaseLease, *, using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """A block whose writes claim by themselves.

    In it, this thread has a connection of its own, which belongs to no pool and has touched the keys. Claims of its other options or
    PGOPTIONS, as under `ringfence lock --postgres`, stay, and are touched, too. The tables are protected `by_connection`. Not in a
    transaction. Raises `Stale`, and what `lease.postgres_options()` raises; in the block, a stale token is a database error (RF412).
    """
    connection = connections[using]
    _demand_postgres(connection)
    connection.validate_no_atomic_block()
    before = connection.settings_dict
    options = {name: value for name, value in before["OPTIONS"].items() if name != "pool"}
    inherited = options.get("options")
    if inherited is None:
        # As libpq does.
        inherited = os.environ.get("PGOPTIONS", "")
    options["options"] = _sql.merged(inherited, lease.postgres_options())
    connection.close()
    # Others share the dictionary.
    connection.settings_dict = {**before, "OPTIONS": options}
    try:
        _execute("CALL ringfence.touch_all()", (), using)
        yield
    finally:
        # By the settings with which it was opened.
        try:
            connection.close()
        finally:
            connection.settings_dict = before


class InstallGuard(Operation):  # type: ignore[misc]
    """A migration that makes the schema `ringfence`, or brings it up to date. It is never taken back: numbers must not be lost."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """It changes no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Runs the statements."""
        _demand_postgres(schema_editor.connection)
        schema_editor.execute(_sql.install_sql(), params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Keeps all numbers."""

    def describe(self) -> str:
        """What `migrate --plan` prints."""
        return "Install the guard of Ringfence"


class ProtectTable(Operation):  # type: ignore[misc]
    """A migration that refuses writes to a model's table without a claim.

    With `id_column`, each row has a key of its own, `key` followed by its id; without, `key` is that of the whole table. With
    `by_connection`, a connection can claim by its options.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(
        self, model_name: str, key: str, id_column: str | None = None, *, by_connection: bool = False
    ) -> None:
        self.model_name, self.key, self.id_column = model_name, key, id_column
        self.by_connection = by_connection

    def state_forwards(self, app_label: str, state: Any) -> None:
        """It changes no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Makes the triggers."""
        _demand_postgres(schema_editor.connection)
        table = to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        quoted = schema_editor.connection.ops.quote_name(table)
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(
                "SELECT ringfence.protect(%s::regclass, %s, %s, %s)",
                [quoted, self.key, self.id_column, self.by_connection],
            )

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drops the triggers. Numbers stay."""
        table = from_state.apps.get_model(app_label, self.model_name)._meta.db_table
        for trigger in _sql.TRIGGERS:
            schema_editor.execute(
                f"DROP TRIGGER IF EXISTS {trigger} ON {schema_editor.quote_name(table)}", params=None
            )

    def describe(self) -> str:
        """What `migrate --plan` prints."""
        return f"Demand a claim of {self.key!r} for writes to {self.model_name}"


class Locked(BaseCommand):  # type: ignore[misc]
    """A management command that runs under a lease, if it is started with `--lock KEY`, or has a `lock` by default.

        class Command(Locked):
            lock, lock_options = "commands/nightly", {"hold_at_least": 50}

            def handle(self, *args, **options):
                self.lease.check()

    `lock_options` are those of `Client.lock`. If another one has the key, it fails with exit status 1, after a wait of `--lock-wait`
    seconds, by default `wait` of `lock_options`, or 0. It fails, too, if the lease was lost by its end. What the command itself
    raises stays as it is. Without a lock, `lease` is `None`.
    """

    lock: str | None = None
    lock_options: dict[str, Any] = {}  # noqa: RUF012 Django's commands declare such things like this
    lease: _sync.Lease | None = None

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> Any:
        """The options, whatever `add_arguments` of the command adds."""
        parser = super().create_parser(prog_name, subcommand, **options)
        parser.add_argument("--lock", metavar="KEY", default=self.lock, help="runs under a lease on this key")
        parser.add_argument(
            "--lock-wait",
            metavar="SECONDS",
            type=float,
            default=self.lock_options.get("wait", 0.0),
            help="how long it waits for the lease",
        )
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        """Runs the command, perhaps under a lease."""
        key = options.get("lock", self.lock)
        if key is None:
            return super().execute(*args, **options)
        wait = options.get("lock_wait", self.lock_options.get("wait", 0.0))
        is_running = False
        try:
            with client().lock(key, **{**self.lock_options, "wait": wait}) as self.lease:
                is_running = True
                output = super().execute(*args, **options)
                is_running = False
            return output
        except Error as error:
            if is_running:
                raise
            raise CommandError(f"--lock {key}: {error}") from error
        finally:
            self.lease = None


def _show(statement: str, lease: _sql.Shown, key: str | None, using: str) -> None:
    _demand_postgres(connections[using])
    _execute(statement.format("%s", "%s", "%s"), _sql.arguments(lease, key), using)


def _execute(statement: str, shown: tuple[Any, ...], using: str) -> None:
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, shown)
    except DatabaseError as error:
        if _sql.is_stale(error):
            raise Stale(str(error).splitlines()[0]) from error
        raise


def _demand_postgres(connection: Any) -> None:
    if connection.vendor != "postgresql":
        raise NotSupportedError(f"the guard is for PostgreSQL, not {connection.vendor}")
