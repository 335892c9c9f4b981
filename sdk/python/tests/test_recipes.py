"""The recipes of docs/recipes.md, as they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster

import ringfence

RECIPES = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
Job = Callable[[ringfence.Client, Callable[[str, dict[str, str]], None]], None]


@pytest.fixture
def job() -> Job:
    [block] = re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL)
    names = {"ringfence": ringfence, "Callable": Callable}
    exec(block, names)
    found: Job = names["job"]  # type: ignore[assignment]
    return found


def test_a_quick_job_runs_on_one_machine(cluster: Cluster, client: ringfence.Client, job: Job) -> None:
    stored = []
    job(client, lambda part, headers: stored.append((part, headers["Ringfence-Token"])))
    [holder] = cluster.holders("reports/nightly")
    assert stored == [("sums", str(holder["token"])), ("charts", str(holder["token"]))]
    cluster.revoke("reports/nightly", holder["token"])


def test_a_job_that_loses_the_lease_ends_with_an_error(
    cluster: Cluster, client: ringfence.Client, job: Job
) -> None:
    with ringfence.Client(cluster.urls) as other:
        leases = []

        def lose(part: str, headers: dict[str, str]) -> None:
            # The client learns of it at its next renewal, or when it leaves.
            if not leases:
                cluster.revoke("reports/nightly", int(headers["Ringfence-Token"]))
                leases.append(other.lock("reports/nightly").acquire())

        with pytest.raises(ringfence.Lost):
            job(client, lose)
        leases[0].release()


def test_another_client_goes_on_with_a_lease_that_was_left(
    cluster: Cluster, client: ringfence.Client
) -> None:
    left, taken = re.findall(r"^\| Python \| `(.*?)` \| `(.*?)` \|$", RECIPES, re.MULTILINE)[0]
    with ringfence.Client(cluster.urls) as other:
        names = {"lease": client.lock("imports/42").acquire()}
        exec(left, names)
        exec(f"{taken}\n  state = lease.state", names | {"client": other}, names)
        assert names["state"] is ringfence.State.HELD
    assert not cluster.holders("imports/42")
