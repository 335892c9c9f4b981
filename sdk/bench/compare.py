"""Compares the client libraries with those of other services. Starts the servers, and takes turns between all of them in each round.

Prints the acquires and releases per second of one process, the medians of the rounds, and the ratios. Then what the clients for Go and Java
leave behind, and fails if that is too much.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from cluster import Cluster, claim, spawn, until
from cluster import program as cluster_program

HERE = Path(__file__).parent
# What `run` has built.
GO = HERE / "../../target/sdk-bench/load"
# What is measured: its language, and the program and the kind of each service.
LIBRARIES = [
    ("Python, threads", "load.py", {"ringfence": "ringfence", "redis": "redis", "etcd": "etcd"}),
    ("Python, asyncio", "load.py", {"ringfence": "ringfence-aio", "redis": "redis-aio", "etcd": "etcd-aio"}),
    ("TypeScript", "load.mjs", {"ringfence": "ringfence", "redis": "redis", "etcd": "etcd"}),
    ("Go, redsync", "load.go", {"ringfence": "ringfence", "redis": "redsync", "etcd": "etcd"}),
    ("Go, redislock", "load.go", {"ringfence": "ringfence", "redis": "redislock", "etcd": "etcd"}),
    ("Java", "Load.java", {one: one for one in ("ringfence", "redis", "zookeeper", "hazelcast")}),
]
# What `run` has compiled, and what that needs.
BUILT = HERE.parent.parent / "target" / "sdk-bench" / "java"
JAVA = ["java", "-cp", f"{BUILT / 'classes'}:{BUILT / 'jars'}/*"]
# Where the package of ZooKeeper puts it; its manifest names what else it needs.
ZOOKEEPER = "/usr/share/java/zookeeper.jar"
# The Rust clients, as `ringfence-bench` names the services.
RUST, RUST_SERVICES = (
    "Rust",
    {"ringfence": "ringfence", "redis": "redis fsync", "etcd": "etcd {version} lock"},
)
# What is looked for once a client is closed, and the most connections that it may have had, and that may be in TIME_WAIT then.
CYCLES, LEASES, CONNECTIONS, IN_TIME_WAIT = 10_000, 64, 300, 1_000
# The services, and their columns.
SERVICES = {
    "ringfence": "Ringfence/s",
    "redis": "Redis/s",
    "etcd": "etcd/s",
    "zookeeper": "ZooKeeper/s",
    "hazelcast": "Hazelcast/s, all in memory",
}


def start_redis(stack: ExitStack, folder: Path) -> list[str]:
    """One server without replicas, which syncs each write."""
    host, port = own_host(stack), 6379
    options = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder)]
    start(stack, ["redis-server", "--bind", host, "--port", str(port), *options], folder / "log")
    until(
        lambda: subprocess.run(["redis-cli", "-h", host, "ping"], capture_output=True).returncode == 0,
        "redis",
    )
    return [f"redis://{host}:{port}"]


def start_etcd(stack: ExitStack, folder: Path, program: str) -> list[str]:
    """Three servers; the URL of the one that leads."""
    hosts = {f"n{number}": own_host(stack) for number in (1, 2, 3)}
    everyone = ",".join(f"{name}=http://{host}:2380" for name, host in hosts.items())
    for name, host in hosts.items():
        peer, client = f"http://{host}:2380", f"http://{host}:2379"
        peers = [
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={everyone}",
        ]
        clients = [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        start(
            stack,
            [program, f"--name={name}", f"--data-dir={folder / name}", *peers, *clients],
            folder / f"{name}.log",
        )

    def leader() -> str | None:
        for host in hosts.values():
            try:
                with urllib.request.urlopen(f"http://{host}:2379/metrics", timeout=2) as response:
                    if b"\netcd_server_is_leader 1\n" in response.read():
                        return f"http://{host}:2379"
            except OSError:
                pass
        return None

    return [until(leader, "a leader of etcd")]


def start_zookeeper(stack: ExitStack, folder: Path) -> list[str]:
    """Three servers of the system's package; the address of the one that leads."""
    host = own_host(stack)
    servers = "".join(f"server.{one}={host}:{2888 + one}:{3888 + one}\n" for one in range(3))
    for one in range(3):
        data = folder / str(one)
        data.mkdir()
        (data / "myid").write_text(str(one))
        where = f"dataDir={data}\nclientPortAddress={host}\nclientPort={2181 + one}\n"
        times = "tickTime=500\nmaxSessionTimeout=60000\ninitLimit=20\nsyncLimit=10\n"
        more = "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
        (data / "zoo.cfg").write_text(where + times + more + servers)
        server = ["java", "-cp", ZOOKEEPER, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
        start(stack, [*server, str(data / "zoo.cfg")], folder / f"{one}.log")

    def leader() -> str | None:
        for port in range(2181, 2184):
            try:
                with socket.create_connection((host, port), timeout=2) as asked:
                    asked.sendall(b"srvr")
                    if b"Mode: leader" in asked.makefile("rb").read():
                        return f"{host}:{port}"
            except OSError:
                pass
        return None

    return [until(leader, "a leader of ZooKeeper")]


def start_hazelcast(stack: ExitStack, folder: Path) -> list[str]:
    """Three members of the CP subsystem, which keep all in memory."""
    host = own_host(stack)
    for one in range(3):
        start(stack, [*JAVA, "-Xmx1g", "Load", "member", str(one), host], folder / f"{one}.log")
    urls = [f"{host}:{5701 + one}" for one in range(3)]
    # A client that comes before may wait for ever.
    until(lambda: all("serves" in (folder / f"{one}.log").read_text() for one in range(3)), "Hazelcast serves")
    return urls


def own_host(stack: ExitStack) -> str:
    host, owner = claim()
    stack.callback(owner.close)
    return host


def start(stack: ExitStack, command: list[str], log: Path) -> None:
    process = spawn(command, log)
    stack.callback(process.wait)
    stack.callback(process.kill)


def measure(program: str, kind: str, leases: int, seconds: float, urls: list[str]) -> float:
    commands = {
        ".py": [sys.executable, str(HERE / program)],
        ".mjs": ["node", str(HERE / program)],
        ".go": [str(GO)],
        ".java": [*JAVA, "Load"],
    }
    command = commands[Path(program).suffix]
    command += [kind, str(leases), str(seconds), *urls]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if ran.returncode != 0:
        raise SystemExit(f"sdk/bench: {program} {kind}, {leases} leases: {ran.stderr[-1_000:]}")
    return float(json.loads(ran.stdout)["per_s"])


def measure_leaves() -> str:
    """What 10,000 cycles of the Java client leave behind, at nodes that nobody else calls."""
    with Cluster() as cluster:
        ran = subprocess.run(
            [*JAVA, "Load", "leaves", "64", "10000", *cluster.urls], capture_output=True, text=True, timeout=600
        )
    if ran.returncode != 0:
        raise SystemExit(f"sdk/bench: the Java client leaves too much: {ran.stdout}{ran.stderr[-1_000:]}")
    return ran.stdout.strip()


def measure_rust(program: str, numbers: list[int], given: argparse.Namespace) -> dict[tuple[int, str], float]:
    """What the benchmark of the servers measures with tasks of one process. It starts servers of its own for each turn."""
    version = subprocess.run(
        [given.etcd, "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    names = {text.format(version=version): service for service, text in RUST_SERVICES.items()}
    with tempfile.NamedTemporaryFile() as found:
        options = ["--clients", ",".join(map(str, numbers)), "--seconds", str(max(1, round(given.seconds)))]
        more = [
            "--tasks",
            "--rounds=1",
            "--only",
            ",".join(names),
            "--etcd",
            given.etcd,
            "--json",
            found.name,
        ]
        ran = subprocess.run(
            [program, "compare", *more, *options, "--program", cluster_program()],
            capture_output=True,
            text=True,
        )
        if ran.returncode != 0:
            raise SystemExit(f"sdk/bench: {program}: {ran.stderr}")
        rows = json.load(found)["rows"]
    return {
        (row["clients"], names[row["service"]]): row["per_s"][0] for row in rows if row["service"] in names
    }


def connections(cluster: Cluster) -> tuple[int, int]:
    """Those that clients have open to its nodes, and those in TIME_WAIT, on whichever side."""
    host = socket.inet_aton(cluster.host)[::-1].hex().upper()
    nodes = {f"{host}:{7400 + one:04X}" for one in cluster.ids}
    rows = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    waiting = sum(state == "06" and not nodes.isdisjoint(ends) for *ends, state in rows)
    return sum(state != "06" and remote in nodes for _, remote, state in rows), waiting


def leaves_nothing() -> str:
    """What cycles leave, on a cluster that nobody else has used."""
    with Cluster() as cluster:
        command = [str(GO), "left", str(LEASES), str(CYCLES), *cluster.urls]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            most, end = 0, time.monotonic() + 120
            while not select.select([process.stdout], [], [], 0.02)[0]:
                most = max(most, connections(cluster)[0])
                if time.monotonic() > end:
                    process.kill()
            line = process.stdout.readline()
            if not line:
                raise SystemExit("sdk/bench: the cycles failed, or took too long")
            # The kernel may still be closing them.
            end = time.monotonic() + 5
            while (found := connections(cluster))[0] and time.monotonic() < end:
                time.sleep(0.02)
            goroutines, (is_left, waiting) = json.loads(line)["goroutines"], found
    what = (
        f"Go: {CYCLES:,} cycles, {LEASES} at once, had at most {most} connections. Closed, the client left "
        f"{goroutines} goroutines, {is_left} connections, and {waiting} in TIME_WAIT."
    )
    if goroutines or is_left or most > CONNECTIONS or waiting >= IN_TIME_WAIT:
        raise SystemExit(f"sdk/bench: too much: {what}")
    return what


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="sdk/bench/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--leases", default="1,64,256", help="numbers of leases at once [default: %(default)s]"
    )
    parser.add_argument("--rounds", type=int, default=5, help="[default: %(default)s]")
    parser.add_argument("--seconds", type=float, default=2, help="of each turn [default: %(default)s]")
    parser.add_argument("--only", default="", help="only libraries of the languages with this in their names")
    parser.add_argument("--etcd", default="etcd", help="its program [default: the one in the PATH]")
    parser.add_argument("--bench", help="the program ringfence-bench, to measure the Rust clients as well")
    given = parser.parse_args()
    numbers = [int(number) for number in given.leases.split(",")]
    figures: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    folder = Path(tempfile.mkdtemp(prefix="sdk-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        chosen = [one for one in LIBRARIES if given.only in one[0]]
        if not chosen and not given.bench:
            parser.error(f"--only: no library of {given.only}")
        starts = {
            "redis": start_redis,
            "etcd": partial(start_etcd, program=given.etcd),
            "zookeeper": start_zookeeper,
            "hazelcast": start_hazelcast,
        }
        urls = {"ringfence": stack.enter_context(Cluster()).urls}
        for service in starts.keys() & {service for *_, kinds in chosen for service in kinds}:
            (folder / service).mkdir()
            urls[service] = starts[service](stack, folder / service)
        for number in range(given.rounds):
            for language, program, kinds in chosen:
                for leases in numbers:
                    for service, kind in kinds.items():
                        per_s = measure(program, kind, leases, given.seconds, urls[service])
                        figures[language, leases, service].append(per_s)
            if given.bench:
                for (leases, service), per_s in measure_rust(given.bench, numbers, given).items():
                    figures[RUST, leases, service].append(per_s)
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    show(figures, numbers)
    if any(program == "load.go" for _, program, _ in chosen):
        print(f"\n{leaves_nothing()}")
    if any(language == "Java" for language, *_ in chosen):
        print(f"\nThe Java client, 64 leases at once: {measure_leaves()}")


def show(figures: dict[tuple[str, int, str], list[float]], numbers: list[int]) -> None:
    """Medians, with the least and the most, and the medians of the ratios within the rounds."""
    services = [service for service in SERVICES if any(one == service for *_, one in figures)]
    ratios = [f"to {SERVICES[other].partition('/')[0]}" for other in services[1:]]
    columns = ["library", "leases at once", *(SERVICES[service] for service in services), *ratios]
    print(f"| {' | '.join(columns)} |")
    print("|---" + "|--:" * (len(columns) - 1) + "|")
    for language in dict.fromkeys(language for language, *_ in figures):
        for leases in numbers:
            of = {service: figures[language, leases, service] for service in services}
            cells = [
                f"{statistics.median(all_of):,.0f} ({min(all_of):,.0f} to {max(all_of):,.0f})" if all_of else "–"
                for all_of in of.values()
            ]
            for other in services[1:]:
                pairs = [
                    mine / theirs if theirs else float("inf")
                    for mine, theirs in zip(of["ringfence"], of[other])
                ]
                cells.append(f"{statistics.median(pairs):.2g}" if pairs else "–")
            print(f"| {language} | {leases} | {' | '.join(cells)} |")


main()
