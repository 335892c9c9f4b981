"""Leases against a played node: renewals, losses, and releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster import until
from conftest import JumpingClock
from played import SOON, Background, Played, grant, granted, released

import ringfence


def test_1_000_leases_are_renewed_by_one_request(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    leases = []
    for number in range(1_001):
        call = background(client.lock(f"k/{number}", ttl=3_600, wait=0).acquire)
        node.receive("PUT").grant()
        leases.append(call.result(SOON))
    for held in (lease._held for lease in leases):
        # As if half of the time had passed for all.
        older = replace(held.read(), until=held.read().until.after(-1_800_000_000_000))
        held._seen = replace(held._seen, lifetime=older)
    client._runner().call_soon(client._runner().engine().keeper.wake)
    sizes = []
    for _ in range(2):
        asked = node.receive("POST", "/v1/renew")
        sizes.append(len(asked.body["lease_ids"]))
        asked.renew_all(ttl_ms=3_600_000)
    assert sorted(sizes) == [1, 1_000]
    until(lambda: all(lease.remaining > 3_000 for lease in leases), "all are renewed")
    close = background(client.close)
    # Both are under way at once.
    for _ in range(2):
        asked = node.receive()
        if asked.method == "DELETE":
            asked.answer(204)
        else:
            assert len(asked.body["operations"]) == 1_000
            asked.answer(200, {"results": [{"status": 204, "body": None}] * 1_000})
    close.result(SOON)


def test_a_renewal_that_hangs_is_repeated_elsewhere_in_time(
    background: Background, node: Played, other: Played
) -> None:
    client = ringfence.Client([node.url, other.url])
    lease = granted(background, client, node, ttl=3)
    node.receive("POST", "/v1/renew")
    other.receive("POST", "/v1/renew").renew_all(ttl_ms=3_000)
    until(lambda: lease.remaining > 1.5, "it is renewed")
    assert lease.state is ringfence.State.HELD


def test_unsure_then_held_again(background: Background, node: Played) -> None:
    lease = granted(background, ringfence.Client(node.url), node, ttl=6)

    def look() -> bool:
        if not node.is_quiet():
            node.receive("POST", "/v1/renew").problem(503, "unavailable")
        return lease.state is ringfence.State.UNSURE

    until(look, "two thirds have passed")
    while lease.state is ringfence.State.UNSURE:
        if not node.is_quiet():
            node.receive("POST", "/v1/renew").renew_all(ttl_ms=6_000)
    assert lease.state is ringfence.State.HELD


def test_an_ended_lease_is_lost_with_its_reason_and_others_live(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    told: list[Any] = []
    first = granted(background, client, node, ttl=3, on_lost=told.append)
    second = granted(background, client, node, ttl=3)
    while (asked := node.receive("POST", "/v1/renew")) and first.lease_id not in asked.body["lease_ids"]:
        asked.renew_all(ttl_ms=3_000)
    gone = {
        "status": 410,
        "body": {"type": "urn:ringfence:problem:lease-gone", "reason": "revoked", "status": 410},
    }
    results = [
        gone if one == first.lease_id else {"status": 200, "body": grant(one, 7, 3_000, ["a"])}
        for one in asked.body["lease_ids"]
    ]
    asked.answer(200, {"results": results})
    assert first.wait_lost() == "revoked"
    until(lambda: told == [first], "it is told")
    assert second.state is ringfence.State.HELD
    with pytest.raises(ringfence.Lost):
        first.headers()


def test_a_clock_that_jumps_ends_the_lease_before_any_timer(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    client = ringfence.Client(node.url, clock=clock)
    lease = granted(background, client, node, ttl=3_600)
    assert lease.state is ringfence.State.HELD
    clock.jump(3_600)
    assert lease.state is ringfence.State.LOST
    assert lease.wait_lost() == "unconfirmed"
    with pytest.raises(ringfence.Lost):
        lease.check()
    release = background(lease.release)
    # The cluster may have it for longer.
    released(node.receive("DELETE"), lease.lease_id)
    with pytest.raises(ringfence.Lost):
        release.result(SOON)


def test_an_error_of_the_body_is_not_masked_by_the_loss(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    client = ringfence.Client(node.url, clock=clock)

    def block(error: type[Exception] | None) -> None:
        with client.lock("a", ttl=3_600):
            clock.jump(3_600)
            if error is not None:
                raise error("the body")

    for error in (KeyError, None):
        call = background(lambda error=error: block(error))  # type: ignore[misc]
        asked = node.receive("PUT")
        asked.grant()
        released(node.receive("DELETE"), asked.lease_id)
        with pytest.raises(error or ringfence.Lost):
            call.result(SOON)


def test_a_release_that_is_unknown_goes_on_and_close_waits_for_it(
    background: Background, node: Played
) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node)
    release = background(lease.release)
    while not release.done():
        if not node.is_quiet():
            node.receive("DELETE").drop()
    with pytest.raises(ringfence.Unknown):
        release.result(SOON)
    lease.release()
    close = background(lambda: client.close(SOON))
    asked = node.receive("DELETE")
    assert not close.done()
    released(asked, lease.lease_id)
    close.result(SOON)
    with pytest.raises(ringfence.Closed):
        client.lock("a").acquire()


def test_a_lease_that_nobody_has_is_released(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node)
    lease_id = lease.lease_id
    del lease
    released(node.receive("DELETE"), lease_id)


def test_an_adopted_lease_is_renewed_and_released_once(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    lease = granted(background, client, node)
    lease_id = lease.into_id()
    adopt = background(lambda: client.adopt(lease_id))
    node.receive("POST", f"{lease_id}/renew").grant(ttl_ms=3_000)
    adopted = adopt.result(SOON)
    assert (adopted.keys, adopted.lease_id) == (["a"], lease_id)
    del lease
    asked = node.receive("POST", "/v1/renew")
    assert asked.body["lease_ids"] == [lease_id]
    asked.renew_all(ttl_ms=3_000)
    release = background(adopted.release)
    released(node.receive("DELETE"), lease_id)
    release.result(SOON)
    adopted.release()


def test_headers_have_the_key_encoded_and_the_renewed_fence(background: Background, node: Played) -> None:
    client = ringfence.Client(node.url)
    call = background(client.lock("ä b/c", ttl=3, shared=True).acquire)
    asked = node.receive("PUT")
    assert asked.body["keys"] == [{"key": "ä b/c", "mode": "shared"}]
    asked.grant()
    lease = call.result(SOON)
    assert lease.headers() == {
        "Ringfence-Key": "%C3%A4%20b%2Fc",
        "Ringfence-Token": "7",
        "Ringfence-Fence": "7",
    }
    renewal = node.receive("POST", "/v1/renew")
    body = grant(lease.lease_id, 7, 3_000, [])
    body["keys"] = [{"key": "ä b/c", "fence": 6}]
    renewal.answer(200, {"results": [{"status": 200, "body": body}]})
    until(lambda: lease.fence() == 6, "the fence is that of the renewal")


def test_the_leader_that_an_answer_names_is_asked_once_it_has_answered(
    background: Background, node: Played, other: Played
) -> None:
    client = ringfence.Client(node.url)

    def at_the_other() -> bool:
        call = background(client.lock("a", wait=0).acquire)
        found = until(lambda: next((one for one in (node, other) if not one.is_quiet()), None), "a request")
        found.receive("PUT").problem(409, "held", ringfence_leader=other.url)
        with pytest.raises(ringfence.Held):
            call.result(SOON)
        return found is other

    assert not at_the_other()
    until(lambda: other.probes > 0, "it is probed")
    until(at_the_other, "the leader is asked")


def test_a_lease_outlives_its_block_for_as_long_as_it_was_to_be_held(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    client = ringfence.Client(node.url, clock=clock)

    def block() -> Any:
        with client.lock("a", ttl=60, hold_at_least=60) as lease:
            return lease

    call = background(block)
    asked = node.receive("PUT")
    # It waits in the queue: the time counts from the grant.
    clock.jump(5)
    asked.grant()
    renewal = node.receive("POST", "/renew")
    assert 60_000 < renewal.body["ttl_ms"] < 60_500, "it lasts even if this process ends"
    renewal.grant()
    assert call.result(SOON).state is ringfence.State.RELEASED
    assert node.is_quiet()
    clock.jump(60)
    released(node.receive("DELETE"), asked.lease_id)


def test_hold_at_least_is_not_cut_short_since_the_clock_of_the_holder_has_ended_the_lease(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    """Once, the lease was deleted. But a renewal whose answer was lost may have been done, so the cluster may keep the lease."""
    client = ringfence.Client(node.url, clock=clock)
    lease = granted(background, client, node, ttl=60, hold_at_least=600)
    clock.jump(61)
    with pytest.raises(ringfence.Lost) as lost:
        lease.release(timeout=SOON)
    assert lost.value.reason == "unconfirmed"
    call = background(client.lock("b", wait=0).acquire)
    node.receive("PUT").grant()
    call.result(SOON).into_id()


def test_hold_at_least_is_not_cut_short_once_renewals_are_in_doubt(
    background: Background, node: Played, clock: JumpingClock
) -> None:
    """Once, the key was given away after the certain time. But the one renewal may have been done although it failed."""
    client = ringfence.Client(node.url, clock=clock)
    lease = granted(background, client, node, ttl=3, hold_at_least=60)
    left = background(lease.release)
    node.receive("POST", f"/v1/leases/{lease.lease_id}/renew").problem(429, "overloaded")
    left.result(SOON)
    clock.jump(4)
    engine = client._runner().engine()
    until(lambda: not engine.leaving._holds, "it is lost")
    after = background(client.lock("b", wait=0).acquire)
    while (asked := node.receive()).method != "PUT":
        assert asked.method != "DELETE"
        asked.problem(503, "unavailable")
    asked.grant()
    after.result(SOON).into_id()
    assert len(engine.cluster.releases) == 0
