"""What the README shows works, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cluster import Cluster

README = (Path(__file__).parent.parent / "README.md").read_text()

TRACING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
# What the examples count and trace. Their hooks run on a thread of their own, which `close` does not wait for.
USE = """
import threading, time
from prometheus_client import REGISTRY

def until(look):
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)

read = REGISTRY.get_sample_value
lease = counted.lock("readme/counted").acquire()
until(lambda: read("leases_held") == 1)
told = f"held {read('leases_held')}"
waiting = threading.Thread(target=lambda: counted.lock("readme/counted").acquire().release())
waiting.start()
until(lambda: counted._runner().engine().cluster.waits._free < 32)  # it has a place in the queue
lease.release()
waiting.join()
lost = counted.lock("readme/counted", max_hold=0.2).acquire()
lost.wait_lost()
until(lambda: read("leases_lost_total", {"reason": "max-hold"}) == 1 and read("leases_held") == 0)
lost_total = read("leases_lost_total", {"reason": "max-hold"})
print(f"{told} then {read('leases_held')}, lost {lost_total}, waited {read('lock_wait_seconds_count')}")
with traced.lock("readme/traced"):
    pass
try:
    with traced.lock("readme/lost", max_hold=0.2) as lease:
        lease.wait_lost()
except ringfence.Lost:
    pass
until(lambda: len(exporter.get_finished_spans()) == 2)
for span in exporter.get_finished_spans():
    print(span.name, span.attributes["ringfence.keys"], span.status.status_code.name)
client.close(), counted.close(), traced.close()
"""


def test_the_commands_of_the_readme_work(cluster: Cluster, tmp_path: Path) -> None:
    # The package as it is published, with the SQL of the guard.
    here, python = Path(__file__).parent.parent, [sys.executable, "-m"]
    subprocess.run(
        [*python, "hatchling", "build", "-t", "sdist", "-d", tmp_path],
        cwd=here,
        check=True,
        capture_output=True,
    )
    archive = next(tmp_path.glob("*.tar.gz"))
    options = ["--no-deps", "--no-build-isolation", "--target", tmp_path]
    subprocess.run([*python, "pip", "install", "-q", *options, archive], check=True, capture_output=True)
    assert (tmp_path / "ringfence" / "py.typed").is_file()
    assert "CREATE SCHEMA IF NOT EXISTS ringfence" in (tmp_path / "ringfence" / "postgres.sql").read_text()
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 5
    script = re.sub(
        r"http://localhost:(740\d)", rf"http://{cluster.host}:\1", "".join([TRACING, *blocks, USE])
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split(" with")[0] for line in lines[:4]] == ["write 0", "write 1", "write 2", "write"]
    assert lines[4:] == [
        "held 1.0 then 0.0, lost 1.0, waited 1.0",
        "lease ('readme/traced',) UNSET",
        "lease ('readme/lost',) ERROR",
    ]
    assert ran.stderr == ""


def test_the_readme_names_each_error() -> None:
    import ringfence.errors

    for name in ringfence.errors.__all__:
        assert name == "Blocker" or f"`{name}`" in README or f".{name}`" in README, name
