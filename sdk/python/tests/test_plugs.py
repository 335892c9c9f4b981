"""The plugs, each with the real framework."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import apscheduler.events
import httpx
import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery, Task, beat
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging
from cluster import SOON, Cluster, spawn, until
from fastapi import FastAPI
from readme import at, example

import ringfence
from ringfence import apscheduler as apscheduler_plug
from ringfence import celery as celery_plug


@setup_logging.connect
def leave_the_log(**_: Any) -> None:
    """A worker would raise the level of all loggers of this process, for all tests that follow."""


@pytest.fixture
def app() -> Iterator[Celery]:
    """An application with a broker in memory, and a worker with several threads."""
    app = Celery("tests", broker="memory://", backend="cache+memory://")
    yield app
    app.close()


@pytest.fixture
def worker(app: Celery) -> Iterator[Callable[[], Any]]:
    """Starts the worker, once the tasks are there."""
    started: list[Any] = []

    def start() -> None:
        context = start_worker(app, pool="threads", concurrency=3, perform_ping_check=False)
        context.__enter__()
        started.append(context)

    yield start
    for context in started:
        context.__exit__(None, None, None)


def test_a_task_of_celery_runs_once_at_a_time_with_its_token(
    app: Celery, worker: Callable[[], Any], client: ringfence.Client, cluster: Cluster
) -> None:
    go_on = threading.Event()

    @app.task
    @celery_plug.once(client, lambda day: f"celery/{day}")
    def report(day: str, *, lease: ringfence.Lease) -> int:
        go_on.wait(SOON)
        lease.check()
        return lease.token

    @app.task(max_retries=None)
    @celery_plug.once(client, "celery/monday", countdown=0.1)
    def patient() -> str:
        return "done later"

    worker()
    first = report.delay("monday")
    [holder] = until(lambda: cluster.holders("celery/monday"), "it runs")
    with pytest.raises(ringfence.Held) as held:
        report.delay("monday").get(timeout=SOON)
    assert held.value.holders[0].token == holder["token"]
    later = patient.delay()
    until(lambda: later.state == "RETRY", "it is retried")
    go_on.set()
    assert first.get(timeout=SOON) == holder["token"]
    assert later.get(timeout=SOON) == "done later"
    assert report.delay("tuesday").get(timeout=SOON) > holder["token"]
    # Celery checks the arguments, of which the lease is none.
    with pytest.raises(TypeError):
        report.delay("monday", "tuesday")
    with pytest.raises(TypeError):
        report.delay()


def test_a_task_of_celery_that_no_worker_runs_is_not_retried(app: Celery, client: ringfence.Client) -> None:
    """Once, an eager task was retried without end, and one without a task around it failed with an `AttributeError`."""

    @app.task(max_retries=None)
    @celery_plug.once(client, "celery/direct", countdown=1)
    def direct() -> str:
        return "done"

    with client.lock("celery/direct"):
        for call in (direct, direct.run, lambda: direct.apply(throw=True)):
            with pytest.raises(ringfence.Held):
                call()
    assert direct() == direct.run() == direct.apply().get() == "done"


def test_a_task_of_celery_that_another_calls_does_not_retry_the_other(
    app: Celery, worker: Callable[[], Any], client: ringfence.Client
) -> None:
    """Once, the calling task was retried, although it handles `Held` itself."""

    runs: list[str] = []

    @app.task
    @celery_plug.once(client, "celery/inner", countdown=0.1)
    def inner() -> None:
        runs.append("inner")

    @app.task
    @celery_plug.once(client, "celery/outer", countdown=0.1)
    def outer() -> None:
        runs.append("outer")
        with contextlib.suppress(ringfence.Held):
            inner.run()

    @app.task(bind=True, max_retries=None, autoretry_for=(KeyError,))
    @celery_plug.once(client, "celery/inner", countdown=0.1)
    def bound(self: Any) -> str:
        return f"done after {self.request.retries > 0}"

    worker()
    with client.lock("celery/inner"):
        outer.delay().get(timeout=SOON)
        assert runs == ["outer"]
        later = bound.delay()
        until(lambda: later.state == "RETRY", "it is retried")
    assert later.get(timeout=SOON) == "done after True"


def test_a_task_of_celery_is_retried_whatever_stands_around_once(
    app: Celery, worker: Callable[[], Any], client: ringfence.Client
) -> None:
    """Once, a wrapper that hid the function from `inspect.unwrap` made the task fail for good."""

    def hides(function: Callable[[], str]) -> Callable[[], str]:
        def hidden() -> str:
            return function()

        return hidden

    class Base(Task):  # type: ignore[misc]
        @celery_plug.once(client, "celery/around", countdown=0.1)
        def run(self) -> str:
            return "done"

    class Sub(Base):
        name = "sub"
        max_retries = None

        def run(self) -> str:
            return f"{super().run()} by a subclass"

    @app.task(max_retries=None)
    @hides
    @celery_plug.once(client, "celery/around", countdown=0.1)
    def inside() -> str:
        return "done"

    sub = app.register_task(Sub())
    worker()
    with client.lock("celery/around"):
        later = [inside.delay(), sub.delay()]
        for one in later:
            until(lambda one=one: one.state == "RETRY", "it is retried")
    # The two may be in each other's way.
    assert [one.get(timeout=SOON) for one in later] == ["done", "done by a subclass"]


def test_a_beat_has_no_standby_that_would_send(app: Celery, client: ringfence.Client) -> None:
    """Once, these were taken: one sent its tasks in a tick of its own, and the other stored what its standby skipped."""

    class Ticks(beat.Scheduler):
        def tick(self, **_: Any) -> float:
            return 1.0

    class Stores(beat.Scheduler):
        def reserve(self, entry: Any) -> Any:
            return next(entry)

    for base, own in ((Ticks, "tick"), (Stores, "reserve")):
        with pytest.raises(TypeError, match=f"{own} of its own"):
            celery_plug.one_beat(client, "celery/beat", base=base)
    celery_plug.one_beat(client, "celery/beat", base=beat.Scheduler)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_task_of_celery_that_loses_its_lease_fails_with_lost(
    serializer: str, app: Celery, worker: Callable[[], Any], client: ringfence.Client, cluster: Cluster
) -> None:
    app.conf.update(result_serializer=serializer, accept_content=["json", "pickle"])

    # Whatever the application, a name is registered once.
    @app.task(name=f"lost-with-{serializer}")
    @celery_plug.once(client, "celery/lost", ttl=6)
    def task(*, lease: ringfence.Lease) -> None:
        lease.wait_lost(SOON)

    worker()
    result = task.delay()
    [holder] = until(lambda: cluster.holders("celery/lost"), "it runs")
    cluster.revoke("celery/lost", holder["token"])
    with pytest.raises(ringfence.Lost, match="revoked"):
        result.get(timeout=SOON)


FORKED = """
import os, time
from celery import Celery
import ringfence
from ringfence.celery import once

