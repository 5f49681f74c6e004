"""Injects faults into an engine: stop, pause, full queue, abort and death. The gateway's records must agree with the
observations of the client."""

import asyncio
import signal
import time
from collections import Counter
from itertools import count

from fleet import Fleet
from report import Report, seconds, show
from rig import Backend, Rig
from servers import until
from stream import USAGE, Stream

# The engine runs one sequence at a time, so that the next request waits. The server sends a comment each
# second while a request waits.
ARGUMENTS = ("--max-num-seqs", "1", "--sse-keep-alive-interval", "1")
QUEUE_LIMIT = 3
LIMITS = ("--max-num-queued-reqs", str(QUEUE_LIMIT), "--enable-per-request-metrics")
STOP_SECONDS = 3.0
PAUSE_SECONDS = 1.5
# Tolerance between the times of client and gateway, for times that last seconds.
TOLERANCE_MS = 20.0
# The gateway's name of each phase, and the engine's.
PHASES = {
    "queue": "queue_time_ms",
    "prefill": "time_to_first_token_ms",
    "decode": "generation_time_ms",
}
ENDLESS = {"max_tokens": 1800, "ignore_eos": True, "temperature": 1.0} | USAGE


class Scenario:
    """One backend, the gateway in front of it, and the report."""

    def __init__(self, fleet: Fleet, backend: Backend, report: Report):
        self.fleet, self.backend, self.report = fleet, backend, report
        self.ids = (f"fault-{number}" for number in count())

    def stream(self, prompt: str, body: dict) -> tuple[Stream, asyncio.Task]:
        """Starts a stream. Returns it and the task that reads it."""
        stream = Stream(self.fleet.gateway, next(self.ids), "chat", prompt, body)
        return stream, asyncio.create_task(stream.read())

    async def line(self, stream: Stream) -> dict:
        """The access log line of a stream that has ended."""
        return (await self.fleet.log.lines_of([stream.request_id]))[stream.request_id]

    def check(self, step: str, line: dict, expected: dict) -> None:
        """Checks fields of an access log line."""
        self.report.equal(step, "line", {name: line.get(name) for name in expected}, expected)

    def check_time(self, step: str, what: str, gateway: float, client: float) -> None:
        """Compares a time of the gateway with the client's, in milliseconds."""
        shown = f"{gateway:.1f} ms, client {client:.1f} ms"
        self.report.check(step, what, abs(gateway - client) <= TOLERANCE_MS, shown)


async def check(rig: Rig, report: Report) -> None:
    """Runs all checks of this module on one backend. The last check kills it."""
    limits = LIMITS if rig.front_end.has_limits else ()
    async with (
        rig.backend(*ARGUMENTS, *limits) as backend,
        rig.fleet("faults", [backend.url]) as fleet,
    ):
        scenario = Scenario(fleet, backend, report)
        await scenario.stream("hello", {})[1]
        await check_stop(scenario)
        await check_pause(scenario)
        await check_abort(scenario)
        await check_queue(scenario)
        if rig.front_end.has_limits:
            await check_full(scenario)
            await check_phases(scenario)
        else:
            report.note("queue full", "skipped", "not supported by this front end")
        await check_death(scenario, rig.front_end.outcome_of_death)
        counted = +fleet.page().by("tokenweir_requests_total", "outcome")
        lines = Counter(line["outcome"] for line in fleet.log.lines())
        report.equal("faults", "outcomes, metrics = lines", counted, lines)


async def wait_for_chunks(stream: Stream, chunks: int = 30) -> None:
    """Waits until a stream has delivered this many chunks."""
    if await until(lambda: len(stream.chunks) >= chunks, 20.0) is None:
        raise TimeoutError(f"{stream.request_id}: fewer than {chunks} chunks")


async def check_stop(scenario: Scenario) -> None:
    """The engine is stopped during a stream and continued. Its HTTP server still sends comments, so only the
    missing output shows the stall."""
    step, stalls = "engine stopped", stall_counter(scenario.fleet)
    stream, reading = scenario.stream("The", ENDLESS | {"max_tokens": 300})
    await wait_for_chunks(stream)
    stopped = scenario.backend.signal(signal.SIGSTOP)
    try:
        detected = await until(lambda: stalled(scenario.fleet) >= 1, STOP_SECONDS)
        await asyncio.sleep(stopped + STOP_SECONDS - time.perf_counter())
    finally:
        continued = scenario.backend.signal(signal.SIGCONT)
    await reading
    line = await scenario.line(stream)
    scenario.check(step, line, {"outcome": "ok", "finish": ["length"], "output_tokens": 300})
    scenario.check_time(step, "longest gap", line["gap_max_ms"], stream.gap_max_ms())
    stop_ms = (continued - stopped) * 1e3
    is_included = line["gap_max_ms"] >= stop_ms - TOLERANCE_MS
    scenario.report.check(step, "the gap includes the stop", is_included, f"{stop_ms:.1f} ms")
    scenario.report.check(step, "stalled streams during the stop", detected is not None, seconds(detected))
    scenario.report.equal(step, "stalled streams afterwards", stalled(scenario.fleet), 0)
    counted = stall_counter(scenario.fleet) - stalls
    shown = f"counter {show(counted)}, line {line.get('stalls')}"
    is_counted = counted >= 1 and (line.get("stalls") or 0) >= 1
    scenario.report.check(step, "the stall is counted", is_counted, shown)


