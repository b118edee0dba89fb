"""Keys, tokens and passwords are hidden wherever a text may hold them; what only looks like one is not."""

import time

import pytest

from ampsweep.redaction import hidden, hide


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("+model.api_key=abc", "+model.api_key=***"),
        ("+model.api_key='a b' seed=1", "+model.api_key=*** seed=1"),
        ("{password: abc, user: me}", "{password: ***, user: me}"),
        ("model.token=abc", "model.token=***"),
        ("HF_TOKEN: abc", "HF_TOKEN: ***"),
        ("--token=abc --api-key=def", "--token=*** --api-key=***"),
        ("+model.github_token=abc", "+model.github_token=***"),
        ("got {'my_service_token': 'abc'}", "got {'my_service_token': ***}"),
        ('{"password": "abc", "user": "me"}', '{"password": ***, "user": "me"}'),
        ("https://me:abc@example.com/x", "https://me:***@example.com/x"),
        ("refused hf_abcdefghijklmnopqrstuvwxyz", "refused ***"),
        ("refused ghp_0123456789012345678901234567890123456", "refused ***"),
        ("the variable holds only-i-know-this", "the variable holds ***"),
        ("model.pwd=abc model.passphrase='a b'", "model.pwd=*** model.passphrase=***"),
        ("+data.db_pass=abc data.auth_key: abc", "+data.db_pass=*** data.auth_key: ***"),
        ("+model.clientSecret=abc {'accessToken': 'abc'}", "+model.clientSecret=*** {'accessToken': ***}"),
        ("password: [abc, 'd e'] next", "password: *** next"),
        ("curl --password abc -x", "curl --password *** -x"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("{'Authorization': 'Basic YTpi'}", "{'Authorization': '***'}"),
        ("sent Bearer abcdef123456 twice", "sent Bearer *** twice"),
        ("Cookie: session=abc; theme=dark", "Cookie: ***"),
        ("session_cookie=abc", "session_cookie=***"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "got ***"),
        ("postgres://me:p@ss@example.com/x", "postgres://me:***@example.com/x"),
        ("postgres://me:p/ss@example.com/x", "postgres://me:***@example.com/x"),
        ("me:p@ss@example.com", "me:***@example.com"),
        ("run --key=abc --auth=me,abc --pass=abc", "run --key=*** --auth=***,abc --pass=***"),
        ("token:abc {token: abc} bad token: abc123", "token:*** {token: ***} bad token: ***"),
        ("pass=abc model.auth='a b' bearer=abc", "pass=*** model.auth=*** bearer=***"),
        ("sent bearer AbcdefghijKlmnopqrstu", "sent bearer ***"),
        ("pip install https://abc@example.com/x", "pip install https://***@example.com/x"),
        ("https://0123abc@o1.ingest.sentry.io/45", "https://***@o1.ingest.sentry.io/45"),
        ("post https://hooks.slack.com/services/T0/B0/abc", "post https://hooks.slack.com/services/***"),
        ("https://discord.com/api/webhooks/1/abc", "https://discord.com/api/webhooks/***"),
        (f"refused AIza{35 * 'a'} npm_{36 * 'b'}", "refused *** ***"),
        (f"got sk_live_{24 * 'c'}, pypi-{60 * 'd'}", "got ***, ***"),
        (f"dckr_pat_{27 * 'e'} ya29.{60 * 'f'}", "*** ***"),
        (f"a -----BEGIN RSA PRIVATE KEY-----\n{64 * 'g'}\n-----END RSA PRIVATE KEY----- b", "a *** b"),
        (f"a -----BEGIN PRIVATE KEY----- {64 * 'g'}", "a ***"),
        ("model.api_key=hunter-2 tracking.notes=hunter-2", "model.api_key=*** tracking.notes=***"),
    ],
)
def test_a_secret_in_a_text_is_hidden(text, safe, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "only-i-know-this")
    assert hide(text) == safe


