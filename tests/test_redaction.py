"""Keys, tokens and passwords are hidden in every text; what only looks like one stays."""

import re
import time

import pytest

from ampsweep.redaction import hidden, hide

SECRETS = (
    *("+model.api_key=<abc>", "+model.api_key=<'a b'> seed=1", "{password: <abc>, user: me}", "model.token=<abc>"),
    *("HF_TOKEN: <abc>", "--token=<abc> --api-key=<def>", "+model.github_token=<abc>"),
    *("got {'my_service_token': <'abc'>}", '{"password": <"abc">, "user": "me"}', "https://me:<abc>@example.com/x"),
    *("refused <hf_abcdefghijklmnopqrstuvwxyz>", "refused <ghp_0123456789012345678901234567890123456>"),
    *("the variable holds <only-i-know-this>", "model.pwd=<abc> model.passphrase=<'a b'>"),
    *("+data.db_pass=<abc> data.auth_key: <abc>", "+model.clientSecret=<abc> {'accessToken': <'abc'>}"),
    *("password: <[abc, 'd e']> next", "curl --password <abc> -x", "Authorization: <Bearer abc.def>"),
    *("{'Authorization': '<Basic YTpi>'}", "sent Bearer <abcdef123456> twice", "Cookie: <session=abc; theme=dark>"),
    *("session_cookie=<abc>", "got <eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl>", "me:<p@ss>@example.com"),
    *("postgres://me:<p@ss>@example.com/x", "postgres://me:<p/ss>@example.com/x"),
    *("run --key=<abc> --auth=<me>,abc --pass=<abc>", "token:<abc> {token: <abc>} bad token: <abc123>"),
    *("pass=<abc> model.auth=<'a b'> bearer=<abc>", "sent bearer <AbcdefghijKlmnopqrstu>"),
    *("pip install https://<abc>@example.com/x", "https://<0123abc>@o1.ingest.sentry.io/45"),
    *("post https://hooks.slack.com/services/<T0/B0/abc>", "https://discord.com/api/webhooks/<1/abc>"),
    *(f"refused <AIza{35 * 'a'}> <npm_{36 * 'b'}>", f"got <sk_live_{24 * 'c'}>, <pypi-{60 * 'd'}>"),
    *(f"<dckr_pat_{27 * 'e'}> <ya29.{60 * 'f'}>", f"a <-----BEGIN PRIVATE KEY----- {64 * 'g'}>"),
    f"a <-----BEGIN RSA PRIVATE KEY-----\n{64 * 'g'}\n-----END RSA PRIVATE KEY-----> b",
    "model.api_key=<hunter-2> tracking.notes=<hunter-2>",
)
"""What stands between < and > is hidden."""
HARMLESS = (
    "perf/tokens_per_sec 1200 tokens/s trainer.max_tokens=5 unexpected token: foo model.pad_token=<pad>",
    "+model.tokenizer.eos_token='</s>' model.max_token=5",
    "git_commit 01aa39a1b2c3d4e5f60718293a4b5c6d7e8f9012 http://127.0.0.1:8080/team/p",
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
)


def test_secrets_in_a_text_are_hidden_and_the_rest_stays(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "only-i-know-this")
    for text in SECRETS:
        assert hide(re.sub("[<>]", "", text)) == re.sub("<[^>]*>", "***", text)
    monkeypatch.setenv("MY_SERVICE_TOKEN", "short")
    assert [hide(text) for text in HARMLESS] == list(HARMLESS)


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ({"api_key": "x", "lr": 0.1}, {"api_key": "***"}),
        ({"model": {"slack_token": "y", "size": None}}, {"model": {"slack_token": "***", "size": None}}),
        ({"keys": ["a", "0123456789" * 4]}, {"keys": ["a", "***"]}),
        ({"password": 20240815, "error": "no 202408151234"}, {"password": "***", "error": "no 202408151234"}),
        ({"password": 202408151234, "error": "no 202408151234"}, {"password": "***", "error": "no ***"}),
        ({"secret": None, "credentials": True, "eos_token": 50256}, {"secret": None, "credentials": True}),
        ({"password": ["first-of-two", "b"], "n": "it was first-of-two"}, {"password": ["***"] * 2, "n": "it was ***"}),
        ({"credentials": {"user": "me", "retry": True}}, {"credentials": {"user": "***", "retry": True}}),
        (
            ["+model.api_key=abcdefghijkl", "tracking.notes=uses abcdefghijkl", "name=abcdefghijkl"],
            ["+model.api_key=***", "tracking.notes=uses ***", "name=***"],
        ),
        # A short secret is searched for as a word only, and if it mixes letters with others.
        ({"pwd": "hunter2", "notes": "hunter2 hunter23"}, {"pwd": "***", "notes": "*** hunter23"}),
        ({"pwd": "adamw", "optimizer": "adamw"}, {"pwd": "***", "optimizer": "adamw"}),
        ({"pwd": "202408", "step": "202408"}, {"pwd": "***", "step": "202408"}),
    ],
)
def test_values_of_secret_names_are_hidden_everywhere(value, safe, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    assert hidden(value) == (safe if isinstance(safe, list) else value | safe)


def test_the_values_of_secret_variables_are_hidden(monkeypatch):
    secret = ("MYPASS", "SESSION_COOKIE", "SENTRY_DSN", "REGISTRY_AUTH", "AWS_CREDS", "SLACK_WEBHOOK_URL")
    for name in (*secret, "PWD", "GIT_ASKPASS", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "/home/somebody/somewhere")
            hidden_text = "in ***" if name in secret else "in /home/somebody/somewhere"
            assert (name, hide("in /home/somebody/somewhere")) == (name, hidden_text)


@pytest.mark.parametrize("text", ["://" * 5_000 + "@", "a:" * 5_000 + "@", "aB" * 5_000 + "=", "a.b-c_" * 5_000 + "="])
def test_a_strange_text_takes_no_time(text):
    began = time.process_time()
    hide(text)
    assert time.process_time() - began < 1
