"""Headless Chromium over a pipe by its DevTools protocol, without a driver, port or package."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Page:
    """A page in its own browser, with its console errors and the addresses it requested."""

    def __init__(self):
        self._number, self._session, self._unread = 0, None, b""
        self._events, self.errors, self.requests = [], [], []

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def arrange_pipes():
            # Through high numbers, so that neither is overwritten before it is copied.
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
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.look()
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        self._stream.close()
        self._profile.cleanup()

    def open(self, path):
        """Open a file and wait until it has loaded; errors and requests of an earlier page are dropped."""
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(message["method"] == "Page.loadEventFired" for message in self._events):
            self._receive()
        self._events.clear()
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

    def press(self, key, *, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def call(self, method, **parameters):
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        message = {"id": self._number, "method": method, "params": parameters} | session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._unread:
            part = self._stream.read1(1 << 20)
            assert part, "chromium has ended"
            self._unread += part
        raw, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(raw)
        if "method" in message:
            self._note(message["method"], message["params"])
            self._events.append(message)
        return message

    def _note(self, method, parameters):
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(parameters["entry"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))
