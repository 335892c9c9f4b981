"""What decides without I/O: time, outcomes, bytes, nodes, and what is refused before anything is sent."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from played import grant, problem

import ringfence
from ringfence import _fork, _outcome, errors
from ringfence._acquire import slice_ms
from ringfence._blocks import Blocks, Place
from ringfence._clock import Moment
from ringfence._held import Held
from ringfence._http import Malformed, Request, Response, ResponseReader
from ringfence._lifetime import MS, Confirmation, State
from ringfence._nodes import Nodes
from ringfence._outcome import Ambiguous, Done, NotDone, NotSent, Refused
from ringfence._signal import Flag
from ringfence._wire import Grant

SURE_MS = 9_000 - 18 - 5


def at(ms: int, raw_ms: int | None = None) -> Moment:
    return Moment((1_000_000 + ms) * MS, (1_000_000 + (ms if raw_ms is None else raw_ms)) * MS)


def sent_at(ms: int, ttl_ms: int = 9_000, expires_in_ms: int | None = None) -> Confirmation:
    expires = ttl_ms if expires_in_ms is None else expires_in_ms
    return Confirmation(at(ms), Grant("id", 1, ttl_ms, expires, {}))


class PlayedClock:
    """Stands where a test has set it."""

    def __init__(self) -> None:
        self.now = at(0)

    def __call__(self) -> Moment:
        return self.now


def held() -> tuple[Held, PlayedClock]:
    clock = PlayedClock()
    return Held(sent_at(0), clock, _fork.process()), clock


def test_a_lease_is_held_then_unsure_then_lost_for_good() -> None:
    lease, clock = held()
    clock.now = at(7_000)
    assert lease.remaining() == (SURE_MS - 7_000) * MS
    assert lease.read().due_in(at(0)) == (SURE_MS - 6_000) * MS
    for ms, state in [
        (0, State.HELD),
        (SURE_MS - 3_001, State.HELD),
        (SURE_MS - 3_000, State.UNSURE),
        (SURE_MS - 1, State.UNSURE),
        (SURE_MS, State.LOST),
        (0, State.LOST),
    ]:
        clock.now = at(ms)
        assert lease.state() is state, ms
    assert lease.loss() == "unconfirmed"


def test_either_clock_ends_a_lease() -> None:
    for now in (at(0, SURE_MS), at(SURE_MS, 0)):
        lease, clock = held()
        clock.now = now
        assert lease.state() is State.LOST


def test_an_older_answer_that_comes_late_changes_nothing_and_one_past_the_end_revives_nothing() -> None:
    lease, clock = held()
    clock.now = at(8_000)
    lease.confirm(sent_at(7_000))
    lease.confirm(sent_at(3_000))
    assert lease.remaining() == (SURE_MS - 1_000) * MS
    clock.now = at(7_000 + SURE_MS)
    lease.confirm(sent_at(16_000))
    assert lease.state() is State.LOST


def test_what_is_held_for_its_maximum_is_lost_while_it_lives_and_is_not_renewed_beyond() -> None:
    lease, clock = held()
    lease.give_up_at(at(5_000))
    assert lease.read().due_in(clock.now) is None
    clock.now = at(4_999)
    assert lease.state() is State.HELD
    clock.now = at(5_000)
    assert lease.state() is State.LOST
    assert lease.loss() == "max-hold"


def test_all_that_must_stop_is_told_before_users_and_nobody_keeps_another_from_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lease, _ = held()
    told: list[str] = []

    def fail(name: str) -> None:
        told.append(name)
        raise ZeroDivisionError

    lease.on_told(lambda: fail("a user"))
    lease.on_told(lambda: fail("another user"))
    lease.on_loss(lambda: fail("a body"))
    lease.on_loss(lambda: fail("another body"))
    lease.lose("revoked")
    lease.tell()
    lease.tell()
    assert told == ["a body", "another body", "a user", "another user"]
    assert len(caplog.records) == 4


def test_a_stand_in_lives_on_when_its_lease_was_left() -> None:
    lease, _ = held()
    stand_in = lease.copy()
    assert lease.release() is None
    assert (lease.state(), stand_in.state()) == (State.RELEASED, State.HELD)
    stand_in.lose("revoked")
    assert lease.loss() == "released"


def test_a_block_is_left_by_its_own_frame_and_nobody_else_leaves_one_of_several() -> None:
    """Once, the number of a frame was enough, and another frame had it later: one thread released the lease of another."""
    blocks: Blocks[str] = Blocks()
    here, there = Place(1, "code"), Place(2, "other code")
    for place, owner, lease in [(here, 1, "first"), (here, 2, "second"), (there, 1, "third")]:
        blocks.enter(place, owner, lease)
    # The same number, in another function.
    with pytest.raises(RuntimeError, match="several blocks"):
        blocks.leave(Place(1, "other code"), owner=1)
    # A generator that another thread has resumed.
    assert blocks.leave(there, owner=9) == "third"
    assert blocks.leave(here, owner=2) == "second"
    # The only one is meant, whoever leaves it.
    assert blocks.leave(Place(3, "code"), owner=9) == "first"
    with pytest.raises(RuntimeError, match="not entered"):
        blocks.leave(here, owner=1)


def test_a_flag_wakes_all_who_wait_and_those_who_come_later() -> None:
    flag = Flag()
    assert not flag.wait(0)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(flag.wait, 60) for _ in range(8)]
        flag.set()
        assert all(one.result() for one in waiting)
    assert flag.wait()
    assert flag.is_set()


def test_a_wait_is_cut_into_slices() -> None:
    assert [slice_ms(None, False), slice_ms(90_000, False), slice_ms(7, False), slice_ms(7, True)] == [
        30_000,
        30_000,
        7,
        7,
    ]
    assert [slice_ms(None, True), slice_ms(0, False)] == [100, 0]


def response(status: int, body: str, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(at(0), status, named, body.encode())


def outcome(status: int, body: str, **headers: str) -> Any:
    def read(found: Response) -> int:
        number = found.json()
        if not isinstance(number, int):
            raise ValueError("no number")
        return number

    return _outcome.of(response(status, body, **headers), read)


def test_each_response_has_its_outcome() -> None:
    assert outcome(200, "7") == Done(7)
    assert isinstance(outcome(409, json.dumps(problem(409, "held"))), Refused)
    assert isinstance(outcome(503, json.dumps(problem(503, "unavailable"))), NotDone)
    assert outcome(429, json.dumps(problem(429, "rate-limited")), retry_after="2").retry_after == 2
    for status, body in [
        (200, "<html>"),
        (200, ""),
        (200, "[" * 100_000),
        (302, ""),
        (404, "no such page"),
        (407, '{"type":"about:blank"}'),
        (500, ""),
        (502, json.dumps(problem(503, "unavailable"))),
        (503, "no server is available"),
        (503, '{"type":"urn:somebody:else","status":503}'),
        (504, json.dumps(problem(504, "indeterminate"))),
    ]:
        assert isinstance(outcome(status, body), Ambiguous), (status, body)


def test_a_grant_of_another_lease_or_with_a_token_that_is_none_is_no_grant() -> None:
    from ringfence import _wire

    assert _wire.grant(grant("x", 2**53 - 1, 100, ["a"]), "x").token == 2**53 - 1
    for changes in (
        {"lease_id": "y"},
        {"token": 2**53},
        {"token": 1.0},
        {"token": True},
        {"expires_in_ms": None},
        {"keys": {}},
    ):
        with pytest.raises(ValueError, match=r"no such number|no keys|another lease"):
            _wire.grant({**grant("x", 1, 100, ["a"]), **changes}, "x")


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_response_is_read_whatever_pieces_it_comes_in(size: int) -> None:
    chunked = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"2;x\r\nab\r\n1\r\nc\r\n0\r\nt: 1\r\n\r\n"
    sized = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
    for data in (chunked, sized):
        reader = ResponseReader()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [reader.feed(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert reader.response(at(0)).body == b"abc"
    assert not reader.response(at(0)).keeps_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 204 OK\r\n\r\nx",
        b"x" * 70_000,
    ],
)
def test_what_has_no_certain_end_is_no_response(data: bytes) -> None:
    with pytest.raises(Malformed):
        ResponseReader().feed(data)


def test_a_credential_is_in_no_request_without_one() -> None:
    assert b"authorization: Bearer secret\r\n" in Request("GET", "/").encode("a:1", "secret")
    assert b"authorization" not in Request("GET", "/").encode("a:1", None)


def test_the_leader_is_followed_once_it_is_met_and_a_failed_one_is_passed_over() -> None:
    nodes = Nodes(["http://a:1", "http://b:1"])
    first, second = nodes.entries
    assert nodes.best(0) is first
    assert nodes.responded(first, "http://b:1", 0) is None
    assert nodes.best(0) is second
    nodes.failed(second, silent_since=0, now=1)
    nodes.responded(first, "http://b:1", 1)
    assert nodes.best(2) is first, "it failed just now"
    assert nodes.best(5) is second
    stranger = nodes.responded(second, "http://c:1", 10)
    assert stranger is not None
    assert nodes.best(10) is second, "it has not answered"
    nodes.met(stranger)
    assert nodes.best(10) is stranger
    assert nodes.responded(first, "https://d:1", 10) is None, "another scheme"
    assert Nodes(["http://a:1"], learns=False).responded(nodes.entries[0], "http://d:1", 0) is None


def test_a_client_belongs_to_the_cluster_that_answers_first() -> None:
    nodes = Nodes(["http://a:1"])
    nodes.check_cluster(nodes.entries[0], "one", is_definite=False)
    nodes.check_cluster(nodes.entries[0], "two", is_definite=True)
    with pytest.raises(
        NotSent, match=r"http://a:1 answers for cluster 'one', this client belongs to cluster 'two'"
    ):
        nodes.check_cluster(nodes.entries[0], "one", is_definite=True)
    assert not nodes.entries[0].is_met


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("keys[0]", {"keys": ""}),
        ("keys[1]", {"keys": ["a", "b//c"]}),
        ("keys[1]", {"keys": ["a", "a"]}),
        ("keys[0]", {"keys": [7]}),
        ("keys[0]", {"keys": "x" * 513}),
        ("keys[0]", {"keys": "a\n"}),
        ("keys[0]", {"keys": "\ud800"}),
        ("keys", {"keys": []}),
        ("keys", {"keys": [f"{one}" for one in range(65)]}),
        ("keys", {"keys": None}),
        ("keys[0].limit", {"keys": [ringfence.Claim("a", limit=3)]}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": True}),
        ("ttl", {"ttl": 0.05}),
        ("ttl", {"ttl": float("nan")}),
        ("ttl", {"ttl": "15"}),
        ("wait", {"wait": -1}),
        ("wait", {"wait": 10**400}),
        ("ttl", {"ttl": 1.7e308}),
        ("max_hold", {"max_hold": 10**400}),
        ("holder", {"holder": "x" * 257}),
        ("holder", {"holder": "x\ud800"}),
        ("metadata", {"metadata": {"x": "\udfff"}}),
        ("metadata", {"metadata": {"a": 1}}),
        ("metadata", {"metadata": {"a": "x" * 5_000}}),
        ("max_hold", {"max_hold": 0}),
        ("hold_at_least", {"hold_at_least": 90_000}),
        ("hold_at_least", {"hold_at_least": 2, "max_hold": 1}),
        ("on_lost", {"on_lost": 7}),
    ],
)
def test_an_invalid_request_names_the_field(field: str, wrong: dict[str, Any]) -> None:
    client = ringfence.Client("http://127.0.0.1:1")
    with pytest.raises(ringfence.Invalid) as error:
        client.lock(wrong.pop("keys", "a"), **wrong)
    assert error.value.field == field
    with pytest.raises(ringfence.Invalid) as error:
        client.adopt("7")
    assert error.value.field == "lease_id"
    assert client._runners == {} or not any(runner.engine() for runner in client._runners.values()), (
        "nothing was sent"
    )


@pytest.mark.parametrize(
    ("field", "urls", "more"),
    [
        ("urls", [], {}),
        ("urls[0]", "a:1", {}),
        ("urls[0]", ["http://u@a:1"], {}),
        ("urls[0]", ["http://a:1/x"], {}),
        ("urls[0]", ["http://a:x"], {}),
        ("urls[1]", ["http://a:1", "https://a:2"], {}),
        ("credential", "http://a:1", {"credential": "secret"}),
        ("credential", "https://a:1", {"credential": "two words"}),
        ("ca", "http://a:1", {"ca": "/x"}),
        ("ca", "https://a:1", {"ca": "/nonexistent"}),
        ("key", "https://a:1", {"cert": "/x"}),
    ],
)
def test_an_invalid_client_names_the_field(field: str, urls: Any, more: dict[str, str]) -> None:
    for kind in (ringfence.Client, ringfence.aio.Client):
        with pytest.raises(ringfence.Invalid) as error:
            kind(urls, **more)
        assert error.value.field == field
        assert "secret" not in str(error.value)


def test_the_name_of_another_client_is_escaped() -> None:
    blocker = ringfence.Blocker("a", 7, "Ä\x1b[2J\nme", False, None, 1)
    assert str(ringfence.Held([blocker], 0)) == r"a is held by \xc4\x1b[2J\nme with token 7"


def test_the_package_has_the_licence_and_the_guard_of_this_repository() -> None:
    # They are copies, so that this folder is a package also without the rest.
    here = Path(__file__).parent.parent
    for copied, original in (
        ("LICENSE", "LICENSE"),
        ("src/ringfence/postgres.sql", "guard/sql/postgres.sql"),
    ):
        assert (here / copied).read_bytes() == (here.parent.parent / original).read_bytes(), f"cp {original}"


def test_every_error_crosses_processes() -> None:
    """As `ProcessPoolExecutor` sends it, and as a queue with JSON does: by the name of its class and its `args`."""
    blocker = errors.Blocker("a", 7, None, False, None, 1.5)
    refusal = {"type": "urn:ringfence:problem:overloaded", "detail": "too much"}
    made = {
        "Error": errors.Error("text"),
        "Invalid": errors.Invalid("ttl", "detail"),
        "Held": errors.Held([blocker], 3),
        "TimedOut": errors.TimedOut(2.5, "timeout"),
        "Lost": errors.Lost("revoked"),
        "Unavailable": errors.Unavailable("text"),
        "Unknown": errors.Unknown("text", "id"),
        "Rejected": errors.Rejected(refusal),
        "Unauthorized": errors.Unauthorized(refusal),
        "Stale": errors.Stale("text"),
        "Closed": errors.Closed("text"),
    }
    assert {*made, "Blocker", "LossReason"} == set(errors.__all__)
    for error in made.values():
        by_json = type(error)(*json.loads(json.dumps(error.args)))
        if isinstance(by_json, errors.Unknown):
            # Others may read a store that keeps the results of tasks like this.
            assert by_json.lease_id is None
            by_json.lease_id = "id"
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error), by_json):
            assert type(again) is type(error)
            assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    assert str(made["Held"]) == "a is held with token 7"
    # Logs contain these, and the id is a secret.
    assert (repr(made["Unknown"]), made["Unknown"].args) == ("Unknown('text')", ("text",))
    assert str(made["Lost"]) == "the lease is lost: an operator revoked it"
