"""Whole answers: what the official client saw of each request against the gateway's line for it,
and the sums of all against the engines' own counters."""

import asyncio
import http.client
import json
import random
from collections import Counter
from urllib.parse import urlsplit

import openai

from fleet import Fleet, FrontEnd, Totals
from report import Report, percentile, show, spread
from sdk import MODEL, Ask, Sdk, Seen

CLIENTS = 16
# The client's time begins when its connection sends, the gateway's when it has read the head. On a
# quiet machine they agree to the target. Beyond the limit it is not the machine any more.
TTFT_TARGET_MS = 2.0
TTFT_LIMIT_MS = 10.0

GREEDY = {"temperature": 0}
THINK = GREEDY | {"chat_template_kwargs": {"enable_thinking": True}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]

# Shape, prompt, what is asked for besides.
KNOWN = [
    ("chat", "hello", GREEDY),
    ("chat", "count", GREEDY),
    ("chat", "emoji", GREEDY),
    ("chat", "think hard", THINK),
    ("chat", "weather in Paris", GREEDY | {"tools": TOOLS}),
    ("chat", "count", GREEDY | {"max_tokens": 7}),
    ("completions", "The router", GREEDY | {"max_tokens": 40}),
    ("responses", "hello", GREEDY),
    ("responses", "count", GREEDY | {"max_tokens": 9}),
]


async def check(fleet: Fleet, report: Report) -> None:
    """Everything of this module."""
    known = known_asks(fleet.front_end)
    expected = await straight(fleet.replicas[0], known)
    sdk = Sdk(fleet.gateway, "warm")
    for ask in known:
        await sdk.ask(ask)
    before = await fleet.settled()
    seen = await one_at_a_time(fleet, report, known, expected)
    seen += await side_by_side(fleet, report, known, expected)
    after = await fleet.settled()
    check_totals(report, seen, after.since(before))
    if fleet.front_end.has_choices:
        await check_choices(fleet, report)
    await check_errors(fleet, report)


def known_asks(front_end: FrontEnd) -> list[Ask]:
    """Those that are served, whole and streamed."""
    served = [known for known in KNOWN if known[0] != "responses" or front_end.has_responses]
    return [Ask(api, prompt, each, body) for api, prompt, body in served for each in (False, True)]


async def straight(replica: str, asks: list[Ask]) -> dict[str, str]:
    """What a replica answers without a gateway."""
    sdk = Sdk(replica, "straight")
    return {identity(ask): (await sdk.ask(ask)).text for ask in asks if not ask.stream}


def identity(ask: Ask) -> str:
    """Requests of one identity have one answer, streamed or whole."""
    return json.dumps([ask.api, ask.prompt, ask.body], sort_keys=True)


async def one_at_a_time(fleet, report, known, expected) -> list[Seen]:
    """Nothing else runs: here the times of the two clocks are compared most closely."""
    sdk, dice = Sdk(fleet.gateway, "single"), random.Random(1)
    asks = known * 3 + [of_any_length(dice, stream=True) for _ in range(20)]
    seen = [await sdk.ask(ask) for ask in asks]
    await check_lines(fleet, report, "single", seen, expected)
    return seen


async def side_by_side(fleet, report, known, expected) -> list[Seen]:
    """Clients that each send one request after the other."""
    sdk, dice = Sdk(fleet.gateway, "many"), random.Random(2)
    asks = known * 2 + [of_any_length(dice, dice.random() < 0.8) for _ in range(92)]
    dice.shuffle(asks)

    async def client() -> list[Seen]:
        seen = []
        while asks:
            seen.append(await sdk.ask(asks.pop()))
        return seen

    clients = await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seen = [one for client in clients for one in client]
    await check_lines(fleet, report, f"{CLIENTS} clients", seen, expected)
    return seen


def of_any_length(dice: random.Random, stream: bool) -> Ask:
    """A generation whose length is known before, on a prompt that no cache has."""
    prompt = " ".join(dice.choices(["cache", "router", "span", "queue"], k=dice.randint(1, 40)))
    body = {"max_tokens": dice.randint(1, 200), "ignore_eos": True, "temperature": 1.0}
    return Ask(dice.choice(["chat", "completions"]), prompt, stream, body)


async def check_lines(fleet, report, step, seen: list[Seen], expected: dict[str, str]) -> None:
    """The gateway's line of each request says what its client saw."""
    lines = await fleet.log.of([one.request_id for one in seen])
    check_each(report, step, seen, lines)
    known = [one for one in seen if one.ask.is_known]
    wrong = [one.request_id for one in known if one.text != expected[identity(one.ask)]]
    report.check(step, "known answers", not wrong, wrong[:3] or len(known))
    used = Counter(lines[one.request_id]["backend"] for one in seen)
    is_shared = len(used) == len(fleet.replicas)
    report.check(step, "every replica had requests", is_shared, show(used))
    timed = [(one, lines[one.request_id]["ttft_ms"]) for one in seen if one.first_output]
    check_ttft(report, step, "client", [one.ttft_ms(one.sent) - ours for one, ours in timed])
    sdk = spread([one.ttft_ms(one.called) - ours for one, ours in timed])
    report.note(step, "TTFT, call of the SDK - gateway", sdk)


def check_each(report: Report, step: str, seen: list[Seen], lines: dict) -> None:
    """Every answer and its line agree."""
    wrong = [text for one in seen for text in differences(one, lines[one.request_id])]
    shown = "; ".join(wrong[:3]) or len(seen)
    report.check(step, "finish, usage, outcome of each", not wrong, shown)


