"""Django and SQLAlchemy with the guard of a real PostgreSQL: a holder whose lease has ended writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import django
import pytest
import sqlalchemy
from cluster import SOON, Cluster
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
def account(postgres: Postgres, cluster: Cluster) -> Iterator[Any]:
    """A model whose migrations install the guard and protect its table."""
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
    settings.configure(
        DATABASES={"default": {**database, "HOST": postgres.host, "PORT": postgres.port}},
        INSTALLED_APPS=["bank"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
        RINGFENCE={"urls": cluster.urls},
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


def test_django_code_that_claims_nothing_writes_by_a_connection_of_the_lease(
    account: Any, client: ringfence.Client, cluster: Cluster
) -> None:
    from django.db import DatabaseError, connection, transaction

    from ringfence.django import by_connection, touch

    rows = account.objects.filter(id=51)
    before = connection.settings_dict
    # A connection of a pool may be older than the lease, and serve others after it.
    connection.close()
    connection.settings_dict = pooled = {**before, "OPTIONS": {"pool": {"min_size": 1, "max_size": 1}}}
    try:
        assert not rows.exists()
        lease = client.lock("accounts/51").acquire()
        with by_connection(lease):
            account(id=51, balance=1).save()
            connection.close()  # as at the end of a request
            with transaction.atomic():
                rows.update(balance=2)
            with pytest.raises(DatabaseError, match="token required"):
                account(id=52, balance=1).save()
            cluster.revoke("accounts/51", lease.token)
            with client.lock("accounts/51", wait=SOON) as newer, by_connection(newer):
                rows.update(balance=rows.get().balance + 1)
            with pytest.raises(DatabaseError, match="stale token"):
                rows.update(balance=1)
        assert connection.settings_dict is pooled
        assert rows.get().balance == 3
        with pytest.raises(DatabaseError, match="token required"):
            rows.update(balance=1)
        with client.lock("accounts/51", wait=SOON) as last:
            with (
                pytest.raises(transaction.TransactionManagementError),
                transaction.atomic(),
                by_connection(last),
            ):
                pass
            with pytest.raises(LookupError), by_connection(last):
                raise LookupError
            touch(Paused(2**53 - 1, "accounts/51"))
            with pytest.raises(ringfence.Stale), by_connection(last):
                pass
        assert connection.settings_dict is pooled
    finally:
        connection.close()
        connection.close_pool()
        connection.settings_dict = before


def test_a_connection_of_django_keeps_the_claims_that_it_had(
    account: Any, client: ringfence.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import DatabaseError, connection

    from ringfence import _sql
    from ringfence.django import by_connection

    for inherited, own, both in (
        ("", "-c ringfence.may_claim=a=5", "-c ringfence.may_claim=a=5"),
        ("-c x.y=1", "-c ringfence.may_claim=a=5", "-c x.y=1 -c ringfence.may_claim=a=5"),
        (
            "-c ringfence.may_claim=d=2 -c ringfence.may_claim=b=4",
            "-c ringfence.may_claim=a=5",
            "-c ringfence.may_claim=d=2  -c ringfence.may_claim=a=5,b=4",
        ),
        (
            "-c x.y=1 -c ringfence.may_claim=a=3,b=4 -c geqo=off",
            "-c ringfence.may_claim=a=5,c=5",
            "-c x.y=1 -c geqo=off -c ringfence.may_claim=a=5,c=5,b=4",
        ),
    ):
        assert _sql.merged(inherited, own) == both

    before = connection.settings_dict

    def write(*ids: int) -> None:
        for row in ids:
            account(id=row, balance=1).save()

    with client.lock("accounts/61") as by_variable, client.lock("accounts/62") as outer:
        # As under `ringfence lock accounts/61 --postgres`.
        monkeypatch.setenv("PGOPTIONS", by_variable.postgres_options())
        with by_connection(outer):
            write(61, 62)
            with client.lock("accounts/63") as inner, by_connection(inner):
                write(61, 62, 63)
            write(61, 62)
            with pytest.raises(DatabaseError, match="token required"):
                write(63)
        close = connection._close

        def fail() -> None:
            close()
            raise DatabaseError("the server is gone")

        with pytest.raises(DatabaseError, match="gone"), by_connection(outer):
            monkeypatch.setattr(connection, "_close", fail)
        monkeypatch.undo()
        assert connection.settings_dict is before
    with pytest.raises(DatabaseError, match="token required"):
        write(62)


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


def test_a_program_that_knows_of_no_token_writes_by_the_options_of_its_connection(
    postgres: Postgres, client: ringfence.Client
) -> None:
    import psycopg

    from ringfence import _sql

    with psycopg.connect(host=postgres.host, port=postgres.port, user="postgres", autocommit=True) as owner:
        owner.execute(_sql.install_sql())
        owner.execute("CREATE TABLE parts (id text PRIMARY KEY, n int NOT NULL)")
        owner.execute("SELECT ringfence.protect('parts', 'parts/', 'id', by_connection => true)")

    def program(options: str) -> None:
        """Nobody changed it: psycopg reads PGOPTIONS."""
        where = {"host": postgres.host, "port": postgres.port, "user": "postgres", "options": options}
        with psycopg.connect(**where) as db:  # type: ignore[arg-type]
            db.execute(
                "INSERT INTO parts VALUES ('a, =%b', 1) ON CONFLICT (id) DO UPDATE SET n = parts.n + 1"
            )
            db.execute("DELETE FROM parts WHERE id = %s", ("none",))

    lease = client.lock(["parts/a, =%b", "parts/ä"]).acquire()
    options = lease.postgres_options()
    with psycopg.connect(
        host=postgres.host, port=postgres.port, user="postgres", options=options, autocommit=True
    ) as db:
        db.execute("CALL ringfence.touch_all()")
    program(options)
    program(options)
    with pytest.raises(psycopg.Error, match="token required"):
        program("")
    lease.release()
    with pytest.raises(ringfence.Lost):
        lease.postgres_options()
    with client.lock(["parts/ä", "parts/a, =%b"]) as newer:
        program(newer.postgres_options())
        with pytest.raises(psycopg.Error, match="stale token") as stale:
            program(options)
        assert stale.value.sqlstate == "RF412"
    with client.lock("parts/s", shared=True) as oldest, client.lock("parts/s", shared=True) as younger:
        assert oldest.postgres_options().endswith(f"={oldest.token}")
        with pytest.raises(ringfence.Invalid, match="fence"):
            younger.postgres_options()
    with (
        client.lock([f"{n}/{'ä' * 200}" for n in range(10)]) as many,
        pytest.raises(ringfence.Invalid, match="keys"),
    ):
        many.postgres_options()


def test_a_pool_writes_for_the_lease_that_it_was_made_for_and_for_no_other(
    postgres: Postgres, client: ringfence.Client
) -> None:
    from ringfence.sqlalchemy import install, protect, touch

    url = f"postgresql+psycopg://postgres@{postgres.host}:{postgres.port}/postgres"
    text = sqlalchemy.text
    shared = sqlalchemy.create_engine(url)
    with shared.begin() as connection:
        connection.execute(text("CREATE TABLE crates (id text PRIMARY KEY, n int NOT NULL)"))
        install(connection)
        protect(connection, "crates", "crates/", "id", by_connection=True)

    def write(engine: sqlalchemy.Engine) -> None:
        """It knows of no token."""
        with Session(engine) as session:
            session.execute(
                text("INSERT INTO crates VALUES ('a', 1) ON CONFLICT (id) DO UPDATE SET n = crates.n + 1")
            )
            session.commit()

    def engine_of(lease: ringfence.Lease) -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(url, connect_args={"options": lease.postgres_options()})
        touch(engine, lease)
        return engine

    with client.lock("crates/a") as lease:
        earlier = engine_of(lease)
        write(earlier)
    with client.lock("crates/a") as lease:
        own = engine_of(lease)
        write(own)
        for engine, refusal in ((earlier, "stale token"), (shared, "token required")):
            with pytest.raises(sqlalchemy.exc.DBAPIError, match=refusal):
                write(engine)
        write(own)
    for engine in (earlier, own, shared):
        engine.dispose()


def test_a_holder_that_knows_of_its_loss_sends_nothing(cluster: Any, clock: JumpingClock) -> None:
    from ringfence._sql import arguments

    with ringfence.Client(cluster.urls, clock=clock) as client:
        lease = client.lock("guards/lost", ttl=60).acquire()
        assert arguments(lease, None) == ("guards/lost", lease.token, lease.token)
        clock.jump(60)
        with pytest.raises(ringfence.Lost):
            arguments(lease, None)


def test_asyncio_sessions_write_with_a_live_token_and_nothing_with_a_stale_one(
    postgres: Postgres, client: ringfence.Client
) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    from ringfence.sqlalchemy import install, protect
    from ringfence.sqlalchemy_asyncio import claim, guarded, touch

    url = f"postgresql+psycopg://postgres@{postgres.host}:{postgres.port}/postgres"
    text = sqlalchemy.text
    update = text("UPDATE shelf SET n = :n WHERE id = 'a'")
    holders = Holders(client, "shelf/a")

    async def work() -> None:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE shelf (id text PRIMARY KEY, n int NOT NULL)"))
            await connection.run_sync(install)
            await connection.run_sync(protect, "shelf", "shelf/", "id")
        async with engine.connect() as connection, guarded(connection, holders.paused):
            await connection.execute(text("INSERT INTO shelf VALUES ('a', 100)"))
        await touch(engine, holders.next)
        async with AsyncSession(engine) as session, guarded(session, holders.next):
            await session.execute(update, {"n": 130})
        with pytest.raises(ringfence.Stale, match="stale token"):
            async with AsyncSession(engine) as session, guarded(session, holders.paused):
                await session.execute(update, {"n": 150})
        with pytest.raises(ringfence.Stale):
            await touch(engine, holders.paused)
        # A session that has read is in a transaction.
        async with AsyncSession(engine) as session:
            n = (await session.execute(text("SELECT n FROM shelf"))).scalar_one()
            with pytest.raises(ringfence.Stale):
                await claim(session, holders.paused)
            await session.rollback()
            await session.execute(text("SELECT n FROM shelf"))
            await claim(session, holders.next)
            await session.execute(update, {"n": n + 1})
            await session.commit()
            assert (await session.execute(text("SELECT n FROM shelf"))).scalar_one() == 131
        await engine.dispose()

    asyncio.run(work())
    holders.next.release()


def test_a_session_that_has_read_claims_for_the_writes_that_follow(
    postgres: Postgres, client: ringfence.Client
) -> None:
    from ringfence.sqlalchemy import claim, guarded, install, protect

    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://postgres@{postgres.host}:{postgres.port}/postgres"
    )
    text = sqlalchemy.text
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE box (id text PRIMARY KEY, n int NOT NULL)"))
        install(connection)
        protect(connection, "box", "box/", "id")
    insert = text("INSERT INTO box VALUES ('a', 1)")
    with client.lock("box/a") as lease, Session(engine) as session:
        session.execute(text("SELECT 1"))
        with pytest.raises(sqlalchemy.exc.InvalidRequestError), guarded(session, lease):
            session.execute(insert)
        claim(session, lease)
        session.execute(insert)
        session.commit()
        assert session.execute(text("SELECT n FROM box")).scalar() == 1
        # A claim is that of one transaction.
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="token required"):
            session.execute(text("UPDATE box SET n = 2"))
    engine.dispose()


def test_a_command_of_django_runs_under_a_lease(
    account: Any, client: ringfence.Client, cluster: Cluster
) -> None:
    from django.core.management import CommandError, call_command

    from ringfence.django import Locked

    class Command(Locked):
        lock_options = {"ttl": 2}
        tokens: list[int | None] = []
        is_lost = False

        def add_arguments(self, parser: Any) -> None:
            parser.add_argument("--own")

        def handle(self, *args: object, **options: object) -> None:
            self.tokens.append(self.lease and self.lease.token)
            if self.is_lost:
                [holder] = cluster.holders("commands/nightly")
                cluster.revoke("commands/nightly", holder["token"])
                assert self.lease is not None
                self.lease.wait_lost(SOON)

    command = Command()
    call_command(command)
    assert command.tokens == [None]
    command.lock = "commands/nightly"
    call_command(command, "--own=x")
    assert (command.tokens[1] or 0) > 0
    assert command.lease is None
    assert cluster.holders("commands/nightly") == []
    with client.lock("commands/nightly", holder="cron@other"):
        with pytest.raises(CommandError, match="is held by cron@other"):
            call_command(command, "--lock", "commands/nightly")
        with pytest.raises(CommandError, match=r"not granted within 0\.1 s"):
            call_command(command, "--lock=commands/nightly", "--lock-wait=0.1")
        command.lock_options = {"ttl": 2, "wait": 0.2}
        with pytest.raises(CommandError, match=r"not granted within 0\.2 s"):
            call_command(command, "--lock=commands/nightly")
    assert len(command.tokens) == 2
    command.is_lost = True
    with pytest.raises(CommandError, match="revoked"):
        call_command(command, "--lock", "commands/nightly")

    class Fails(Locked):
        lock = "commands/fails"

        def handle(self, *args: object, **options: object) -> None:
            raise ringfence.Stale("its own")

    with pytest.raises(ringfence.Stale, match="its own"):
        call_command(Fails())
    from ringfence import django as plug

    plug.client().close()


def test_the_client_of_django_is_that_of_the_settings(account: Any) -> None:
    from django.test.utils import override_settings

    from ringfence.django import client
    from ringfence.testing import FakeCluster

    before = client()
    with FakeCluster() as fake:
        with override_settings(RINGFENCE={"urls": fake.url}):
            with client().lock("a") as lease:
                assert [one.token for one in fake.holders("a")] == [lease.token]
    with pytest.raises(ringfence.Closed):
        before.holders("a")
    assert client() is not before
    client().close()
