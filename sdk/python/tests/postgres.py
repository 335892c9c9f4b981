"""A real PostgreSQL from the system's packages. It refuses to run as root, and runs as `nobody` then."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from cluster import claim, spawn, until

_NOBODY = 65_534
_SETTINGS = ("unix_socket_directories=", "fsync=off", "shared_buffers=32MB", "log_connections=off")


class Postgres:
    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="ringfence-py-postgres-"))
        if os.geteuid() == 0:
            os.chown(self.dir, _NOBODY, _NOBODY)
        self.host, self._claim = claim()
        self.port = 5432
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        data = str(self.dir / "data")
        subprocess.run(
            [*_unprivileged(), str(installed("initdb")), *options, "-D", data],
            check=True,
            capture_output=True,
            cwd="/",
        )
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        command = [
            *_unprivileged(),
            str(installed("postgres")),
            "-D",
            data,
            "-h",
            self.host,
            "-p",
            str(self.port),
            *settings,
        ]
        self._process = spawn(command, self.dir.with_suffix(".log"), cwd="/")
        until(self._is_ready, "PostgreSQL accepts clients")

    def create(self, database: str) -> None:
        where = ["-h", self.host, "-p", str(self.port), "-U", "postgres"]
        subprocess.run([str(installed("createdb")), *where, database], check=True, capture_output=True)

    def close(self) -> None:
        # It would wait for the clients of a test that failed.
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._claim.close()
        shutil.rmtree(self.dir)
        self.dir.with_suffix(".log").unlink()

    def _is_ready(self) -> bool:
        command = [str(installed("pg_isready")), "-h", self.host, "-p", str(self.port), "-t", "1"]
        return subprocess.run(command, capture_output=True).returncode == 0


def installed(name: str) -> Path:
    """Debian has a directory for each version of the server's programs."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    found = shutil.which(name)
    assert found, f"{name} is not installed"
    return Path(found)


def _unprivileged() -> list[str]:
    who = ["--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *who, "--pdeathsig", "KILL", "--"]
