"""Runs the commands of README.md and docs/start/install.md up to the first measured request, and measures the time. See
tests/first_use.sh."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servers import wait_until_ready

TOP = Path(__file__).resolve().parent.parent
# Maximum time from opening the README to the first measured request, reading included.
MAX_SECONDS = 300.0
# Reading speed for unknown text.
WORDS_PER_MINUTE = 200
BACKEND = "http://127.0.0.1:8000"


def section(page: str, title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert match, f"the document has no section {title}"
    return match.group(1)


def commands(text: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def line_with(blocks: list[str], text: str) -> str:
    lines = [line for block in blocks for line in block.splitlines() if text in line]
    assert len(lines) == 1, f"the document must have one command with {text}, not {len(lines)}: {lines}"
    return lines[0]


class NewUser:
    """A new user: a new home directory, a clone of the repository, and a shell with only the programs of the system."""

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
        self.print_step(command.splitlines()[0])
        if done.returncode != 0:
            raise SystemExit(f"{command}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[str]:
        self.print_step(command)
        return subprocess.Popen(["bash", "-ec", f"exec {command}"], cwd=self.clone, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def print_step(self, step: str) -> None:
        print(f"{time.monotonic() - self.started:6.1f} s  {step}", flush=True)


def main() -> int:
    binary, backend = os.path.realpath(sys.argv[1]), sys.argv[2]
    readme = (TOP / "README.md").read_text()
    before = readme[: readme.index("\n## Features")]
    # README.md links to this section for the installation from packages.
    packages = section((TOP / "docs/start/install.md").read_text(), "Release build and packages")
    install, use = commands(packages), commands(section(readme, "In front of vLLM"))
    with tempfile.TemporaryDirectory(prefix="first-use-") as folder:
        user = NewUser(Path(folder), binary)
        subprocess.run(["git", "clone", "--quiet", TOP, user.clone], check=True)
        # The clone has the committed README. The one of the working tree replaces it.
        shutil.copy(TOP / "README.md", user.clone)
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        user.print_step("clone and virtual environment")
        package = line_with(install, "packaging/wheel.sh")
        make, _, pip = package.partition("#")
        user.run(make)
        user.run(pip.strip())
        serving = user.start(line_with(use, "tokenweir serve").replace(BACKEND, backend))
        try:
            wait_until_ready("http://127.0.0.1:9090/readyz")
            [request] = [block for block in use if "curl" in block]
            for command in re.split(r"\n(?! )", request.strip()):
                print(user.run(command))
        finally:
            serving.send_signal(signal.SIGTERM)
            out, err = serving.communicate(timeout=60)
    elapsed = time.monotonic() - user.started
    lines = [json.loads(line) for line in out.splitlines()]
    measured = [line for line in lines if line["outcome"] == "ok" and line["ttft_ms"] is not None]
    assert measured, f"no request was measured:\n{out}\n{err}"
    print(f"measured: {measured[0]['model']} at {measured[0]['backend']}, TTFT {measured[0]['ttft_ms']} ms, "
          f"{measured[0]['input_tokens']} tokens in, {measured[0]['output_tokens']} out, {measured[0]['usage']}")
    words = len(before.split()) + len(section(readme, "Install").split()) + len(packages.split())
    reading = words / WORDS_PER_MINUTE * 60
    print(f"commands {elapsed:.1f} s; reading of {words} words {reading:.0f} s; total {elapsed + reading:.0f} s")
    assert elapsed + reading <= MAX_SECONDS
    return 0


if __name__ == "__main__":
    sys.exit(main())
