"""Headless Chromium over a pipe by its DevTools protocol, without a driver, port or package."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


@contextmanager
def browser():
    """A page in its own browser."""
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()

    def arrange_pipes():
        # Through high numbers, so that neither is overwritten before it is copied.
        copies = os.dup(to_browser), os.dup(from_browser)
        high = [os.dup2(copy, number) for copy, number in zip(copies, (100, 101), strict=True)]
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [EXECUTABLE, *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
        quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        process = subprocess.Popen(command, preexec_fn=arrange_pipes, close_fds=False, **quiet)
        os.close(to_browser)
        os.close(from_browser)
        with os.fdopen(write, "wb", buffering=0) as calls, os.fdopen(read, "rb", buffering=1 << 16) as answers:
            yield Page(calls, answers)
            process.terminate()
            process.wait(timeout=20)


class Page:
    """A page with its console errors and the addresses it requested."""

    def __init__(self, calls, answers):
        self._calls, self._answers = calls, answers
        self._number, self._session, self._unread = 0, {}, b""
        self._is_loaded, self.errors, self.requests = False, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.look()

    def open(self, path):
        """Open a file and wait until it has loaded; errors and requests of an earlier page are dropped."""
        self._is_loaded, self.errors, self.requests = False, [], []
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._is_loaded:
            self._receive()
        self.settle()

    def look(self, width=1400, height=1000, *, dark=False):
        """Set the size of the window and the theme of the system."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def settle(self, milliseconds=300):
        self.evaluate(f"new Promise(done => setTimeout(done, {milliseconds}))")

    def wait_until(self, condition, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, condition
            self.settle(50)

    def evaluate(self, expression):
        """The value of a JavaScript expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        self._calls.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._unread:
            part = self._answers.read1(1 << 20)
            assert part, "chromium has ended"
            self._unread += part
        raw, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(raw)
        method, parameters = message.get("method"), message.get("params", {})
        level = parameters.get("type") or parameters.get("entry", {}).get("level")
        self._is_loaded |= method == "Page.loadEventFired"
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown" or level in ("error", "warning", "assert"):
            self.errors.append(str(parameters))
        return message
