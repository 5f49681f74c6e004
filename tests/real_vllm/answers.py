"""Complete responses: compares the observations of the official OpenAI client with the gateway's access log for
each request, and the sums with the counters of the engines."""

import asyncio
import http.client
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import openai

from fleet import Fleet, FrontEnd, Totals
from report import Report, percentile, show, spread
from sdk import MODEL, Request, Response, Sdk

CLIENTS = 16
# The client's TTFT begins when its connection sends the request, the gateway's when it has read the request
# head. On an idle machine they differ by less than the target. A difference above the limit is an error, after the
# time by which this process runs late, once for the client and once for the gateway, has been added.
TTFT_TARGET_MS = 2.0
TTFT_LIMIT_MS = 10.0
LATENESS_STEP_SECONDS = 0.005

GREEDY = {"temperature": 0}
THINK = GREEDY | {"chat_template_kwargs": {"enable_thinking": True}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]

# API, prompt, additional fields of the body.
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
    """Runs all checks of this module."""
    known = known_requests(fleet.front_end)
    expected = await direct_texts(fleet.backends[0], known)
    sdk = Sdk(fleet.gateway, "warm")
    for request in known:
        await sdk.send(request)
    before = await fleet.settled()
    responses = await check_sequential(fleet, report, known, expected)
    responses += await check_concurrent(fleet, report, known, expected)
    after = await fleet.settled()
    check_totals(report, responses, after.since(before))
    if fleet.front_end.has_choices:
        await check_choices(fleet, report)
    await check_errors(fleet, report)


def known_requests(front_end: FrontEnd) -> list[Request]:
    """The requests of KNOWN that the front end serves, with and without a stream."""
    served = [known for known in KNOWN if known[0] != "responses" or front_end.has_responses]
    return [Request(api, prompt, stream, body) for api, prompt, body in served for stream in (False, True)]


async def direct_texts(backend: str, requests: list[Request]) -> dict[str, str]:
    """The texts of a backend's responses without a gateway."""
    sdk = Sdk(backend, "direct")
    return {identity(request): (await sdk.send(request)).text for request in requests if not request.stream}


def identity(request: Request) -> str:
    """Requests with the same identity have the same text, with or without a stream."""
    return json.dumps([request.api, request.prompt, request.body], sort_keys=True)


@asynccontextmanager
async def lateness() -> AsyncIterator[list[float]]:
    """Collects by how many milliseconds this process runs late, for the duration of the context."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(LATENESS_STEP_SECONDS)
            late.append((time.perf_counter() - begin - LATENESS_STEP_SECONDS) * 1e3)

    task = asyncio.create_task(watch())
    try:
        yield late
    finally:
        task.cancel()


async def check_sequential(fleet, report, known, expected) -> list[Response]:
    """One request at a time. Without other load, the times of client and gateway agree best."""
    sdk, rng = Sdk(fleet.gateway, "single"), random.Random(1)
    requests = known * 3 + [random_request(rng, stream=True) for _ in range(20)]
    async with lateness() as late:
        responses = [await sdk.send(request) for request in requests]
    await check_lines(fleet, report, "single", responses, expected, late)
    return responses


async def check_concurrent(fleet, report, known, expected) -> list[Response]:
    """Concurrent clients, each with one request at a time."""
    sdk, rng = Sdk(fleet.gateway, "many"), random.Random(2)
    requests = known * 2 + [random_request(rng, rng.random() < 0.8) for _ in range(92)]
    rng.shuffle(requests)

    async def client() -> list[Response]:
        responses = []
        while requests:
            responses.append(await sdk.send(requests.pop()))
        return responses

    async with lateness() as late:
        clients = await asyncio.gather(*(client() for _ in range(CLIENTS)))
    responses = [response for client in clients for response in client]
    await check_lines(fleet, report, f"{CLIENTS} clients", responses, expected, late)
    return responses


def random_request(rng: random.Random, stream: bool) -> Request:
    """A request with a random prompt, which is not cached, and a fixed output length."""
    prompt = " ".join(rng.choices(["cache", "router", "span", "queue"], k=rng.randint(1, 40)))
    body = {"max_tokens": rng.randint(1, 200), "ignore_eos": True, "temperature": 1.0}
    return Request(rng.choice(["chat", "completions"]), prompt, stream, body)


async def check_lines(
    fleet, report, step, responses: list[Response], expected: dict[str, str], late: list[float]
) -> None:
    """The access log line of each request agrees with the response at its client."""
    lines = await fleet.log.lines_of([response.request_id for response in responses])
    check_each(report, step, responses, lines)
    known = [response for response in responses if response.request.is_known]
    wrong = [response.request_id for response in known if response.text != expected[identity(response.request)]]
    report.check(step, "known texts", not wrong, wrong[:3] or len(known))
    used = Counter(lines[response.request_id]["backend"] for response in responses)
    is_shared = len(used) == len(fleet.backends)
    report.check(step, "every backend had requests", is_shared, show(used))
    timed = [(response, lines[response.request_id]["ttft_ms"]) for response in responses if response.first_output]
    between = [response.ttft_ms(response.sent) - gateway for response, gateway in timed]
    check_ttft(report, step, "client", between, TTFT_LIMIT_MS + 2 * percentile(late, 0.95))
    sdk = spread([response.ttft_ms(response.called) - gateway for response, gateway in timed])
    report.note(step, "TTFT, call of the SDK - gateway", sdk)


def check_each(report: Report, step: str, responses: list[Response], lines: dict) -> None:
    """Every response agrees with its access log line."""
    wrong = [text for response in responses for text in differences(response, lines[response.request_id])]
    shown = "; ".join(wrong[:3]) or len(responses)
    report.check(step, "finish, usage, outcome of each", not wrong, shown)


def differences(response: Response, line: dict) -> list[str]:
    """The differences between a response and its access log line, as text."""
    pairs = {
        "status": (200, line["status"]),
        "outcome": ("ok", line["outcome"]),
        "stream": (response.request.stream, line["stream"]),
        "finish": ([response.finish[index] for index in sorted(response.finish)], line["finish"]),
        "usage": ("exact", line["usage"]),
        "input": (response.input, line["input_tokens"]),
        "output": (response.output, line["output_tokens"]),
        "cached": (response.cached or 0, line["cached_tokens"] or 0),
        "ttft": (response.first_output is not None, line["ttft_ms"] is not None),
    }
    return [
        f"{response.request_id} {name}: client {client}, gateway {gateway}"
        for name, (client, gateway) in pairs.items()
        if client != gateway
    ]


def check_ttft(
    report: Report, step: str, other: str, differences: list[float], limit: float = TTFT_LIMIT_MS
) -> None:
    """Checks the p95 of the absolute differences between another TTFT and the gateway's, in milliseconds."""
    p95 = percentile([abs(difference) for difference in differences], 0.95)
    target = "within" if p95 <= TTFT_TARGET_MS else "above"
    what = f"TTFT, {other} - gateway (limit {limit:.1f} ms)"
    shown = f"{spread(differences)}; {target} the target of {TTFT_TARGET_MS:g} ms"
    report.check(step, what, p95 <= limit, shown)


