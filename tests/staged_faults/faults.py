"""The staged faults. Each lasts as long as its context, and states which verdicts name it."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field

import certificates
from load import Load
from testbed import Options, Testbed

Begin = Callable[[Testbed], AbstractAsyncContextManager[None]]
# The cause of a note. The verdict that explains it is judged itself.
NOTE = "(follows from "


@dataclass(frozen=True)
class Fault:
    """A fault, the verdict that names it, and the verdicts that are also true."""

    name: str
    begin: Begin
    names: str
    """Pattern of `verdict subject (cause)` of the verdict that names the fault."""
    allowed: str = "$^"
    """Pattern of other verdicts that are true, because they are consequences of the fault."""
    options: Options = field(default_factory=Options)
    clients: int = 6
    """Clients of the load that runs before, during and after the fault."""
    request: dict = field(default_factory=lambda: {"words": 100, "tokens": 60, "pause": 0.4})

    def is_named_by(self, verdict: str) -> bool:
        """Whether a verdict names the fault."""
        return re.search(self.names, verdict) is not None

    def is_wrong(self, verdict: str) -> bool:
        """Whether a verdict is about something else."""
        return NOTE not in verdict and not self.is_named_by(verdict) and re.search(self.allowed, verdict) is None


FAULTS: list[Fault] = []


def fault(names: str, allowed: str = "$^", **others) -> Callable[[Begin], Begin]:
    """Registers a fault. Its name is the name of the function."""

    def add(function: Begin) -> Begin:
        name = function.__name__.replace("_", " ")
        FAULTS.append(Fault(name, asynccontextmanager(function), names, allowed, **others))
        return function

    return add


def add_fault(
    name: str, names: str, allowed: str = "$^", *, more: dict | None = None, relay: dict | None = None, **others
) -> None:
    """Registers a fault that only adds clients, or only sets fields of the relay, until it ends."""

    @asynccontextmanager
    async def begin(testbed: Testbed) -> AsyncIterator[None]:
        usual = {field: getattr(testbed.relay, field) for field in relay or {}}
        vars(testbed.relay).update(relay or {})
        async with testbed.load.more(**more) if more else nullcontext():
            yield
        vars(testbed.relay).update(usual)

    FAULTS.append(Fault(name, begin, names, allowed, **others))


SLOW = Options(last=["--slow-factor", "16", "--slow-after", "{warm}s"])


@fault(r"slow_engine gpu2", "backend_(down|ejected) gpu2", options=SLOW, clients=24)
async def slow_backend(testbed: Testbed) -> AsyncIterator[None]:
    """The engine of one backend becomes 16 times as slow as the others. At the end it is replaced by a fast one."""
    yield
    testbed.processes["gpu2"].restart(testbed.backend("gpu2"))


# A verdict that cannot tell which of two causes applies is not wrong.
UNDECIDED = r"prefill_starvation gpu. .cannot tell"
SMALL_BATCH = Options(sim=["--max-num-seqs", "4"])


# More concurrent requests than all engines together can run sequences.
add_fault("batch limit", r"prefill_starvation gpu. .the batch is at its limit", f"shedding|gateway_queue|{UNDECIDED}",
          options=SMALL_BATCH, more={"clients": 30, "words": 60, "tokens": 150, "pause": 0.1})


SMALL_CACHE = Options(sim=["--blocks", "160"])


# Sequences whose KV does not fit into the caches.
add_fault("kv thrash", r"kv_thrashing gpu", "shedding|gateway_queue|kv_backlog|stalls gpu. .its sequences are preempted",
          options=SMALL_CACHE, more={"clients": 40, "words": 60, "tokens": 300, "pause": 0.1})


@fault(r"backend_down gpu2 .*(accepts connections|does not respond|no response)", "stalls gpu2")
async def hang(testbed: Testbed) -> AsyncIterator[None]:
    """One backend is stopped like a frozen process."""
    testbed.processes["gpu2"].pause()
    yield
    testbed.processes["gpu2"].resume()


DRAINABLE = Options(
    sim=["--max-num-seqs", "4"], config={"admission": {"queue_capacity": 4, "max_wait": "2s"}}
)


@fault(r"backend_drained gpu1",
       "backend_drained gpu2|shedding|gateway_queue|prefill_starvation gpu0 .(the batch|cannot tell)",
       options=DRAINABLE, clients=12)
async def drained(testbed: Testbed) -> AsyncIterator[None]:
    """An operator drains two of three backends, and the third cannot carry the load."""
    testbed.admin("/-/drain?backend=gpu1")
    testbed.admin("/-/drain?backend=gpu2")
    async with testbed.load.more(24, words=60, tokens=80, pause=0.2):
        yield
    testbed.admin("/-/undrain?backend=gpu1")
    testbed.admin("/-/undrain?backend=gpu2")


@fault(r"backend_down gpu2 .*refused", "backend_failing gpu2 .most of its failures: it cuts its responses")
async def killed(testbed: Testbed) -> AsyncIterator[None]:
    """One backend is killed."""
    testbed.processes["gpu2"].kill()
    yield
    testbed.processes["gpu2"].start()


OVERLOADED = Options(
    sim=["--max-num-seqs", "4"], config={"admission": {"queue_capacity": 8, "max_wait": "2s"}}
)


# Three times as many requests as the backends can serve.
add_fault("overload", r"shedding all .*every backend is full",
          "gateway_queue|prefill_starvation gpu. .(the batch|cannot tell)",
          options=OVERLOADED, more={"clients": 90, "words": 60, "tokens": 100, "pause": 0.3})


@fault(r"slow_clients gateway")
async def client_slow(testbed: Testbed) -> AsyncIterator[None]:
    """Clients with a small receive buffer read 200 bytes per second of their streams."""
    readers = [asyncio.create_task(read_slowly(testbed)) for _ in range(8)]
    yield
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def read_slowly(testbed: Testbed) -> None:
    """Sends long requests, and reads their responses slowly."""
    loop = asyncio.get_running_loop()
    body = json.dumps({
        "model": testbed.model, "stream": True, "max_tokens": 3000, "ignore_eos": True,
        "messages": [{"role": "user", "content": "a long story"}],
    }).encode()
    lines = f"host: g\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{lines}"
    while True:
        # The gateway ends a stream that makes no progress during limits.write_timeout.
        with suppress(ConnectionError), socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.setblocking(False)
            await loop.sock_connect(connection, testbed.load.gateway)
            await loop.sock_sendall(connection, head.encode() + body)
            while await loop.sock_recv(connection, 200):
                await asyncio.sleep(1.0)


@fault(r"reload_failed gateway .*polcy")
async def bad_reload(testbed: Testbed) -> AsyncIterator[None]:
    """The configuration is reloaded with a mistake in it."""
    testbed.write_config(testbed.config() | {"routing": {"polcy": "p2c"}})
    testbed.processes["gateway"].reload()
    yield
    testbed.write_config(testbed.config())
    testbed.processes["gateway"].reload()


@fault(r"spans_lost gateway", options=Options(collector=True))
async def collector_gone(testbed: Testbed) -> AsyncIterator[None]:
    """The OpenTelemetry Collector is killed."""
    testbed.processes["collector"].kill()
    yield
    testbed.processes["collector"].start()


@fault(r"certificate_expires gateway .expired", options=Options(tls=True))
async def certificate_expired(testbed: Testbed) -> AsyncIterator[None]:
    """The certificate of the client listener is replaced by one that has expired."""
    certificates.write(testbed.work, *certificates.EXPIRED)
    yield
    certificates.write(testbed.work, *certificates.VALID)


# The relay delays responses a little, so kv_aware could avoid its backend. round_robin does not.
RELAYED = Options(relay=True, config={"routing": {"policy": "round_robin"}})
EJECTED = "backend_ejected gpu2"


# One backend answers 429 to each request.
add_fault("rate limited", r"backend_failing gpu2 .*429", EJECTED, options=RELAYED, relay={"status": "429 Too Many Requests"})


# One backend answers 401 to each request.
add_fault("key rotated", r"backend_failing gpu2 .*401", EJECTED, options=RELAYED, relay={"status": "401 Unauthorized"})


# One backend cuts 40 % of its streams.
add_fault("cut streams", r"backend_failing gpu2 .*(cuts|closes)", EJECTED, options=RELAYED, relay={"cut_share": 0.4})


# Each write of one backend arrives 80 ms late, and kv_aware routes around it.
add_fault("slow writes", r"front_end_gap gpu2", "backend_avoided gpu2", options=Options(relay=True),
          relay={"write_delay": 0.08})


LIMITED = Options(config={"admission": {"max_in_flight": 4}})


# `admission.max_in_flight` lets fewer requests through than there are clients, although the engines have free slots.
add_fault("limit too low", r"gateway_queue all .*max_in_flight", options=LIMITED,
          more={"clients": 60, "words": 60, "tokens": 150, "pause": 0.1})


# The metrics page of one backend does not change any more, although the backend serves.
add_fault("frozen metrics", r"blind gpu2 .*stands still", options=RELAYED, relay={"freezes_metrics": True})


# A proxy in front of one backend swallows inference requests.
add_fault("swallowed requests", r"stalls gpu2 .requests there get no first output", "backend_(down|ejected|failing|avoided) gpu2",
          options=Options(relay=True), relay={"swallows": True})


# A proxy in front of one backend sends each response at once when it is complete.
add_fault("buffering proxy", r"front_end_gap gpu2 .a proxy .* holds each response", "front_end_gap gpu2|backend_avoided gpu2", options=RELAYED,
          relay={"buffers": True})


# One engine repeats a token.
add_fault("repeated token", r"unusual_responses gpu2 .answers repeat", options=RELAYED, relay={"repeats": True})


@fault(r"shared_backend gpu2 .several engines", options=RELAYED)
async def load_balancer_url(testbed: Testbed) -> AsyncIterator[None]:
    """The URL of one backend becomes that of a load balancer over three engines."""
    testbed.relay.others = (testbed.port["gpu0"], testbed.port["gpu1"])
    yield
    testbed.relay.others = ()


@fault(r"shared_backend gpu1 .other clients", r"stalls gpu1 .its sequences are preempted",
       options=Options(sim=["--blocks", "2048"]))
async def other_clients(testbed: Testbed) -> AsyncIterator[None]:
    """A batch job sends its requests to one engine, and not through the gateway."""
    direct = Load(("127.0.0.1", testbed.port["gpu1"]))
    direct.start(120, words=100, tokens=300, pause=0.05)
    yield
    await direct.stop()


@fault(r"gateway_starved gateway", "stalls|front_end_gap|backend_avoided|slow_clients")
async def gateway_starved(testbed: Testbed) -> AsyncIterator[None]:
    """The gateway runs for 100 of 450 ms."""

    async def throttle() -> None:
        while True:
            testbed.processes["gateway"].pause()
            await asyncio.sleep(0.35)
            testbed.processes["gateway"].resume()
            await asyncio.sleep(0.1)

    throttling = asyncio.create_task(throttle())
    yield
    throttling.cancel()
    await asyncio.gather(throttling, return_exceptions=True)
    testbed.processes["gateway"].resume()


@fault(r"backend_restarting gpu2", "backend_(down|ejected|failing) gpu2")
async def crash_loop(testbed: Testbed) -> AsyncIterator[None]:
    """One backend dies every 15 s and starts again after 3 s."""

    async def crash() -> None:
        while True:
            testbed.processes["gpu2"].kill()
            await asyncio.sleep(3)
            testbed.processes["gpu2"].start()
            await asyncio.sleep(12)

    crashing = asyncio.create_task(crash())
    yield
    crashing.cancel()
    await asyncio.gather(crashing, return_exceptions=True)
    if testbed.processes["gpu2"].child.poll() is not None:
        testbed.processes["gpu2"].start()


ADAPTER = Options(last=["--model", "sim-model", "--model", "adapter"])


@fault(r"model_gone .*adapter", "backend_(down|restarting) gpu2", options=ADAPTER)
async def adapter_lost(testbed: Testbed) -> AsyncIterator[None]:
    """The only backend with an adapter restarts without it, while clients keep requesting the adapter."""
    async with testbed.load.more(2, model="adapter", words=20, tokens=20, pause=0.5):
        await asyncio.sleep(5)
        with_adapter = testbed.processes["gpu2"].command
        testbed.processes["gpu2"].restart(testbed.backend("gpu2"))
        yield
        testbed.processes["gpu2"].restart(with_adapter)


# Faults of one real vLLM server, which are staged only with --real.
def real(*flags: str, **others) -> Options:
    """A testbed with one real vLLM."""
    return Options(real=["--max-model-len", "2048", *flags], **others)


# More clients than --max-num-seqs.
add_fault("real batch limit", r"prefill_starvation gpu0 .the batch is at its limit", f"shedding|{UNDECIDED}",
          options=real("--max-num-seqs", "2"), clients=1,
          more={"clients": 12, "model": "tiny", "words": 40, "tokens": 400, "pause": 0.1})


# Long prompts and a small budget of tokens for a step.
add_fault("real token budget", r"prefill_starvation gpu0 .(prompts use up|cannot tell)", "shedding", clients=1,
          options=real("--max-num-batched-tokens", "64", "--max-num-seqs", "64", "--no-enable-prefix-caching"),
          more={"clients": 24, "model": "tiny", "words": 600, "tokens": 12, "pause": 0.05})


# Sequences that do not fit into 2,304 tokens of KV cache. vLLM refuses a cache below one sequence and one block.
add_fault("real kv thrash", r"kv_thrashing gpu0", "shedding", options=real("--num-gpu-blocks-override", "72"), clients=1,
          more={"clients": 16, "model": "tiny", "words": 30, "tokens": 500, "pause": 0.1})


@fault(r"decode_starvation gpu0", "shedding", clients=1,
       options=real("--no-enable-prefix-caching", "--max-num-batched-tokens", "8192",
                    "--num-gpu-blocks-override", "512", "--max-num-seqs", "32"))
async def real_long_prompts(testbed: Testbed) -> AsyncIterator[None]:
    """Groups of long prompts in one step beside many short streams, with free blocks in the KV cache."""
    async with (
        testbed.load.more(12, model="tiny", words=5, tokens=40, pause=0.0),
        testbed.load.more(4, model="tiny", words=600, tokens=2, pause=1.0),
    ):
        yield
