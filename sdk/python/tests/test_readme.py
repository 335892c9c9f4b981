"""What the README shows works, as it stands there: each example is a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from postgres import Postgres
from readme import EXAMPLES, README, at

HERE = Path(__file__).parent
# What they print, by something that is in them.
PRINTS = {
    "for amount in range(3)": ["write 0 with", "write 1 with", "write 2 with"],
    "wait=60": ["write with"],
    "cluster.away()": ["[] 0"],
    "monkey.patch_all()": ["write a", "write b"],
    "opentelemetry": ["lease ('readme/traced',) UNSET", "lease ('readme/lost',) ERROR"],
    "prometheus_client": ["waited 1.0"],
}
# Whoever used these would reach nobody.
NO_PROXY = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
DJANGO = """
import json, sys, django
from django.conf import settings
settings.configure(**json.loads(sys.argv[1]))
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from bank.models import Account
from ringfence.django import client, guarded
with client().lock("accounts/42") as lease, guarded(lease):
    Account(id=42, balance=100).save()
"""
DJANGO_AFTER = """
if "deposit" in globals():
    deposit(42, 10)
    assert Account.objects.get(id=42).balance == 110
else:
    call_command(Command())
    call_command(Command(), "--lock=commands/other")
"""


TRACING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
# Hooks run on a thread of their own, which `close` does not wait for.
UNTIL = """
import threading, time

def until(look):
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)
"""
TRACED = """
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
traced.close()
"""
COUNTED = """
from prometheus_client import REGISTRY

read = REGISTRY.get_sample_value
lease = counted.lock("readme/counted").acquire()
until(lambda: read("leases_held") == 1)
waiting = threading.Thread(target=lambda: counted.lock("readme/counted").acquire().release())
waiting.start()
until(lambda: counted._runner().engine().cluster.waits._free < 32)  # it has a place in the queue
lease.release()
waiting.join()
lost = counted.lock("readme/counted", max_hold=0.2).acquire()
lost.wait_lost()
until(lambda: read("leases_lost_total", {"reason": "max-hold"}) == 1 and read("leases_held") == 0)
with ringfence.Client(counted._settings.urls) as other:
    counted.adopt(other.lock("readme/left").acquire().into_id()).release()
counted.lock("readme/last").acquire().release()
until(lambda: read("leases_held") == 0)
print(f"waited {read('lock_wait_seconds_count')}")
counted.close()
"""
# What is done before and after an example that only defines something.
AROUND = {
    "opentelemetry": (TRACING, UNTIL + TRACED),
    "prometheus_client": ("", UNTIL + COUNTED),
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is published, installed."""
    folder = tmp_path_factory.mktemp("installed")
    python = [sys.executable, "-m"]
    build = [*python, "hatchling", "build", "-t", "sdist", "-d", folder]
    subprocess.run(build, cwd=HERE.parent, check=True, capture_output=True)
    archive = next(folder.glob("*.tar.gz"))
    options = ["--no-deps", "--no-build-isolation", "--target", folder]
    subprocess.run([*python, "pip", "install", "-q", *options, archive], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


def run(arguments: list[str], installed: Path, cwd: Path) -> list[str]:
    """Runs Python, which has to succeed silently, and returns what it prints."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={"PYTHONPATH": f"{installed}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1", **NO_PROXY},
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_the_package_has_all_its_files(installed: Path) -> None:
    assert (installed / "ringfence" / "py.typed").is_file()
    assert "CREATE SCHEMA IF NOT EXISTS ringfence" in (installed / "ringfence" / "postgres.sql").read_text()
    [facts] = installed.glob("ringfence-*.dist-info")
    assert "Apache License" in (facts / "licenses" / "LICENSE").read_text()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_each_example_runs_alone(
    number: int, cluster: Cluster, installed: Path, postgres: Postgres, tmp_path: Path
) -> None:
    text = at(cluster, EXAMPLES[number])
    text = text.replace("localhost/shop", f"postgres@{postgres.host}:{postgres.port}/postgres")
    if "def test_" in text:
        # The fixtures come from the entry point.
        (tmp_path / "test_example.py").write_text(text)
        printed = run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], installed, tmp_path)
        assert "1 passed" in printed[-1]
    elif "ringfence.django" in text:
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": f"example_{number}",
            "USER": "postgres",
        }
        postgres.create(database["NAME"])
        settings = {
            "DATABASES": {"default": {**database, "HOST": postgres.host, "PORT": postgres.port}},
            "INSTALLED_APPS": ["bank"],
            "RINGFENCE": {"urls": cluster.urls},
        }
        printed = run(["-c", DJANGO + text + DJANGO_AFTER, json.dumps(settings)], installed, tmp_path)
        assert len(printed) == 2 * ("Command" in text)
    else:
        before, after = next((both for part, both in AROUND.items() if part in text), ("", ""))
        printed = run(["-c", before + text + after], installed, tmp_path)
        wanted = next((lines for part, lines in PRINTS.items() if part in text), [])
        assert [line[: len(start)] for line, start in zip(printed, wanted, strict=True)] == wanted


def test_the_readme_names_each_error() -> None:
    import ringfence.errors

    for name in ringfence.errors.__all__:
        assert name == "Blocker" or f"`{name}`" in README or f".{name}`" in README, name
