"""Prefill legs between two vLLM servers with NixlConnector: greedy answers through the gateway equal those
of one server, faults of each leg fail no request that one server would have answered, and no lease stays.

real_vllm.py GATEWAY PREFILL_URL DECODE_URL [--seconds 60] [--clients 4] [--words 220] [--leave 0.0] [--roles yes]

--leave: share of clients that leave at a random moment. `kill -STOP`, `kill -9` of a server are left to the caller.
"""
import argparse, asyncio, collections, json, pathlib, random, re, subprocess, tempfile, time, urllib.request

options = argparse.ArgumentParser()
options.add_argument("gateway")
options.add_argument("engines", nargs=2)
options.add_argument("--seconds", type=float, default=60)
options.add_argument("--clients", type=int, default=4)
options.add_argument("--words", type=int, default=220)
options.add_argument("--leave", type=float, default=0.0)
options.add_argument("--roles", default="yes")
options.add_argument("--ports", default="23690,23691")
options = options.parse_args()
WORDS = "river stone count apple letters sky ocean poem list seven color train logic".split()
PORTS = [int(port) for port in options.ports.split(",")]


async def answer(port, body, leaves_after=None):
    """The text of a stream, its time to the first output, and whether it ended in order."""
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\nconnection: close\r\n\r\n"
    began, first, raw = time.monotonic(), None, b""
    writer.write(head.encode() + payload)
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
    return {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": 30, "ignore_eos": True,
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
        else:
            counts["whole"] += 1
            ttfts.append(first or 0)
            counts["checked"] += 1
            expected.append((body, text))


expected = []


async def main():
    roles = [", role: prefill", ", role: decode"] if options.roles == "yes" else ["", ""]
    backends = "".join(f"\n  - {{ name: e{i}, url: '{url}'{role} }}" for i, (url, role) in enumerate(zip(options.engines, roles)))
    file = pathlib.Path(tempfile.mkdtemp()) / "gateway.yaml"
    file.write_text(f"listen: 127.0.0.1:{PORTS[0]}\nadmin: 127.0.0.1:{PORTS[1]}\nbackends: {backends}\n")
    gateway = subprocess.Popen([options.gateway, "serve", "--config", str(file)], stdout=open(file.parent / "log", "w"), stderr=subprocess.STDOUT)
    counts, ttfts = collections.Counter(), []
    try:
        await asyncio.sleep(4)
        ends = time.monotonic() + options.seconds
        await asyncio.gather(*(client(number, ends, counts, ttfts) for number in range(options.clients)))
        print("\n".join(metrics(f"http://127.0.0.1:{PORTS[1]}", ("tokenweir_prefill_legs", "tokenweir_attempts_total"))))
        # The leases of unread blocks end after 30 s.
        await asyncio.sleep(35)
        for url in options.engines:
            try:
                names = ("vllm:nixl_num", "vllm:nixl_bytes_transferred_sum", "vllm:nixl_bytes_transferred_count", "vllm:num_requests", "vllm:kv_cache_usage", "vllm:prompt_tokens_by_source_total")
                print(url, *metrics(url, names), sep="\n  ")
            except OSError as error:
                print(url, error)
        checked = random.Random(1).sample(expected, min(60, len(expected)))
        for body, text in checked:
            alone, _, _ = await answer(int(options.engines[0].rsplit(":", 1)[1]), body)
            counts["equal" if alone == text else "other text"] += 1
    except (OSError, ValueError) as error:
        print("comparison:", error)
    finally:
        gateway.terminate()
        gateway.wait()
    ttfts.sort()
    at = lambda share: round(1e3 * ttfts[int(share * (len(ttfts) - 1))]) if ttfts else None
    print(f"{dict(counts)}, TTFT p50 {at(0.5)} ms, p90 {at(0.9)} ms")


asyncio.run(main())
