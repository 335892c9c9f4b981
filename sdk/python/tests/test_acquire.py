"""An acquire against a played node: what became of each request, whatever the answers are."""

from __future__ import annotations

import pytest
from cluster import until
from conftest import JumpingClock
from played import SOON, Background, Played, acquire, grant, released

import ringfence


def test_a_grant_whose_answer_is_lost_is_found_by_the_same_put_elsewhere(
    background: Background, node: Played, other: Played
) -> None:
    call = acquire(background, node, other)
    first = node.receive("PUT")
    first.drop()
    second = other.receive("PUT")
    assert second.path == first.path
    second.grant(token=2**53 - 1)
    lease = call.result(SOON)
    assert lease.token == 2**53 - 1
    assert lease.state is ringfence.State.HELD


def test_a_refused_connection_is_unavailable(background: Background, node: Played) -> None:
    node.close()
    with pytest.raises(ringfence.Unavailable, match="refused"):
        acquire(background, node).result(SOON)


def test_a_503_is_repeated_elsewhere(background: Background, node: Played, other: Played) -> None:
    call = acquire(background, node, other)
    node.receive("PUT").problem(503, "unavailable", Retry_After="1")
    other.receive("PUT").grant()
    assert call.result(SOON).token == 7


def test_doubt_stays_through_503s_and_the_lease_is_given_back(background: Background, node: Played) -> None:
    call = acquire(background, node, wait=0)
    first = node.receive("PUT")
    first.problem(504, "indeterminate")
    while (asked := node.receive()).method == "PUT":
        assert asked.path == first.path
        asked.problem(503, "unavailable")
    released(asked, first.lease_id)
    with pytest.raises(ringfence.Unknown) as error:
        call.result(SOON)
    assert error.value.lease_id == first.lease_id


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b'HTTP/1.1 201 Created\r\ncontent-length: 500\r\n\r\n{"state":"granted"',
        b"HTTP/1.1 201 Created\r\ncontent-le",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
)
def test_what_no_node_wrote_and_half_an_answer_is_unknown(
    background: Background, node: Played, data: bytes
) -> None:
    call = acquire(background, node, wait=0)
    first = asked = node.receive("PUT")
    while asked.method == "PUT":
        asked.raw(data)
        asked.drop()
        asked = node.receive()
    released(asked, first.lease_id)
    with pytest.raises(ringfence.Unknown):
        call.result(SOON)


def test_a_reset_is_unknown_until_a_refusal_resolves_it_and_the_lease_is_deleted_all_the_same(
    background: Background, node: Played, other: Played
) -> None:
    call = acquire(background, node, other, wait=0)
    first = node.receive("PUT")
    first.reset()
    holder = {
        "key": "a",
        "token": 3,
        "holder": "me",
        "mode": "exclusive",
        "limit": None,
        "expires_in_ms": 1_500,
    }
    node.close()
    # There is more than one PUT if the machine is so busy that the client asks again.
    while (asked := other.receive()).method == "PUT":
        asked.problem(409, "held", {"holders": [holder], "waiters": 2})
    # The PUT that was reset may still arrive, and find the key free.
    released(asked, first.lease_id)
    with pytest.raises(ringfence.Held) as error:
        call.result(SOON)
    assert error.value.holders == (ringfence.Blocker("a", 3, "me", False, None, 1.5),)
    assert error.value.waiters == 2


@pytest.mark.parametrize(("status", "kind"), [(401, "unauthenticated"), (403, "forbidden")])
def test_a_denial_resolves_no_doubt(
    background: Background, node: Played, other: Played, status: int, kind: str
) -> None:
    call = acquire(background, node, other, wait=0)
    first = node.receive("PUT")
    first.drop()
    other.receive("PUT").problem(status, kind)
    released(other.receive("DELETE"), first.lease_id)
    with pytest.raises(ringfence.Unknown):
        call.result(SOON)
    call = acquire(background, node, wait=0)
    node.receive("PUT").problem(status, kind)
    with pytest.raises(ringfence.Unauthorized):
        call.result(SOON)
    assert node.is_quiet(), "nothing was in doubt"


def test_a_denial_takes_no_place_away(background: Background, node: Played) -> None:
    call = acquire(background, node)
    first = node.receive("PUT")
    first.answer(202, {"lease_id": first.lease_id, "state": "waiting", "ahead": 1})
    node.receive("PUT").problem(403, "forbidden")
    released(node.receive("DELETE"), first.lease_id)
    with pytest.raises(ringfence.Unknown):
        call.result(SOON)


def test_429_waits_for_as_long_as_it_says_while_time_is_left(background: Background, node: Played) -> None:
    call = acquire(background, node, wait=30)
    first = node.receive("PUT")
    first.problem(429, "overloaded", Retry_After="1")
    second = node.receive("PUT")
    assert second.path != first.path
    second.problem(429, "rate-limited", Retry_After="1")
    third = node.receive("PUT")
    assert third.path == second.path, "it was not done"
    third.grant()
    assert call.result(SOON).token == 7
    tried = acquire(background, node, wait=0)
    node.receive("PUT").problem(429, "overloaded", Retry_After="1")
    with pytest.raises(ringfence.Rejected) as error:
        tried.result(SOON)
    assert error.value.kind == "overloaded"