folder = os.environ["FOLDER"]
app = Celery("forked", broker="filesystem://", backend=f"file://{folder}/results")
paths = {"data_folder_in": f"{folder}/queue", "data_folder_out": f"{folder}/queue", "control_folder": f"{folder}/control"}
app.conf.broker_transport_options = {**paths, "polling_interval": 0.1}
client = ringfence.Client(os.environ["URLS"].split())
# The parent has used it, too.
client.holders("celery/forked")

@app.task
@once(client, "celery/forked")
def work(*, lease):
    while not os.path.exists(f"{folder}/go-on"):
        lease.check()
        time.sleep(0.01)
    return [lease.token, os.getpid()]
"""


def test_a_task_runs_once_among_the_processes_of_a_worker_that_forks(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "results", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "forked.py").write_text(FORKED)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("URLS", " ".join(cluster.urls))
    monkeypatch.setenv("PYTHONPATH", str(Path(ringfence.__file__).parent.parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("forked")
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "-A", "forked", "worker", "-P", "prefork", "-c", "2", *quiet]
    worker = spawn(command, tmp_path / "log", cwd=tmp_path)
    try:
        first = module.work.delay()
        [holder] = until(lambda: cluster.holders("celery/forked"), "it runs")
        with pytest.raises(ringfence.Held):
            module.work.delay().get(timeout=SOON)
        (tmp_path / "go-on").touch()
        token, process = first.get(timeout=SOON)
        assert token == holder["token"]
        assert process not in (worker.pid, os.getpid())
    finally:
        worker.terminate()
        worker.wait()
        module.client.close()
        module.app.close()


class Beat:
    """A beat on a thread of its own, and what it has sent."""

    def __init__(self, app: Celery, client: ringfence.Client, folder: Path) -> None:
        self.sent: list[float] = []
        sent = self.sent

        class Recorded(beat.PersistentScheduler):
            def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **more: Any) -> Any:
                sent.append(time.monotonic())
                return super().apply_async(entry, producer, advance, **more)

        scheduler = celery_plug.one_beat(client, "celery/beat", base=Recorded, ttl=6)
        folder.mkdir()
        self.service = beat.Service(
            app, max_interval=0.1, schedule_filename=str(folder / "schedule"), scheduler_cls=scheduler
        )
        self.thread = threading.Thread(
            target=self.service.start, kwargs={"embedded_process": True}, daemon=True
        )
        self.thread.start()

    @property
    def token(self) -> int | None:
        lease = self.service.scheduler.turn._lease
        return lease and lease.token

    def stop(self) -> None:
        self.service.stop(wait=False)
        self.thread.join(SOON)
        assert not self.thread.is_alive()


def test_of_two_beats_one_is_active_and_the_other_goes_on(
    app: Celery,
    client: ringfence.Client,
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ringfence")

    @app.task
    def tick() -> None:
        """Nobody runs it."""

    app.conf.beat_schedule = {"tick": {"task": tick.name, "schedule": 0.1}}
    with ringfence.Client(cluster.urls) as other:
        beats = [Beat(app, client, tmp_path / "1"), Beat(app, other, tmp_path / "2")]
        active = until(lambda: next((one for one in beats if one.sent), None), "one sends")
        standby = beats[1 - beats.index(active)]
        until(lambda: len(active.sent) > 5, "it goes on")
        assert not standby.sent
        until(lambda: "not active, and does not send 'tick'" in caplog.text, "the log tells of the other")
        # A lease that is lost is taken anew, by either.
        [lost] = cluster.holders("celery/beat")
        cluster.revoke("celery/beat", lost["token"])
        [holder] = until(lambda: cluster.holders("celery/beat"), "one is active again")
        active = until(
            lambda: next((one for one in beats if one.token == holder["token"]), None), "it is this one"
        )
        standby = beats[1 - beats.index(active)]
        active.stop()
        # It has not waited for the end of the lease.
        assert holder["token"] not in [one["token"] for one in cluster.holders("celery/beat")]
        seen = len(standby.sent)
        until(lambda: len(standby.sent) > seen + 2, "the other one goes on")
        standby.stop()
    assert cluster.holders("celery/beat") == []


def test_a_job_runs_on_one_of_many_schedulers(
    cluster: Cluster, client: ringfence.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringfence")
    tokens: list[int] = []
    with ringfence.Client(cluster.urls) as other:
        schedulers = [BackgroundScheduler(), BackgroundScheduler()]
        for scheduler, one in zip(schedulers, (client, other), strict=True):

            @apscheduler_plug.once(one, "jobs/nightly", hold_at_least=1, ttl=3)
            def job(lease: ringfence.Lease) -> None:
                tokens.append(lease.token)

            scheduler.add_job(job)
            scheduler.start()
        until(lambda: "jobs/nightly' is done elsewhere" in caplog.text, "one leaves it to the other")
        until(lambda: tokens, "one runs it")
        for scheduler in schedulers:
            scheduler.shutdown()
        assert len(tokens) == 1
    until(lambda: not cluster.holders("jobs/nightly"), "others may run it again")


def test_a_scheduler_is_told_of_a_job_that_lost_its_lease(cluster: Cluster, client: ringfence.Client) -> None:
    errors: list[BaseException] = []

    def note(event: Any) -> None:
        errors.append(event.exception)

    scheduler = BackgroundScheduler()
    scheduler.add_listener(note, apscheduler.events.EVENT_JOB_ERROR)
    scheduler.start()

    @apscheduler_plug.once(client, "jobs/lost", hold_at_least=0, ttl=2)
    def job(lease: ringfence.Lease) -> None:
        lease.wait_lost(SOON)

    scheduler.add_job(job)
    lose(cluster, "jobs/lost")
    until(lambda: errors, "the scheduler is told")
    scheduler.shutdown()

    async def main() -> None:
        scheduler = AsyncIOScheduler()
        scheduler.add_listener(note, apscheduler.events.EVENT_JOB_ERROR)
        scheduler.start()
        cancelled = asyncio.Event()

        async with ringfence.aio.Client(cluster.urls) as client:

            @apscheduler_plug.once(client, "jobs/lost", hold_at_least=0, ttl=2)
            async def job() -> None:
                try:
                    await asyncio.sleep(SOON)
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

            scheduler.add_job(job)
            await asyncio.to_thread(lose, cluster, "jobs/lost")
            await asyncio.wait_for(cancelled.wait(), SOON)
            while len(errors) < 2:
                await asyncio.sleep(0.01)
            scheduler.shutdown()

    asyncio.run(main())
    assert [type(error) for error in errors] == [ringfence.Lost, ringfence.Lost]


def test_a_job_has_the_client_of_its_kind(client: ringfence.Client, cluster: Cluster) -> None:
    async def job() -> None:
        """A coroutine function."""

    with pytest.raises(TypeError, match="coroutine functions need a client for asyncio"):
        apscheduler_plug.once(client, "jobs/kind", hold_at_least=1)(job)
    with pytest.raises(TypeError):
        apscheduler_plug.once(ringfence.aio.Client(cluster.urls), "jobs/kind", hold_at_least=1)(print)


@pytest.mark.parametrize("path", ["/accounts/7", "/threads/accounts/7"])
def test_a_lease_is_a_dependency_of_fastapi(path: str, cluster: Cluster, client: ringfence.Client) -> None:
    """With the example of the README."""
    names: dict[str, Any] = {}
    exec(at(cluster, example("from fastapi import")), names)

    async def main() -> None:
        app: FastAPI = names["app"]
        begun, go_on = threading.Event(), threading.Event()

        # The dependency of the example.
        of_account = get_type_hints(names["put"], include_extras=True)["lease"].__metadata__[0]

        @app.put("/slow/threads/accounts/{id}")
        def slow_in_a_thread(lease: Any = of_account) -> int:
            begun.set()
            go_on.wait(SOON)
            return int(lease.token)

        @app.put("/slow/accounts/{id}")
        async def slow(lease: Any = of_account) -> int:
            begun.set()
            while not go_on.is_set():
                await asyncio.sleep(0.01)
            return int(lease.token)

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=None) as http:
            first = await http.put(path)
            assert first.status_code == 200
            assert cluster.holders("accounts/7") == []
            # One after the other, though they come at once. Once, more than there are threads held up the whole application.
            tokens = [one.json() for one in await asyncio.gather(*(http.put(path) for _ in range(60)))]
            assert len(set(tokens)) == 60
            assert min(tokens) > first.json()
            assert cluster.holders("accounts/7") == []
            # Whoever loses the lease is told, and does not get the answer.
            losing = asyncio.create_task(http.put(f"/slow{path}"))
            assert await asyncio.to_thread(begun.wait, SOON)
            await asyncio.to_thread(lose, cluster, "accounts/7")
            with client.lock("accounts/7", wait=SOON):
                busy = asyncio.create_task(http.put(path))
                go_on.set()
                lost = await losing
                assert (lost.status_code, "lost" in lost.text) == (503, True), lost.text
                late = await busy
                assert (late.status_code, "not granted" in late.text) == (409, True), late.text
        async with names["lifespan"](app):
            """Its end closes the clients."""

    asyncio.run(main())


def lose(cluster: Cluster, key: str) -> None:
    [holder] = until(lambda: cluster.holders(key), "it is held")
    cluster.revoke(key, holder["token"])
