"""Responses whose events contain several tokens: merged by the server, or from speculative decoding. The counts
of the gateway must be exact, and its TPOT must be per token."""

import json
from statistics import fmean

from bench import check_tpot
from fleet import Fleet
from report import Report
from rig import Rig
from stream import USAGE, Stream

NGRAM = {
    "method": "ngram", "num_speculative_tokens": 4,
    "prompt_lookup_max": 4, "prompt_lookup_min": 1,
}
KINDS = {
    "merged": ("--stream-interval", "4"),
    "speculative": ("--speculative-config", json.dumps(NGRAM)),
}
LONG = {"max_tokens": 200, "ignore_eos": True, "temperature": 0} | USAGE
REQUESTS = [
    ("chat", "count", {"temperature": 0} | USAGE),
    ("chat", "emoji", {"temperature": 0} | USAGE),
    ("chat", "count", LONG),
    ("completions", "The router", LONG),
]


async def check(rig: Rig, report: Report) -> None:
    """Runs all checks of this module, on one backend per kind."""
    for kind, arguments in KINDS.items():
        async with (
            rig.backend(*arguments) as backend,
            rig.fleet(kind, [backend.url]) as fleet,
        ):
            await check_kind(fleet, report, kind)


async def check_kind(fleet: Fleet, report: Report, kind: str) -> None:
    """Sends one request after the other and compares each with its access log line."""
    for name in ("chat", "completions"):
        await Stream(fleet.gateway, f"{kind}-{name}", name, "hello", {}).read()
    before = await fleet.settled()
    streams = [
        await Stream(fleet.gateway, f"{kind}-{number}", *request).read()
        for number, request in enumerate(REQUESTS * 3)
    ]
    counted = (await fleet.settled()).since(before)
    lines = await fleet.log.lines_of([stream.request_id for stream in streams])
    expected = [stream.usage()["completion_tokens"] for stream in streams]
    recorded = [lines[stream.request_id] for stream in streams]
    tokens, engine = counted.tokens["output"], counted.engine["generation_tokens"]
    report.equal(kind, "output tokens of each", [line["output_tokens"] for line in recorded], expected)
    report.equal(kind, "output tokens, gateway = engine", tokens, engine)
    events = [len(stream.outputs()) for stream in streams]
    report.equal(kind, "events of each", [line["output_events"] for line in recorded], events)
    per_event = sum(expected) / sum(events)
    report.check(kind, "tokens per event (precondition)", per_event > 1.3, f"{per_event:.2f}")
    client = fmean(stream.tpot_ms(tokens) for stream, tokens in zip(streams, expected))
    gateway = fmean(line["tpot_ms"] for line in recorded)
    check_tpot(report, kind, "client", gateway, client)
