"""Controls Chromium by the HTTP interface of chromedriver. Needs no Python packages."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-color-profile=srgb",
]
TIMEOUT_SECONDS = 30.0
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowDown": "\ue015", "ArrowUp": "\ue013"}


class Driver:
    """One chromedriver, for any number of browsers."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.url = ""
        for line in self.process.stdout:
            if "started successfully on port" in line:
                self.url = f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}"
                break
        if not self.url:
            raise RuntimeError("chromedriver did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class Browser:
    """One browser with its own profile, which shows a page."""

    def __init__(
        self, driver: Driver, url: str = "about:blank", size: tuple[int, int] = (1280, 980), *, scripts: bool = True
    ) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="page-")
        # chromedriver looks for a browser in its own folder and in system folders, but not in PATH.
        options: dict[str, Any] = {
            "args": [*ARGUMENTS, f"--user-data-dir={self.profile.name}"],
            "binary": shutil.which("chromium"),
        }
        if not scripts:
            options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        session = call("POST", f"{driver.url}/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = f"{driver.url}/session/{session['sessionId']}"
        self.screen(*size)
        self.open(url)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        call("DELETE", self.session)
        self.profile.cleanup()

    def open(self, url: str) -> None:
        call("POST", f"{self.session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        return call("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return call("POST", f"{self.session}/goog/cdp/execute", body)

    def press(self, *keys: str) -> None:
        strokes = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": key} for key in strokes for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        call("POST", f"{self.session}/actions", body)

    def text(self, selector: str) -> str:
        element = call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        return call("GET", f"{self.session}/element/{next(iter(element.values()))}/text")

    def log(self, kind: str) -> list[dict[str, Any]]:
        return call("POST", f"{self.session}/se/log", {"type": kind})

    def screen(self, width: int, height: int, scheme: str = "light") -> None:
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(call("GET", f"{self.session}/screenshot")))

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = TIMEOUT_SECONDS) -> Any:
        """Waits until the condition returns a true value, and returns the value."""
        deadline = time.monotonic() + seconds
        while True:
            if value := condition():
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.05)

    def wait_for(self, what: str, script: str, seconds: float = TIMEOUT_SECONDS) -> Any:
        return self.wait(what, lambda: self.run(f"return {script}"), seconds)


def call(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if method in ("GET", "DELETE") else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
