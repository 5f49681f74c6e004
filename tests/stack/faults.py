"""The faults and the alerts that must fire."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from stand import SMALL_MODEL, Stand

Begin = Callable[[Stand], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A fault with the alerts that it must cause. It lasts as long as the context that `begin` returns."""

    name: str
    alerts: frozenset[str]
    begin: Begin


FAULTS: list[Fault] = []


def causes(*alerts: str) -> Callable[[Begin], Begin]:
    """Registers a fault with its alerts. Faults run in the order of this file."""

    def add(function: Begin) -> Begin:
        name = function.__name__.replace("_", " ")
        names = frozenset(f"Tokenweir{alert}" for alert in alerts)
        FAULTS.append(Fault(name, names, asynccontextmanager(function)))
        return function

    return add


@causes("LatencyDegraded")
async def engines_are_far_slower_than_an_hour_ago(stand: Stand) -> AsyncIterator[None]:
    for name in ("fast0", "fast1"):
        stand.processes[name].restart(stand.backend(name, "--time-scale", "0.05"))
    # Short windows need enough responses that end in them, so these clients send many short requests.
    # Different lengths keep the responses from all ending at once.
    async with (
        stand.load.more(40, words=60, tokens=14, spread=10.0),
        stand.load.more(40, words=60, tokens=20, spread=10.0),
        stand.load.more(40, words=60, tokens=26, spread=10.0),
    ):
        yield
    for name in ("fast0", "fast1"):
        stand.processes[name].restart()


@causes("BackendDown", "Errors")
async def a_backend_fails_repeatedly(stand: Stand) -> AsyncIterator[None]:
    async def cut_connections() -> None:
        while True:
            stand.relays[0].cut()
            await asyncio.sleep(1.0)

    async with stand.load.more(16, tokens=60):
        stand.processes["fast1"].kill()
        cutting = asyncio.create_task(cut_connections())
        yield
        cutting.cancel()
    stand.processes["fast1"].start()


@causes("CriticalVerdict")
async def an_engine_hangs_behind_a_server_that_answers(stand: Stand) -> AsyncIterator[None]:
    async with stand.load.more(16):
        await asyncio.sleep(1.0)
        # Routing may prefer one of the two backends: stop the one with more open streams.
        relay = max(stand.relays[:2], key=lambda relay: len(relay.active()))
        relay.blocks_output = True
        yield
        relay.blocks_output = False


@causes("BadAnswers")
async def clients_give_up_before_the_first_output(stand: Stand) -> AsyncIterator[None]:
    async with stand.load.more(8, patience=1.5):
        for relay in stand.relays[:2]:
            relay.blocks_output = True
        yield
        for relay in stand.relays[:2]:
            relay.blocks_output = False


@causes("CriticalVerdict")
async def a_small_cache_gets_long_responses(stand: Stand) -> AsyncIterator[None]:
    # The requests are so large that the cache stays full when one of many ends.
    stand.processes["small"].restart(stand.backend("small", "--blocks", "480"))
    async with stand.load.more(60, model=SMALL_MODEL, words=30, tokens=300):
        yield
    stand.processes["small"].restart()


@causes("EngineQueueBacklog")
async def a_batch_is_too_small(stand: Stand) -> AsyncIterator[None]:
    stand.processes["small"].restart(stand.backend("small", "--max-num-seqs", "2"))
    async with stand.load.more(14, model=SMALL_MODEL, words=30, tokens=60):
        yield
    stand.processes["small"].restart()


@causes("RequestsShed", "SloFastBurn")
async def far_more_clients_than_capacity(stand: Stand) -> AsyncIterator[None]:
    async with stand.load.more(120, model=SMALL_MODEL, words=60, tokens=300, pause=0.3):
        yield


@causes("Verdict")
async def the_configuration_has_a_mistake(stand: Stand) -> AsyncIterator[None]:
    """A reload with an unknown key. The alert Verdict is that of each verdict that is not critical."""
    original = stand.config_file.read_text()
    stand.config_file.write_text("routing: { polcy: p2c }")
    stand.processes["gateway"].reload()
    yield
    stand.config_file.write_text(original)
    stand.processes["gateway"].reload()


@causes("Verdict")
async def a_drained_backend_is_missing(stand: Stand) -> AsyncIterator[None]:
    """A drain under load, which the dashboards must mark."""
    await asyncio.to_thread(stand.admin, "/-/drain?backend=fast-1")
    async with stand.load.more(80, words=60, tokens=60):
        yield
    await asyncio.to_thread(stand.admin, "/-/undrain?backend=fast-1")


@causes("GpuErrors")
async def a_gpu_is_too_hot_and_has_errors(stand: Stand) -> AsyncIterator[None]:
    stand.pages.has_gpu_fault = True
    yield
    stand.pages.has_gpu_fault = False


@causes("CriticalVerdict", "BackendDown", "Verdict")
async def no_backend_is_available(stand: Stand) -> AsyncIterator[None]:
    """The relays stop, too: a backend that accepts connections and closes them still gets requests as the last resort."""
    for name, relay in zip(("fast0", "fast1", "small"), stand.relays):
        stand.processes[name].kill()
        relay.stop()
    yield
    for name, relay, port in zip(("fast0", "fast1", "small"), stand.relays, ("relay0", "relay1", "relay2")):
        stand.processes[name].start()
        await relay.start(stand.port[port])


@causes("Down")
async def the_gateway_hangs(stand: Stand) -> AsyncIterator[None]:
    stand.processes["gateway"].pause()
    yield
    stand.processes["gateway"].resume()
