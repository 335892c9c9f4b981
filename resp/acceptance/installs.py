"""Installs the libraries in the versions that are pinned here, each kind once, into target/resp-acceptance."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent.parent / "target" / "resp-acceptance"


class NotToBeHad(Exception):
    """Why something is not installed."""


def call(command: list[str | Path], cwd: Path = HERE, **environment: str) -> str:
    """What the command printed. Raises with the last of it if it failed."""
    try:
        ended = subprocess.run(
            command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=900
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotToBeHad(f"{command[0]}: {error}") from error
    if ended.returncode != 0:
        said = " ".join((ended.stderr.strip() or ended.stdout.strip()).split())
        raise NotToBeHad(f"{Path(command[0]).name} {command[1]}: {said[-300:]}")
    return ended.stdout


def tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise NotToBeHad(f"{name} is not installed")
    return found


@contextmanager
def made_for(place: Path, *sources: Path) -> Iterator[bool]:
    """Whether the place has to be made: it is not there, or was made for other sources. It counts as made when the block ends well."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    mark = place / ".made-for"
    if mark.exists() and mark.read_text() == digest:
        yield False
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    yield True
    mark.write_text(digest)


@cache
def python(pins: str) -> Path:
    """The interpreter of an environment with what python/PINS.txt names."""
    source = HERE / "python" / f"{pins}.txt"
    place = TARGET / "python" / pins
    with made_for(place, source) as is_new:
        if is_new:
            call([sys.executable, "-m", "venv", place])
            call([place / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", source])
    return place / "bin/python"


@cache
def source_of(pins: str, package: str) -> Path:
    """The folder of the package's source, with its tests, in the version that python/PINS.txt names."""
    lines = (HERE / "python" / f"{pins}.txt").read_text().splitlines()
    pin = next(line for line in lines if line.startswith(f"{package}=="))
    place = TARGET / "sources" / pin
    with made_for(place, HERE / "python" / f"{pins}.txt") as is_new:
        if is_new:
            arguments = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
            call([python(pins).parent / "pip", "download", *arguments, "--dest", place, pin])
            shutil.unpack_archive(next(place.glob("*.tar.gz")), place, filter="data")
    return next(path for path in place.iterdir() if path.is_dir())


@cache
def node(lock: str) -> Path:
    """A folder with what node/LOCK/package-lock.json names, and the scenarios."""
    tool("node")
    source = HERE / "node"
    manifests = [source / lock / "package.json", source / lock / "package-lock.json"]
    place = TARGET / "node" / lock
    with made_for(place, *manifests) as is_new:
        if is_new:
            for manifest in manifests:
                shutil.copy(manifest, place)
            call([tool("npm"), "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"], place)
    # A module finds its packages beside itself.
    for scenario in source.glob("*.?js"):
        shutil.copy(scenario, place)
    return place


@cache
def module(path: str) -> tuple[str, Path]:
    """The version of a Go module that go/go.mod names, and a copy of its source, which the tests of its authors run in."""
    known = json.loads(call([tool("go"), "mod", "download", "-json", path], HERE / "go"))
    place = TARGET / "sources" / path.replace("/", "-")
    shutil.rmtree(place, ignore_errors=True)
    # The cache of modules is not to be written.
    shutil.copytree(known["Dir"], place, copy_function=shutil.copyfile)
    for folder in [place, *place.rglob("*/")]:
        folder.chmod(0o755)
    return known["Version"], place


@cache
def go() -> Path:
    """The program with the scenarios of Go's libraries, whose versions go/go.sum pins."""
    source, place = HERE / "go", TARGET / "go"
    with made_for(place, *sorted(source.iterdir())) as is_new:
        if is_new:
            call([tool("go"), "build", "-o", place / "scenarios", "."], source)
    return place / "scenarios"


@cache
def java() -> tuple[Path, dict[str, str]]:
    """A folder with the scenarios of Java's libraries and all that java/pom.xml names, and the versions of these."""
    tool("java")
    source, place = HERE / "java", TARGET / "java"
    with made_for(place, source / "pom.xml", *sorted(source.rglob("*.java"))) as is_new:
        if is_new:
            shutil.copytree(source, place, dirs_exist_ok=True)
            goals = ["compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]
            call([tool("mvn"), "--quiet", "--batch-mode", *goals], place)
    names = [jar.stem.rpartition("-") for jar in (place / "target/lib").glob("*.jar")]
    return place / "target", {name: version for name, _, version in names}


@cache
def rust() -> Path:
    """The program with the scenarios of Rust's libraries, whose versions rust/Cargo.lock pins."""
    source, place = HERE / "rust", TARGET / "rust"
    call([tool("cargo"), "build", "--quiet", "--locked"], source, CARGO_TARGET_DIR=str(place))
    return place / "debug/scenarios"
