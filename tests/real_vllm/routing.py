#!/usr/bin/env python3
"""Sends the same load with `round_robin` and with `kv_aware`, in turns, to two real vLLM servers. One has a quarter
of the other's KV cache.

The engines count the preemptions, and the client measures the TTFT. Exit code 1: a check failed.
../real_vllm_routing.sh starts this script.
"""

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

from fleet import FRONT_ENDS, Fleet, fetch
from report import Report, percentile, show
from rig import Backend, Rig
from stream import USAGE, Stream

BLOCK_TOKENS = 32
# A request has 178 prompt tokens and 205 output tokens on average. The larger cache holds ten complete requests,
# the smaller one two.
KV_BLOCKS = {"large": 128, "small": 32}
# An engine reserves one block.
CONTEXT_TOKENS = (KV_BLOCKS["small"] - 1) * BLOCK_TOKENS
BASE, OTHER = "round_robin", "kv_aware"
# This order favours no policy if the speed of the machine changes during the run.
TURNS = (BASE, OTHER, OTHER, BASE)

WORDS = "gateway engine scheduler client token cache queue router metric span stream model".split()
# A block of the gateway's prefix index has 512 bytes.
PREFIX_WORDS, PREFIXES, PREFIX_SHARE = 120, 4, 0.4
PROMPT_WORDS = (60, 200)
OUTPUT_TOKENS = (100, 300)


@dataclass(frozen=True)
class Arrival:
    """One request of the load."""

    at: float
    """Seconds after the first one."""
    prompt: str
    output: int
    """Tokens."""


@dataclass(frozen=True)
class Round:
    """The results of one run of the load. Times are in seconds."""

    round: str
    policy: str
    to_small: float
    """Share of the requests that the smaller backend got."""
    preemptions: float
    """Preemptions of both engines."""
    at_small: float
    """Preemptions of the smaller backend."""
    ttft_p50: float
    ttft_p99: float
    duration: float
    """Time from the first request to the end of the last response."""
    load_average: float

    def row(self) -> str:
        """The row of the table."""
        name, policy, *numbers = vars(self).values()
        return f"| {' | '.join([name, policy, *(f'{number:.3g}' for number in numbers)])} |"


class Bench:
    """Two backends that run all the time, and a gateway per round."""

    def __init__(self, rig: Rig, backends: dict[str, Backend], load: list[Arrival]):
        self.rig, self.backends, self.load = rig, backends, load

    async def warm(self) -> None:
        """Sends some requests first, because the first requests of an engine are slow."""
        requests = [(backend.url, arrival) for backend in self.backends.values()
                    for arrival in self.load[:4]]
        streams = (new_stream(url, f"warm-{n}", arrival) for n, (url, arrival) in enumerate(requests))
        await asyncio.gather(*(stream.read() for stream in streams))

    async def round(self, number: int, policy: str, report: Report) -> Round:
        """Runs the load once, with a new gateway and empty prefix caches."""
        for backend in self.backends.values():
            await asyncio.to_thread(reset_prefix_cache, backend)
        urls = [backend.url for backend in self.backends.values()]
        name = f"{number}-{policy}"
        async with self.rig.fleet(name, urls, "--policy", policy) as fleet:
            before, begin = self.preemptions(), time.perf_counter()
            streams = await asyncio.gather(
                *(send(fleet, f"{name}-{n}", arrival, begin) for n, arrival in enumerate(self.load))
            )
            duration = time.perf_counter() - begin
            await fleet.settled()
            check_complete(report, name, streams, self.load, begin)
            preempted = self.preemptions() - before
            ttfts = [ttft(stream) for stream in streams]
            sent = fleet.page().by("tokenweir_routing_decisions_total", "backend")
        small = self.backends["small"].url.removeprefix("http://")
        return Round(
            str(number), policy, sent[small] / sent.total(), preempted.total(), preempted["small"],
            median(ttfts), percentile(ttfts, 0.99), duration, os.getloadavg()[0],
        )

    def preemptions(self) -> Counter:
        """The preemptions of each engine so far."""
        counts = Counter()
        for size, backend in self.backends.items():
            counts[size] = fetch(backend.url).total("vllm:num_preemptions_total")
        return counts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--program", required=True, type=Path, help="the program of the gateway")
    add("--engine", required=True, type=Path, help="the folder with serve.sh and stop.sh")
    add("--run", required=True, type=Path, help="the folder with the process ids of the backends")
    add("--work", required=True, type=Path, help="a folder for logs")
    add("--rounds", type=int, default=4, help="rounds of each policy")
    add("--requests", type=int, default=240, help="requests per round")
    add("--rate", type=float, default=6.0, help="requests per second")
    add("--seed", type=int, default=1, help="seed of the load")
    return parser.parse_args()


