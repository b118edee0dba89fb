"""Online where someone has logged in to W&B, offline otherwise, and the user learns why."""

import os
import re

import pytest

from ampsweep.config.schema import TrackingConfig
from ampsweep.tracking.wandb.library import Login, find_login
from ampsweep.tracking.wandb.run_settings import Access, find_access

KEY = "0123456789" * 4
LATER = "send runs later with `ampsweep sync DIRECTORY`"
SAYS = "W&B: offline, as {} says; " + LATER
NO_LOGIN = "wandb is not logged in (`wandb login` or WANDB_API_KEY)"


@pytest.fixture(autouse=True)
def _quiet_and_without_a_trace(capfd):
    before = dict(os.environ)
    yield
    assert capfd.readouterr() == ("", "")
    assert not os.environ.keys() - before.keys() & {"WANDB_SILENT", "WANDB_SERVICE"}


def netrc(host):
    return {".netrc": f"machine {host}\n  login user\n  password {KEY}\n"}


def settings(line):
    return {"settings": f"[default]\n{line}\n"}


@pytest.mark.parametrize(
    ("asked", "environment", "files", "mode", "line"),
    [
        ("auto", {}, {}, "offline", f"W&B: offline, since {NO_LOGIN}; {LATER}"),
        ("auto", {"WANDB_API_KEY": KEY}, {}, "online", "W&B: online, project mine"),
        ("auto", {}, netrc("127.0.0.1:9"), "online", "W&B: online, project mine"),
        ("auto", {}, netrc("api.example.org"), "offline", f"W&B: offline, since {NO_LOGIN}; {LATER}"),
        ("auto", {}, settings(f"api_key = {KEY}"), "online", "W&B: online, project mine"),
        ("auto", {"WANDB_API_KEY": KEY}, settings("mode = offline"), "offline", None),
        ("online", {"WANDB_API_KEY": KEY}, settings("mode = offline"), "online", "W&B: online, project mine"),
        ("auto", {"WANDB_API_KEY": KEY, "WANDB_MODE": "offline"}, {}, "offline", SAYS.format("WANDB_MODE")),
        ("auto", {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}, {}, "disabled", None),
        ("offline", {"WANDB_API_KEY": KEY, "WANDB_MODE": "online"}, {}, "offline", SAYS.format("tracking.mode")),
        ("online", {"WANDB_API_KEY": KEY, "WANDB_MODE": "disabled"}, {}, "online", "W&B: online, project mine"),
        ("disabled", {"WANDB_API_KEY": KEY, "WANDB_MODE": "online"}, {}, "disabled", None),
    ],
)  # fmt: skip
def test_the_mode_follows_config_environment_and_login(
    asked, environment, files, mode, line, nobody_logged_in, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name, content in files.items():
        (nobody_logged_in / name).write_text(content)
        (nobody_logged_in / name).chmod(0o600)
    found = find_access(TrackingConfig(mode=asked, project="mine"))
    assert found.mode == mode
    assert line in (None, found.line)
    assert (found.login is not None) == (mode == "online")
    assert os.environ.get("WANDB_MODE") == environment.get("WANDB_MODE")


def test_a_malformed_key_is_offline_and_named(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "short")
    found = find_access(TrackingConfig())
    assert found.mode == "offline"
    assert "WANDB_API_KEY invalid: API key must have 40+ characters, has 5." in found.line


@pytest.mark.parametrize(
    ("asked", "environment", "sentence"),
    [
        ("online", {}, "tracking.mode is online, but wandb is not logged in"),
        ("auto", {"WANDB_MODE": "online"}, "WANDB_MODE is online, but wandb is not logged in"),
        ("on", {}, "tracking.mode is 'on'; allowed are auto, online, offline, disabled"),
        ("auto", {"WANDB_MODE": "dryrun"}, "WANDB_MODE is 'dryrun'; allowed are online, offline, disabled"),
        ("auto", {"WANDB_BASE_URL": "nonsense"}, "wandb has an invalid setting: base_url: "),
    ],
)
def test_an_impossible_mode_or_setting_is_refused(asked, environment, sentence, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}") as refused:
        find_access(TrackingConfig(mode=asked))
    assert "\n" not in str(refused.value)


def test_the_login_is_the_one_that_wandb_finds(monkeypatch):
    assert find_login()[0] is None
    monkeypatch.setenv("WANDB_ENTITY", "mine")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    login = Login("http://127.0.0.1:9", KEY, "mine", headers={}, proxies={})
    assert find_access(TrackingConfig(mode="online", project="p")) == Access("online", "W&B: online, project p", login)
