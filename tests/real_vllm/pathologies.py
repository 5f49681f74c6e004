"""What goes wrong in an engine, made to happen: it is stopped, paused, full, aborts or dies. What
the gateway says of it must be what a client sees with its own clock."""

import asyncio
import signal
import time
from collections import Counter
from itertools import count

from fleet import Fleet, until
from report import Report, seconds, show
from rig import Replica, Rig
from stream import USAGE, Stream

# One request at a time, so that the next one waits; comments while it does.
ARGUMENTS = ("--max-num-seqs", "1", "--sse-keep-alive-interval", "1")
QUEUE_LIMIT = 3
LIMITS = ("--max-num-queued-reqs", str(QUEUE_LIMIT), "--enable-per-request-metrics")
STOP_SECONDS = 3.0
PAUSE_SECONDS = 1.5
# Of times that last seconds, between the client's clock and the gateway's.
AGREE_MS = 20.0
# The gateway's names and the engine's.
PHASES = {
    "queue": "queue_time_ms",
    "prefill": "time_to_first_token_ms",
    "decode": "generation_time_ms",
}
ENDLESS = {"max_tokens": 1800, "ignore_eos": True, "temperature": 1.0} | USAGE


class Scene:
    """One replica, the gateway before it, and where results go."""

    def __init__(self, fleet: Fleet, replica: Replica, report: Report):
        self.fleet, self.replica, self.report = fleet, replica, report
        self.ids = (f"fault-{number}" for number in count())

    def stream(self, prompt: str, body: dict) -> tuple[Stream, asyncio.Task]:
        """A stream that has begun."""
        stream = Stream(self.fleet.gateway, next(self.ids), "chat", prompt, body)
        return stream, asyncio.create_task(stream.read())

    async def line(self, stream: Stream) -> dict:
        """The gateway's line of a stream that is over."""
        return (await self.fleet.log.of([stream.request_id]))[stream.request_id]

    def check(self, step: str, line: dict, expected: dict) -> None:
        """What the line must say."""
        said = {name: line.get(name) for name in expected}
        holds = said == expected
        shown = show(said) if holds else f"{show(said)}, not {show(expected)}"
        self.report.check(step, "line", holds, shown)

    def close(self, step: str, what: str, ours: float, theirs: float) -> None:
        """Two clocks that say the same."""
        shown = f"{ours:.1f} ms, client {theirs:.1f} ms"
        self.report.check(step, what, abs(ours - theirs) <= AGREE_MS, shown)


async def check(rig: Rig, report: Report) -> None:
    """Everything of this module, on one replica. It does not survive."""
    limits = LIMITS if rig.front_end.has_limits else ()
    async with (
        rig.replica(*ARGUMENTS, *limits) as replica,
        rig.fleet("faults", [replica.url]) as fleet,
    ):
        scene = Scene(fleet, replica, report)
        await scene.stream("hello", {})[1]
        await check_stop(scene)
        await check_pause(scene)
        await check_abort(scene)
        await check_queue(scene)
        if rig.front_end.has_limits:
            await check_full(scene)
            await check_phases(scene)
        else:
            report.note("queue full", "skipped", "not in this front end")
        await check_death(scene, rig.front_end.outcome_of_death)
        counted = +fleet.page().by("tokenweir_requests_total", "outcome")
        lines = Counter(line["outcome"] for line in fleet.log.lines())
        report.equal("faults", "outcomes, metrics = lines", counted, lines)


async def flowing(stream: Stream, pieces: int = 30) -> None:
    """The answer is on its way."""
    if await until(lambda: len(stream.pieces) >= pieces, 20.0) is None:
        raise TimeoutError(f"{stream.request_id} does not flow")


async def check_stop(scene: Scene) -> None:
    """An engine that is stopped in the middle of a stream and goes on. Its server is well, and
    sends comments: only the silence tells."""
    step, stalls = "engine stopped", stall_counter(scene.fleet)
    stream, reading = scene.stream("The", ENDLESS | {"max_tokens": 300})
    await flowing(stream)
    stopped = scene.replica.signal(signal.SIGSTOP)
    try:
        seen = await until(lambda: stalled(scene.fleet) >= 1, STOP_SECONDS)
        await asyncio.sleep(stopped + STOP_SECONDS - time.perf_counter())
    finally:
        went_on = scene.replica.signal(signal.SIGCONT)
    await reading
    line = await scene.line(stream)
    scene.check(step, line, {"outcome": "ok", "finish": ["length"], "output_tokens": 300})
    scene.close(step, "longest gap", line["gap_max_ms"], stream.gap_max_ms())
    stop_ms = (went_on - stopped) * 1e3
    is_whole = line["gap_max_ms"] >= stop_ms - AGREE_MS
    scene.report.check(step, "the gap has the stop in it", is_whole, f"{stop_ms:.1f} ms")
    scene.report.check(step, "stalled streams meanwhile", seen is not None, seconds(seen))
    scene.report.equal(step, "stalled streams afterwards", stalled(scene.fleet), 0)
    counted = stall_counter(scene.fleet) - stalls
    shown = f"counter {show(counted)}, line {line.get('stalls')}"
    is_told = counted >= 1 and (line.get("stalls") or 0) >= 1
    scene.report.check(step, "the stall is counted", is_told, shown)


