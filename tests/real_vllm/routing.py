#!/usr/bin/env python3
"""Routes the same load round robin and by `kv_aware`, in turns, to two real vLLM replicas of which
one has a quarter of the other's KV cache.

Preemptions are what the engines count, times to first token what the client sees with its own
clock. Exit code 1: something did not hold. ../real_vllm_routing.sh starts this.
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
from rig import Replica, Rig
from stream import USAGE, Stream

BLOCK_TOKENS = 32
# A request has 178 tokens of prompt and 205 of output on the whole: whole ones, the larger has room
# for ten and the smaller for two.
KV_BLOCKS = {"large": 128, "small": 32}
# An engine keeps one block for itself.
CONTEXT_TOKENS = (KV_BLOCKS["small"] - 1) * BLOCK_TOKENS
BASE, OTHER = "round_robin", "kv_aware"
# So that a machine that becomes faster or slower meanwhile favours neither.
TURNS = (BASE, OTHER, OTHER, BASE)

WORDS = "gateway engine scheduler client token cache queue router metric span stream model".split()
# A block of the gateway's prefix table has 512 bytes.
PREFIX_WORDS, PREFIXES, PREFIX_SHARE = 120, 4, 0.4
PROMPT_WORDS = (60, 200)
OUTPUT_TOKENS = (100, 300)


@dataclass(frozen=True)
class Arrival:
    """A request of the load."""

    at: float
    """Seconds after the first one."""
    prompt: str
    output: int
    """Tokens."""


@dataclass(frozen=True)
class Round:
    """What was seen of one load. Times are in seconds."""

    round: str
    policy: str
    to_small: float
    """Share of the requests."""
    preemptions: float
    """Of both engines."""
    at_small: float
    """Of these, those of the smaller one."""
    ttft_p50: float
    ttft_p99: float
    took: float
    """From the first request to the end of the last answer."""
    load_average: float

    def row(self) -> str:
        """Of the table."""
        name, policy, *numbers = vars(self).values()
        return f"| {' | '.join([name, policy, *(f'{number:.3g}' for number in numbers)])} |"


class Bench:
    """Two replicas that go on, and a gateway for each round."""

    def __init__(self, rig: Rig, replicas: dict[str, Replica], load: list[Arrival]):
        self.rig, self.replicas, self.load = rig, replicas, load

    async def warm(self) -> None:
        """The first requests of an engine are slow."""
        asks = [(replica.url, arrival) for replica in self.replicas.values()
                for arrival in self.load[:4]]
        streams = (stream(url, f"warm-{n}", arrival) for n, (url, arrival) in enumerate(asks))
        await asyncio.gather(*(each.read() for each in streams))

    async def round(self, number: int, policy: str, report: Report) -> Round:
        """The load once, through a gateway that has seen nothing, to caches that are empty."""
        for replica in self.replicas.values():
            await asyncio.to_thread(forget, replica)
        urls = [replica.url for replica in self.replicas.values()]
        name = f"{number}-{policy}"
        async with self.rig.fleet(name, urls, "--policy", policy) as fleet:
            before, begin = self.preemptions(), time.perf_counter()
            streams = await asyncio.gather(
                *(send(fleet, f"{name}-{n}", arrival, begin) for n, arrival in enumerate(self.load))
            )
            took = time.perf_counter() - begin
            await fleet.settled()
            check_whole(report, name, streams, self.load, begin)
            preempted = self.preemptions() - before
            ttfts = [ttft(each) for each in streams]
            sent = fleet.page().by("tokenweir_route_decisions_total", "backend")
        small = self.replicas["small"].url.removeprefix("http://")
        return Round(
            str(number), policy, sent[small] / sent.total(), preempted.total(), preempted["small"],
            median(ttfts), percentile(ttfts, 0.99), took, os.getloadavg()[0],
        )

    def preemptions(self) -> Counter:
        """What each engine has counted so far."""
        counts = Counter()
        for size, replica in self.replicas.items():
            counts[size] = fetch(replica.url).total("vllm:num_preemptions_total")
        return counts


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--program", required=True, type=Path, help="the gateway's")
    add("--engine", required=True, type=Path, help="folder of serve.sh and stop.sh")
    add("--run", required=True, type=Path, help="folder of the replicas' process ids")
    add("--work", required=True, type=Path, help="a folder for logs")
    add("--rounds", type=int, default=4, help="of each policy")
    add("--requests", type=int, default=240, help="in a round")
    add("--rate", type=float, default=6.0, help="requests a second")
    add("--seed", type=int, default=1, help="of the load")
    return parser.parse_args()


def arrivals(dice: random.Random, rate: float, count: int) -> Iterator[Arrival]:
    """An open loop: requests come at random, whether those before have been answered or not."""
    prefixes = [words(dice, PREFIX_WORDS) for _ in range(PREFIXES)]
    at = 0.0
    for _ in range(count):
        own = dice.randint(*PROMPT_WORDS)
        is_shared = dice.random() < PREFIX_SHARE
        prompt = f"{dice.choice(prefixes)} {words(dice, own)}" if is_shared else words(dice, own)
        yield Arrival(at, prompt, dice.randint(*OUTPUT_TOKENS))
        at += dice.expovariate(rate)


def words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count))


def stream(base: str, name: str, arrival: Arrival) -> Stream:
    """A request whose answer has as many tokens as it asks for, each with text."""
    exactly = {"max_tokens": arrival.output, "min_tokens": arrival.output, "ignore_eos": True}
    return Stream(base, name, "completions", arrival.prompt, exactly | USAGE)


async def send(fleet: Fleet, name: str, arrival: Arrival, begin: float) -> Stream:
    """Waits for its time, and reads the answer. One that is silent for too long is given up."""
    await asyncio.sleep(begin + arrival.at - time.perf_counter())
    sent = stream(fleet.gateway, name, arrival)
    with suppress(TimeoutError):
        await sent.read()
    return sent


def ttft(sent: Stream) -> float:
    """Seconds, without end if it was given up."""
    return sent.ttft_ms() / 1e3 if sent.outputs() else math.inf


def forget(replica: Replica) -> None:
    """Empties its prefix cache."""
    request = urllib.request.Request(f"{replica.url}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        if not json.load(answer)["success"]:
            raise RuntimeError(f"{replica.url} keeps its prefix cache")


def check_whole(
    report: Report, name: str, streams: list[Stream], load: list[Arrival], begin: float
) -> None:
    """Every request was sent when it should, and answered in full."""
    pairs = list(zip(streams, load))
    late = max(each.sent - begin - arrival.at for each, arrival in pairs)
    report.note(name, "latest start of a request", f"{late * 1e3:.0f} ms after its time")
    whole = sum((each.usage() or {}).get("completion_tokens") == arrival.output
                for each, arrival in pairs)
    report.equal(name, "answers that are whole", whole, len(load))


def typical(policy: str, rounds: list[Round]) -> Round:
    """The medians of a policy's rounds."""
    rows = [vars(each) for each in rounds if each.policy == policy]
    numbers = [field.name for field in fields(Round) if field.type is float]
    return Round("median", policy, *(median(row[name] for row in rows) for name in numbers))


