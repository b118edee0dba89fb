"""A picture of the page, taken by the Chromium or Chrome that is installed."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ampsweep.config.errors import UserError

WIDTH: Final = 1200
HEIGHT: Final = 1800
"""Pixels: the verdict and the first panels of a comparison of a few arms."""

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
_ON_MACOS: Final = tuple(f"/Applications/{name}.app/Contents/MacOS/{name}" for name in ("Google Chrome", "Chromium"))
_SWITCHES: Final = (
    *("--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1"),
    f"--window-size={WIDTH},{HEIGHT}",
    "--virtual-time-budget=10000",  # milliseconds of the page's own clock, which runs ahead while nothing happens
)
_PATIENCE_S: Final = 120.0


def take_screenshot(page: Path, picture: Path) -> None:
    """Draw the file `page`, in its light theme, into the PNG file `picture`.

    Raises:
        UserError: there is no browser, or it made no picture.
    """
    browser = find_browser()
    if browser is None:
        raise UserError(
            "a screenshot is taken by Chromium or Chrome, and none is installed "
            f"(none of {', '.join(_NAMES)} is on the PATH); Debian's package is chromium"
        )
    # Chromium refuses to run as root inside its sandbox; what it opens here is a file of our own that fetches nothing.
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    picture.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_SWITCHES, *as_root, f"--user-data-dir={profile}", f"--screenshot={picture.resolve()}"]
        try:
            ended = subprocess.run(
                [*command, page.resolve().as_uri()], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"{browser} made no picture of {page} within {_PATIENCE_S:.0f} s") from error
    if not picture.is_file():
        said = ended.stderr.strip().splitlines()
        raise UserError(f"{browser} made no picture {picture}: {said[-1] if said else f'exit code {ended.returncode}'}")


def find_browser() -> str | None:
    """Path of a browser that can draw a page without a screen; None where there is none."""
    return next((found for name in (*_NAMES, *_ON_MACOS) if (found := shutil.which(name)) is not None), None)
