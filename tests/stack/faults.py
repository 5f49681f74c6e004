"""What goes wrong, and which alerts must say so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from stand import SMALL_MODEL, Stand

Begin = Callable[[Stand], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """It lasts as long as its context."""

    name: str
    alerts: frozenset[str]
    begin: Begin


FAULTS: list[Fault] = []


def causes(*alerts: str) -> Callable[[Begin], Begin]:
    """Names the alerts of a fault. The order in the file is the order in which they happen."""

    def add(function: Begin) -> Begin:
        name = function.__name__.replace("_", " ")
        names = frozenset(f"Tokenweir{alert}" for alert in alerts)
        FAULTS.append(Fault(name, names, asynccontextmanager(function)))
        return function

    return add


@asynccontextmanager
async def more_clients(stand: Stand, clients: int, **asks) -> AsyncIterator[None]:
    """Load beside the usual one."""
    tasks = stand.load.start(clients, **asks)
    try:
        yield
    finally:
        await stand.load.stop(tasks)


@causes("TtftDegraded", "ItlDegraded", "E2eDegraded", "ThroughputDrop")
async def engines_are_far_slower_than_an_hour_ago(stand: Stand) -> AsyncIterator[None]:
    for name in ("fast0", "fast1"):
        stand.process(name).kill()
        stand.process(name).start(stand.replica(name, "--time-scale", "0.05"))
    # So many and so short that enough answers end in each short window. Of different lengths, or
    # they would soon end all at once.
    async with (
        more_clients(stand, 40, words=60, tokens=14, spread=10.0),
        more_clients(stand, 40, words=60, tokens=20, spread=10.0),
        more_clients(stand, 40, words=60, tokens=26, spread=10.0),
    ):
        yield
    for name in ("fast0", "fast1"):
        stand.process(name).kill()
        stand.process(name).start()


@causes("BackendDown", "Errors")
async def a_replica_dies_again_and_again(stand: Stand) -> AsyncIterator[None]:
    async def dies() -> None:
        while True:
            stand.relays[0].cut()
            await asyncio.sleep(1.0)

    async with more_clients(stand, 16, tokens=60):
        stand.process("fast1").kill()
        dying = asyncio.create_task(dies())
        yield
        dying.cancel()
    stand.process("fast1").start()


@causes("Stalls", "EngineStuck")
async def an_engine_hangs_behind_a_server_that_answers(stand: Stand) -> AsyncIterator[None]:
    async with more_clients(stand, 16):
        await asyncio.sleep(1.0)
        # Routing may have one of them for slow, and then it has little to hang with.
        relay = max(stand.relays[:2], key=lambda relay: len(relay.under_way()))
        relay.is_silent = True
        yield
        relay.is_silent = False


@causes("StaleScrape")
async def a_metrics_page_cannot_be_read(stand: Stand) -> AsyncIterator[None]:
    stand.relays[0].hides_metrics = True
    yield
    stand.relays[0].hides_metrics = False


@causes("EngineGap")
async def a_server_is_slow_where_its_engine_does_not_look(stand: Stand) -> AsyncIterator[None]:
    stand.relays[0].delay = stand.relays[1].delay = 0.6
    yield
    stand.relays[0].delay = stand.relays[1].delay = 0.0


@causes("ClientAborts")
async def clients_lose_patience(stand: Stand) -> AsyncIterator[None]:
    async with more_clients(stand, 8, leave_after=3):
        yield


@causes("KvCacheNearlyFull", "KvCacheExhausted", "Preemptions")
async def a_small_cache_gets_long_answers(stand: Stand) -> AsyncIterator[None]:
    # Large enough that it stays full when one of many ends.
    stand.process("small").kill()
    stand.process("small").start(stand.replica("small", "--blocks", "480"))
    async with more_clients(stand, 60, model=SMALL_MODEL, words=30, tokens=300):
        yield
    stand.process("small").kill()
    stand.process("small").start()


@causes("EngineQueueBacklog")
async def a_batch_is_too_small(stand: Stand) -> AsyncIterator[None]:
    stand.process("small").kill()
    stand.process("small").start(stand.replica("small", "--max-num-seqs", "2"))
    async with more_clients(stand, 14, model=SMALL_MODEL, words=30, tokens=60):
        yield
    stand.process("small").kill()
    stand.process("small").start()


@causes("RequestsShed", "AdmissionBacklog", "SloFastBurn")
async def far_more_clients_than_room(stand: Stand) -> AsyncIterator[None]:
    async with more_clients(stand, 120, model=SMALL_MODEL, words=60, tokens=300, pause=0.3):
        yield


@causes("SpansDropped")
async def the_collector_is_gone(stand: Stand) -> AsyncIterator[None]:
    stand.process("collector").kill()
    yield
    stand.process("collector").start()


@causes("ReloadFailed")
async def the_configuration_has_a_mistake(stand: Stand) -> AsyncIterator[None]:
    right = stand.config.read_text()
    stand.config.write_text("routing: { polcy: p2c }")
    stand.process("gateway").reload()
    yield
    stand.config.write_text(right)
    stand.process("gateway").reload()


@causes("NoBackend", "BackendDown")
async def no_replica_is_left(stand: Stand) -> AsyncIterator[None]:
    for name in ("fast0", "fast1", "small"):
        stand.process(name).kill()
    yield
    for name in ("fast0", "fast1", "small"):
        stand.process(name).start()


@causes("Down")
async def the_gateway_hangs(stand: Stand) -> AsyncIterator[None]:
    stand.process("gateway").pause()
    yield
    stand.process("gateway").resume()
