"""The program under test, and requests to its admin listener."""

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path


class Program:
    """A running `tokenweir`, which ends with its context."""

    def __init__(self, binary: Path, *arguments: str, **environment: str) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [binary, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def find(self, pattern: str) -> str:
        """What the group of the pattern matches, in the first line of standard error that matches the pattern."""
        for line in self.process.stderr:
            if match := re.search(pattern, line):
                return match.group(1)
        raise AssertionError(f"the program ended without a line that matches {pattern}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.stderr.close()
        self.process.wait(timeout=40)


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)
