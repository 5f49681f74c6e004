#!/usr/bin/env python3
"""Sends the turns of agents to two real vLLM servers with small KV caches, with and without admission by live sessions,
in turns.

Each agent sends a conversation that grows with each turn, and thinks between turns. The contexts of all agents together
exceed the KV caches. Exit code 1: a check failed.
../real_vllm_sessions.sh starts this script.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from contextlib import AsyncExitStack, suppress
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

from fleet import FRONT_ENDS, Fleet
from report import Report, percentile
from rig import Backend, Rig
from routing import reset_prefix_cache, words
from stream import USAGE, Stream

# With random weights of this size, one CPU core computes about 3,000 prompt tokens per second. The model of the other
# tests computes them so fast that no cache matters.
LAYERS = 4
SIZES = {
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention"] * LAYERS,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "max_position_embeddings": 8192,
}
BLOCK_TOKENS = 32
SYSTEM_WORDS, FIRST_WORDS, RESULT_WORDS, OUTPUT_TOKENS = 100, 1_000, 250, 24
TURNS = 8
GOAL = 1.4
# No turn waits longer than 90 % of this time, and the gateway looks twice a second.
MAX_WAIT_SECONDS = 30.0
BOUND_SECONDS = 0.9 * MAX_WAIT_SECONDS + 1.0


@dataclass(frozen=True)
class Round:
    """The results of one run of the load. Times are in seconds."""

    round: str
    sessions: str
    """Whether admission by live sessions was on."""
    turns_per_minute: float
    hits: float
    """Share of the prompt tokens that came from prefix caches."""
    ttft_p50: float
    ttft_p90: float
    longest_wait: float
    """Longest time of a turn in the admission queue."""
    ended_sessions: float
    prompt_mean: float
    """Mean number of tokens of a prompt."""
    failed: float
    """Turns without a complete response, except those that the end of the run cut."""
    load_average: float

    def row(self) -> str:
        """The row of this run in the table of results."""
        name, state, *numbers = vars(self).values()
        return f"| {' | '.join([name, state, *(f'{number:.3g}' for number in numbers)])} |"


class Load:
    """Agents that send turns for a time."""

    def __init__(self, fleet: Fleet, args: argparse.Namespace, name: str, seed: int):
        self.fleet, self.args, self.name, self.seed = fleet, args, name, seed
        self.turns: list[Stream] = []
        self.failed = 0
        self.ended_sessions = 0
        self.begin = time.perf_counter()

    def is_over(self) -> bool:
        return time.perf_counter() - self.begin > self.args.seconds

    async def run(self) -> None:
        """Runs all agents."""
        await asyncio.gather(*(self.agent(number) for number in range(self.args.agents)))

    async def agent(self, number: int) -> None:
        session = 0
        while not self.is_over():
            await self.session(f"{self.seed}-{number}-{session}")
            session += 1

    async def session(self, name: str) -> None:
        """Sends the turns of one session. The text follows from the name, so that all rounds of a seed are equal."""
        rng = random.Random(name)
        system = "You are an agent. " + words(random.Random(0), SYSTEM_WORDS)
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{name} {words(rng, FIRST_WORDS)}"},
        ]
        for turn in range(TURNS):
            if self.is_over():
                return
            text = await self.turn(f"{self.name}-{name}-{turn}", messages)
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": words(rng, RESULT_WORDS)})
            await asyncio.sleep(rng.expovariate(1 / self.args.think))
        self.ended_sessions += 1

    async def turn(self, request_id: str, messages: list[dict]) -> str:
        """Sends a turn and returns the text of its response."""
        body = {"messages": messages, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0}
        stream = Stream(self.fleet.gateway, request_id, "chat", "", body | USAGE)
        with suppress(TimeoutError):
            await stream.read()
        if self.is_over():
            return ""
        if stream.usage() is None:
            self.failed += 1
            await asyncio.sleep(1)
            return ""
        self.turns.append(stream)
        deltas = (event.body.get("choices") or [{}] for event in stream.events())
        return "".join(choices[0].get("delta", {}).get("content") or "" for choices in deltas)

    def result(self, number: int, state: str) -> Round:
        """What the agents have seen, and the waits that the gateway has logged."""
        usages = [stream.usage() for stream in self.turns]
        prompt = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for usage in usages)
        ttfts = [stream.ttft_ms() / 1e3 for stream in self.turns if stream.outputs()]
        waits = [line.get("queued_ms") or 0.0 for line in self.fleet.log.lines()]
        return Round(
            str(number), state, len(self.turns) * 60 / self.args.seconds, cached / prompt,
            median(ttfts), percentile(ttfts, 0.9), max(waits) / 1e3,
            self.ended_sessions, prompt / len(self.turns), self.failed, os.getloadavg()[0],
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--program", required=True, type=Path, help="the program of the gateway")
    add("--engine", required=True, type=Path, help="the folder with serve.sh and stop.sh")
    add("--run", required=True, type=Path, help="the folder with the process ids of the backends")
    add("--work", required=True, type=Path, help="a folder for logs")
    add("--agents", type=int, default=24, help="number of agents")
    add("--think", type=float, default=1.0, help="mean time between two turns of an agent, in seconds")
    add("--blocks", type=int, default=400, help="blocks of 32 tokens of each KV cache")
    add("--seconds", type=float, default=75.0, help="duration of each run")
    add("--rounds", type=int, default=3, help="rounds with and without")
    add("--modes", default="off,on", help="states of the option, in the order of the first round")
    add("--seed", type=int, default=1, help="seed of the load")
    return parser.parse_args()


async def run(rig: Rig, backends: list[Backend], args: argparse.Namespace, number: int, state: str) -> Round:
    """Runs the load once, with a new gateway and empty prefix caches."""
    for backend in backends:
        await asyncio.to_thread(reset_prefix_cache, backend)
    is_on = str(state == "on").lower()
    settings = args.work / f"{state}.yaml"
    settings.write_text(f"sessions: {{ enabled: {is_on} }}\nadmission: {{ max_wait: {MAX_WAIT_SECONDS:.0f}s }}\n")
    name = f"{number}-{state}"
    async with rig.fleet(name, [backend.url for backend in backends], "--config", str(settings)) as fleet:
        load = Load(fleet, args, name, args.seed + number)
        await load.run()
        await fleet.settled(60.0)
        return load.result(number, state)


def medians_of(state: str, rounds: list[Round]) -> Round:
    """The medians of the rounds with this state of the option."""
    rows = [vars(result) for result in rounds if result.sessions == state]
    numbers = [field.name for field in fields(Round) if field.type is float]
    return Round("median", state, *(median(row[name] for row in rows) for name in numbers))


async def main() -> int:
    args = arguments()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(args.agents + 8))
    rig = Rig(args.engine, args.run, args.program, args.work, FRONT_ENDS["python"])
    states = args.modes.split(",")
    report, rounds = Report(), []
    print(f"| {' | '.join(field.name.replace('_', ' ') for field in fields(Round))} |")
    async with AsyncExitStack() as stack:
        arguments_of_engine = [
            "--load-format", "dummy", "--hf-overrides", json.dumps(SIZES), "--max-model-len", "8192",
            "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(args.blocks),
        ]
        backends = await asyncio.gather(*(
            stack.enter_async_context(rig.backend(*arguments_of_engine)) for _ in range(2)
        ))
        for number in range(args.rounds):
            # Every other round is in reverse order, so that a change of the machine's speed favours no state.
            for state in states[:: 1 if number % 2 == 0 else -1]:
                rounds.append(await run(rig, backends, args, number + 1, state))
                print(rounds[-1].row(), flush=True)
    medians = {state: medians_of(state, rounds) for state in states}
    for result in medians.values():
        print(result.row())
    report.check("all", "no turn failed", all(result.failed == 0 for result in rounds))
    if {"on", "off"} <= medians.keys():
        gain = medians["on"].turns_per_minute / medians["off"].turns_per_minute
        report.check("medians", f"turns per minute at least {GOAL} times as many", gain >= GOAL, f"{gain:.2f}")
        longest = max(result.longest_wait for result in rounds if result.sessions == "on")
        report.check("all", "no turn waits beyond its bound", longest <= BOUND_SECONDS, f"{longest:.1f} s")
    report.print()
    return int(report.failed())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
