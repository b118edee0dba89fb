"""The picture of a page, as a README shows it."""

import struct

import pytest
from chromium import EXECUTABLE
from shown_runs import document_of

from ampsweep.config.errors import UserError
from ampsweep.report.html import html
from ampsweep.report.screenshot import HEIGHT, WIDTH, find_browser, take_screenshot


@pytest.fixture
def page(write, gpu_runs, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(html(document_of(write(gpu_runs), tmp_path)), encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium on this machine")
def test_it_is_a_png_of_the_page_in_its_light_theme(page, tmp_path):
    picture = tmp_path / "comparison.png"
    take_screenshot(page, picture)
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", content[16:24]) == (WIDTH, HEIGHT)
    assert 50_000 < len(content) < 500_000, "figures are drawn"


def test_without_a_browser_one_sentence_says_what_is_missing(page, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ampsweep.report.screenshot._ON_MACOS", ())
    assert find_browser() is None
    with pytest.raises(UserError, match=r"none is installed \(none of chromium, .* is on the PATH\)"):
        take_screenshot(page, tmp_path / "comparison.png")


def test_a_browser_that_makes_no_picture_is_quoted(page, tmp_path, monkeypatch):
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho no display >&2\nexit 3\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(UserError, match=r"made no picture .*comparison.png: no display"):
        take_screenshot(page, tmp_path / "comparison.png")
