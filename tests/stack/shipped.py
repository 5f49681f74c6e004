"""The shipped configuration files with other addresses and shorter times.

`tokenweir generate` prints them for the gateway's configuration. Nothing else is changed in them. An address that
is not in the file is an error.
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
    """Prints shipped files with the program of the gateway."""

    def __init__(self, program: Path, config: Path, divisor: float, addresses: dict[str, str]):
        self.program, self.config, self.divisor = program, config, divisor
        self.addresses = addresses

    def text(self, what: str) -> str:
        """A shipped file for the configuration of this gateway."""
        command = [str(self.program), "generate", what, "--config", str(self.config)]
        command += [part for option in self.addresses.items() for part in option]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def shortened(self, what: str, patterns: list[str], minimum: float) -> str:
        """A file with its times divided. No time is shorter than `minimum` seconds."""
        return shorten(self.text(what), patterns, self.divisor, minimum)


def shorten(text: str, patterns: list[str], divisor: float, minimum: float) -> str:
    """Divides the times that the patterns match."""

    def shorter(match: re.Match) -> str:
        before, time, after = match.groups()
        return f"{before}{round(max(minimum, seconds(time) / divisor) * 1000)}ms{after}"

    for pattern in patterns:
        text = re.sub(pattern, shorter, text)
    return text


def seconds(time: str) -> float:
    """A time such as `1h30m` in seconds."""
    parts = re.findall(r"(\d+)(ms|[smhd])", time)
    return sum(int(count) * UNITS[unit] for count, unit in parts)


def replace_addresses(text: str, addresses: dict[str, str]) -> str:
    """The text with other addresses."""
    for old, new in addresses.items():
        if old not in text:
            raise LookupError(f"{old} is not in the file")
        text = text.replace(old, new)
    return text
