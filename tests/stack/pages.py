"""A server of metrics pages: that of a GPU exporter, and that of a backend whose engine reports what the simulated
engine does not."""

import asyncio
import re
import time
from pathlib import Path

GPU_PAGE = Path(__file__).parent.parent / "pages/gpu/dcgm_kubernetes.txt"
GPU_FAULTS = re.compile(r'^(DCGM_FI_DEV_(?:XID_ERRORS|CLOCKS_EVENT_REASONS|ECC_\w+)\{gpu="1".*\}) \d+$', re.MULTILINE)
"""The samples of the second GPU that can show a fault: errors and reasons for a lower clock."""
GAUGES = {"num_requests_running": 0, "num_requests_waiting": 0, "num_requests_swapped": 0,
          "kv_cache_usage_perc": 0.1, "cpu_cache_usage_perc": 0.2}
COUNTERS = {
    'prompt_tokens_cached_by_source_total{source="device"}': 40,
    "spec_decode_num_drafts_total": 10,
    "spec_decode_num_draft_tokens_total": 30,
    "spec_decode_num_accepted_tokens_total": 20,
    "admission_rejections_total": 0,
    "corrupted_requests_total": 0,
    "kv_block_lifetime_seconds_sum": 60,
    "kv_block_lifetime_seconds_count": 2,
    "kv_block_idle_before_evict_seconds_sum": 20,
    "kv_block_idle_before_evict_seconds_count": 2,
    "kv_block_reuse_gap_seconds_sum": 10,
    "kv_block_reuse_gap_seconds_count": 5,
}
"""The increase per second of each counter on the page of the engine."""


class Pages:
    """Answers each path with its page. `has_gpu_fault` can be changed at any time."""

    def __init__(self):
        self.has_gpu_fault = False
        self.began = time.monotonic()
        self.server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Serves until the process ends."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    def _page(self, path: str) -> str:
        if path == "/gpus":
            page = GPU_PAGE.read_text()
            return page if self.has_gpu_fault else GPU_FAULTS.sub(r"\1 0", page)
        if path == "/metrics":
            passed = time.monotonic() - self.began
            counters = {name: rate * passed for name, rate in COUNTERS.items()}
            return "".join(f"vllm:{name} {value}\n" for name, value in {**GAUGES, **counters}.items())
        return '{"object":"list","data":[]}' if path == "/v1/models" else "{}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                page = self._page(head.split(b" ", 2)[1].decode()).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(page), page))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()