def check_totals(report: Report, responses: list[Response], counted: Totals) -> None:
    """Clients, gateway and engines count the same tokens and finish reasons."""
    report.note("totals", "included", f"{len(responses)} complete requests with one choice and usage")
    report.note("totals", "not included", "n = 2 (below); warm-up, errors, cancelled requests (no usage)")
    for kind, engine, gateway in (
        ("input", "prompt_tokens", "input"),
        ("output", "generation_tokens", "output"),
        ("cached", "prompt_tokens_cached", "cached_input"),
    ):
        count = counted.tokens[gateway]
        client_count = sum(getattr(response, kind) or 0 for response in responses)
        report.equal("totals", f"{kind} tokens, gateway = engines", count, counted.engine[engine])
        report.equal("totals", f"{kind} tokens, gateway = clients", count, client_count)
    report.equal("totals", "finish, gateway = engines", *finishes(counted))
    report.equal("totals", "requests, gateway = clients", +counted.outcome, Counter(ok=len(responses)))


def finishes(counted: Totals) -> tuple[Counter, Counter]:
    """The finish reasons of the gateway and of the engines. The engine counts a tool call as a stop."""
    reasons = Counter(counted.finish)
    reasons["stop"] += reasons.pop("tool_calls", 0)
    return +reasons, +counted.engine_finish


async def check_choices(fleet: Fleet, report: Report) -> None:
    """Two choices for one prompt. The engine counts the prompt once per choice, usage counts it once."""
    step, sdk, before = "n = 2", Sdk(fleet.gateway, "choices"), await fleet.settled()
    body = {"n": 2, "max_tokens": 30, "ignore_eos": True, "temperature": 1.0}
    shapes = [(api, stream) for api in ("chat", "completions") for stream in (False, True)]
    responses = [await sdk.send(Request(api, "hello", stream, body)) for api, stream in shapes]
    lines = await fleet.log.lines_of([response.request_id for response in responses])
    check_each(report, step, responses, lines)
    counted = (await fleet.settled()).since(before)
    tokens, engine = counted.tokens, counted.engine
    twice, output = 2 * tokens["input"], tokens["output"]
    report.equal(step, "2 × input tokens, gateway = engines", twice, engine["prompt_tokens"])
    report.equal(step, "output tokens, gateway = engines", output, engine["generation_tokens"])
    report.equal(step, "finish, gateway = engines", *finishes(counted))


async def check_errors(fleet: Fleet, report: Report) -> None:
    """An error has the same status with and without the gateway, and has an access log line."""
    messages = [{"role": "user", "content": "hello"}]
    valid = {"model": MODEL, "messages": messages}
    for what, path, body in (
        ("unknown model", "/v1/chat/completions", valid | {"model": "nope"}),
        ("too many tokens", "/v1/chat/completions", valid | {"max_tokens": 1_000_000}),
        ("no messages", "/v1/chat/completions", {"model": MODEL}),
        ("bad JSON", "/v1/chat/completions", b'{"model": "tiny", '),
        ("empty body", "/v1/completions", b""),
        ("unknown path", "/v1/nope", valid),
    ):
        if what == "too many tokens" and not fleet.front_end.has_limits:
            continue
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request_id = f"error-{what.replace(' ', '-')}"
        status, content = post(fleet.gateway, path, raw, request_id)
        direct_status, direct = post(fleet.backends[0], path, raw, request_id)
        line = (await fleet.log.lines_of([request_id]))[request_id]
        holds = status == direct_status == line["status"] and line["outcome"] == "client_error"
        same = "the backend's body" if content == direct else "the gateway's body"
        report.check("errors", what, holds, f"{status}, {line['error']}, {same}")
    client = openai.AsyncOpenAI(base_url=f"{fleet.gateway}/v1", api_key="none", max_retries=0)
    try:
        await client.chat.completions.create(model="nope", messages=messages)
        raised = None
    except openai.APIStatusError as error:
        raised = type(error).__name__
    report.equal("errors", "exception of the SDK", raised, "NotFoundError")


def post(base: str, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
    """Sends a body as it is, on its own connection. Returns status and body of the response."""
    connection = http.client.HTTPConnection(urlsplit(base).netloc, timeout=10)
    headers = {"content-type": "application/json", "x-request-id": request_id}
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content
