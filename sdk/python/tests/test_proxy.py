"""A program that nobody changes, and whose connections take no options, behind the proxy of `ringfence lock`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from cluster import Cluster, program
from postgres import Postgres

from ringfence import _sql


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


# The last statements are prepared.
UNCHANGED = """
import psycopg, sys
with psycopg.connect(f"host=127.0.0.1 port={sys.argv[1]} user=postgres") as db:
    for _ in range(10):
        db.execute("UPDATE drafts SET n = n + %s WHERE id = %s", (1, "a"))
    with db.cursor().copy("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 5000)) TO STDOUT") as copy:
        assert sum(map(len, copy)) == 5005000
"""


def test_a_program_whose_connections_take_no_options_writes_through_the_proxy(
    cluster: Cluster, postgres: Postgres
) -> None:
    with psycopg.connect(host=postgres.host, port=postgres.port, user="postgres", autocommit=True) as owner:
        owner.execute(_sql.install_sql())
        owner.execute("CREATE TABLE drafts AS SELECT 'a'::text AS id, 0 AS n")
        owner.execute("SELECT ringfence.protect('drafts', 'drafts/', 'id', by_connection => true)")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        url = f"postgresql://postgres@{postgres.host}:{postgres.port}/postgres"
        lock = [program(), "lock", "drafts/a", "--postgres", url, "--postgres-proxy", port, "--"]
        subprocess.run(
            [*lock, "env", "-u", "PGOPTIONS", sys.executable, "-c", UNCHANGED, port],
            env={**os.environ, "RINGFENCE_URLS": ",".join(cluster.urls)},
            check=True,
        )
        assert owner.execute("SELECT n FROM drafts").fetchone() == (10,)
