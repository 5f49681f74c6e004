#!/usr/bin/env python3
"""Sends the same load with several policies, in turns, to two real vLLM servers.

With `--load mixed`, one server has a quarter of the other's KV cache. With `--load decode` and `--load prefill`, the
servers are equal. The engines count the preemptions, and the client measures TTFT and TPOT. Exit code 1: a check
failed.
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

from fleet import FRONT_ENDS, Fleet
from metrics_page import fetch
from report import Report, percentile, show
from rig import Backend, Rig
from stream import USAGE, Stream

BLOCK_TOKENS = 32
# Tokens in the smaller KV cache of `--load mixed`. It has 32 blocks, of which an engine reserves one.
CONTEXT_TOKENS = (32 - 1) * BLOCK_TOKENS
BASE, OTHER = "round_robin", "kv_aware"

WORDS = "gateway engine scheduler client token cache queue router metric span stream model".split()
PREFIXES = 4


@dataclass(frozen=True)
class Load:
    """The requests of a run and the servers that they need. A word is about one token."""

    kv_blocks: tuple[int, int]
    """Blocks of the KV cache of the first and of the second server."""
    policies: tuple[str, ...]
    prefix_words: int
    """Words of a shared prefix. A block of the gateway's prefix index has 512 bytes."""
    prefix_share: float
    """Share of the requests with a shared prefix."""
    prompt_words: tuple[int, int]
    output_tokens: tuple[int, int]


LOADS = {
    # A request has 178 prompt tokens and 205 output tokens on average. The larger cache holds ten complete
    # requests, the smaller one two.
    "mixed": Load((128, 32), (BASE, OTHER), 120, 0.4, (60, 200), (100, 300)),
    "decode": Load((128, 128), (BASE, "least_requests", OTHER), 0, 0.0, (20, 60), (150, 350)),
    "prefill": Load(
        (128, 128), (BASE, "least_requests", "prefix_affinity", OTHER), 300, 0.5, (150, 450), (4, 24)
    ),
}


@dataclass(frozen=True)
class Arrival:
    """One request of the load."""

    at: float
    """Time in seconds after the first request of the load."""
    prompt: str
    output: int
    """Number of tokens of the response."""


@dataclass(frozen=True)
class Round:
    """The results of one run of the load. Times are in seconds."""

    round: str
    policy: str
    to_second: float
    """Share of the requests that the second backend got."""
    preemptions: float
    """Preemptions of both engines."""
    at_second: float
    """Preemptions of the second backend."""
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    """Of the streams: the time from the first output to the end, per output token after the first."""
    duration: float
    """Time from the first request to the end of the last response."""
    load_average: float

    def row(self) -> str:
        """The row of this run in the table of results."""
        name, policy, *numbers = vars(self).values()
        return f"| {' | '.join([name, policy, *(f'{number:.3g}' for number in numbers)])} |"


class Bench:
    """Two backends that run all the time, and a gateway per round."""

    def __init__(self, rig: Rig, backends: list[Backend], load: list[Arrival]):
        self.rig, self.backends, self.load = rig, backends, load

    async def warm(self) -> None:
        """Sends some requests first, because the first requests of an engine are slow."""
        requests = [(backend.url, arrival) for backend in self.backends
                    for arrival in self.load[:4]]
        streams = (new_stream(url, f"warm-{n}", arrival) for n, (url, arrival) in enumerate(requests))
        await asyncio.gather(*(stream.read() for stream in streams))

    async def round(self, number: int, policy: str, report: Report) -> Round:
        """Runs the load once, with a new gateway and empty prefix caches."""
        for backend in self.backends:
            await asyncio.to_thread(reset_prefix_cache, backend)
        urls = [backend.url for backend in self.backends]
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
        second = urls[1].removeprefix("http://")
        return Round(
            str(number), policy, sent[second] / sent.total(), preempted.total(), preempted[urls[1]],
            median(ttfts), percentile(ttfts, 0.99), percentile([tpot(stream) for stream in streams], 0.99),
            duration, os.getloadavg()[0],
        )

    def preemptions(self) -> Counter:
        """The preemptions of each engine so far."""
        counts = Counter()
        for backend in self.backends:
            counts[backend.url] = fetch(backend.url).total("vllm:num_preemptions_total")
        return counts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--program", required=True, type=Path, help="the program of the gateway")
    add("--engine", required=True, type=Path, help="the folder with serve.sh and stop.sh")
    add("--run", required=True, type=Path, help="the folder with the process ids of the backends")
    add("--work", required=True, type=Path, help="a folder for logs")
    add("--load", choices=LOADS, default="mixed", help="kind of the requests and of the servers")
    add("--rounds", type=int, default=4, help="rounds of each policy")
    add("--requests", type=int, default=240, help="requests per round")
    add("--rate", type=float, default=6.0, help="requests per second")
    add("--seed", type=int, default=1, help="seed of the load")
    return parser.parse_args()


