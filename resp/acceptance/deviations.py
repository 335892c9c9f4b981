"""What is known to go another way, and why: deviations.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from results import Results


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

    def problems(self, results: Results) -> list[str]:
        """What did not go as promised, nor as listed."""
        found = [results.fault] if results.fault else []
        unmet = set(self.listed)
        for step, reason in results.steps.items():
            patterns = [pattern for pattern in self.listed if fnmatchcase(step, pattern)]
            unmet.difference_update(patterns)
            if reason and patterns:
                self.met.add(step)
            elif reason:
                found.append(f"{step}: {reason[:400]}")
            elif patterns:
                found.append(f"{step}: passes, although {patterns[0]!r} is listed as a deviation")
        return found + [f"{pattern}: listed as a deviation, and no step has such a name" for pattern in sorted(unmet)]
