"""Prefill legs between two vLLM servers with NixlConnector: greedy answers through the gateway equal those
of one server, faults of each leg fail no request that one server would have answered, and no lease stays.

real_vllm.py GATEWAY PREFILL_URL DECODE_URL [--seconds 60] [--clients 4] [--words 220] [--leave 0.0] [--roles yes]
    [--fault KILL|STOP --pids PID... [--fault-at 15] [--stopped-for 20]]

--leave: share of clients that leave at a random moment. --fault: the signal that the processes get.
"""
import argparse, asyncio, collections, json, os, pathlib, random, re, signal, statistics, sys, time
import urllib.error, urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "common"))
from servers import answers, free_ports, gateway, post

options = argparse.ArgumentParser()
options.add_argument("gateway")
options.add_argument("engines", nargs=2)
options.add_argument("--seconds", type=float, default=60)
options.add_argument("--clients", type=int, default=4)
options.add_argument("--words", type=int, default=220)
options.add_argument("--leave", type=float, default=0.0)
options.add_argument("--roles", default="yes")
options.add_argument("--tokens", type=int, default=30)
options.add_argument("--fault", choices=["KILL", "STOP"])
options.add_argument("--pids", type=int, nargs="+")
options.add_argument("--fault-at", type=float, default=15)
options.add_argument("--stopped-for", type=float, default=20)
options = options.parse_args()
WORDS = "river stone count apple letters sky ocean poem list seven color train logic".split()
PORTS = free_ports(2)


async def answer(port, body, leaves_after=None):
    """The text of a stream, its time to the first output, and whether its body came to its regular end."""
    reader, writer = await post(port, "/v1/chat/completions", json.dumps(body).encode())
    began, first, raw = time.monotonic(), None, b""
    try:
        async with asyncio.timeout(leaves_after or 120):
            while data := await reader.read(1 << 16):
                raw += data
                if first is None and re.search(rb'"content":"[^"]', raw):
                    first = time.monotonic() - began
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    events = [line[6:] for line in raw.decode("utf-8", "replace").split("\n") if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"] for event in events if event.rstrip().endswith("}")]
    text = "".join(choice[0]["delta"].get("content") or "" for choice in deltas if choice)
    return text, first, b"data: [DONE]" in raw


def request(chance):
    prompt = " ".join(chance.choices(WORDS, k=options.words))
    return {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": options.tokens, "ignore_eos": True,
            "messages": [{"role": "user", "content": prompt}]}


def metrics(url, names):
    page = urllib.request.urlopen(url + "/metrics", timeout=30).read().decode()
    return [line for line in page.splitlines() if line.startswith(names) and not line.endswith((" 0", " 0.0"))]


async def client(number, ends, counts, ttfts):
    chance = random.Random(number)
    while time.monotonic() < ends:
        body = request(chance)
        leaves = chance.random() < options.leave
        text, first, is_whole = await answer(PORTS[0], body, chance.uniform(0.005, 0.4) if leaves else None)
        if leaves:
            counts["left"] += 1
        elif not is_whole:
            counts["FAILED"] += 1
            failures.append((round(time.monotonic() - began, 1), text[:40]))
        else:
            counts["whole"] += 1
            ttfts.append(first or 0)
            counts["checked"] += 1
            expected.append((body, text))


expected, failures = [], []
began = time.monotonic()


async def fault():
    await asyncio.sleep(options.fault_at)
    for pid in options.pids:
        os.kill(pid, getattr(signal, "SIG" + options.fault))
    if options.fault == "STOP":
        await asyncio.sleep(options.stopped_for)
        for pid in options.pids:
            os.kill(pid, signal.SIGCONT)


def predictions(port):
    """For the newest requests, grouped by whether a prefill leg was used or why not: their number, and medians in ms of
    the predicted TTFT with and without a leg, of the time of the leg, and of the client's TTFT."""
    get = lambda path: json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30))
    rows = collections.defaultdict(list)
    for one in get("/decisions")["decisions"][:200]:
        details = get("/decisions/" + one["request_id"])
        legs = details["prefill_legs"]
        if legs and legs["predicted_ttft_seconds"]:
            took = sum(leg["seconds"] or 0 for leg in legs["sent"])
            row = legs["predicted_ttft_seconds"], legs["predicted_ttft_seconds_without"], took, details["actual"]["client_ttft_seconds"] or 0
            rows[legs["skipped"] or "used"].append(row)
    names = "with", "without", "leg", "first output"
    return {use: dict(zip(names, (round(1e3 * statistics.median(column)) for column in zip(*all)))) | {"requests": len(all)} for use, all in rows.items()}


async def main():
    roles = [", role: prefill", ", role: decode"] if options.roles == "yes" else ["", ""]
    backends = "".join(f"\n  - {{ name: e{i}, url: '{url}'{role} }}" for i, (url, role) in enumerate(zip(options.engines, roles)))
    counts, ttfts = collections.Counter(), []
    try:
        async with gateway(options.gateway, *PORTS, f"backends: {backends}\n"):
            ends = time.monotonic() + options.seconds
            faults = [fault()] if options.fault else []
            await asyncio.gather(*faults, *(client(number, ends, counts, ttfts) for number in range(options.clients)))
            print("legs:", predictions(PORTS[1]))
            print("\n".join(metrics(f"http://127.0.0.1:{PORTS[1]}", ("tokenweir_prefill_legs", "tokenweir_attempts_total"))))
            # The engines release the blocks of a prefill leg that nobody reads after 30 s.
            await asyncio.sleep(35)
            for url in options.engines:
                try:
                    names = ("vllm:nixl_num_failed", "vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_bytes_transferred_sum", "vllm:nixl_bytes_transferred_count", "vllm:num_requests", "vllm:kv_cache_usage", "vllm:prompt_tokens_by_source_total")
                    print(url, *metrics(url, names), sep="\n  ")
                except OSError as error:
                    print(url, error)
            alive = next(url for url in options.engines if answers(url + "/health"))
            checked = random.Random(1).sample(expected, min(60, len(expected)))
            for body, text in checked:
                alone, _, _ = await answer(int(alive.rsplit(":", 1)[1]), body)
                counts["equal" if alone == text else "other text"] += 1
    except (OSError, ValueError) as error:
        print("comparison:", error)
    ttfts.sort()
    at = lambda share: round(1e3 * ttfts[int(share * (len(ttfts) - 1))]) if ttfts else None
    print("failures (seconds, text):", failures[:10])
    print(f"{dict(counts)}, TTFT p50 {at(0.5)} ms, p90 {at(0.9)} ms")


asyncio.run(main())
