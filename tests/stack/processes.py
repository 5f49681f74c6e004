"""Processes of this check, and nothing that anybody else started."""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

GRACE_SECONDS = 6.0


class Process:
    """One program. It may be stopped, killed, paused, and started again as it was. It ends with
    this process, however that ends."""

    def __init__(self, name: str, command: list, work: Path, environment: dict | None = None):
        self.name, self.command, self.work = name, command, work
        self.environment = os.environ | (environment or {})
        self.child: subprocess.Popen | None = None

    @property
    def output(self) -> Path:
        """Its standard output."""
        return self.work / f"{self.name}.out"

    @property
    def log(self) -> Path:
        """Its standard error."""
        return self.work / f"{self.name}.log"

    def start(self, command: list | None = None) -> None:
        """Starts it, with another command if one is given."""
        with self.output.open("ab") as output, self.log.open("ab") as log:
            self.child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command or self.command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=self.environment,
                cwd=self.work,
            )

    def stop(self, grace: float = GRACE_SECONDS) -> float:
        """Asks it to end, and says how many seconds it took. Kills it if it does not."""
        if self.child is None or self.child.poll() is not None:
            return 0.0
        begin = time.monotonic()
        self.child.send_signal(signal.SIGCONT)
        self.child.terminate()
        try:
            self.child.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
        return time.monotonic() - begin

    def kill(self) -> None:
        """Ends it as a crash does."""
        self.child.kill()
        self.child.wait()

    def pause(self) -> None:
        """It hangs: its sockets stay open."""
        self.child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on."""
        self.child.send_signal(signal.SIGCONT)

    def reload(self) -> None:
        """It reads its configuration again."""
        self.child.send_signal(signal.SIGHUP)

    async def ready(self, url: str, seconds: float = 30.0) -> None:
        """Waits until it answers with a 2xx. An error tells the end of its log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.child.poll() is None:
            if await asyncio.to_thread(answers, url):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.name} is not ready: {self.log.read_text()[-1500:]}")


def answers(url: str) -> bool:
    """Whether somebody serves there."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody has."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
