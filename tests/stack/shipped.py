"""The files that ship, with the addresses of this machine, and with shorter times.

`tokenweir generate` prints them for the gateway's configuration. Nothing else is changed in them,
and a change that finds nothing to change is an error.
"""

import re
import subprocess
from pathlib import Path

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
TIME = r"((?:\d+(?:ms|[smhd]))+)"
RULES = [
    rf"(\[){TIME}(\])",
    rf"(\boffset ){TIME}()",
    rf"(\b(?:for|keep_firing_for|interval): ){TIME}()",
]
NOTIFICATIONS = [rf"(\bgroup_(?:wait|interval): ){TIME}()"]
SCRAPES = [rf"(\b(?:scrape|evaluation)_interval: ){TIME}()"]
FLUSHES = [rf"(\bmetrics_flush_interval: ){TIME}()"]
DECISIONS = [rf"(\bdecision_wait: ){TIME}()"]


class Shipped:
    """Prints files of the gateway's program."""

    def __init__(self, program: Path, config: Path, faster: float, neighbours: dict[str, str]):
        self.program, self.config, self.faster = program, config, faster
        self.neighbours = neighbours

    def text(self, what: str) -> str:
        """A file as it ships, for this gateway."""
        command = [str(self.program), "generate", what, "--config", str(self.config)]
        command += [part for option in self.neighbours.items() for part in option]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def shortened(self, what: str, patterns: list[str], least: float) -> str:
        """A file whose times are divided, but never shorter than `least` seconds."""
        return shorten(self.text(what), patterns, self.faster, least)


def shorten(text: str, patterns: list[str], faster: float, least: float) -> str:
    """Divides the times that the patterns find."""

    def shorter(found: re.Match) -> str:
        before, time, after = found.groups()
        return f"{before}{round(max(least, seconds(time) / faster) * 1000)}ms{after}"

    for pattern in patterns:
        text = re.sub(pattern, shorter, text)
    return text


def seconds(time: str) -> float:
    """`1h30m` in seconds."""
    parts = re.findall(r"(\d+)(ms|[smhd])", time)
    return sum(int(count) * UNITS[unit] for count, unit in parts)


def moved(text: str, addresses: dict[str, str]) -> str:
    """The text with other addresses."""
    for known, here in addresses.items():
        if known not in text:
            raise LookupError(f"{known} is not in the file any more")
        text = text.replace(known, here)
    return text
