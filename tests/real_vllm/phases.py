"""Compares the phases that the gateway reports with the times in the spans of the engines."""

import asyncio
import random
from pathlib import Path

from fleet import Fleet
from report import Report, percentile
from sdk import Request, Sdk
from spans import wait_for_spans

# For each load: its name, the number of rounds, the requests of a round, and how many of them run at once.
LOADS = [
    ("one", 1, 20, 1),
    ("eight", 1, 64, 8),
    ("thirty-two", 1, 128, 32),
    ("bursts", 4, 40, 40),
]
# Limits of the error of the queue time, as a share of the TTFT: at p50 and at p99.
LIMITS = (0.10, 0.30)
WORDS = "The router keeps one request and a token counts the last byte in order".split()


async def check(fleet: Fleet, report: Report, path: Path) -> None:
    """The time that a request waited in the queue of its engine is the time in the engine's span."""
    errors = []
    for name, rounds, requests, at_once in LOADS:
        rng, sdk = random.Random(name), Sdk(fleet.gateway, f"phases-{name}")
        sent = [id for _ in range(rounds) for id in await load(sdk, rng, requests, at_once)]
        lines = await fleet.log.lines_of(sent)
        times = await engine_times(path, {line["trace_id"] for line in lines.values()})
        pairs = [(line, times[line["trace_id"]]) for line in lines.values() if line["trace_id"] in times]
        report.check("phases", f"{name}: requests with a span", len(pairs) == len(sent), len(pairs))
        report.note("phases", f"{name}: sums in ms", sums(pairs))
        found = [error for pair in pairs if (error := queue_error(*pair)) is not None]
        report.note("phases", f"{name}: error of the queue, share of TTFT", shares(found))
        errors += found
    marks = [percentile(errors, share) for share in (0.5, 0.99) if errors]
    is_near = bool(marks) and all(mark <= limit for mark, limit in zip(marks, LIMITS))
    report.check("phases", "all: error of the queue, share of TTFT", is_near, shares(errors))


async def load(sdk: Sdk, rng: random.Random, requests: int, at_once: int) -> list[str]:
    """Sends streams, so many at once. Returns their ids."""
    slots = asyncio.Semaphore(at_once)

    async def send() -> str:
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 150)))
        body = {"temperature": 0, "max_tokens": rng.randint(10, 60), "ignore_eos": True}
        async with slots:
            return (await sdk.send(Request("chat", prompt, True, body))).request_id

    return await asyncio.gather(*(send() for _ in range(requests)))


async def engine_times(path: Path, traces: set[str]) -> dict[str, dict[str, float]]:
    """Milliseconds in the queue, in prefill and to the first token, by trace, as the engines report them."""
    spans = await wait_for_spans(path, traces, {"llm_request"})
    names = {"queue": "time_in_queue", "prefill": "time_in_model_prefill", "ttft": "time_to_first_token"}
    return {
        span["trace_id"]: {
            name: span["attributes"][f"gen_ai.latency.{of}"] * 1e3 for name, of in names.items()
        }
        for span in spans
        if span["name"] == "llm_request" and span["trace_id"] in traces
    }


def queue_error(line: dict, engine: dict[str, float]) -> float | None:
    """Difference of the queue time as a share of the TTFT. None: the gateway calls the queue unknown."""
    queue = (line.get("phases") or {}).get("queue_ms")
    return None if queue is None else abs(queue - engine["queue"]) / line["ttft_ms"]


def sums(pairs: list[tuple[dict, dict[str, float]]]) -> str:
    """The sums of the phases at the gateway and at the engines, as text."""
    phases = [line.get("phases") or {} for line, _ in pairs]
    names = sorted({name for each in phases for name in each if name.endswith("_ms")})
    gateway = {name: sum(each.get(name) or 0 for each in phases) for name in names}
    engine = {name: sum(times[name] for _, times in pairs) for name in ("queue", "prefill", "ttft")}
    shown = lambda sums: ", ".join(f"{name} {value:.0f}" for name, value in sums.items())  # noqa: E731
    ttft = sum(line["ttft_ms"] for line, _ in pairs)
    return f"gateway ttft {ttft:.0f}, {shown(gateway)}; engine {shown(engine)}"


def shares(errors: list[float]) -> str:
    """Number, p50 and p99 of shares, as text."""
    if not errors:
        return "unknown for all requests"
    marks = (f"p{100 * share:.0f} {100 * percentile(errors, share):.1f} %" for share in (0.5, 0.99))
    return f"{', '.join(marks)} of {len(errors)} requests"