def differences(seen: Seen, line: dict) -> list[str]:
    """Where an answer and its line do not agree, in words."""
    pairs = {
        "status": (200, line["status"]),
        "outcome": ("ok", line["outcome"]),
        "stream": (seen.ask.stream, line["stream"]),
        "finish": ([seen.finish[index] for index in sorted(seen.finish)], line["finish"]),
        "usage": ("exact", line["usage"]),
        "input": (seen.input, line["input_tokens"]),
        "output": (seen.output, line["output_tokens"]),
        "cached": (seen.cached or 0, line["cached_tokens"] or 0),
        "ttft": (seen.first_output is not None, line["ttft_ms"] is not None),
    }
    return [
        f"{seen.request_id} {name}: client {theirs}, gateway {ours}"
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]


def check_ttft(
    report: Report, step: str, other: str, gaps: list[float], limit: float = TTFT_LIMIT_MS
) -> None:
    """The other's TTFT less the gateway's."""
    late = percentile([abs(gap) for gap in gaps], 0.95)
    target = "within" if late <= TTFT_TARGET_MS else "beyond"
    what = f"TTFT, {other} - gateway (limit {limit:g} ms)"
    seen = f"{spread(gaps)}; {target} the target of {TTFT_TARGET_MS:g} ms"
    report.check(step, what, late <= limit, seen)


def check_totals(report: Report, seen: list[Seen], counted: Totals) -> None:
    """Clients, gateway and engines count the same tokens and ends."""
    report.note("totals", "of", f"{len(seen)} requests with one choice and usage, all whole")
    report.note("totals", "not of", "n = 2 (below); warm-up, errors, cancels (no usage)")
    for kind, engine, ours in (
        ("input", "prompt_tokens", "input"),
        ("output", "generation_tokens", "output"),
        ("cached", "prompt_tokens_cached", "cached_input"),
    ):
        count, at_clients = counted.tokens[ours], sum(getattr(one, kind) or 0 for one in seen)
        report.equal("totals", f"{kind} tokens, gateway = engines", count, counted.engine[engine])
        report.equal("totals", f"{kind} tokens, gateway = clients", count, at_clients)
    report.equal("totals", "finish, gateway = engines", *finishes(counted))
    report.equal("totals", "requests, gateway = clients", +counted.outcome, Counter(ok=len(seen)))


def finishes(counted: Totals) -> tuple[Counter, Counter]:
    """What the gateway and the engines counted. A tool call is a stop to the engine."""
    words = Counter(counted.finish)
    words["stop"] += words.pop("tool_calls", 0)
    return +words, +counted.engine_finish


async def check_choices(fleet: Fleet, report: Report) -> None:
    """Two choices for one prompt. The engine counts the prompt for each of them, usage once."""
    step, sdk, before = "n = 2", Sdk(fleet.gateway, "choices"), await fleet.settled()
    body = {"n": 2, "max_tokens": 30, "ignore_eos": True, "temperature": 1.0}
    shapes = [(api, stream) for api in ("chat", "completions") for stream in (False, True)]
    seen = [await sdk.ask(Ask(api, "hello", stream, body)) for api, stream in shapes]
    check_each(report, step, seen, await fleet.log.of([one.request_id for one in seen]))
    counted = (await fleet.settled()).since(before)
    tokens, engine = counted.tokens, counted.engine
    twice, output = 2 * tokens["input"], tokens["output"]
    report.equal(step, "input tokens twice, gateway = engines", twice, engine["prompt_tokens"])
    report.equal(step, "output tokens, gateway = engines", output, engine["generation_tokens"])
    report.equal(step, "finish, gateway = engines", *finishes(counted))


async def check_errors(fleet: Fleet, report: Report) -> None:
    """A refusal has the same status with and without the gateway, and has a line."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": MODEL, "messages": messages}
    for what, path, content in (
        ("unknown model", "/v1/chat/completions", body | {"model": "nope"}),
        ("too many tokens", "/v1/chat/completions", body | {"max_tokens": 1_000_000}),
        ("no messages", "/v1/chat/completions", {"model": MODEL}),
        ("bad JSON", "/v1/chat/completions", b'{"model": "tiny", '),
        ("empty body", "/v1/completions", b""),
        ("unknown path", "/v1/nope", body),
    ):
        if what == "too many tokens" and not fleet.front_end.has_limits:
            continue
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        request_id = f"error-{what.replace(' ', '-')}"
        status, answer = post(fleet.gateway, path, raw, request_id)
        bare_status, bare = post(fleet.replicas[0], path, raw, request_id)
        line = (await fleet.log.of([request_id]))[request_id]
        holds = status == bare_status == line["status"] and line["outcome"] == "client_error"
        same = "the replica's bytes" if answer == bare else "the gateway's words"
        report.check("errors", what, holds, f"{status}, {line['error']}, {same}")
    client = openai.AsyncOpenAI(base_url=f"{fleet.gateway}/v1", api_key="none", max_retries=0)
    try:
        await client.chat.completions.create(model="nope", messages=messages)
        raised = None
    except openai.APIStatusError as error:
        raised = type(error).__name__
    report.equal("errors", "exception of the SDK", raised, "NotFoundError")


def post(base: str, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """A request as raw as it comes, on a connection of its own."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=10)
    headers = {"content-type": "application/json", "x-request-id": request_id}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content