def stalled(fleet: Fleet) -> float:
    """Number of stalled streams now."""
    return fleet.page().by("tokenweir_streams_stalled", "backend").total()


def stall_counter(fleet: Fleet) -> float:
    """Number of stalls so far."""
    return fleet.page().by("tokenweir_stalls_total", "backend").total()


async def check_pause(scenario: Scenario) -> None:
    """A request is sent while the engine is paused. The pause is part of its TTFT."""
    step = "engine paused"
    await scenario.backend.post("/pause?mode=keep")
    stream, reading = scenario.stream("hello", {"temperature": 0} | USAGE)
    await asyncio.sleep(PAUSE_SECONDS)
    await scenario.backend.post("/resume")
    await reading
    line = await scenario.line(stream)
    tokens = stream.usage()["completion_tokens"]
    scenario.check(step, line, {"outcome": "ok", "finish": ["stop"], "output_tokens": tokens})
    scenario.check_time(step, "TTFT", line["ttft_ms"], stream.ttft_ms())
    is_included = line["ttft_ms"] >= PAUSE_SECONDS * 1e3
    scenario.report.check(step, "the TTFT includes the pause", is_included, f"{PAUSE_SECONDS * 1e3:g} ms")


async def check_abort(scenario: Scenario) -> None:
    """The engine aborts its requests. On the wire the response is complete, with finish reason `abort`."""
    step = "engine aborts"
    stream, reading = scenario.stream("The", ENDLESS)
    await wait_for_chunks(stream)
    await scenario.backend.post("/pause?mode=abort")
    await scenario.backend.post("/resume")
    await reading
    tokens = stream.usage()["completion_tokens"]
    expected = {"outcome": "aborted", "finish": ["abort"], "status": 200, "output_tokens": tokens}
    scenario.check(step, await scenario.line(stream), expected)


async def check_queue(scenario: Scenario) -> None:
    """A request waits in the engine's queue. Until its first output the client gets comments."""
    step = "queue"
    first, reading = scenario.stream("The", ENDLESS | {"max_tokens": 700})
    await wait_for_chunks(first)
    second, waiting = scenario.stream("hello", {"temperature": 0} | USAGE)
    await asyncio.gather(reading, waiting)
    line, outputs = await scenario.line(second), second.outputs()
    early = [at for at in second.comments() if at < outputs[0]]
    shown = f"{len(early)} before the first output"
    scenario.report.check(step, "comments are forwarded", bool(early), shown)
    scenario.check_time(step, "TTFT", line["ttft_ms"], second.ttft_ms())
    scenario.check(step, line, {"outcome": "ok", "output_events": len(outputs)})


async def check_full(scenario: Scenario) -> None:
    """More requests than the backend accepts."""
    step = "queue full"
    running = [scenario.stream("The", ENDLESS | {"max_tokens": 900}) for _ in range(QUEUE_LIMIT)]
    await until(lambda: scenario.fleet.engine_load() >= QUEUE_LIMIT, 10.0)
    for stream in (True, False):
        rejected, reading = scenario.stream("hello", {"stream": stream})
        await reading
        expected = {"status": 503, "outcome": "upstream_error", "output_tokens": None}
        scenario.report.equal(step, "status at the client", rejected.status, 503)
        scenario.check(step, await scenario.line(rejected), expected)
    others = [await scenario.line(await reading) for _, reading in running]
    scenario.report.equal(step, "the others", {line["outcome"] for line in others}, {"ok"})


async def check_phases(scenario: Scenario) -> None:
    """The engine reports the phases of a request. The gateway's metrics have the same values."""
    step, before = "phases", phases(scenario.fleet)
    stream, reading = scenario.stream("count", {"temperature": 0} | USAGE)
    await reading
    reported = [event.body["metrics"] for event in stream.events() if event.body.get("metrics")]
    await scenario.line(stream)
    measured = phases(scenario.fleet) - before
    for phase, name in PHASES.items():
        gateway, engine = measured[phase] * 1e3, reported[-1][name]
        shown = f"{gateway:.3f} ms, engine {engine:.3f} ms"
        scenario.report.check(step, phase, abs(gateway - engine) <= 0.01, shown)


def phases(fleet: Fleet) -> Counter:
    """Seconds of each phase so far."""
    return fleet.page().by("tokenweir_phase_seconds_sum", "phase")


async def check_death(scenario: Scenario, outcome: str) -> None:
    """The engine is killed during a stream. The output until then is counted."""
    step = "engine killed"
    stream, reading = scenario.stream("The", ENDLESS)
    await wait_for_chunks(stream)
    scenario.backend.signal(signal.SIGKILL)
    await reading
    line, outputs = await scenario.line(stream), len(stream.outputs())
    expected = {"outcome": outcome, "closed_by": "backend", "output_events": outputs}
    scenario.check(step, line, expected)
    scenario.report.equal(step, "cut at the client", stream.is_cut, outcome == "truncated")
    tokens = line["output_tokens"] or 0
    scenario.report.check(step, "tokens are counted", tokens >= outputs, f"{tokens}, {outputs} events")
