#!/usr/bin/env python3
"""The fake as a program, with as much of the command line of `ringfence serve` as a test harness needs."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from ringfence.testing import FakeCluster

options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
host, _, port = options["http"].rpartition(":")
with FakeCluster(host, int(port)) as cluster:
    parent = options.get("die-with-parent")
    while parent is None or os.getppid() == int(parent):
        threading.Event().wait(0.2)
