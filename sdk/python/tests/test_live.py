"""Against real nodes: what breaks is broken for real."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from cluster import SOON, Cluster, until
from conftest import JumpingClock
from played import renewal
from relay import Relay

import ringfence
from ringfence import State


def test_a_lease_is_granted_renewed_and_released(cluster: Cluster, client: ringfence.Client) -> None:
    with client.lock(["live/a", "live/b"], ttl=3, holder="me", metadata={"pod": "a-1"}) as lease:
        assert lease.keys == ["live/a", "live/b"]
        assert lease.fence("live/a") == lease.token
        first = cluster.holders("live/a")
        assert lease.wait_lost(timeout=0.1) is None
        until(renewal(lease), "it is renewed")
        assert (first[0]["holder"], first[0]["metadata"], first[0]["token"]) == (
            "me",
            {"pod": "a-1"},
            lease.token,
        )
        assert lease.state is State.HELD
        lease.check()
        lease.renew(ttl=30)
        assert lease.remaining > 20
        with pytest.raises(ringfence.Held) as held:
            client.lock("live/b").try_acquire()
        assert held.value.holders[0].holder == "me"
    assert lease.state is State.RELEASED
    assert cluster.holders("live/a") == []


def test_a_lock_that_threads_share_excludes_them_from_each_other(client: ringfence.Client) -> None:
    lock, inside, tokens = client.lock("live/shared-lock"), [], []

    def work(_: int) -> None:
        with lock as lease:
            inside.append(1)
            assert len(inside) == 1
            tokens.append(lease.token)
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(24)))
    assert tokens == sorted(set(tokens))


def test_holders_share_up_to_a_limit(client: ringfence.Client) -> None:
    lock = client.lock("live/limited", limit=2)
    with lock as one, lock as two:
        assert one.fence() == two.fence() == one.token < two.token
        with pytest.raises(ringfence.Held):
            lock.try_acquire()


def test_a_lease_survives_its_leader_and_so_does_a_place_in_the_queue() -> None:
    with Cluster() as cluster, ringfence.Client(cluster.urls) as client, ThreadPoolExecutor() as pool:
        lease = client.lock("a", ttl=10).acquire()
        waiting = pool.submit(client.lock("a", wait=SOON).acquire)
        until(lambda: cluster.waiters("a"), "the other waits")
        leader = cluster.leader()
        cluster.kill([leader])
        cluster.leader(but=leader)
        token = lease.token
        lease.renew()
        assert lease.state is State.HELD
        assert cluster.holders("a")[0]["token"] == token
        lease.release()
        assert waiting.result(SOON).token > token


def test_a_lease_survives_when_all_nodes_are_killed_and_restarted() -> None:
    with Cluster() as cluster, ringfence.Client(cluster.urls) as client:
        lease = client.lock("a", ttl=60).acquire()
        cluster.kill()
        cluster.start()
        cluster.leader()
        until(lambda: _is_renewed(lease), "it is renewed")
        assert cluster.holders("a")[0]["token"] == lease.token
        lease.release()
        assert cluster.holders("a") == []


def _is_renewed(lease: ringfence.Lease) -> bool:
    try:
        lease.renew()
    except (ringfence.Unavailable, ringfence.Unknown):
        return False
    return lease.state is State.HELD


def test_a_node_that_hangs_holds_up_neither_holders_nor_waiters() -> None:
    with Cluster() as cluster, ThreadPoolExecutor() as pool:
        leader = cluster.leader()
        # Both begin at the node that will hang.
        urls = sorted(cluster.urls, key=lambda url: url != cluster.url(leader))
        with ringfence.Client(urls) as holder, ringfence.Client(urls) as other:
            lease = holder.lock("a", ttl=20).acquire()
            waiting = pool.submit(other.lock("a", wait=SOON).acquire)
            until(lambda: cluster.waiters("a"), "the other waits")
            cluster.stop(leader)
            try:
                until(lambda: _is_renewed(lease), "it is renewed elsewhere")
                lease.release()
                assert waiting.result(SOON).token > lease.token
            finally:
                cluster.resume(leader)


def test_a_holder_that_is_cut_off_is_told_before_its_successor_is_granted() -> None:
    alone = Cluster(nodes=1)
    relay = Relay(alone.host, 7401)
    # The holder knows no other way.
    alone.arguments.append(f"--advertise-http={relay.url}")
    told, lost_at = threading.Event(), []

    def on_lost(lease: ringfence.Lease) -> None:
        lost_at.append(time.monotonic())
        told.set()

    with alone as cluster, ringfence.Client(relay.url) as holder, ringfence.Client(cluster.urls) as other:

        def succeed() -> tuple[ringfence.Lease, float]:
            return other.lock("a", wait=SOON).acquire(), time.monotonic()

        with ThreadPoolExecutor() as pool:
            lease = holder.lock("a", ttl=2, on_lost=on_lost).acquire()
            successor = pool.submit(succeed)
            until(lambda: cluster.waiters("a"), "the other waits")
            relay.cut()
            assert lease.wait_lost(SOON) == "unconfirmed"
            assert told.wait(SOON)
            next_lease, granted_at = successor.result(SOON)
        assert lost_at[0] < granted_at
        assert next_lease.token > lease.token
        next_lease.release()
        relay.close()


def test_a_clock_that_jumped_ends_a_lease_that_the_cluster_still_has(
    cluster: Cluster, clock: JumpingClock
) -> None:
    with ringfence.Client(cluster.urls, clock=clock) as client:
        lease = client.lock("live/jump", ttl=60).acquire()
        clock.jump(60)
        with pytest.raises(ringfence.Lost):
            lease.check()
        assert cluster.holders("live/jump")[0]["token"] == lease.token
        with pytest.raises(ringfence.Lost):
            lease.release()
        assert cluster.holders("live/jump") == [], "it is released all the same"


def test_1_000_leases_of_one_client_live_on_few_requests(
    cluster: Cluster, client: ringfence.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringfence._http import Request
    from ringfence._server import Server

    sizes: list[int] = []
    send = Server.send

    async def count(self: Server, request: Request, *rest: object) -> object:
        if request.path == "/v1/renew":
            sizes.append(len(json.loads(request.body)["lease_ids"]))
        return await send(self, request, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Server, "send", count)
    with ThreadPoolExecutor(16) as pool:
        leases = list(pool.map(lambda number: client.lock(f"many/{number}", ttl=20).acquire(), range(1_000)))
    for _ in range(2):
        until(renewal(leases[0]), "a round of renewals")
    assert all(lease.state is State.HELD for lease in leases)
    # On a busy machine they are acquired too far apart to be renewed all at once.
    assert len(sizes) < 60, sizes
    assert sum(sizes) / len(sizes) > 100, sizes
    client.close()
    assert cluster.holders("many/0") == cluster.holders("many/999") == []


def test_who_leads_is_elected_anew_after_a_loss_and_ends_with_its_result(
    cluster: Cluster, client: ringfence.Client
) -> None:
    terms: list[int] = []

    def work(lease: ringfence.Lease) -> str:
        terms.append(lease.token)
        if len(terms) == 1:
            assert lease.wait_lost() == "max-hold"
            lease.check()
        return "done"

    assert client.lead("live/leader", work, max_hold=0.5) == "done"
    assert terms[0] < terms[1]
    assert cluster.holders("live/leader") == []
    with pytest.raises(ZeroDivisionError):
        client.lead("live/leader", lambda lease: 1 // 0)


def test_a_lease_that_outlives_its_block_keeps_others_out_and_then_ends(
    cluster: Cluster, client: ringfence.Client
) -> None:
    begun = time.monotonic()
    with client.lock("live/job", ttl=3, hold_at_least=6) as lease:
        pass
    assert lease.state is State.RELEASED
    with pytest.raises(ringfence.Held):
        client.lock("live/job").try_acquire()
    client.lock("live/job", wait=SOON).acquire().release()
    assert time.monotonic() - begun >= 5.9
