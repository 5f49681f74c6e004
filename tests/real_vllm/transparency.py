"""Compares streams through a gateway that requests continuous usage for every stream with streams of a direct
connection, byte for byte. Only the id and the time of creation are normalised, because they differ between two
requests."""

import random
import re
from collections.abc import Iterator
from uuid import uuid4

from fleet import Fleet, FrontEnd
from merged import KINDS
from report import Report
from rig import Rig
from stream import Stream

REQUESTS = 250
# Bounds the time of the check; the tiny model seldom ends by itself.
MAX_TOKENS = 120
# A busy server divides the same text into other events. So each request is repeated, up to this number of times.
ATTEMPTS = 10

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]
THINK = {"chat_template_kwargs": {"enable_thinking": True}}
PROMPTS = [
    ("chat", "hello", {}),
    ("chat", "count", {}),
    ("chat", "count", {"max_tokens": 5}),
    ("chat", "count", {"stop": ["five"]}),
    ("chat", "emoji", {}),
    ("chat", "think hard", THINK),
    ("chat", "weather in Paris", {"tools": TOOLS}),
    ("chat", "weather in Paris", {"tools": TOOLS, "tool_choice": "required"}),
    ("chat", "hello", {"logprobs": True, "top_logprobs": 2}),
    ("chat", "hello", {"return_token_ids": True}),
    ("completions", "The router", {"max_tokens": 30}),
    ("completions", "The router", {"max_tokens": 9, "logprobs": 1}),
]
# Only vLLM's Python front end serves several choices.
CHOICES = [
    ("chat", "hello", {"n": 2, "max_tokens": 12, "temperature": 1.0}),
    ("completions", "The router", {"n": 3, "max_tokens": 9, "temperature": 1.0}),
    ("completions", ["The router", "A cache"], {"max_tokens": 9}),
]
USAGE_REQUESTS = [
    {},
    {"stream_options": None},
    {"stream_options": {}},
    {"stream_options": {"include_usage": False}},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
VOLATILE = re.compile(rb'"(id|created)":(?:"[^"]*"|\d+)')
CHOICE = re.compile(rb'"choices":\[{"index":(\d+)')
TEXT = re.compile(rb'"(content|reasoning|text|arguments|delta)":"((?:[^"\\]|\\.)*)"')
COUNT = re.compile(rb'"(total_tokens|completion_tokens|reasoning_tokens)":\d+')
# The Responses API numbers its events.
SEQUENCE = re.compile(rb'"sequence_number":\d+')
# Lists with one entry for each token.
DIVIDED = re.compile(rb'"(content|token_ids|tokens|token_logprobs|top_logprobs|text_offset)":\[.*?\](?=,"|})')
# The log probabilities of chat, with nested lists.
LOGPROBS = re.compile(rb'"logprobs":{"content":\[.*?\]}(?=,"finish_reason")')


async def check(fleet: Fleet, report: Report, rig: Rig) -> None:
    """Runs the check against the first backend of the fleet."""
    await check_backend(rig, report, fleet.backends[0], "byte for byte", REQUESTS)


async def check_merged(rig: Rig, report: Report) -> None:
    """Runs the check against backends whose events have several tokens."""
    for kind, arguments in KINDS.items():
        async with rig.backend(*arguments) as backend:
            # Speculative sampling is not repeatable, whatever the seed.
            is_greedy = kind == "speculative"
            await check_backend(rig, report, backend.url, f"byte for byte, {kind}", REQUESTS // 5, is_greedy)


async def check_backend(
    rig: Rig, report: Report, backend: str, step: str, count: int, is_greedy: bool = False
) -> None:
    """Sends each request to the backend and through a gateway, one after the other."""
    config = rig.work / "transparency.yaml"
    config.write_text("continuous_usage: 1\n")
    async with rig.fleet("transparency", [backend], "--config", str(config)) as fleet:
        requests = list(mixed_requests(rig.front_end, count, is_greedy))
        # The first stream of each API shows how the server writes usage.
        for api in ("chat", "completions"):
            await send(fleet.gateway, api, "hello", {"max_tokens": 2})
        equal, divided, wrong = 0, 0, []
        for request in requests:
            through, direct = await compare(fleet.gateway, backend, request)
            if through & direct:
                equal += 1
            elif equal_texts(through, direct):
                divided += 1
            else:
                wrong.append((request, min(through), min(direct)))
        shown = [f"{len(wrong)} differ", wrong[0]] if wrong else equal
        report.check(step, "streams with and without the gateway", not wrong, shown)
        report.note(step, "equal except for the division of text into events", divided)
        page = fleet.page()
        per_event = page.total("tokenweir_chunk_tokens_sum") / page.total("tokenweir_chunk_tokens_count")
        report.note(step, "tokens per event that the gateway counted", f"{per_event:.2f}")
        results = page.by("tokenweir_usage_events_total", "result")
        report.equal(step, "usage that was not removed", results["not_removed"], 0)


def mixed_requests(front_end: FrontEnd, count: int, is_greedy: bool) -> Iterator[tuple[str, str | list, dict]]:
    """Requests of all shapes, at random. A fixed seed gives the same requests."""
    rng = random.Random(25)
    prompts = PROMPTS + (CHOICES if front_end.has_choices else [])
    if is_greedy:
        prompts = [prompt for prompt in prompts if "temperature" not in prompt[2]]
    for _ in range(count):
        api, prompt, body = rng.choice(prompts)
        yield api, prompt, {"temperature": 0, "seed": 1, "max_tokens": MAX_TOKENS} | body | rng.choice(USAGE_REQUESTS)


async def compare(gateway: str, backend: str, request: tuple) -> tuple[set[bytes], set[bytes]]:
    """The responses through the gateway and the direct ones. The request is repeated until one is equal."""
    through, direct = set(), set()
    for _ in range(ATTEMPTS):
        direct.add(canonical(await send(backend, *request)))
        through.add(canonical(await send(gateway, *request)))
        if through & direct:
            break
    return through, direct


def equal_texts(through: set[bytes], direct: set[bytes]) -> bool:
    """Whether one response is equal to a direct one except for the division of text into events."""
    return any(skeletons(one) == skeletons(other) for one in through for other in direct)


async def send(base: str, api: str, prompt: str | list, body: dict) -> Stream:
    """Sends one request and reads its stream."""
    return await Stream(base, str(uuid4()), api, prompt, body).read()


def canonical(stream: Stream) -> bytes:
    """The bytes of the response without the values that differ between two requests. The ids of tool calls are among
    them."""
    content = b"".join(chunk for _, chunk in stream.chunks)
    return b"%d\n\n" % stream.status + VOLATILE.sub(rb'"\1":0', content)


def skeletons(content: bytes) -> dict[bytes, tuple[list[bytes], bytes]]:
    """For each choice the bytes of its events without their texts and counts, without repetitions, and all texts
    together. They are the same however the server divides the text into events."""
    found: dict[bytes, tuple[list[bytes], bytes]] = {}
    for block in content.split(b"\n\n"):
        choice = CHOICE.search(block)
        name = choice.group(1) if choice else b"stream"
        events, text = found.get(name, ([], b""))
        text += b"".join(value for _, value in TEXT.findall(block))
        event = DIVIDED.sub(rb'"\1":[]', TEXT.sub(rb'"\1":""', LOGPROBS.sub(b'"logprobs":{}', block)))
        event = SEQUENCE.sub(b'"sequence_number":0', event)
        # The last event has the last text, or none.
        event = event.replace(b'"delta":{"content":""}', b'"delta":{}')
        event = COUNT.sub(rb'"\1":0', event) if choice else event
        found[name] = ([*events, event] if event not in events[-1:] else events, text)
    return found
