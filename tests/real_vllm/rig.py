"""Replicas and gateways of their own, for checks that need other arguments than the fleet has."""

import asyncio
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet import AccessLog, Fleet, FrontEnd, until

READY_SECONDS = 20.0


@dataclass(frozen=True)
class Replica:
    """A real vLLM on this machine."""

    port: str
    pid: int

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[int]:
        """All of it."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [*map(int, children), self.pid]

    def engines(self) -> list[int]:
        """Only its engine, without the server in front of it."""
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in self.processes()}
        return [pid for pid, name in names.items() if name.startswith("VLLM::Engine")]

    def signal(self, number: signal.Signals) -> float:
        """Sends a signal to the engine, and says when."""
        for pid in self.engines():
            os.kill(pid, number)
        return time.perf_counter()

    async def post(self, path: str) -> None:
        """One of its admin verbs, which a gateway does not forward."""
        request = urllib.request.Request(f"{self.url}{path}", data=b"{}", method="POST")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())


@dataclass(frozen=True)
class Rig:
    """What replicas and gateways are made with."""

    engine: Path
    """The folder of serve.sh and stop.sh."""
    run: Path
    """Where they keep process ids."""
    gateway: Path
    """The program."""
    work: Path
    """Where logs go."""
    front_end: FrontEnd

    def running(self, url: str) -> Replica:
        """The replica that was started at this address."""
        port = url.rpartition(":")[2]
        return Replica(port, int((self.run / f"{port}.pid").read_text()))

    async def start(self, port: str, *arguments: str) -> Replica:
        """A replica with these arguments of vLLM, and with its admin verbs."""
        await self._call("serve.sh", port, *arguments)
        return self.running(port)

    @asynccontextmanager
    async def replica(self, *arguments: str) -> AsyncIterator[Replica]:
        """A replica for a while."""
        port = str(free_port())
        try:
            yield await self.start(port, *arguments)
        finally:
            await self._call("stop.sh", port)

    async def _call(self, script: str, *arguments: str) -> None:
        environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
        command = str(self.engine / script)
        process = await asyncio.create_subprocess_exec(command, *arguments, env=environment)
        if status := await process.wait():
            raise ChildProcessError(f"{script} {' '.join(arguments)}: exit status {status}")

    @asynccontextmanager
    async def fleet(self, name: str, replicas: list[str], *options: str) -> AsyncIterator[Fleet]:
        """A gateway in front of these replicas."""
        listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        command = [str(self.gateway), "serve", "--listen", listen, "--admin", admin, *options]
        command += [part for replica in replicas for part in ("--backend", replica)]
        lines = self.work / f"{name}.jsonl"
        with lines.open("wb") as log, (self.work / f"{name}.log").open("wb") as diary:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=diary)
        try:
            if await until(lambda: is_ready(admin), READY_SECONDS, 0.1) is None:
                raise TimeoutError(Path(diary.name).read_text()[-2000:])
            yield Fleet(
                f"http://{listen}", f"http://{admin}", replicas, AccessLog(lines), self.front_end
            )
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def is_ready(admin: str) -> bool:
    """Whether the gateway takes requests."""
    try:
        with urllib.request.urlopen(f"http://{admin}/readyz", timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