def compare(report: Report, base: Round, other: Round) -> None:
    """What must hold of the medians."""
    # Else the load is no test.
    report.check("medians", f"{base.policy} preempts", base.preemptions > 0, show(base.preemptions))
    for what, name in (
        ("fewer preemptions", "preemptions"), ("lower p99 time to first token", "ttft_p99"),
    ):
        ours, theirs = getattr(other, name), getattr(base, name)
        shown = f"{ours:.3g} with {other.policy}, {theirs:.3g} with {base.policy}"
        report.check("medians", what, ours < theirs, shown)


def print_table(rounds: list[Round]) -> None:
    """For a README."""
    names = [field.name.replace("_", " ") for field in fields(Round)]
    print("", f"| {' | '.join(names)} |", "|---" * len(names) + "|", sep="\n")
    for each in rounds:
        print(each.row())


async def main() -> int:
    args = arguments()
    load = list(arrivals(random.Random(args.seed), args.rate, args.requests))
    # Each request has a thread of its own for as long as it lasts.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(args.requests + 8))
    rig = Rig(args.engine, args.run, args.program, args.work, FRONT_ENDS["python"])
    report, rounds = Report(), []
    async with AsyncExitStack() as stack:
        started = await asyncio.gather(*(
            stack.enter_async_context(rig.replica(
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
    medians = [typical(policy, rounds) for policy in (BASE, OTHER)]
    print_table(rounds + medians)
    compare(report, *medians)
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
