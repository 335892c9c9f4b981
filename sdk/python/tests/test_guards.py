"""Django and SQLAlchemy with the guard of a real PostgreSQL: a holder whose lease has ended writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django
import pytest
import sqlalchemy
from cluster import SOON
from conftest import JumpingClock
from django.conf import settings
from postgres import Postgres
from sqlalchemy.orm import Session

import ringfence


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


@pytest.fixture(scope="module")
def account(postgres: Postgres) -> Iterator[Any]:
    """A model whose migrations install the guard and protect its table."""
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
    settings.configure(
        DATABASES={"default": {**database, "HOST": postgres.host, "PORT": postgres.port}},
        INSTALLED_APPS=["bank"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    from bank.models import Account
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    yield Account
    connection.close()


class Holders:
    """One whose lease ended without its knowing, and its successor."""

    def __init__(self, client: ringfence.Client, key: str) -> None:
        first = client.lock(key, renew=False, ttl=0.3).acquire()
        self.token, self.key = first.token, key
        self.next = client.lock(key, wait=SOON).acquire()
        self.paused = Paused(first.token, key)


class Paused:
    """What the holder knows that was paused before it could see the loss."""

    def __init__(self, token: int, key: str) -> None:
        self.token, self.keys = token, [key]

    def fence(self, key: str | None = None) -> int:
        return self.token

    def check(self) -> None:
        """It was paused after this."""


def test_django_writes_with_a_live_token_and_nothing_with_a_stale_one(
    account: Any, client: ringfence.Client
) -> None:
    from django.db import DatabaseError, transaction

    from ringfence.django import guarded, guarded_update, touch

    holders = Holders(client, "accounts/42")
    rows = account.objects.filter(id=42)
    with guarded(holders.paused):
        account(id=42, balance=100).save()
    touch(holders.next)
    assert guarded_update(rows, holders.next, balance=rows.get().balance + 30) == 1
    for write in (lambda: guarded_update(rows, holders.paused, balance=150), lambda: touch(holders.paused)):
        with pytest.raises(ringfence.Stale, match="stale token"):
            write()
    assert rows.get().balance == 130
    with pytest.raises(DatabaseError, match="token required"), transaction.atomic():
        rows.update(balance=1)
    with pytest.raises(DatabaseError, match="token required"):
        guarded_update(account.objects.filter(id=42), client.lock("accounts/43").acquire(), balance=1)
    with pytest.raises(ringfence.Invalid):
        guarded_update(rows, holders.next, "accounts/7", balance=1)
    holders.next.release()
    with pytest.raises(ringfence.Lost):
        guarded_update(rows, holders.next, balance=1)
    assert rows.get().balance == 130


def test_djangos_migrations_are_taken_back_but_the_numbers_stay(account: Any) -> None:
    from django.core.management import call_command
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT ringfence.touch('bank/kept', 7)")
        call_command("migrate", "bank", "0001", verbosity=0)
        cursor.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'ringfence_%%' AND tgrelid = 'bank_account'::regclass"
        )
        assert cursor.fetchone() == (0,)
        call_command("migrate", "bank", verbosity=0)
        cursor.execute("SELECT ringfence.high('bank/kept')")
        assert cursor.fetchone() == (7,)
        cursor.execute(
            "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'ringfence_%%' AND tgrelid = 'bank_account'::regclass"
        )
        assert cursor.fetchone()[0] >= 3


def test_sqlalchemy_writes_with_a_live_token_and_nothing_with_a_stale_one(
    postgres: Postgres, client: ringfence.Client
) -> None:
    from ringfence.sqlalchemy import guarded, install, protect, touch

    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@{postgres.host}:{postgres.port}/postgres"
    )
    text = sqlalchemy.text
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stock (id text PRIMARY KEY, n int NOT NULL)"))
        install(connection)
        protect(connection, "stock", "stock/", "id")
    holders = Holders(client, "stock/ä b")
    with engine.connect() as connection, guarded(connection, holders.paused):
        connection.execute(text("INSERT INTO stock VALUES ('ä b', 100)"))
    touch(engine, holders.next)
    update = text("UPDATE stock SET n = :n WHERE id = 'ä b'")
    with Session(engine) as session, guarded(session, holders.next):
        session.execute(update, {"n": 130})
    with (
        Session(engine) as session,
        pytest.raises(ringfence.Stale, match="stale token"),
        guarded(session, holders.paused),
    ):
        session.execute(update, {"n": 150})
    with pytest.raises(ringfence.Stale):
        touch(engine, holders.paused)
    with pytest.raises(sqlalchemy.exc.DBAPIError, match="token required"), engine.begin() as connection:
        connection.execute(update, {"n": 1})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM stock")).scalar() == 130
    engine.dispose()


def test_a_holder_that_knows_of_its_loss_sends_nothing(cluster: Any, clock: JumpingClock) -> None:
    from ringfence._sql import arguments

    with ringfence.Client(cluster.urls, clock=clock) as client:
        lease = client.lock("guards/lost", ttl=60).acquire()
        assert arguments(lease, None) == ("guards/lost", lease.token, lease.token)
        clock.jump(60)
        with pytest.raises(ringfence.Lost):
            arguments(lease, None)
