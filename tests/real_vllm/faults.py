"""Clients that leave in the middle of an answer, and a replica that dies and comes back."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from urllib.parse import urlsplit

from fleet import Fleet, until
from report import Report, seconds, show
from rig import Rig
from sdk import Ask, Sdk

LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 1.0}
SHORT = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0}
QUIET_SECONDS = 1.0
DOWN_SECONDS = 5.0
UP_SECONDS = 15.0


async def check_cancel(fleet: Fleet, report: Report) -> None:
    """The engines stop at once when clients leave, and the gateway says that they left. vLLM
    counts the tokens of such requests, and not every front end counts their ends."""
    await leave(fleet, report, Ask("chat", "hello", True, LONG), 12, {"decode"})
    await leave(fleet, report, Ask("chat", "hello", False, LONG), 6, {"headers"})
    # More than the engines run at once: the rest waits in their queues.
    await leave(fleet, report, Ask("completions", "The", True, LONG), 38, {"decode", "engine_queue"})


async def leave(fleet: Fleet, report: Report, ask: Ask, clients: int, phases: set[str]) -> None:
    """Clients that leave together, when their requests are in all of these phases."""
    before = await fleet.settled()
    step = f"cancel in {' and '.join(sorted(phases))}"
    sdk = Sdk(fleet.gateway, step.replace(" ", "-"))
    seen = [sdk.begin(ask) for _ in range(clients)]
    tasks = [asyncio.create_task(sdk.read(one)) for one in seen]
    await until(lambda: fleet.engine_load() >= clients, 10.0)
    if phases == {"decode"}:
        await until(lambda: all(one.first_output for one in seen), 10.0)
    running = fleet.engine_load()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ids = [one.request_id for one in seen]
    idle, empty, heard = await asyncio.gather(
        until(lambda: fleet.engine_load() == 0, 5.0),
        until(lambda: fleet.in_flight() == 0, 5.0),
        until(lambda: fleet.log.has(ids), 5.0),
    )
    waits = {"engines idle": idle, "in-flight gauges 0": empty, "lines written": heard}
    for what, took in waits.items():
        is_soon = took is not None and took <= QUIET_SECONDS and running > 0
        shown = "never" if took is None else f"{took * 1e3:.0f} ms, from {running:g} at the engines"
        report.check(step, f"{what} within {QUIET_SECONDS:g} s", is_soon, shown)
    lines = (await fleet.log.of(ids)).values()
    ends = Counter((line["outcome"], line["closed_by"], line.get("phase")) for line in lines)
    holds = set(ends) == {("cancelled", "client", phase) for phase in phases}
    shown = {" ".join(map(str, end)): count for end, count in ends.items()}
    report.check(step, "outcome, who ended it, phase", holds, show(shown))
    counted = (await fleet.settled()).since(before)
    aborts = ends.total() if fleet.front_end.counts_cancels else 0
    report.equal(step, "aborts that the engines count", counted.engine_finish["abort"], aborts)
    tokens = counted.engine["generation_tokens"]
    events = sum(line["output_events"] for line in lines)
    report.note(step, "output", f"{events} events passed, engines generated {show(tokens)} tokens")


@dataclass
class Try:
    """One request during the outage. Times are seconds on the monotonic clock."""

    request_id: str
    begin: float
    error: str | None = None


class Load:
    """Clients that go on whatever happens."""

    def __init__(self, fleet: Fleet, name: str, clients: int):
        self.sdk = Sdk(fleet.gateway, name)
        self.tries = []
        self.tasks = [asyncio.create_task(self._client()) for _ in range(clients)]
        self.pause = 0.0

    async def _client(self) -> None:
        while True:
            seen = self.sdk.begin(Ask("chat", "hello", True, SHORT))
            one = Try(seen.request_id, time.monotonic())
            try:
                await self.sdk.read(seen)
                if not seen.finish:
                    one.error = "no finish reason"
            except Exception as error:
                one.error = type(error).__name__
            self.tries.append(one)
            await asyncio.sleep(self.pause)

    async def stop(self) -> None:
        """Ends the clients. Requests that are not over are no tries."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def check_kill(fleet: Fleet, report: Report, rig: Rig) -> None:
    """The last replica is killed under load and started again: once only its engine, which the
    server in front of it reports inside the streams, and once both."""
    for victim in ("engine", "replica"):
        replica = rig.running(fleet.replicas[-1])
        pids = replica.engines() if victim == "engine" else replica.processes()
        await outage(fleet, report, f"kill {victim}", pids, rig.start(replica.port))


async def outage(fleet, report, step: str, pids: list[int], start: Awaitable) -> None:
    """From the kill until requests go to the replica again."""
    backend = urlsplit(fleet.replicas[-1]).netloc
    load = Load(fleet, step.replace(" ", "-"), 6)
    await asyncio.sleep(3)
    killed = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    took = await until(lambda: not is_up(fleet, backend), DOWN_SECONDS)
    report.check(step, f"down within {DOWN_SECONDS:g} s", took is not None, seconds(took))
    down = time.monotonic()
    await asyncio.sleep(5)
    # The other replica starts on the same processors.
    load.pause = 0.5
    await start
    took = await until(lambda: is_up(fleet, backend), UP_SECONDS)
    report.check(step, f"up again within {UP_SECONDS:g} s", took is not None, seconds(took))
    back = time.monotonic()
    load.pause = 0.0
    await asyncio.sleep(5)
    await load.stop()
    lines = await fleet.log.of([one.request_id for one in load.tries])
    check_tries(report, step, load.tries, lines, down)
    between = [one for one in load.tries if killed < one.begin <= down]
    again = sum(lines[one.request_id]["attempts"] > 1 for one in between)
    broken = sum(bool(one.error) for one in between)
    shown = f"{len(between)}, {again} of them sent again, {broken} failed"
    report.note(step, "sent after the kill, before it was down", shown)
    later = Counter(lines[one.request_id]["backend"] for one in load.tries if one.begin > back)
    report.check(step, "requests go to it again", later[backend] > 0, show(later))


def check_tries(report: Report, step: str, tries: list[Try], lines: dict, down: float) -> None:
    """Who failed, and whether the gateway says so."""
    failed = [one for one in tries if one.error]
    ends = Counter(f"{one.error}: {lines[one.request_id]['outcome']}" for one in failed)
    report.note(step, "requests that it broke", f"{len(failed)} of {len(tries)} ({show(ends)})")
    late = Counter(one.error for one in failed if one.begin > down)
    report.check(step, "none fails once it is down", not late, show(late))
    is_ok = {one.request_id: lines[one.request_id]["outcome"] == "ok" for one in tries}
    silent = [one.request_id for one in tries if is_ok[one.request_id] == bool(one.error)]
    report.check(step, "line and client agree on each", not silent, silent[:3] or len(tries))
    blamed = Counter(lines[one.request_id]["closed_by"] for one in failed)
    report.check(step, "none is put down to the client", not blamed["client"], show(blamed))


def is_up(fleet: Fleet, backend: str) -> bool:
    """Whether the gateway may send requests to a replica."""
    return fleet.page().by("tokenweir_backend_up", "backend")[backend] == 1
