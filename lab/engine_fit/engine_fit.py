#!/usr/bin/env python3
"""Measures the step times of a vLLM server and fits the engine model of `crates/sim` to them.

    engine_fit.py measure http://127.0.0.1:8101 MODEL > points.csv
    engine_fit.py fit points.csv

A prefill point is the median latency of requests with one output token, one at a time: front end + one step. A decode
point is the median time between two tokens while a number of sequences decode. Prompts are random token ids, so nothing
is cached. Needs aiohttp and numpy, which vLLM installs.
"""

import asyncio
import csv
import random
import statistics
import sys
import time

PROMPTS = (16, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792)
PREFILL_REPEATS = 25
SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32)
DECODE_PROMPTS = (32, 200, 400)
DECODE_REPEATS = 4
OUTPUT_TOKENS = 64
FIELDS = ("kind", "prompt_tokens", "sequences", "context_tokens", "median_ms", "p10_ms", "p90_ms", "count")


async def times(session, url, model, prompt_tokens, output_tokens):
    """Start and arrival times of the tokens of one stream."""
    prompt = [random.randrange(300, 1800) for _ in range(prompt_tokens)]
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "stream": True}
    stamps = [time.perf_counter()]
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                stamps.append(time.perf_counter())
    return stamps


def row(kind, prompt, sequences, context, values):
    values = sorted(values)
    share = lambda part: round(values[int(part * (len(values) - 1))] * 1e3, 3)  # noqa: E731
    median = round(statistics.median(values) * 1e3, 3)
    return dict(zip(FIELDS, (kind, prompt, sequences, context, median, share(0.1), share(0.9), len(values))))


async def measure(url, model):
    import aiohttp

    out = csv.DictWriter(sys.stdout, FIELDS)
    out.writeheader()
    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            await times(session, url, model, 200, 8)
        for prompt in PROMPTS:
            runs = [await times(session, url, model, prompt, 1) for _ in range(PREFILL_REPEATS)]
            out.writerow(row("prefill", prompt, 1, prompt, [run[1] - run[0] for run in runs]))
        for prompt in DECODE_PROMPTS:
            for sequences in SEQUENCES:
                gaps = []
                for _ in range(DECODE_REPEATS):
                    streams = (times(session, url, model, prompt, OUTPUT_TOKENS) for _ in range(sequences))
                    runs = await asyncio.gather(*streams)
                    # The time in which all sequences decode: from the last first token to the first last
                    # token.
                    first, last = max(run[1] for run in runs), min(run[-1] for run in runs)
                    for run in runs:
                        inside = [stamp for stamp in run[1:] if first <= stamp <= last]
                        if len(inside) > 8:
                            gaps.append((inside[-1] - inside[0]) / (len(inside) - 1))
                context = sequences * (prompt + OUTPUT_TOKENS // 2)
                out.writerow(row("decode", prompt, sequences, context, gaps))


def fit(path):
    import numpy

    with open(path) as file:
        points = [{key: value if key == "kind" else float(value) for key, value in point.items()} for point in csv.DictReader(file)]
    decode = [point for point in points if point["kind"] == "decode"]
    prefill = [point for point in points if point["kind"] == "prefill"]

    def solve(columns, times):
        """The coefficients, none below zero, with the least squares of the relative error of the step times."""
        active = list(range(len(columns[0])))
        while True:
            weighted = [[line[index] / value for index in active] for line, value in zip(columns, times)]
            found = numpy.linalg.lstsq(numpy.array(weighted), numpy.ones(len(times)), rcond=None)[0]
            if min(found) >= 0:
                return [found[active.index(index)] if index in active else 0.0 for index in range(len(columns[0]))]
            active.pop(int(numpy.argmin(found)))

    columns = [[1, point["sequences"], point["context_tokens"]] for point in decode]
    base, sequence, context = solve(columns, [point["median_ms"] for point in decode])
    prompts = [point["prompt_tokens"] for point in prefill]
    rest = [[1, tokens, tokens**2 / 2] for tokens in prompts]
    start, token, pair = solve(rest, [point["median_ms"] for point in prefill])
    print(f"front end {start - base:.2f} ms, step {base:.2f} ms, prefill {token * 1e3:.2f} us/token,")
    print(f"sequence {sequence * 1e3:.1f} us, context {context * 1e6:.1f} ns/token, pair {pair * 1e6:.3f} ns")
    errors = []
    for kind, lines, model, group in (
        ("prefill", rest, (start, token, pair), prefill),
        ("decode", columns, (base, sequence, context), decode),
    ):
        predicted = [sum(a * b for a, b in zip(line, model)) for line in lines]
        relative = [abs(a / point["median_ms"] - 1) for a, point in zip(predicted, group)]
        errors += relative
        print(f"{kind}: mean error {statistics.mean(relative):.1%}, greatest {max(relative):.1%}, {len(group)} points")
    print(f"all: mean error {statistics.mean(errors):.1%}")


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        asyncio.run(measure(sys.argv[2], sys.argv[3]))
    else:
        fit(sys.argv[2])