def arrivals(load: Load, rng: random.Random, rate: float, count: int) -> Iterator[Arrival]:
    """An open loop with random arrivals, independent of the responses."""
    prefixes = [words(rng, load.prefix_words) for _ in range(PREFIXES)]
    at = 0.0
    for _ in range(count):
        own = rng.randint(*load.prompt_words)
        is_shared = rng.random() < load.prefix_share
        prompt = f"{rng.choice(prefixes)} {words(rng, own)}" if is_shared else words(rng, own)
        yield Arrival(at, prompt, rng.randint(*load.output_tokens))
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


def tpot(stream: Stream) -> float:
    """Seconds per output token after the first, infinite for a stream without output."""
    tokens = (stream.usage() or {}).get("completion_tokens", 0)
    outputs = stream.outputs()
    if not outputs:
        return math.inf
    return (outputs[-1] - outputs[0]) / max(tokens - 1, 1)


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
    # A load without preemptions would not test the policies.
    report.check("medians", f"{base.policy} preempts", base.preemptions > 0, show(base.preemptions))
    for what, name in (
        ("fewer preemptions", "preemptions"), ("lower p99 TTFT", "ttft_p99"),
    ):
        value, baseline = getattr(other, name), getattr(base, name)
        shown = f"{value:.3g} with {other.policy}, {baseline:.3g} with {base.policy}"
        report.check("medians", what, value < baseline, shown)


def compare_with_the_best(report: Report, rounds: list[Round], medians: list[Round]) -> None:
    """Checks that kv_aware is the best policy, or within the spread of the rounds of the best policy."""
    other = next(result for result in medians if result.policy == OTHER)
    for name in ("ttft_p99", "tpot_p99", "preemptions"):
        best = min(medians, key=lambda result: getattr(result, name))
        of_best = [getattr(result, name) for result in rounds if result.policy == best.policy]
        bound = max(getattr(best, name), max(of_best))
        value = getattr(other, name)
        shown = f"{value:.3g}; best {best.policy} {getattr(best, name):.3g}, its rounds up to {bound:.3g}"
        report.check("medians", f"{OTHER} {name} is the best or within its rounds", value <= bound, shown)


def print_table(rounds: list[Round]) -> None:
    """Prints a Markdown table."""
    names = [field.name.replace("_", " ") for field in fields(Round)]
    print("", f"| {' | '.join(names)} |", "|---" * len(names) + "|", sep="\n")
    for result in rounds:
        print(result.row())


async def main() -> int:
    args = arguments()
    kind = LOADS[args.load]
    load = list(arrivals(kind, random.Random(args.seed), args.rate, args.requests))
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
            for blocks in kind.kv_blocks
        ))
        bench = Bench(rig, started, load)
        await bench.warm()
        for turn in range(args.rounds):
            # Every other turn runs the policies in reverse order, so that a change of the machine's speed
            # favours none.
            for policy in kind.policies[:: 1 if turn % 2 == 0 else -1]:
                rounds.append(await bench.round(turn + 1, policy, report))
                print(rounds[-1].row(), flush=True)
    medians = [medians_of(policy, rounds) for policy in kind.policies]
    print_table(rounds + medians)
    if args.load == "mixed":
        compare(report, *medians)
    else:
        compare_with_the_best(report, rounds, medians)
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
