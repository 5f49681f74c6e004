"""Runs the commands of README.md for a first request, and times them. See tests/first_use.sh."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
# From opening the README to the first measured request, reading included.
MOST_SECONDS = 300.0
# Of prose that one does not know.
WORDS_A_MINUTE = 200
BACKEND = "http://127.0.0.1:8000"


def section(readme: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", readme, re.MULTILINE | re.DOTALL)
    assert found, f"README has no section {title}"
    return found.group(1)


def commands(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def line_with(blocks: list[str], words: str) -> str:
    lines = [line for block in blocks for line in block.splitlines() if words in line]
    assert len(lines) == 1, f"README has {len(lines)} commands with {words}: {lines}"
    return lines[0]


class Stranger:
    """A fresh home, a clone, and a shell with nothing but the system's own programs."""

    def __init__(self, folder: Path, binary: str) -> None:
        self.started = time.monotonic()
        self.clone = folder / "tokenweir"
        home = folder / "home"
        home.mkdir()
        path = f"{folder}/venv/bin:/usr/local/bin:/usr/bin:/bin"
        self.environment = {"HOME": str(home), "PATH": path, "binary": binary}

    def run(self, command: str) -> str:
        done = subprocess.run(["bash", "-ec", command], cwd=self.clone, env=self.environment,
                              capture_output=True, text=True, timeout=120)
        self.say(command.splitlines()[0])
        if done.returncode != 0:
            raise SystemExit(f"{command}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[str]:
        self.say(command)
        return subprocess.Popen(["bash", "-ec", f"exec {command}"], cwd=self.clone, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {what}", flush=True)


def main() -> int:
    binary, backend = os.path.realpath(sys.argv[1]), sys.argv[2]
    readme = (TOP / "README.md").read_text()
    before = readme[: readme.index("\n## Documentation")]
    install, use = commands(section(readme, "Installing")), commands(section(readme, "In front of your vLLM"))
    with tempfile.TemporaryDirectory(prefix="first-use-") as folder:
        stranger = Stranger(Path(folder), binary)
        subprocess.run(["git", "clone", "--quiet", TOP, stranger.clone], check=True)
        # Of changes that nobody has committed, the README is the one that is tried.
        shutil.copy(TOP / "README.md", stranger.clone)
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        stranger.say("a clone and a virtual environment")
        packing = line_with(install, "packaging/wheel.sh")
        make, _, pip = packing.partition("#")
        stranger.run(make)
        stranger.run(pip.strip())
        serving = stranger.start(line_with(use, "tokenweir serve").replace(BACKEND, backend))
        try:
            ready()
            [request] = [block for block in use if "curl" in block]
            for command in re.split(r"\n(?! )", request.strip()):
                print(stranger.run(command))
        finally:
            serving.send_signal(signal.SIGTERM)
            out, err = serving.communicate(timeout=60)
    took = time.monotonic() - stranger.started
    lines = [json.loads(line) for line in out.splitlines()]
    measured = [line for line in lines if line["outcome"] == "ok" and line["ttft_ms"] is not None]
    assert measured, f"no request was measured:\n{out}\n{err}"
    print(f"measured: {measured[0]['model']} at {measured[0]['backend']}, TTFT {measured[0]['ttft_ms']} ms, "
          f"{measured[0]['input_tokens']} tokens in, {measured[0]['output_tokens']} out, {measured[0]['usage']}")
    words = len(before.split()) + len(section(readme, "Installing").split())
    reading = words / WORDS_A_MINUTE * 60
    print(f"commands {took:.1f} s; reading {words} words until there {reading:.0f} s; together {took + reading:.0f} s")
    assert took + reading <= MOST_SECONDS
    return 0


def ready() -> None:
    """Until the gateway has found its replica."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen("http://127.0.0.1:9090/readyz", timeout=1).read()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise SystemExit("the gateway is not ready after 30 s: is the replica up?")


if __name__ == "__main__":
    sys.exit(main())