def stalled(fleet: Fleet) -> float:
    """Streams that are silent now."""
    return fleet.page().by("tokenweir_streams_stalled", "backend").total()


def stall_counter(fleet: Fleet) -> float:
    """Stalls so far."""
    return fleet.page().by("tokenweir_stalls_total", "backend").total()


async def check_pause(scene: Scene) -> None:
    """A request that is sent while the engine is paused: the pause is part of its TTFT."""
    step = "engine paused"
    await scene.replica.post("/pause?mode=keep")
    stream, reading = scene.stream("hello", {"temperature": 0} | USAGE)
    await asyncio.sleep(PAUSE_SECONDS)
    await scene.replica.post("/resume")
    await reading
    line = await scene.line(stream)
    tokens = stream.usage()["completion_tokens"]
    scene.check(step, line, {"outcome": "ok", "finish": ["stop"], "output_tokens": tokens})
    scene.close(step, "TTFT", line["ttft_ms"], stream.ttft_ms())
    has_it = line["ttft_ms"] >= PAUSE_SECONDS * 1e3
    scene.report.check(step, "TTFT has the pause in it", has_it, f"{PAUSE_SECONDS * 1e3:g} ms")


async def check_abort(scene: Scene) -> None:
    """An engine that gives up what it does, which is a whole answer on the wire."""
    step = "engine aborts"
    stream, reading = scene.stream("The", ENDLESS)
    await flowing(stream)
    await scene.replica.post("/pause?mode=abort")
    await scene.replica.post("/resume")
    await reading
    tokens = stream.usage()["completion_tokens"]
    told = {"outcome": "aborted", "finish": ["abort"], "status": 200, "output_tokens": tokens}
    scene.check(step, await scene.line(stream), told)


async def check_queue(scene: Scene) -> None:
    """A request that waits for the one before it. What comes meanwhile are comments."""
    step = "queue"
    first, reading = scene.stream("The", ENDLESS | {"max_tokens": 700})
    await flowing(first)
    second, waiting = scene.stream("hello", {"temperature": 0} | USAGE)
    await asyncio.gather(reading, waiting)
    line, outputs = await scene.line(second), second.outputs()
    early = [at for at in second.comments() if at < outputs[0]]
    shown = f"{len(early)} before the first output"
    scene.report.check(step, "comments pass", bool(early), shown)
    scene.close(step, "TTFT", line["ttft_ms"], second.ttft_ms())
    scene.check(step, line, {"outcome": "ok", "output_events": len(outputs)})


async def check_full(scene: Scene) -> None:
    """More requests than the replica takes."""
    step = "queue full"
    running = [scene.stream("The", ENDLESS | {"max_tokens": 900}) for _ in range(QUEUE_LIMIT)]
    await until(lambda: scene.fleet.engine_load() >= QUEUE_LIMIT, 10.0)
    for stream in (True, False):
        refused, reading = scene.stream("hello", {"stream": stream})
        await reading
        told = {"status": 503, "outcome": "upstream_error", "output_tokens": None}
        scene.report.equal(step, "status at the client", refused.status, 503)
        scene.check(step, await scene.line(refused), told)
    others = [await scene.line(await reading) for _, reading in running]
    scene.report.equal(step, "the others", {line["outcome"] for line in others}, {"ok"})


async def check_phases(scene: Scene) -> None:
    """The engine tells where the time of a request went, and the gateway's metrics say it."""
    step, before = "phases", phases(scene.fleet)
    stream, reading = scene.stream("count", {"temperature": 0} | USAGE)
    await reading
    told = [event.body["metrics"] for event in stream.events() if event.body.get("metrics")]
    await scene.line(stream)
    ours = phases(scene.fleet) - before
    for phase, name in PHASES.items():
        own, theirs = ours[phase] * 1e3, told[-1][name]
        shown = f"{own:.3f} ms, engine {theirs:.3f} ms"
        scene.report.check(step, phase, abs(own - theirs) <= 0.01, shown)


def phases(fleet: Fleet) -> Counter:
    """Seconds of each phase so far."""
    return fleet.page().by("tokenweir_phase_seconds_sum", "phase")


async def check_death(scene: Scene, outcome: str) -> None:
    """An engine that is killed in the middle of a stream. What it wrote is not forgotten."""
    step = "engine killed"
    stream, reading = scene.stream("The", ENDLESS)
    await flowing(stream)
    scene.replica.signal(signal.SIGKILL)
    await reading
    line, outputs = await scene.line(stream), len(stream.outputs())
    told = {"outcome": outcome, "closed_by": "backend", "output_events": outputs}
    scene.check(step, line, told)
    scene.report.equal(step, "cut at the client", stream.is_cut, outcome == "truncated")
    tokens = line["output_tokens"] or 0
    scene.report.check(step, "tokens are kept", tokens >= outputs, f"{tokens}, {outputs} events")
