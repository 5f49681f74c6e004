#!/usr/bin/env python3
"""Measures in real time whether admission control costs goodput below the capacity of the fleet.

    tests/admission.py target/release/tokenweir [--rates 54,68,82,96,110,124,138,152,166,180] [--seconds 11] [--rounds 4]

50 few-shot prompts of about 3,000 tokens, popular and rare ones, go to four simulated engines, whose caches hold each prompt twice. For
each rate, the default configuration and `admission.enabled: false` take turns. Prints the share of first tokens within 2 s, without the
first 30 % of the requests, and the TTFT p99. Run it on a quiet machine: the load average is printed.
"""

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from statistics import mean

SIMULATOR = 26260
GATEWAY = 26270
WORDS = "the and for are but not you all any can had her was one our out".split()
PROMPTS = 50
MODES = ("default", "off")


def text(seed: int, tokens: int) -> str:
    """A text of this many tokens of the simulator."""
    chosen = random.Random(seed)
    return "".join(chosen.choice(WORDS).ljust(3) + " " for _ in range(tokens))


def prompt(number: int) -> str:
    """One of the few-shot prompts."""
    return text(number, min(7000, int(3000 * math.exp(0.5 * random.Random(number).gauss(0, 1)))))


class Client:
    """Sends streams over connections that it keeps."""

    def __init__(self) -> None:
        self.idle: list = []

    async def ttft(self, content: str) -> float | None:
        """The time to the first token in seconds. None: the request failed."""
        message = {"role": "user", "content": content}
        body = json.dumps({"model": "sim-model", "stream": True, "max_tokens": 25, "messages": [message]})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        began, first = time.perf_counter(), None
        try:
            reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", GATEWAY, limit=1 << 20)
            writer.write((head + body).encode())
            async with asyncio.timeout(60):
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"transfer-encoding: chunked" not in answer:
                    writer.close()
                    return None
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    data = await reader.readexactly(size + 2)
                    if first is None and b'"content"' in data and b'"content":""' not in data:
                        first = time.perf_counter() - began
                await reader.readexactly(2)
            self.idle.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return None
        return first


async def offer(rate: float, seconds: float, seed: int, prompts: list[str]) -> tuple[float, float]:
    """Offers requests at a rate. Returns the share in time in percent, and the TTFT p99."""
    chosen, client, tasks = random.Random(seed), Client(), []
    began, at = time.perf_counter(), 0.0
    weights = [(rank + 1) ** -0.7 for rank in range(PROMPTS)]
    while at < seconds:
        at += chosen.expovariate(rate)
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        content = chosen.choices(prompts, weights)[0] + text(1000 + len(tasks) + 100_000 * seed, 80)
        tasks.append(asyncio.create_task(client.ttft(content)))
    results = await asyncio.gather(*tasks)
    for _, writer in client.idle:
        writer.close()
    counted = results[int(0.3 * len(results)) :]
    served = sorted(ttft for ttft in counted if ttft is not None)
    in_time = 100 * sum(ttft <= 2 for ttft in served) / len(counted)
    return in_time, served[int(0.99 * len(served))] if served else math.inf


def run(program: str, mode: str, rate: float, seconds: float, seed: int, prompts: list[str]) -> tuple[float, float]:
    """One run with new processes."""
    engine = f"sim --backends 4 --blocks 5000 --prefill-tokens-per-second 15400 --step-ms 19 --max-num-seqs 256 --listen 127.0.0.1:{SIMULATOR}"
    backends = ", ".join(f'{{ url: "http://127.0.0.1:{SIMULATOR + number}" }}' for number in range(4))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(f"backends: [{backends}]\n" + ("admission: { enabled: false }\n" if mode == "off" else ""))
        config.flush()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        serve = f"serve --config {config.name} --listen 127.0.0.1:{GATEWAY} --admin 127.0.0.1:{GATEWAY + 1}"
        processes = [subprocess.Popen([program, *command.split()], **quiet) for command in (engine, serve)]
        try:
            time.sleep(1.5)
            return asyncio.run(offer(rate, seconds, seed, prompts))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rates", default="54,68,82,96,110,124,138,152,166,180")
    parser.add_argument("--seconds", type=float, default=11)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    prompts = [prompt(number) for number in range(PROMPTS)]
    results = defaultdict(list)
    rates = [float(rate) for rate in arguments.rates.split(",")]
    for turn in range(arguments.rounds):
        for rate in rates:
            for mode in MODES[:: 1 if turn % 2 else -1]:
                result = run(arguments.program, mode, rate, arguments.seconds, turn + 1, prompts)
                results[rate, mode].append(result)
                print(f"{turn} {rate:g}/s {mode}: {result[0]:.1f} % in time, p99 {result[1]:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    print("\n| requests per second | in time, default | worst round | in time, off | worst round | TTFT p99, default, s | off, s |\n|--:|--:|--:|--:|--:|--:|--:|")
    for rate in rates:
        shares = {mode: [share for share, _ in results[rate, mode]] for mode in MODES}
        p99 = {mode: mean(ttft for _, ttft in results[rate, mode]) for mode in MODES}
        columns = [f"{mean(shares[mode]):.1f} | {min(shares[mode]):.1f}" for mode in MODES]
        print(f"| {rate:g} | {' | '.join(columns)} | {p99['default']:.1f} | {p99['off']:.1f} |")


if __name__ == "__main__":
    main()
