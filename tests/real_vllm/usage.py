"""Token counts of streams whose clients did not ask for any. By default the gateway asks in their
place and takes the answer out again; with `--usage passive` it only estimates."""

import json
from itertools import zip_longest
from statistics import fmean
from uuid import uuid4

from answers import KNOWN
from fleet import Fleet
from report import Report
from rig import Rig
from sdk import Ask, Sdk
from stream import PATHS, USAGE, Stream

ASKS = [known for known in KNOWN if known[0] in PATHS]
# What two answers to the same request do not share. The gateway takes the fingerprint out with
# the usage event, the only one that has it.
OWN = ("id", "created", "system_fingerprint")
TEXTS = ("content", "reasoning", "text", "arguments")


async def check(fleet: Fleet, report: Report, rig: Rig) -> None:
    """Everything of this module. On one replica, because two have different caches."""
    replica = fleet.replicas[:1]
    expected = [await answer(replica[0], "straight", *ask) for ask in ASKS]
    wants = [(api, prompt, body | USAGE) for api, prompt, body in ASKS]
    asked = [await answer(replica[0], "straight", *ask) for ask in wants]
    tokens = [stream.usage()["completion_tokens"] for stream in asked]
    async with rig.fleet("usage", replica) as inject:
        await check_counts(inject, report)
        await check_answers(inject, report, "usage not asked", ASKS, expected)
        await check_answers(inject, report, "usage asked", wants, asked)
    async with rig.fleet("passive", replica, "--usage", "passive") as passive:
        await check_answers(passive, report, "usage passive", ASKS, expected)
        await check_estimates(passive, report, tokens)


async def answer(base: str, name: str, api: str, prompt: str, body: dict) -> Stream:
    """The stream of one request."""
    return await Stream(base, f"{name}-{uuid4()}", api, prompt, body).read()


async def check_counts(fleet: Fleet, report: Report) -> None:
    """The official client sees no usage, and the gateway knows what the engine counted."""
    step, sdk, before = "usage not asked", Sdk(fleet.gateway, "unasked"), await fleet.settled()
    asks = [Ask(api, prompt, True, body, wants_usage=False) for api, prompt, body in ASKS]
    seen = [await sdk.ask(ask) for ask in asks]
    counted = (await fleet.settled()).since(before)
    lines = await fleet.log.of([one.request_id for one in seen])
    told = [one.request_id for one in seen if one.output is not None]
    report.equal(step, "clients that were told", told, [])
    sources = {line["usage"] for line in lines.values()}
    report.equal(step, "source of the gateway's counts", sources, {"exact"})
    for kind, engine in (("input", "prompt_tokens"), ("output", "generation_tokens")):
        ours = sum(line[f"{kind}_tokens"] or 0 for line in lines.values())
        what = f"{kind} tokens, gateway = engine"
        report.equal(step, what, ours, round(counted.engine[engine]))


async def check_answers(fleet, report, step: str, asks: list, expected: list[Stream]) -> None:
    """With and without the gateway, a client gets the same events."""
    through = [await answer(fleet.gateway, "through", *ask) for ask in asks]
    pairs = [(folded(alone), folded(stream)) for alone, stream in zip(expected, through)]
    other = [parts for pair in pairs for parts in zip_longest(*pair) if parts[0] != parts[1]]
    report.check(step, "events with and without the gateway", not other, other[:1] or len(pairs))


def folded(stream: Stream) -> list:
    """The parts of an answer that are always the same. How its text is cut into events is not: a
    server that is late puts several tokens into one. So the texts come last, each in one piece."""
    parts, texts = [], dict.fromkeys(TEXTS, "")
    for _, block in stream.blocks():
        if not block.startswith("data: {"):
            parts.append(block)
            continue
        event = json.loads(block.removeprefix("data: "))
        for name in OWN:
            event.pop(name, None)
        for choice in event["choices"]:
            take_texts(choice, texts)
        if event not in parts[-1:]:
            parts.append(event)
    return [*parts, texts]


def take_texts(choice: dict, texts: dict[str, str]) -> None:
    """Moves the texts of a choice to those that came before. One event can have two kinds."""
    part = choice.get("delta", choice)
    calls = part.get("tool_calls") or ()
    for call in calls:
        call.pop("id", None)
    for place in (part, *(call["function"] for call in calls)):
        for name in TEXTS:
            texts[name] += place.pop(name, None) or ""


async def check_estimates(fleet: Fleet, report: Report, tokens: list[int]) -> None:
    """How far estimates are from what the engine counts for the same answers."""
    step, errors, sources = "usage passive", [], set()
    for ask, truth in zip(ASKS, tokens):
        before = estimated(fleet)
        stream = await answer(fleet.gateway, "estimate", *ask)
        line = (await fleet.log.of([stream.request_id]))[stream.request_id]
        sources.add(line["usage"])
        errors.append((estimated(fleet) - before) / truth - 1)
    report.equal(step, "source of the gateway's counts", sources, {"estimated"})
    shown = ", ".join(f"{error:+.0%}" for error in errors)
    mean = fmean(abs(error) for error in errors)
    report.note(step, "error of the estimates", f"mean {mean:.1%} ({shown})")


def estimated(fleet: Fleet) -> float:
    """Tokens that the gateway estimated so far."""
    return fleet.page().total("tokenweir_estimated_output_tokens_total")
