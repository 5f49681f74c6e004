"""Starts backends and gateways with other arguments than those of the fleet."""

import asyncio
import os
import signal
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet import AccessLog, Fleet, FrontEnd
from servers import answers, free_ports, until

READY_SECONDS = 20.0


@dataclass(frozen=True)
class Backend:
    """A real vLLM server on this machine."""

    port: str
    pid: int

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[int]:
        """The process ids of the engine and of the HTTP server."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [*map(int, children), self.pid]

    def engines(self) -> list[int]:
        """The process ids of the engine, without the HTTP server."""
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in self.processes()}
        return [pid for pid, name in names.items() if name.startswith("VLLM::Engine")]

    def signal(self, number: signal.Signals) -> float:
        """Sends a signal to the engine. Returns the time of the client's clock at which it was sent."""
        for pid in self.engines():
            os.kill(pid, number)
        return time.perf_counter()

    async def post(self, path: str) -> None:
        """Calls a control endpoint of the server. A gateway does not forward these."""
        request = urllib.request.Request(f"{self.url}{path}", data=b"{}", method="POST")
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())


@dataclass(frozen=True)
class Rig:
    """Starts backends and gateways."""

    engine: Path
    """The folder with serve.sh and stop.sh."""
    run: Path
    """The folder for the process ids."""
    gateway: Path
    """The program of the gateway."""
    work: Path
    """The folder for logs."""
    front_end: FrontEnd

    def running(self, url: str) -> Backend:
        """The backend that runs at this URL."""
        port = url.rpartition(":")[2]
        return Backend(port, int((self.run / f"{port}.pid").read_text()))

    async def start(self, port: str, *arguments: str) -> Backend:
        """Starts a backend with these arguments of vLLM, and with its control endpoints."""
        await self._call("serve.sh", port, *arguments)
        return self.running(port)

    @asynccontextmanager
    async def backend(self, *arguments: str) -> AsyncIterator[Backend]:
        """A backend for the duration of the context."""
        port = str(*free_ports(1))
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
    async def fleet(self, name: str, backends: list[str], *options: str) -> AsyncIterator[Fleet]:
        """A gateway in front of these backends."""
        listen, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
        command = [str(self.gateway), "serve", "--listen", listen, "--admin", admin, *options]
        command += [part for backend in backends for part in ("--backend", backend)]
        lines = self.work / f"{name}.jsonl"
        with lines.open("wb") as access_log, (self.work / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=access_log, stderr=log)
        try:
            if await until(lambda: answers(f"http://{admin}/readyz"), READY_SECONDS, 0.1) is None:
                raise TimeoutError(Path(log.name).read_text()[-2000:])
            yield Fleet(
                f"http://{listen}", f"http://{admin}", backends, AccessLog(lines), self.front_end
            )
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
