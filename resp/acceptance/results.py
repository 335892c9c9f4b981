"""How a scenario went, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Results:
    version: str = ""
    # The steps by their names; what is wrong with each, or nothing.
    steps: dict[str, str] = field(default_factory=dict)
    # What is wrong with all of it.
    fault: str = ""

    @classmethod
    def read(cls, output: str) -> Results:
        """Reads what a scenario prints: `version V`, `ok STEP`, and `failed STEP: REASON`."""
        found = cls()
        for line in output.splitlines():
            word, _, rest = line.partition(" ")
            match word:
                case "version":
                    found.version = rest.removeprefix("v")
                case "ok":
                    found.steps[rest] = ""
                case "failed":
                    step, _, reason = rest.partition(": ")
                    found.steps[step] = reason or "it does not say why"
        return found
