"""Compares streams that the official Python SDKs of OpenAI and Anthropic read through a gateway, which requests
continuous usage for every stream, with streams that they read directly: the bytes on the wire and the events that the
SDK made of them."""

import importlib
import importlib.util
import random
from collections import Counter

import anthropic
import httpx
import openai
from fleet import Fleet
from report import Report
from rig import Rig
from transparency import ATTEMPTS, THINK, TOOLS, VOLATILE, skeletons

REQUESTS = 250
ANTHROPIC_HTTP = importlib.import_module("httpx2") if importlib.util.find_spec("httpx2") else httpx
HELLO = [{"role": "user", "content": "hello"}]
COUNT = [{"role": "user", "content": "count"}]
WEATHER = [{"role": "user", "content": "weather in Paris"}]
USAGE = {"stream_options": {"include_usage": True}}
FIXED = {"temperature": 0, "seed": 1}
GREEDY = {"extra_body": {"temperature": 0}}
# The API and the arguments of the SDK for each request. The last part of the API's name is the method.
SHAPES = [
    ("openai.chat", {"messages": HELLO, "max_tokens": 20, **FIXED}),
    ("openai.chat", {"messages": COUNT, "max_tokens": 24, **FIXED, **USAGE}),
    ("openai.chat", {"messages": COUNT, "max_tokens": 5, **FIXED}),
    ("openai.chat", {"messages": WEATHER, "tools": TOOLS, **FIXED, **USAGE}),
    ("openai.chat", {"messages": COUNT, "extra_body": THINK, "max_tokens": 24, **FIXED}),
    ("openai.chat", {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "max_tokens": 8, **FIXED}),
    ("openai.completions", {"prompt": "The router", "max_tokens": 16, **FIXED}),
    ("openai.completions", {"prompt": "The router", "max_tokens": 9, **FIXED, **USAGE}),
    ("openai.responses", {"input": "hello", "max_output_tokens": 16, "temperature": 0}),
    ("anthropic.messages", {"messages": HELLO, "max_tokens": 16, **GREEDY}),
    ("anthropic.messages", {"messages": COUNT, "max_tokens": 24, **GREEDY}),
]


class Tee:
    """An HTTP client of a module like httpx that keeps the bytes of the last response body."""

    def __init__(self, module):
        self.content = b""
        tee = self

        class Recorded(module.AsyncByteStream):
            """The body that the SDK reads."""

            def __init__(self, inner):
                self.inner = inner

            async def __aiter__(self):
                async for chunk in self.inner:
                    tee.content += chunk
                    yield chunk

            async def aclose(self) -> None:
                """Closes the response."""
                await self.inner.aclose()

        class Transport(module.AsyncHTTPTransport):
            """A transport that records bodies while the SDK reads them."""

            async def handle_async_request(self, request):
                """Sends the request."""
                response = await super().handle_async_request(request)
                tee.content = b""
                response.stream = Recorded(response.stream)
                return response

        self.client = module.AsyncClient(transport=Transport(), timeout=300)


class Clients:
    """Both SDKs for one server."""

    def __init__(self, base: str):
        # Each SDK accepts clients of its own HTTP library only.
        self.tees = {"openai": Tee(httpx), "anthropic": Tee(ANTHROPIC_HTTP)}
        options = {"api_key": "none", "max_retries": 0}
        openai_client = openai.AsyncOpenAI(
            base_url=f"{base}/v1", http_client=self.tees["openai"].client, **options)
        anthropic_client = anthropic.AsyncAnthropic(
            base_url=base, http_client=self.tees["anthropic"].client, **options)
        self.methods = {
            "openai.chat": openai_client.chat.completions.create,
            "openai.completions": openai_client.completions.create,
            "openai.responses": openai_client.responses.create,
            "anthropic.messages": anthropic_client.messages.create,
        }

    async def send(self, api: str, arguments: dict) -> tuple[bytes, int]:
        """Reads a stream to its end. Returns its bytes without ids and times, and the number of events of the SDK."""
        stream = await self.methods[api](model="tiny", stream=True, **arguments)
        events = 0
        async for event in stream:
            event.model_dump_json()
            events += 1
        return canonical(self.tees[api.partition(".")[0]].content), events


def canonical(content: bytes) -> bytes:
    """The bytes without the values that differ between two requests."""
    content = VOLATILE.sub(rb'"\1":0', content)
    for name in (b"item_id", b"created_at", b"completed_at", b"call_id"):
        parts = content.split(b'"' + name + b'":')
        content = (b'"' + name + b'":0,').join(
            [parts[0], *(part.partition(b",")[2] for part in parts[1:])])
    return content


async def check(fleet: Fleet, report: Report, rig: Rig, count: int = REQUESTS) -> None:
    """Sends requests of all shapes with the SDKs, directly and through a gateway."""
    config = rig.work / "official_sdks.yaml"
    config.write_text("continuous_usage: 1\n")
    step, backend = "official SDKs", fleet.backends[0]
    async with rig.fleet("official_sdks", [backend], "--config", str(config)) as gateway:
        through, direct = Clients(gateway.gateway), Clients(backend)
        for api, arguments in SHAPES[:1] + SHAPES[6:7]:
            await through.send(api, arguments)
        rng, results, wrong = random.Random(25), Counter(), []
        # vLLM's Rust front end serves only these two APIs.
        is_python = fleet.front_end.has_responses
        shapes = [it for it in SHAPES if is_python or it[0] in ("openai.chat", "openai.completions")]
        for _ in range(count):
            api, arguments = rng.choice(shapes)
            result = await compare(through, direct, api, arguments)
            results[f"{api}: {result}"] += 1
            if result == "differs":
                wrong.append((api, arguments))
        for name, number in sorted(results.items()):
            report.note(step, name, number)
        report.check(step, "streams with and without the gateway", not wrong, wrong[:1] or count)
        injected = gateway.page().by("tokenweir_usage_events_total", "result")
        report.note(step, "usage events removed", injected["stripped"])
        report.equal(step, "usage that was not removed", injected["not_removed"], 0)


async def compare(through: Clients, direct: Clients, api: str, arguments: dict) -> str:
    """Repeats the request until one response through the gateway equals a direct one."""
    with_gateway, without = set(), set()
    for _ in range(ATTEMPTS):
        without.add(await direct.send(api, arguments))
        with_gateway.add(await through.send(api, arguments))
        if with_gateway & without:
            return "byte-equal"
    divided = any(skeletons(one) == skeletons(other) for one, _ in with_gateway for other, _ in without)
    return "equal except for the division into events" if divided else "differs"
