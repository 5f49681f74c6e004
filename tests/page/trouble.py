"""The live page of a gateway with verdicts, of one without available backends, and of one without backends."""

import json
import urllib.error
import urllib.request
from pathlib import Path

from browser import Browser, Driver
from program import Program
from server import SilentHandler, serve

VERDICTS = [
    {
        "verdict": "kv_thrashing", "backend": "127.0.0.1:8101", "severity": "critical", "confidence": "high",
        "meaning": "The KV cache is too small for what runs: requests are preempted and computed again.",
        "cause": None, "age_seconds": 65.0,
        "evidence": [
            {"measure": "kv_usage", "value": 0.99, "unit": "ratio", "usual": 0.61, "window_seconds": 60.0},
            {"measure": "queue_time_mean", "value": 4.2, "unit": "s", "usual": None, "window_seconds": 60.0},
        ],
        "remedy": "Lower --max-num-seqs to 24, or add a backend.",
        "disproof": "Preemptions stop while the load stays.", "runbook": "docs/operate/diagnose.md#kv_thrashing",
    },
    {
        "verdict": "blind", "backend": "127.0.0.1:8102", "severity": "warning", "confidence": "low",
        "meaning": "The backend is up and its metrics cannot be read.", "cause": None, "age_seconds": 5.0,
        "evidence": [], "remedy": "Start vLLM without --disable-log-stats.",
        "disproof": "A page can be read.", "runbook": "docs/operate/diagnose.md#blind",
    },
]
VERDICTS += [{**VERDICTS[1], "backend": f"127.0.0.1:{port}"} for port in (8103, 8104, 8105)]


class ModifiedAdmin:
    """A proxy in front of an admin listener. It changes members of the document /streams."""

    def __init__(self, gateway: str, change: dict) -> None:
        class Handler(SilentHandler):
            def do_GET(self) -> None:
                headers = {"accept": self.headers.get("accept", "*/*")}
                try:
                    with urllib.request.urlopen(urllib.request.Request(gateway + self.path, headers=headers)) as response:
                        status, media_type, body = 200, response.headers["content-type"], response.read()
                except urllib.error.HTTPError as error:
                    status, media_type, body = error.code, "text/plain", b""
                if self.path == "/streams":
                    body = json.dumps(json.loads(body) | change).encode()
                self.respond(media_type, body, status)

        self.url = f"{serve(Handler)}/"


def check_verdicts(driver: Driver, binary: Path, folder: Path) -> None:
    arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "human"]
    arguments += ["--backend", "http://127.0.0.1:9", "--backend", "http://127.0.0.1:10"]
    with Program(binary, *arguments) as gateway:
        admin = ModifiedAdmin(gateway.find(r"admin +(http://[^/ ]+)"), {"verdicts": VERDICTS})
        with Browser(driver, admin.url) as browser:
            browser.wait_for("the verdicts", "!document.getElementById('verdicts').hidden")
            shown = browser.text("#verdicts")
            for text in [
                "critical", "127.0.0.1:8101: The KV cache is too small", "kv thrashing · confidence high · for 1 min 5 s",
                "Last 1 min 0 s", "KV usage 99 % 61 %", "queue time mean 4.20 s", "→ Lower --max-num-seqs to 24",
                "Disproved by: Preemptions stop", "Runbook of kv thrashing", "→ Start vLLM without",
                "127.0.0.1:8102, 127.0.0.1:8103, 127.0.0.1:8104 and 1 more: The backend is up",
            ]:
                assert text in shown, (text, shown)
            assert browser.text("#state") == "down: no backend is available (2 backends: 2 down)"
            names = "[...document.querySelectorAll('#backends tbody td:first-child a')].map((name) => name.textContent)"
            assert browser.run(f"return {names}") == ["127.0.0.1:9", "127.0.0.1:10"]
            assert browser.run("return document.title").startswith("down")
            browser.screenshot(folder / "page-all-down.png")
            assert shown.count("1 min 0 s") == 1, "the window is stated once"
            link = browser.run("return document.querySelector('#verdicts a').href")
            with urllib.request.urlopen(link.split("#")[0]) as response:
                assert f'id="{link.split("#")[1]}"' in response.read().decode(), link
            browser.screen(400, 1500, "dark")
            overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"verdicts: {overflow} px too wide"
            browser.screenshot(folder / "page-all-down-narrow.png")


def check_no_backends(driver: Driver, binary: Path, folder: Path) -> None:
    (folder / "none.yaml").write_text("[]\n")
    config = folder / "discovery.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndiscovery: [{{ file: '{folder.resolve()}/none.yaml' }}]\nlog: {{ format: human }}\n"
    )
    with (
        Program(binary, "serve", "--config", str(config)) as gateway,
        Browser(driver, gateway.find(r"admin +(http://\S+)")) as browser,
    ):
        browser.wait_for("the page", "document.getElementById('backends').textContent.includes('No backends.')")
        assert browser.text("#state") == "down: no backend is available (no backends)"
        browser.screenshot(folder / "page-no-backends.png")