def test_a_stale_grant_is_renewed_before_it_is_handed_out(background: Background, node: Played) -> None:
    call = acquire(background, node)
    node.receive("PUT").grant(expires_in_ms=5_000)
    renewal = node.receive("POST", "/renew")
    assert not call.done()
    renewal.grant()
    assert call.result(SOON).remaining > 7.5


def test_time_counts_from_when_the_request_was_sent(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    client = ringfence.Client(node.url, clock=clock)
    call = background(client.lock("a", ttl=15, renew=False).acquire)
    asked = node.receive("PUT")
    clock.jump(5)
    asked.grant()
    lease = call.result(SOON)
    assert lease.remaining < 10
    renew = background(lease.renew)
    renewal = node.receive("POST", "/renew")
    clock.jump(5)
    renewal.grant()
    renew.result(SOON)
    assert lease.remaining < 10


def test_a_wait_keeps_its_place_and_takes_a_new_id_only_once_that_is_lost(
    background: Background, node: Played
) -> None:
    call = acquire(background, node)
    first = node.receive("PUT")
    assert (first.body["wait_ms"], first.body["keep_place"]) == (100, True), (
        "a node that has not answered yet"
    )
    first.answer(202, {"lease_id": first.lease_id, "state": "waiting", "ahead": 1})
    second = node.receive("PUT")
    assert (second.path, second.body["wait_ms"]) == (first.path, 30_000)
    second.problem(409, "wait-timeout")
    third = node.receive("PUT")
    assert third.path != first.path
    third.problem(410, "lease-gone", {"reason": "revoked"})
    with pytest.raises(ringfence.Lost) as error:
        call.result(SOON)
    assert error.value.reason == "revoked"


def test_a_wait_that_times_out_leaves_the_queue(background: Background, node: Played) -> None:
    call = acquire(background, node, wait=0.1)
    asked = node.receive("PUT")
    lease_id = asked.lease_id
    while asked.method == "PUT":
        until(lambda: True, "")
        asked.answer(202, {"lease_id": lease_id, "state": "waiting", "ahead": 0})
        asked = node.receive()
    released(asked, lease_id)
    with pytest.raises(ringfence.TimedOut):
        call.result(SOON)


def test_a_place_that_no_leader_answers_for_is_given_back(background: Background, node: Played) -> None:
    call = acquire(background, node, wait=0.5)
    asked = node.receive("PUT")
    lease_id = asked.lease_id
    asked.answer(202, {"lease_id": lease_id, "state": "waiting", "ahead": 0})
    while (asked := node.receive()).method == "PUT":
        asked.problem(503, "unavailable")
    released(asked, lease_id)
    with pytest.raises((ringfence.Unknown, ringfence.TimedOut)):
        call.result(SOON)


def test_a_node_that_hangs_is_left_for_another_and_the_place_is_kept(
    background: Background, node: Played, other: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It takes as long until the client asks whom it waits for.
    monkeypatch.setattr("ringfence._acquire._TELLS_AFTER", SOON)
    call = acquire(background, node, other)
    asked = node.receive("PUT")
    asked.answer(202, {"lease_id": asked.lease_id, "state": "waiting", "ahead": 1})
    waiting = node.receive("PUT")
    until(lambda: node.probes > 1, "the node is probed while a call waits")
    node.hangs = True
    repeat = other.receive("PUT")
    assert repeat.path == asked.path
    # The cluster would take the place away.
    waiting.connection.setblocking(False)
    with pytest.raises(BlockingIOError):
        waiting.connection.recv(1)
    repeat.grant()
    assert waiting.is_closed()
    assert call.result(SOON).token == 7


def test_an_answer_that_nobody_waits_for_reaches_no_later_call(
    background: Background, node: Played, other: Played
) -> None:
    client = ringfence.Client([node.url, other.url])
    call = background(client.lock("a", wait=0).acquire)
    first = node.receive("PUT")
    node.hangs = True
    second = other.receive("PUT")
    # Late, on a connection that the client has closed.
    assert first.is_closed()
    second.grant()
    lease = call.result(SOON)
    call = background(client.lock("b", wait=0).acquire)
    other.receive("PUT").grant(token=8)
    assert (lease.token, call.result(SOON).token) == (7, 8)


def test_another_cluster_is_no_answer(background: Background, node: Played, other: Played) -> None:
    client = ringfence.Client([node.url, other.url])
    call = background(client.lock("a", wait=0).acquire)
    node.receive("PUT").grant()
    kept = [call.result(SOON)]
    call = background(client.lock("b", wait=0).acquire)
    asked = node.receive("PUT")
    asked.answer(201, grant(asked.lease_id, 9, 15_000, ["b"]), ringfence_cluster="another")
    other.receive("PUT").grant(token=8)
    kept.append(call.result(SOON))
    assert [lease.token for lease in kept] == [7, 8]


def test_a_name_is_looked_up_and_all_its_addresses_are_tried(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url.replace("127.0.0.1", "localhost"))
    call = background(client.lock("a", wait=0).acquire)
    asked = node.receive("PUT")
    assert asked.headers["host"].startswith("localhost:")
    asked.grant()
    assert call.result(SOON).token == 7


def test_a_name_without_an_address_is_unavailable(background: Background) -> None:
    # No resolver is asked for what is no name.
    client = ringfence.Client("http://" + "x" * 64 + ".example:1")
    with pytest.raises(ringfence.Unavailable, match="was not resolved"):
        background(client.lock("a", wait=0).acquire).result(SOON)
