"""Headless Chromium, driven over a pipe by its DevTools protocol: no driver, no port, no package."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


class Page:
    """A page of its own browser, with everything it said on the console and every address it asked for."""

    def __init__(self, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self._size, self._dark = (width, height), dark
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        assert EXECUTABLE is not None, "no chromium"
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def arrange_pipes() -> None:
            # Neither number may be overwritten before it is copied, hence through high ones.
            copies = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(copy, number) for copy, number in zip(copies, (100, 101), strict=True)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [EXECUTABLE, *SWITCHES, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=arrange_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._stream = os.fdopen(self._read, "rb", buffering=1 << 16)
        self._unread = b""
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*self._size)
        self.prefer(dark=self._dark)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        self._stream.close()
        self._profile.cleanup()

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file and wait until it has loaded; what was noted of an earlier one is forgotten."""
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self._wait_for("Page.loadEventFired")
        self.settle()

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, *, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def settle(self, milliseconds: int = 300) -> None:
        """Let timers, observers and drawing catch up."""
        self.evaluate(f"new Promise(done => setTimeout(done, {milliseconds}))")

    def wait_until(self, condition: str, seconds: float = 20.0) -> None:
        """Wait for a JavaScript condition."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, condition
            self.settle(50)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, *, code: int = 0, text: str = "") -> None:
        common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        if whole:
            height = self.evaluate("document.documentElement.scrollHeight")
            self.resize(self._size[0], min(int(height), 16_000))
            self.settle(1500)
        image = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(image["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _wait_for(self, event: str) -> None:
        while not any(one["method"] == event for one in self._events):
            self._receive()
        self._events.clear()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            part = self._stream.read1(1 << 20)
            assert part, "chromium has ended"
            self._unread += part
        raw, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self._note(message["method"], message["params"])
            self._events.append(message)
        return message

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(parameters["entry"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
