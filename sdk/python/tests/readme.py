"""The examples of the README."""

from __future__ import annotations

import re
from pathlib import Path

from cluster import Cluster

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def example(part: str) -> str:
    """The one with this in it."""
    [found] = [one for one in EXAMPLES if part in one]
    return found


def at(cluster: Cluster, text: str) -> str:
    """The same, with the nodes of this cluster."""
    return re.sub(r"http://localhost:(740\d)", rf"http://{cluster.host}:\1", text)