def arrivals(rng: random.Random, rate: float, count: int) -> Iterator[Arrival]:
    """An open loop with random arrivals, independent of the responses."""
    prefixes = [words(rng, PREFIX_WORDS) for _ in range(PREFIXES)]
    at = 0.0
    for _ in range(count):
        own = rng.randint(*PROMPT_WORDS)
        is_shared = rng.random() < PREFIX_SHARE
        prompt = f"{rng.choice(prefixes)} {words(rng, own)}" if is_shared else words(rng, own)
        yield Arrival(at, prompt, rng.randint(*OUTPUT_TOKENS))
        at += rng.expovariate(rate)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def new_stream(base: str, name: str, arrival: Arrival) -> Stream:
    """A request whose response has exactly `max_tokens` tokens."""
    exact_length = {"max_tokens": arrival.output, "min_tokens": arrival.output, "ignore_eos": True}
    return Stream(base, name, "completions", arrival.prompt, exact_length | USAGE)


async def send(fleet: Fleet, name: str, arrival: Arrival, begin: float) -> Stream:
    """Waits for the arrival time, sends the request and reads the response. A read timeout ends it."""
    await asyncio.sleep(begin + arrival.at - time.perf_counter())
    stream = new_stream(fleet.gateway, name, arrival)
    with suppress(TimeoutError):
        await stream.read()
    return stream


def ttft(stream: Stream) -> float:
    """The TTFT in seconds, infinite for a stream without output."""
    return stream.ttft_ms() / 1e3 if stream.outputs() else math.inf


def reset_prefix_cache(backend: Backend) -> None:
    """Empties the prefix cache of a backend."""
    request = urllib.request.Request(f"{backend.url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        if not json.load(response)["success"]:
            raise RuntimeError(f"{backend.url} did not reset its prefix cache")


def check_complete(
    report: Report, name: str, streams: list[Stream], load: list[Arrival], begin: float
) -> None:
    """Checks that every request was sent in time and has a complete response."""
    pairs = list(zip(streams, load))
    lag = max(stream.sent - begin - arrival.at for stream, arrival in pairs)
    report.note(name, "maximum lag of a request", f"{lag * 1e3:.0f} ms")
    complete = sum((stream.usage() or {}).get("completion_tokens") == arrival.output
                   for stream, arrival in pairs)
    report.equal(name, "complete responses", complete, len(load))


def medians_of(policy: str, rounds: list[Round]) -> Round:
    """The medians of a policy's rounds."""
    rows = [vars(result) for result in rounds if result.policy == policy]
    numbers = [field.name for field in fields(Round) if field.type is float]
    return Round("median", policy, *(median(row[name] for row in rows) for name in numbers))


def compare(report: Report, base: Round, other: Round) -> None:
    """Compares the medians of two policies."""
    # Without preemptions the load tests nothing.
    report.check("medians", f"{base.policy} preempts", base.preemptions > 0, show(base.preemptions))
    for what, name in (
        ("fewer preemptions", "preemptions"), ("lower p99 TTFT", "ttft_p99"),
    ):
        value, baseline = getattr(other, name), getattr(base, name)
        shown = f"{value:.3g} with {other.policy}, {baseline:.3g} with {base.policy}"
        report.check("medians", what, value < baseline, shown)


def print_table(rounds: list[Round]) -> None:
    """Prints a Markdown table."""
    names = [field.name.replace("_", " ") for field in fields(Round)]
    print("", f"| {' | '.join(names)} |", "|---" * len(names) + "|", sep="\n")
    for result in rounds:
        print(result.row())


async def main() -> int:
    args = arguments()
    load = list(arrivals(random.Random(args.seed), args.rate, args.requests))
    # Each open request needs a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(args.requests + 8))
    rig = Rig(args.engine, args.run, args.program, args.work, FRONT_ENDS["python"])
    report, rounds = Report(), []
    async with AsyncExitStack() as stack:
        started = await asyncio.gather(*(
            stack.enter_async_context(rig.backend(
                "--num-gpu-blocks-override", str(blocks), "--block-size", str(BLOCK_TOKENS),
                "--max-model-len", str(CONTEXT_TOKENS),
            ))
            for blocks in KV_BLOCKS.values()
        ))
        bench = Bench(rig, dict(zip(KV_BLOCKS, started)), load)
        await bench.warm()
        for number in range(2 * args.rounds):
            policy = TURNS[number % len(TURNS)]
            rounds.append(await bench.round(number + 1, policy, report))
            print(rounds[-1].row(), flush=True)
    medians = [medians_of(policy, rounds) for policy in (BASE, OTHER)]
    print_table(rounds + medians)
    compare(report, *medians)
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
