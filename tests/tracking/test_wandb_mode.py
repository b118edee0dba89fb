"""Online where someone has logged in to W&B, offline otherwise, and the user is told which."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.wandb.run_settings import Access, find_access

KEY = "0123456789" * 4


@pytest.fixture(autouse=True)
def quiet_and_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> object:
    """Whatever is asked, wandb says nothing and the environment stays as it was."""
    yield
    capfd_out = capfd.readouterr()
    assert (capfd_out.out, capfd_out.err) == ("", "")
    assert "WANDB_SILENT" not in os.environ
    assert "WANDB_SERVICE" not in os.environ


def mode(name: str = "auto") -> str:
    return find_access(TrackingConfig(mode=name)).mode


def netrc(home: Path, host: str) -> None:
    (home / ".netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    (home / ".netrc").chmod(0o600)


def test_auto_without_a_key_is_offline_and_says_how_to_sync() -> None:
    assert find_access(TrackingConfig()) == Access(
        "offline",
        "W&B: offline, since wandb is not logged in (`wandb login` or WANDB_API_KEY); "
        "send runs later with `ampsweep sync DIRECTORY`",
    )


def test_auto_with_a_key_in_the_environment_is_online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    found = find_access(TrackingConfig(project="mine"))
    assert (found.mode, found.line) == ("online", "W&B: online, project mine")


def test_auto_with_a_key_in_netrc_is_online_for_its_server(nobody_logged_in: Path) -> None:
    netrc(nobody_logged_in, "127.0.0.1:9")
    assert mode() == "online"
    netrc(nobody_logged_in, "api.example.org")
    assert mode() == "offline"


def test_auto_with_a_key_in_the_settings_of_wandb_is_online(nobody_logged_in: Path) -> None:
    (nobody_logged_in / "settings").write_text(f"[default]\napi_key = {KEY}\n")
    assert mode() == "online"


def test_auto_follows_wandb_offline(nobody_logged_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wandb offline` notes its mode in a settings file."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    (nobody_logged_in / "settings").write_text("[default]\nmode = offline\n")
    assert mode() == "offline"
    assert mode("online") == "online"


def test_auto_with_a_malformed_key_is_offline_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    found = find_access(TrackingConfig())
    assert found.mode == "offline"
    assert "WANDB_API_KEY invalid: API key must have 40+ characters, has 5." in str(found.line)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("offline", "offline"), ("disabled", "disabled"), ("online", "online")],
)
def test_wandb_mode_decides_over_auto(variable: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", variable)
    assert mode() == expected
    assert os.environ["WANDB_MODE"] == variable


@pytest.mark.parametrize("chosen", ["online", "offline", "disabled"])
@pytest.mark.parametrize("variable", ["online", "offline", "disabled"])
def test_a_chosen_mode_decides_over_wandb_mode(chosen: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", variable)
    assert mode(chosen) == chosen


def test_online_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^tracking\.mode is online, but wandb is not logged in"):
        mode("online")
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ValueError, match=r"^WANDB_MODE is online, but wandb is not logged in"):
        mode()


def test_unknown_modes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"tracking\.mode is 'on'; allowed are auto, online, offline, disabled"):
        mode("on")
    for name in ("shared", "dryrun"):
        monkeypatch.setenv("WANDB_MODE", name)
        with pytest.raises(ValueError, match=f"WANDB_MODE is '{name}'; allowed are online, offline, disabled"):
            mode()


@pytest.mark.parametrize("chosen", ["auto", "offline", "online"])
def test_a_server_address_that_is_none_is_refused_in_one_line(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "nonsense")
    with pytest.raises(ValueError, match=r"^wandb has an invalid setting: base_url: .*'nonsense'[^\n]*$"):
        mode(chosen)


@pytest.mark.parametrize("variable", ["", "disabled"])
def test_disabled_never_imports_wandb(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    script = f"""
import sys
from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.tracker import make_tracker
make_tracker(TrackingConfig(mode={"auto" if variable else "disabled"!r}), None, print)
assert "wandb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
