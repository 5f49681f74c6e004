#!/usr/bin/env python3
"""Writes the seeds of every target to a folder, from recorded responses of a real vLLM.

    seeds.py FOLDER MAX_BYTES

A seed has at most MAX_BYTES bytes; some seeds have exactly as many.
"""

import json
import re
import sys
from pathlib import Path

WIRE = Path(__file__).resolve().parent.parent / "tests/wire"
sys.path.insert(0, str(WIRE))
import oracle  # noqa: E402

# The APIs in the order of `Api::ALL`, by which the target `observe` selects one.
APIS = ["chat", "completions", "responses", "messages", "embeddings", "audio", "other"]
# The four bytes at the start of an input, which `cut` reads: the lengths, minus one, of the pieces of the
# rest, used in turn.
PLANS = [bytes([0, 0, 0, 0]), bytes([6, 0, 99, 30]), bytes([255, 16, 255, 1])]

# Header lines that a client sends in addition to Host, one list for each request.
HEADERS = [
    ["content-type:application/json", "authorization:Bearer k", "x-request-id:a"],
    ["connection:close, x-a", "x-a:1", "te:trailers", "upgrade:h2c", "http2-settings:AA"],
    ["transfer-encoding:chunked", "trailer:x", "content_length:0", "x-vllm-priority:1"],
    ["host:h", "x-forwarded-for:1.2.3.4", "forwarded:for=1", "expect:100-continue"],
]

# Number of seeds of each target that are also written at the maximum length.
STRETCHED = 20


def recordings():
    """(API, whether it is a stream, request body or None, response body) of every recording."""
    for index in sorted(WIRE.glob("*/index.jsonl")):
        for line in index.read_text().splitlines():
            entry = json.loads(line)
            name = index.parent / entry["name"]
            expected = json.loads(name.with_suffix(".expected.json").read_text())
            _, _, answer, _ = oracle.parse_http(name.with_suffix(".http").read_bytes())
            yield expected["api"], expected["stream"], entry["body"], answer


def pages():
    """Every metrics page, in parts of whole lines, without histogram buckets, which the gateway does not read."""
    for file in (WIRE / "metrics").glob("*.http"):
        _, _, page, _ = oracle.parse_http(file.read_bytes())
        lines = [line for line in page.splitlines(True) if b"_bucket" not in line]
        for start in range(0, len(lines), 30):
            yield b"".join(lines[start : start + 30])
    for file in WIRE.with_name("pages").glob("*.txt"):
        yield file.read_bytes()


def configurations():
    """config/tokenweir.yaml without comments: the whole file, and each top-level key alone."""
    text = (WIRE.parent.parent / "config/tokenweir.yaml").read_text()
    lines = [line for line in text.splitlines() if line.split("#")[0].strip()]
    yield "\n".join(lines).encode()
    part = []
    for line in [*lines, "end:"]:
        if part and not line.startswith(" "):
            yield "\n".join(part).encode()
            part = []
        part.append(line)


def event_batches():
    """The batches of KV events in the tests of their decoder."""
    text = (WIRE.parent.parent / "crates/kv_events/src/decoder/tests.rs").read_text()
    for digits in re.findall(r'&str = "([0-9a-f\\\s]+)"', text):
        yield bytes.fromhex("".join(re.findall("[0-9a-f]+", digits)))


def seeds():
    """(fuzz target, input) for each seed."""
    for number, (api, is_stream, body, answer) in enumerate(recordings()):
        plan = PLANS[number % len(PLANS)]
        if body is not None:
            yield "request", body.encode()
            yield "json", plan + body.encode()
        if is_stream:
            yield "sse", plan + answer
            for _, data in oracle.parse_events(answer)[0]:
                yield "json", plan + data.encode()
        else:
            yield "json", plan + answer
        for takes_usage_event in {False, is_stream}:
            way = APIS.index(api) * 4 + takes_usage_event * 2 + (not is_stream)
            yield "observe", bytes([way]) + plan + answer
    for page in pages():
        yield "metrics_page", page
        yield "hostile_page", page + b"\0" + page
    for part in configurations():
        yield "config", part
    for batch in event_batches():
        yield "kv_events", batch
    for target in ("/v1/chat/completions?a=b", "http://g/v1/models", "*"):
        for lines in HEADERS:
            yield "headers", "\n".join([target, "host:g", *lines]).encode()


def stretched(seed, max_bytes):
    """The seed with its middle byte repeated up to `max_bytes` bytes, which mostly gives a long text."""
    middle = len(seed) // 2
    return seed[:middle] + seed[middle : middle + 1] * (max_bytes - len(seed)) + seed[middle:]


def main():
    folder, max_bytes = Path(sys.argv[1]), int(sys.argv[2])
    by_target = {}
    for target, seed in seeds():
        by_target.setdefault(target, set()).add(seed[:max_bytes])
    for target, found in by_target.items():
        found = sorted(found)
        found += [stretched(seed, max_bytes) for seed in found[:: max(1, len(found) // STRETCHED)]]
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(found):
            (folder / target / f"{number:05}").write_bytes(seed)


main()
