"""A frozen engine whose HTTP server still answers, and a backend of which every process is frozen."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fleet import Fleet
from report import Report, show
from rig import Backend, Rig
from stream import USAGE, Stream

SHORT = {"max_tokens": 8, "min_tokens": 8, "ignore_eos": True} | USAGE
WARM_REQUESTS = 24
REQUESTS = 20
# Time between two requests. It is longer than the TTFT of an idle engine, so that the first one is late before the next.
INTERVAL_SECONDS = 0.4
# Most requests that may go to the frozen backend: the gateway notices a request only once it is late.
MOST_SENT = 3
# The health check times out after 5 s; the requests at the backend are then sent to the other one.
MOST_TTFT_SECONDS = 20.0


async def check(rig: Rig, report: Report) -> None:
    """Freezes the preferred one of two backends and counts the requests that are sent to it."""
    async with rig.backend() as first, rig.backend() as second:
        backends = [first, second]
        async with rig.fleet("frozen", [backend.url for backend in backends]) as fleet:
            backend = await preferred(fleet, backends, "warm-engine")
            await check_freeze(fleet, report, "engine frozen", backend, backend.engines(), True)
            backend = await preferred(fleet, backends, "warm-backend")
            await check_freeze(fleet, report, "backend frozen", backend, backend.processes(), False)


async def preferred(fleet: Fleet, backends: list[Backend], name: str) -> Backend:
    """Sends requests one after another, so that the gateway learns the TTFT of both backends. Returns the backend
    that got most of the last ones."""
    for number in range(WARM_REQUESTS):
        if number == WARM_REQUESTS // 2:
            before = {backend.url: fleet.attempts_at(backend.url) for backend in backends}
        await Stream(fleet.gateway, f"{name}-{number}", "completions", f"warm {number}", SHORT).read()
    return max(backends, key=lambda backend: fleet.attempts_at(backend.url) - before[backend.url])


async def check_freeze(
    fleet: Fleet, report: Report, step: str, backend: Backend, pids: list[int], continues: bool
) -> None:
    """Sends requests while processes of a backend are frozen. `continues`: requests at the backend end only when its
    processes continue, since its HTTP server is up. Otherwise the gateway sends them to the other backend."""
    before = fleet.attempts_at(backend.url)
    with stopped(pids):
        readings = []
        for number in range(REQUESTS):
            stream = Stream(fleet.gateway, f"{step}-{number}".replace(" ", "-"), "completions", f"{number} a", SHORT)
            readings.append(asyncio.create_task(stream.read()))
            await asyncio.sleep(INTERVAL_SECONDS)
        if not continues:
            await asyncio.wait(readings)
    streams = await asyncio.gather(*readings)
    # The gateway counts the attempts of a request when the request has ended.
    await fleet.settled()
    count = fleet.attempts_at(backend.url) - before
    report.check(step, "requests sent to it", 1 <= count <= MOST_SENT, show(count))
    complete = sum((stream.usage() or {}).get("completion_tokens") == SHORT["max_tokens"] for stream in streams)
    report.equal(step, "complete responses", complete, REQUESTS)
    slowest = max(stream.ttft_ms() for stream in streams) / 1e3
    report.check(step, "longest TTFT", slowest <= MOST_TTFT_SECONDS, f"{slowest:.1f} s")


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Freezes processes for the duration of the context."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
