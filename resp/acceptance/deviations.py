"""Reads deviations.toml: the steps that are known to fail, and why."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from results import Results

# A reason that begins so is for a step that fails on some days, or that is left out since no other could follow it.
SOMETIMES, NOT_PLAYED = "sometimes: ", "not played: "


@dataclass
class Deviations:
    # Patterns of steps, and why they fail.
    listed: dict[str, str]
    # The steps that failed as listed.
    met: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, server: str, library: str) -> Deviations:
        tables = tomllib.loads((Path(__file__).parent / "deviations.toml").read_text())
        return cls(tables.get(server, {}).get(library, {}))

    @property
    def not_played(self) -> list[str]:
        return [step for step, reason in self.listed.items() if reason.startswith(NOT_PLAYED)]

    def problems(self, results: Results) -> list[str]:
        """What did not go as promised, nor as listed."""
        found = [results.fault] if results.fault else []
        unmet = set(self.listed).difference(self.not_played)
        for step, reason in results.steps.items():
            patterns = [pattern for pattern in self.listed if fnmatchcase(step, pattern)]
            unmet.difference_update(patterns)
            if reason and patterns:
                self.met.add(step)
            elif reason:
                found.append(f"{step}: {reason[:400]}")
            elif patterns and not self.listed[patterns[0]].startswith(SOMETIMES):
                found.append(f"{step}: passes, although {patterns[0]!r} is listed as a deviation")
        return found + [f"{pattern}: listed as a deviation, and no step has such a name" for pattern in sorted(unmet)]
