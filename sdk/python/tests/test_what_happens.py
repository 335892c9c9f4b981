"""The table of sdk/README.md: each case names what plays it. What no scenario can play is here."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from cluster import SOON, Cluster
from test_process import line, rest, start

import ringfence

SDK = Path(__file__).parents[2]


def test_each_case_of_the_table_names_what_plays_it() -> None:
    rows = [row for row in (SDK / "README.md").read_text().splitlines() if row.startswith("| ")][1:]
    scenarios = (SDK / "conformance/src/scenario.rs").read_text()
    tests = [*(SDK / "python/tests").glob("test_*.py"), *(SDK / "typescript/tests").glob("*.test.ts")]
    known = "".join(test.read_text() for test in tests)
    assert len(rows) > 10
    for row in rows:
        names = re.findall(r"`(.*?)`", row.split("|")[3])
        assert names, row
        for name in names:
            is_known = f'"{name}" ' in scenarios or f"def {name}(" in known or f'test("{name}"' in known
            assert is_known, name
    for language in ("go", "java", "python", "typescript"):
        assert "[What happens when](../README.md)" in (SDK / language / "README.md").read_text()


def test_a_holder_that_is_killed_leaves_its_key_for_the_ttl(
    cluster: Cluster, client: ringfence.Client
) -> None:
    script = 'lease = client.lock("happens/killed", ttl=5).acquire(); print(lease.token); sys.stdin.read()'
    holder = start(cluster, script)
    token = int(line(holder))
    holder.kill()
    holder.wait()
    assert [one["token"] for one in cluster.holders("happens/killed")] == [token]
    with client.lock("happens/killed", wait=SOON) as lease:
        assert lease.token > token
    rest(holder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_raises_in_a_body_has_released(cluster: Cluster, number: signal.Signals) -> None:
    holder = start(
        cluster,
        """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)
with client.lock("happens/signal", ttl=600) as lease:
    print(lease.token)
    time.sleep(600)
""",
    )
    assert int(line(holder)) > 0
    holder.send_signal(number)
    rest(holder)
    assert cluster.holders("happens/signal") == []
