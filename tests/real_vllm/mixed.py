"""A gateway in front of both of vLLM's HTTP servers: each API works, although only one of them has it."""

from collections import Counter

from fleet import Fleet
from official_sdks import SHAPES, Clients
from report import Report, show

REQUESTS = 200


async def check(fleet: Fleet, report: Report) -> None:
    """Requests of all APIs, with and without streams, have no error for the client."""
    clients, errors = Clients(fleet.gateway), Counter()
    for number in range(REQUESTS):
        api, arguments = SHAPES[number % len(SHAPES)]
        is_stream = number % 2 == 0
        if not is_stream:
            arguments = {name: value for name, value in arguments.items() if name != "stream_options"}
        try:
            if is_stream:
                await clients.send(api, arguments)
            else:
                await clients.methods[api](model="tiny", **arguments)
        except Exception as error:
            errors[f"{api}: {type(error).__name__} {error}"[:160]] += 1
    report.check("mixed", "requests of all APIs without an error", not errors, show(errors) if errors else REQUESTS)
    attempts = {url: fleet.attempts_at(url) for url in fleet.backends}
    report.check("mixed", "every backend had requests", all(attempts.values()), show(attempts))