@pytest.mark.parametrize(
    "text",
    [
        "perf/tokens_per_sec 1200 tokens/s",
        "trainer.max_tokens=5",
        "unexpected token: foo",
        "model.pad_token=<pad>",
        "+model.tokenizer.eos_token='</s>' model.max_token=5",
        "git_commit 01aa39a1b2c3d4e5f60718293a4b5c6d7e8f9012",
        "http://127.0.0.1:8080/team/p",
        "pair_key: 0123456789abcdef",
        "the variable holds short",
        "data.tokens_per_batch=4096 model.num_heads=8 num_passes=3 passes: 4",
        "key_padding_mask=None author=me authors: [me, you] compass=n",
        "num_key_value_heads=4 sort_key=name primary_key: id monkey=1 keyboard: x",
        "bearer authentication is needed",
        "git@github.com:me/x.git http://127.0.0.1:8080/a@b mailto:me@example.com",
        "maxTokens=4 padToken: x headSize=3",
        "optimizer.lr=1e-3 model.num_tokens=50257 data.token_path=/data/tokens.bin forward_pass=3 pass: 3 auth=true",
        "a token: 12 tokens; the last token: </s> npm_config_registry=x desk-top risk-of-something-long-and-plain",
        "ssh://git@github.com/x https://example.com/a@v1 postgres://me@localhost/x http://localhost:8080/@x",
        "fp32-gpt_tiny-s0-1f8ac10f23c5b5bc sha256:" + 64 * "a1" + " SGD.momentum AKIARA outputs/a/2026-11-21_10-00-00",
        "secretary: me; cookiecutter=3.2; session 3: lr=0.1@step",
    ],
)
def test_what_is_none_stays(text, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "short")
    assert hide(text) == text


def test_values_are_hidden_by_their_names_and_in_all_texts(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    config = {"api_key": "x", "lr": 0.1, "keys": ["a", "0123456789" * 4], "model": {"slack_token": "y", "size": None}}
    assert hidden(config) == {
        "api_key": "***",
        "lr": 0.1,
        "keys": ["a", "***"],
        "model": {"slack_token": "***", "size": None},
    }


def test_a_secret_of_digits_is_hidden_and_a_truth_value_is_not():
    config = {"password": 20240815, "secret": None, "credentials": True, "eos_token": 50256, "error": "no 202408151234"}
    assert hidden(config) == config | {"password": "***"}
    assert hidden({"password": 202408151234, "error": "no 202408151234"}) == {"password": "***", "error": "no ***"}


def test_lists_and_mappings_under_a_secret_name_are_hidden_whole():
    config = {"password": ["first-of-two", "b"], "credentials": {"user": "me", "clientSecret": "y", "retry": True}}
    notes = {"notes": "it was first-of-two"}
    assert hidden(config | notes) == {
        "password": ["***", "***"],
        "credentials": {"user": "***", "clientSecret": "***", "retry": True},
        "notes": "it was ***",
    }


def test_a_secret_in_one_override_is_hidden_in_the_others():
    overrides = ["+model.api_key=abcdefghijkl", "tracking.notes=uses abcdefghijkl", "name=abcdefghijkl"]
    assert hidden(overrides) == ["+model.api_key=***", "tracking.notes=uses ***", "name=***"]


def test_a_short_secret_is_searched_for_as_a_word_only():
    assert hidden({"pwd": "hunter2", "notes": "hunter2 hunter23"})["notes"] == "*** hunter23"
    assert hidden({"pwd": "adamw", "optimizer": "adamw"})["optimizer"] == "adamw"
    assert hidden({"pwd": "202408", "step": "202408"})["step"] == "202408"


@pytest.mark.parametrize(
    "name", ["MYPASS", "SESSION_COOKIE", "SENTRY_DSN", "REGISTRY_AUTH", "AWS_CREDS", "SLACK_WEBHOOK_URL"]
)
def test_the_value_of_a_secret_variable_is_hidden(name, monkeypatch):
    monkeypatch.setenv(name, "only-i-know-this")
    assert hide("it is only-i-know-this") == "it is ***"


@pytest.mark.parametrize("name", ["PWD", "GIT_ASKPASS", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"])
def test_other_variables_are_no_secrets(name, monkeypatch):
    monkeypatch.setenv(name, "/home/somebody/somewhere")
    assert hide("in /home/somebody/somewhere") == "in /home/somebody/somewhere"


@pytest.mark.parametrize("text", ["://" * 5_000 + "@", "a:" * 5_000 + "@", "aB" * 5_000 + "=", "a.b-c_" * 5_000 + "="])
def test_a_strange_text_takes_no_time(text):
    began = time.process_time()
    hide(text)
    assert time.process_time() - began < 1
