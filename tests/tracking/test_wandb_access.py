"""Only a server that clearly says so keeps a training from its start; any other answer, or none, refuses nothing."""

import json
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from wandb_server import ENTITY, KEY, Fault

from ampsweep.tracking.wandb import server as wandb_server_questions
from ampsweep.tracking.wandb.library import Login, WandbError

REFUSES = "W&B: the server {} refuses the API key: {}"
HAS_NOT = "W&B: the server {} has no entity {!r}, or not for this API key"


def login(url, key=KEY):
    return Login(url, key, None, headers={}, proxies={})


def refusal(url, key=KEY, entity=None):
    with suppress(WandbError):  # a server in trouble refuses nothing
        return wandb_server_questions.refusal(login(url, key), entity, within_s=60.0)
    return None


@contextmanager
def answering(*answers, headers=None):
    """A server that gives these answers, whatever it is asked; its address, and the keys that it was sent."""
    left, sent = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            sent.append(self.headers["Authorization"])
            status, text = left.pop(0)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, format, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
        server.shutdown()


def error(message):
    return json.dumps({"errors": [{"message": message, "path": ["viewer"]}], "data": {"viewer": None}})


def entity(value, **more):
    return json.dumps({"data": {"entity": value}, **more})


VIEWER = 200, json.dumps({"data": {"viewer": {"username": "me"}}})


def test_an_unknown_key_or_entity_is_refused(wandb_server):
    url = wandb_server.url
    assert refusal(url) is None
    assert refusal(url, entity=ENTITY) is None
    assert refusal(url, key="9" * 40) == REFUSES.format(url, "user is not logged in")
    assert refusal(url, entity="nobody") == HAS_NOT.format(url, "nobody")
    assert wandb_server.runs == []


@pytest.mark.parametrize(
    ("status", "text", "is_refused"),
    [
        (200, entity(None), True),
        (200, entity({"available": True}), True),
        (404, error("entity elsewhere not found"), True),
        (403, error("no access to elsewhere"), True),
        (200, entity({"available": False}), False),
        (200, entity(None, errors=[{"message": "deadline exceeded"}]), False),
        (400, error("Cannot query field 'available'"), False),
        (404, error("no such operation"), False),
        (403, error("permission denied"), False),
        (200, json.dumps({"data": {}}), False),
        (500, error("internal"), False),
    ],
)
def test_an_entity_is_refused_only_where_the_server_is_clear(status, text, is_refused):
    with answering(VIEWER, (status, text)) as (url, _):
        assert refusal(url, entity="elsewhere") == (HAS_NOT.format(url, "elsewhere") if is_refused else None)


@pytest.mark.parametrize(
    "answer",
    [
        (403, "<html>blocked</html>"),
        (404, "nothing here"),
        (429, error("slow down")),
        (200, "[]"),
        (200, json.dumps({"data": {"viewer": None}})),
        (200, "<html>log in</html>"),
    ],
)
def test_an_unclear_answer_about_the_key_refuses_nothing(answer):
    with answering(answer, answer) as (url, _):
        assert refusal(url, entity="elsewhere") is None


def test_a_key_is_neither_repeated_nor_sent_elsewhere():
    with answering((401, error(f"no user has {KEY}\nat all"))) as (url, _):
        assert refusal(url) == REFUSES.format(url, "no user has ***")
    with answering() as (elsewhere, sent), answering((302, ""), headers={"Location": elsewhere}) as (url, _):
        assert refusal(url) is None
        assert sent == []
    assert KEY not in repr(login(url))


@pytest.mark.parametrize("fault", [None, Fault(status=500), Fault(status=429), Fault(status=0)])
def test_a_server_in_trouble_refuses_nothing(fault, wandb_server):
    if fault is None:
        wandb_server.refuse()
    else:
        wandb_server.faults.append(fault)
    assert refusal(wandb_server.url, key="9" * 40) is None


def test_a_silent_server_is_given_up(wandb_server):
    with wandb_server.failing(Fault(status=200, delay_s=5.0)):
        began = time.monotonic()
        with pytest.raises(WandbError, match=r"^the server does not answer$"):
            wandb_server_questions.refusal(login(wandb_server.url), None, within_s=0.3)
        assert time.monotonic() - began < 2.5, "it is 0.3 s on a machine with nothing else to do"
