"""Token counts of streams whose clients do not request usage. By default the gateway requests it and removes it from
the stream; with `--usage passive` it estimates."""

from statistics import fmean

from answers import KNOWN
from fleet import Fleet
from report import Report
from rig import Rig
from sdk import Request, Sdk
from stream import PATHS, USAGE
from transparency import compare, equal_texts, send

REQUESTS = [known for known in KNOWN if known[0] in PATHS]


async def check(fleet: Fleet, report: Report, rig: Rig) -> None:
    """Runs all checks of this module, on one backend, because two backends have different caches."""
    backend = fleet.backends[:1]
    with_usage = [(api, prompt, body | USAGE) for api, prompt, body in REQUESTS]
    expected_with_usage = [await send(backend[0], *request) for request in with_usage]
    tokens = [stream.usage()["completion_tokens"] for stream in expected_with_usage]
    async with rig.fleet("usage", backend) as inject:
        await check_counts(inject, report)
        await check_events(inject, report, "usage not requested", REQUESTS)
        await check_events(inject, report, "usage requested", with_usage)
    async with rig.fleet("passive", backend, "--usage", "passive") as passive:
        await check_events(passive, report, "usage passive", REQUESTS)
        await check_estimates(passive, report, tokens)


async def check_counts(fleet: Fleet, report: Report) -> None:
    """The official client gets no usage, and the gateway has the counts of the engine."""
    step, sdk, before = "usage not requested", Sdk(fleet.gateway, "no-usage"), await fleet.settled()
    requests = [Request(api, prompt, True, body, wants_usage=False) for api, prompt, body in REQUESTS]
    responses = [await sdk.send(request) for request in requests]
    counted = (await fleet.settled()).since(before)
    lines = await fleet.log.lines_of([response.request_id for response in responses])
    with_usage = [response.request_id for response in responses if response.output is not None]
    report.equal(step, "clients that got usage", with_usage, [])
    sources = {line["usage"] for line in lines.values()}
    report.equal(step, "source of the gateway's counts", sources, {"exact"})
    for kind, engine in (("input", "prompt_tokens"), ("output", "generation_tokens")):
        gateway = sum(line[f"{kind}_tokens"] or 0 for line in lines.values())
        what = f"{kind} tokens, gateway = engine"
        report.equal(step, what, gateway, round(counted.engine[engine]))


async def check_events(fleet: Fleet, report: Report, step: str, requests: list) -> None:
    """A client gets the same events with and without the gateway, however the server divides the text into events."""
    pairs = [await compare(fleet.gateway, fleet.backends[0], request) for request in requests]
    wrong = [pair for pair in pairs if not equal_texts(*pair)]
    report.check(step, "events with and without the gateway", not wrong, wrong[:1] or len(pairs))


async def check_estimates(fleet: Fleet, report: Report, tokens: list[int]) -> None:
    """The error of estimates against the engine's counts for the same responses."""
    step, errors, sources = "usage passive", [], set()
    for request, expected in zip(REQUESTS, tokens):
        before = estimated(fleet)
        stream = await send(fleet.gateway, *request)
        line = (await fleet.log.lines_of([stream.request_id]))[stream.request_id]
        sources.add(line["usage"])
        errors.append((estimated(fleet) - before) / expected - 1)
    report.equal(step, "source of the gateway's counts", sources, {"estimated"})
    shown = ", ".join(f"{error:+.0%}" for error in errors)
    mean = fmean(abs(error) for error in errors)
    report.note(step, "error of the estimates", f"mean {mean:.1%} ({shown})")


def estimated(fleet: Fleet) -> float:
    """Output tokens that the gateway has estimated so far."""
    return fleet.page().total("tokenweir_estimated_output_tokens_total")
