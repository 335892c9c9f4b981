"""What the README shows works, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cluster import Cluster

README = (Path(__file__).parent.parent / "README.md").read_text()


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
    assert len(blocks) == 3
    script = re.sub(r"http://localhost:(740\d)", rf"http://{cluster.host}:\1", "".join(blocks))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split(" with")[0] for line in lines] == ["write 0", "write 1", "write 2", "write"]
    assert ran.stderr == ""


def test_the_readme_names_each_error() -> None:
    import ringfence.errors

    for name in ringfence.errors.__all__:
        assert name == "Blocker" or f"`{name}`" in README or f".{name}`" in README, name
