"""What the fencing token is for: redis-py's lock, and a table in PostgreSQL whose guard rejects a writer that was paused for too long."""

import glob
import inspect
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import psycopg
import redis
from steps import HOST, ON_RINGFENCE, PORT, play, raises, until

ROOT = Path(__file__).resolve().parents[3]
client = redis.Redis(HOST, PORT)


@contextmanager
def postgres():
    """A server with the guard, and how to connect to it."""
    places = [os.environ["PATH"], *glob.glob("/usr/lib/postgresql/*/bin")]
    programs = {name: shutil.which(name, path=":".join(places)) for name in ("initdb", "postgres")}
    assert all(programs.values()), "PostgreSQL is not installed"
    # It refuses to run as root.
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chown(folder, 65534, 65534)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync", f"--pgdata={folder}/data"]
        subprocess.run([programs["initdb"], *options], cwd=folder, check=True, capture_output=True, **user)
        arguments = ["-D", f"{folder}/data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        log = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen([programs["postgres"], *arguments], cwd=folder, **log, **user)
        try:
            address = f"host={folder} user=postgres dbname=postgres"
            until(lambda: connects(address), "PostgreSQL")
            with psycopg.connect(address) as db:
                db.execute((ROOT / "guard/sql/postgres.sql").read_text())
                db.execute("CREATE TABLE accounts (id text PRIMARY KEY, balance int NOT NULL)")
                db.execute("SELECT ringfence.protect('accounts', 'accounts/', 'id')")
            yield address
        finally:
            server.terminate()
            server.wait()


def connects(address):
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


def deposit(address, id, amount, timeout=10, pause=lambda: None):
    """Adds to the balance of an account. docs/redis-locks.md shows this."""
    key = f"accounts/{id}"
    # The guard decides whether the lock came too late, so its release need not.
    lock = client.lock(key, timeout=timeout, raise_on_release_error=False)
    with lock, psycopg.connect(address, autocommit=True) as db:
        token = client.execute_command("RINGFENCE.TOKEN", key, lock.local.token)
        if token is None:
            raise RuntimeError("the lock has ended")
        db.execute("SELECT ringfence.touch(%s, %s)", (key, token))
        (balance,) = db.execute("SELECT balance FROM accounts WHERE id = %s", (id,)).fetchone()
        pause()
        with db.transaction():
            db.execute("SELECT ringfence.claim(%s, %s)", (key, token))
            db.execute("UPDATE accounts SET balance = %s WHERE id = %s", (balance + amount, id))


def open_account(address, id):
    client.set(f"accounts/{id}", "to open it", nx=True, px=10_000)
    token = client.execute_command("RINGFENCE.TOKEN", f"accounts/{id}", "to open it")
    with psycopg.connect(address) as db:
        db.execute("SELECT ringfence.claim(%s, %s)", (f"accounts/{id}", token))
        db.execute("INSERT INTO accounts VALUES (%s, 100)", (id,))
    client.delete(f"accounts/{id}")


def balance_of(address, id):
    with psycopg.connect(address) as db:
        return db.execute("SELECT balance FROM accounts WHERE id = %s", (id,)).fetchone()[0]


def the_guard_rejects_a_late_writer(key):
    def pause():
        until(lambda: client.get(f"accounts/{key}") is None, "the end of the lock")
        deposit(address, key, 30)

    with postgres() as address:
        open_account(address, key)
        late = raises(psycopg.Error, lambda: deposit(address, key, 50, timeout=0.5, pause=pause))
        assert late.sqlstate == "RF412", late
        assert balance_of(address, key) == 130
        deposit(address, key, 50)
        assert balance_of(address, key) == 180


def the_document_shows_this(key):
    text = (ROOT / "docs/redis-locks.md").read_text()
    assert inspect.getsource(deposit) in text, "docs/redis-locks.md shows another writer than `deposit`"


def a_redis_gives_no_token(key):
    """Then nothing can be written to the table, for the guard demands it."""
    raises(redis.ResponseError, lambda: client.execute_command("RINGFENCE.TOKEN", key, "value"))


play("redis", the_document_shows_this, the_guard_rejects_a_late_writer if ON_RINGFENCE else a_redis_gives_no_token)
