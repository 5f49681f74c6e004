"""Answers in which an event carries several tokens: merged by the server, or guessed ahead by the
engine. Counts stay exact, and times are those of tokens."""

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
ASKS = [
    ("chat", "count", {"temperature": 0} | USAGE),
    ("chat", "emoji", {"temperature": 0} | USAGE),
    ("chat", "count", LONG),
    ("completions", "The router", LONG),
]


async def check(rig: Rig, report: Report) -> None:
    """Everything of this module, on a replica for each kind."""
    for kind, arguments in KINDS.items():
        async with (
            rig.replica(*arguments) as replica,
            rig.fleet(kind, [replica.url]) as fleet,
        ):
            await check_kind(fleet, report, kind)


async def check_kind(fleet: Fleet, report: Report, kind: str) -> None:
    """One request after the other, each with the gateway's line of it."""
    for name in ("chat", "completions"):
        await Stream(fleet.gateway, f"{kind}-{name}", name, "hello", {}).read()
    before = await fleet.settled()
    streams = [
        await Stream(fleet.gateway, f"{kind}-{number}", *ask).read()
        for number, ask in enumerate(ASKS * 3)
    ]
    counted = (await fleet.settled()).since(before)
    lines = await fleet.log.of([stream.request_id for stream in streams])
    truths = [stream.usage()["completion_tokens"] for stream in streams]
    ours = [lines[stream.request_id] for stream in streams]
    tokens, engine = counted.tokens["output"], counted.engine["generation_tokens"]
    report.equal(kind, "output tokens of each", [line["output_tokens"] for line in ours], truths)
    report.equal(kind, "output tokens, gateway = engine", tokens, engine)
    events = [len(stream.outputs()) for stream in streams]
    report.equal(kind, "events of each", [line["output_events"] for line in ours], events)
    share = sum(truths) / sum(events)
    report.check(kind, "tokens in an event, to be any test", share > 1.3, f"{share:.2f}")
    theirs = fmean(stream.tpot_ms(truth) for stream, truth in zip(streams, truths))
    own = fmean(line["tpot_ms"] for line in ours)
    check_tpot(report, kind, "client", own, theirs)
