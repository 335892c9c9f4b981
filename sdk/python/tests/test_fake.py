"""The fake grants as a cluster does: the conformance suite plays it, with the real clients, and these are its own parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster import SOON, program, until

import ringfence
from ringfence._fake_table import Table
from ringfence._wire import Claim
from ringfence.testing import FakeCluster

HERE = Path(__file__).parent


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster() as found:
        yield found


@pytest.fixture
def client(fake: FakeCluster) -> Iterator[ringfence.Client]:
    with fake.client() as found:
        yield found


def call(fake: FakeCluster, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        fake.url + path, None if body is None else json.dumps(body).encode(), method=method
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_tokens_only_go_up_and_one_lease_excludes_others(fake: FakeCluster, client: ringfence.Client) -> None:
    with client.lock("a", holder="me") as first:
        assert [one.token for one in fake.holders("a")] == [first.token]
        with pytest.raises(ringfence.Held, match="a is held by me with token 1") as held:
            client.lock("a").try_acquire()
        assert held.value.holders[0].token == first.token
        with pytest.raises(ringfence.TimedOut):
            client.lock(["b", "a"], wait=0.05).acquire()
    with client.lock(["b", "a"]) as second:
        assert second.token > first.token
        assert second.fence("b") == second.token
    assert not fake.holders("a")


def test_holders_share_up_to_a_limit_and_come_in_order(fake: FakeCluster, client: ringfence.Client) -> None:
    one, two = client.lock("a", limit=2).acquire(), client.lock("a", limit=2).acquire()
    assert two.fence("a") == one.token
    with ThreadPoolExecutor(3) as pool:
        third = pool.submit(client.lock("a", shared=True, wait=SOON).acquire)
        until(lambda: fake.waiters("a") == 1, "the third waits")
        alone = pool.submit(client.lock("a", wait=SOON).acquire)
        until(lambda: fake.waiters("a") == 2, "it waits")
        # Who came first comes first, though this one would fit.
        fourth = pool.submit(client.lock("a", shared=True, wait=SOON).acquire)
        until(lambda: fake.waiters("a") == 3, "the last one waits")
        one.release()
        shared = third.result(SOON)
        assert fake.waiters("a") == 2
        two.release()
        shared.release()
        exclusive = alone.result(SOON)
        assert fake.waiters("a") == 1
        exclusive.release()
        assert fourth.result(SOON).token > exclusive.token
        fourth.result().release()


def test_what_a_test_does_to_a_lease_is_known_at_once(fake: FakeCluster, client: ringfence.Client) -> None:
    told: list[str] = []
    for end, reason in ((fake.revoke, "revoked"), (fake.expire, "expired")):
        lease = client.lock("a", on_lost=lambda lost: told.append(str(lost.lost_reason))).acquire()
        end("a")
        assert lease.lost_reason == reason
        until(lambda want=reason: want in told, "the callback was called")
        with pytest.raises(ringfence.Lost):
            lease.release()
    with pytest.raises(LookupError):
        fake.revoke("a")


def test_time_that_is_moved_ends_what_was_not_renewed(fake: FakeCluster, client: ringfence.Client) -> None:
    lease, longer = client.lock("a", ttl=15).acquire(), client.lock("b", ttl=60).acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.lock("a", wait=SOON).acquire)
        until(lambda: fake.waiters("a") == 1, "it waits")
        fake.advance(20)
        assert lease.lost_reason == "unconfirmed"
        assert longer.state is ringfence.State.HELD
        with waiting.result(SOON) as next_one:
            assert next_one.token > lease.token
    longer.release()


def test_a_lease_outlives_time_that_is_moved_in_steps(fake: FakeCluster, client: ringfence.Client) -> None:
    """Once, the second step could come before the renewal that the first one had made due."""
    leases = [client.lock(f"steps/{n}", ttl=15).acquire() for n in range(20)]
    for _ in range(8):
        fake.advance(6)
    assert [lease.lost_reason for lease in leases] == [None] * 20
    fixed = client.lock("steps/fixed", ttl=15, renew=False).acquire()
    for _ in range(3):
        fake.advance(6)
    assert fixed.lost_reason == "unconfirmed"
    with fake.away():
        fake.advance(6)
    for lease in leases:
        lease.release()


def test_a_child_that_is_forked_does_not_answer_for_the_fake(
    fake: FakeCluster, client: ringfence.Client
) -> None:
    """Once, who connected while the cluster was away waited for a process that answers nobody."""
    client.holders("a")
    kept, ends = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.write(begins, b"!")
        os.read(kept, 1)
        os._exit(0)
    os.close(kept)
    os.close(begins)
    try:
        os.read(begun, 1)
        with fake.away():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(fake.url.rpartition(":")[2])), timeout=SOON)
        for _ in range(20):
            client.lock("a").acquire(timeout=SOON).release()
    finally:
        os.close(begun)
        os.close(ends)
        os.waitpid(child, 0)


def test_a_cluster_that_is_away_comes_back_as_it_was(fake: FakeCluster, client: ringfence.Client) -> None:
    lease = client.lock("a", ttl=60).acquire()
    with fake.away(), pytest.raises(ringfence.TimedOut):
        client.lock("b").acquire(timeout=0.3)
    with fake.away(), pytest.raises(ringfence.Unavailable):
        client.lock("b").acquire()
    assert [one.token for one in fake.holders("a")] == [lease.token]
    lease.release()


def test_an_acquire_whose_connection_closes_before_the_answer_is_abandoned(
    fake: FakeCluster, client: ringfence.Client
) -> None:
    body = json.dumps({"keys": ["a"], "wait_ms": 60_000}).encode()
    head = f"PUT /v1/leases/{uuid.uuid4()} HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
    lease = client.lock("a").acquire()
    with socket.create_connection(("127.0.0.1", int(fake.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: fake.waiters("a") == 1, "it waits")
    until(lambda: fake.waiters("a") == 0, "nobody waits for it")
    assert [one.token for one in fake.holders("a")] == [lease.token]
    lease.release()


def test_a_port_has_one_fake(fake: FakeCluster) -> None:
    port = int(fake.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        FakeCluster(port=port)


def test_the_client_for_asyncio_has_it_too() -> None:
    async def main() -> None:
        with FakeCluster() as fake:
            async with fake.aio() as client:
                with pytest.raises(ringfence.Lost, match="revoked"):
                    async with client.lock("a"):
                        fake.revoke("a")
                        await asyncio.sleep(SOON)
                async with client.lock("a", wait=SOON) as lease:
                    assert lease.token == 3

    asyncio.run(main())


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    {"keys": ["a"], "ttl_ms": -5},
    {"keys": ["a"], "ttl_ms": "x"},
    {"keys": ["a"], "ttl_ms": 86_400_001},
    {"keys": ["a"], "wait_ms": 60_001},
    {"keys": ["a"], "wait_ms": -1},
    {"keys": []},
    {"keys": ["a", "a"]},
    {"keys": [{"key": "a", "mode": "exclusive", "limit": 1}]},
    {"keys": [{"key": "a", "mode": "shraed"}]},
    {"keys": [{"key": "a", "mode": "shared", "limit": 0}]},
    {"keys": ["a"], "holder": 7},
    {"keys": ["a"], "metadata": {"a": 1}},
]


def test_a_grant_ends_with_the_only_request_that_may_be_answered() -> None:
    """Once, the requests of a wait that were answered long ago counted: then no closed connection ended the lease."""
    now = 0
    table = Table(lambda: now)
    body = {"keep_place": True, "ttl_ms": 600_000}
    table.acquire("holder", [Claim("a")], body, 0, 1)
    table.acquire("waiter", [Claim("a")], body, 30_000, 2)
    now = 30_000
    table.acquire("waiter", [Claim("a")], body, 30_000, 3)
    now = 59_000
    table.acquire("waiter", [Claim("a")], body, 30_000, 4)
    assert list(table.leases["waiter"].requests) == [3, 4]
    now = 88_000
    table.release("holder")
    assert list(table.leases["waiter"].requests) == [4]
    table.detach("waiter", 4)
    assert not table.leases


def test_what_is_no_request_is_refused_as_a_node_does(fake: FakeCluster) -> None:
    lease_id = "/v1/leases/0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10"
    for method, path, body, status, kind in (
        ("GET", "/nowhere", None, 404, "not-found"),
        ("GET", "/v1/leases/x", None, 400, "invalid-request"),
        ("PUT", lease_id, {"keys": ["a//b"]}, 400, "invalid-request"),
        ("PUT", lease_id, {}, 400, "invalid-request"),
        ("PUT", lease_id, [1], 400, "invalid-request"),
        *(("PUT", lease_id, body, 400, "invalid-request") for body in OUT_OF_BOUNDS),
        ("POST", f"{lease_id}/renew", {"ttl_ms": -5}, 400, "invalid-request"),
        ("POST", "/v1/renew", {"lease_ids": [lease_id] * 1_001}, 400, "invalid-request"),
        ("POST", "/v1/batch", {"operations": [{"x": {}}]}, 400, "invalid-request"),
        ("GET", lease_id, None, 404, "unknown-lease"),
        ("POST", "/v1/revoke", {"key": "a", "token": 1}, 409, "not-live"),
    ):
        found, problem = call(fake, method, path, body)
        assert (found, problem["type"]) == (status, f"urn:ringfence:problem:{kind}"), (method, path)
    assert call(fake, "PUT", lease_id, {"keys": ["a"], "ttl_ms": 60_000})[0] == 201
    assert call(fake, "PUT", lease_id, {"keys": ["a"]})[0] == 200
    assert call(fake, "PUT", lease_id, {"keys": ["b"]})[1]["title"] == "lease-mismatch"
    assert call(fake, "DELETE", lease_id) == (204, {})
    assert call(fake, "PUT", lease_id, {"keys": ["a"]})[1]["reason"] == "released"


def test_a_request_that_the_fake_fails_at_has_its_connection_closed(fake: FakeCluster) -> None:
    """Once, the sender waited for ever."""
    with socket.create_connection(
        ("127.0.0.1", int(fake.url.rpartition(":")[2])), timeout=SOON
    ) as connection:
        connection.sendall(b"GET //[ HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


@pytest.mark.parametrize("arguments", [[], ["--threads"]])
def test_the_conformance_suite_plays_the_fake(arguments: list[str]) -> None:
    """With a fake in the place of the node, behind the fronts of the suite, each scenario passes that hurts no node."""
    suite = Path(program()).resolve().with_name("conformance")
    if not suite.is_file():
        pytest.skip("the conformance suite is not built")
    adapter = " ".join([sys.executable, str(HERE.parent / "conformance_adapter.py"), *arguments])
    environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parent.parent)}
    played = subprocess.run(
        [suite, "--program", HERE / "fake_node.py", "--tier", "quick", "--adapter", adapter],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert played.returncode == 0, played.stdout + played.stderr
