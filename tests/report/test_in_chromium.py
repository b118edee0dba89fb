"""Pages in a real browser (Debian's package is `chromium`), by its DevTools protocol over a pipe."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
from shown_diagnoses import diagnosis, numerics

from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.report.html import html

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium here")]
VISIBLE = "[...document.querySelectorAll('{}')].filter(element => element.checkVisibility()).length"
CUT = """(() => {{
  const plot = document.querySelector('[data-key={}] .plot'), box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('.xtitle, .ytitle, .ytick text, .textpoint text, .bartext')];
  const drawn = texts.map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([_, at]) => at.width > 0);
  return drawn.filter(([_, at]) => at.right > box.right + 1 || at.left < box.left - 1).map(([text, _]) => text);
}})()"""
"""Texts of a panel that its picture cuts."""
OVERLAPPING = """(() => {
  const labels = [...document.querySelectorAll('[data-key=activation] .ytick text')];
  const boxes = labels.map((text) => text.getBoundingClientRect()).sort((first, second) => first.top - second.top);
  return boxes.filter((box, index) => index > 0 && box.top < boxes[index - 1].bottom - 3).length;
})()"""


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


@pytest.fixture(scope="module")
def page():
    with browser() as page:
        yield page


@pytest.fixture
def opened(page, tmp_path):
    def opened(document):
        path = tmp_path / "page.html"
        path.write_text(html(document), encoding="utf-8")
        page.open(path)

    yield opened
    assert page.errors == []
    requests = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert requests == [(tmp_path / "page.html").as_uri()]


def traces(page, panel, place=0):
    """(name, number of points) of the traces in a panel."""
    plot = f"document.querySelectorAll('[data-key={panel}] .plot')[{place}]"
    page.evaluate(f"{plot}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_until(f"'drawn' in {plot}.dataset")
    return [tuple(trace) for trace in page.evaluate(f"{plot}.data.map(trace => [trace.name ?? '', trace.x.length])")]


def test_it_draws_and_filters_without_errors_or_requests(page, opened, gpu_document):
    opened(gpu_document)
    assert traces(page, "train-loss").count(("fp32", 8)) == 4, "the mean of a band, and a line for each seed"
    assert len(traces(page, "memory-categories")) == 7
    page.evaluate("document.querySelector('[data-arm=\"amp_bf16\"].arm').click()")
    assert {name for name, _ in traces(page, "train-loss", 1)} - {""} == {"fp32", "amp_fp16"}
    assert page.evaluate(VISIBLE.format(".of-runs tbody tr[data-arm=amp_bf16]")) == 0
    assert "without amp_bf16" in page.evaluate("document.getElementById('filter-state').textContent")
    page.evaluate("document.getElementById('show-all').click()")
    page.settle()
    assert page.evaluate(VISIBLE.format("article")) == 2


@pytest.mark.parametrize(("low", "high"), [(2.5, 2.5061), (0.0053, 0.0061), (0.0012, 0.008), (1e-5, 3e-2), (1e-9, 2.0)])
def test_an_axis_has_tick_values_that_do_not_overlap_at_any_range(page, opened, low, high):
    shown = diagnosis()
    shown.facts["loss/steps"] = [{"step": step, "own": of, "baseline": of} for step, of in ((1, low), (2, high))]
    opened(diagnosis_document(shown, None))
    assert traces(page, "losses")
    labels = "[...document.querySelectorAll('[data-key=losses] .ytick text')]"
    boxes = page.evaluate(f"{labels}.map(text => text.getBoundingClientRect()).map(box => [box.top, box.bottom])")
    assert len(boxes) >= 2
    assert all(above[1] <= below[0] + 3 for above, below in pairwise(sorted(boxes)))


@pytest.mark.nightly
def test_themes_paper_and_a_phone(page, opened, gpu_document):
    opened(gpu_document)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(ground) != light
    page.call("Page.printToPDF")
    boxes = "[...document.querySelectorAll('article .scroll')]"
    for width, why in ((1200, "the verdict's table fits a laptop"), (400, "rows are cards")):
        page.look(width, 800)
        page.settle()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(f"{boxes}.filter((box) => box.scrollWidth > box.clientWidth).length") == 0, why
    assert page.evaluate(f"{boxes}[0].querySelector('td').dataset.title") == "verdict"
    for panel in ("front", "memory-categories", "speedup", "samples-per-sec"):
        traces(page, panel)
        page.wait_until(f"{CUT.format(panel)}.length === 0")
    page.evaluate("localStorage.clear()")
    page.look(dark=True)
    opened(gpu_document)
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.evaluate("document.getElementById('theme').textContent") == "Light theme"


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_a_diagnosis_is_readable_and_its_code_can_be_copied(page, opened, width, dark):
    page.look(width, dark=dark)
    opened(diagnosis_document(diagnosis(), numerics(70, scale=4096.0)))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for panel in ("losses", "activation", "activation_gradient", "weight", "update"):
        traces(page, panel)
        page.settle()
        assert page.evaluate(CUT.format(panel)) == []
    assert page.evaluate(OVERLAPPING) == 0
    map_drawn = "document.querySelector('[data-key=activation] .plot').data[0]"
    assert page.evaluate(f"{map_drawn}.reversescale") is not dark, "the least is near the background"
    lines = "document.querySelectorAll('[data-key=weight] .scatterlayer .trace').length"
    before = page.evaluate(lines)
    plot = "document.querySelector('[data-key=weight] .plot')"
    float8 = f"{plot}.data.findIndex((trace) => trace.name === 'float8_e4m3fn')"
    page.evaluate(f"Plotly.restyle({plot}, {{visible: true}}, [{float8}]).then(() => 0)")
    assert page.evaluate(lines) == before + 1
    button = "document.querySelector('[data-copy]')"
    page.evaluate(f"{button}.click()")
    page.wait_until(f"{button}.textContent !== 'Copy'")
    if page.evaluate(f"{button}.textContent") == "Chosen":
        assert page.evaluate("getSelection().toString()") == "hidden = hidden.to(self.head.weight.dtype)"
