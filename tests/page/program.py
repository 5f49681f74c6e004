"""The program under test, and what it answers."""

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path


class Program:
    """The program, until it is stopped."""

    def __init__(self, binary: Path, *arguments: str, **environment: str) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [binary, *arguments], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    def find(self, pattern: str) -> str:
        """What the program says of itself, on its standard error."""
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found.group(1)
        raise AssertionError(f"it ended without saying {pattern}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.stderr.close()
        self.process.wait()


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
