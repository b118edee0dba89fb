"""Only a server that clearly says so keeps a training from its start, and whoever asks is soon told."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from wandb_server import ENTITY, KEY, Fault, WandbServer

from ampsweep.tracking.wandb.library import Login, WandbError, find_login
from ampsweep.tracking.wandb.server import refusal as refused

REFUSES = "W&B: the server {} refuses the API key: {}"
HAS_NOT = "W&B: the server {} has no entity {!r}, or not for this API key"

Answer = tuple[int, str]


def login(url: str, key: str = KEY) -> Login:
    return Login(url, key, None, headers={}, proxies={})


def refusal(url: str, key: str = KEY, entity: str | None = None) -> str | None:
    """What the server's answer comes to, once it is there."""
    with suppress(WandbError):  # it is in trouble, which refuses nothing
        return refused(login(url, key), entity, within_s=60.0)
    return None


@contextmanager
def answering(*answers: Answer, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers, whatever it is asked; its address, and the keys that it was sent."""
    left, sent = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            sent.append(self.headers["Authorization"])
            status, text = left.pop(0)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", sent
        server.shutdown()


def error(message: str) -> str:
    return json.dumps({"errors": [{"message": message, "path": ["viewer"]}], "data": {"viewer": None}})


VIEWER = 200, json.dumps({"data": {"viewer": {"username": "me"}}})


def test_a_key_and_an_entity_that_the_server_knows_are_fine(wandb_server: WandbServer) -> None:
    assert refusal(wandb_server.url) is None
    assert refusal(wandb_server.url, entity=ENTITY) is None


def test_a_key_or_an_entity_that_it_does_not_know_is_refused(wandb_server: WandbServer) -> None:
    url = wandb_server.url
    assert refusal(url, key="9" * 40) == REFUSES.format(url, "user is not logged in")
    assert refusal(url, entity="nobody") == HAS_NOT.format(url, "nobody")
    assert wandb_server.runs == []


@pytest.mark.parametrize(
    "answer",
    [
        (200, json.dumps({"data": {"entity": None}})),
        (200, json.dumps({"data": {"entity": {"available": True}}})),
        (404, error("entity elsewhere not found")),
        (403, error("no access to elsewhere")),
    ],
    ids=["null", "free", "404", "403"],
)
def test_an_entity_is_refused_in_whatever_way_the_server_says_it(answer: Answer) -> None:
    with answering(VIEWER, answer) as (url, _):
        assert refusal(url, entity="elsewhere") == HAS_NOT.format(url, "elsewhere")


@pytest.mark.parametrize(
    "answer",
    [
        (200, json.dumps({"data": {"entity": {"available": False}}})),
        (200, json.dumps({"data": {"entity": None}, "errors": [{"message": "deadline exceeded"}]})),
        (400, error("Cannot query field 'available'")),
        (404, error("no such operation")),
        (403, error("permission denied")),
        (200, json.dumps({"data": {}})),
        (500, error("internal")),
    ],
    ids=["there", "trouble", "another version", "another server", "forbidden", "nothing", "500"],
)
def test_an_entity_of_others_may_take_runs(answer: Answer) -> None:
    with answering(VIEWER, answer) as (url, _):
        assert refusal(url, entity="elsewhere") is None


@pytest.mark.parametrize(
    "answer",
    [
        (403, "<html>blocked</html>"),
        (404, "nothing here"),
        (429, error("slow down")),
        (500, error("internal")),
        (200, "[]"),
        (200, json.dumps({"data": {"viewer": None}})),
        (200, "<html>log in</html>"),
    ],
)
def test_an_answer_that_is_not_clear_refuses_nothing(answer: Answer) -> None:
    with answering(answer, answer) as (url, _):
        assert refusal(url, entity="elsewhere") is None


def test_a_key_is_neither_repeated_nor_sent_elsewhere() -> None:
    with answering((401, error(f"no user has {KEY}\nat all"))) as (url, _):
        assert refusal(url) == REFUSES.format(url, "no user has ***")
    with answering() as (elsewhere, sent), answering((302, ""), headers={"Location": elsewhere}) as (url, _):
        assert refusal(url) is None
        assert sent == []
    assert KEY not in repr(login(url))


@pytest.mark.parametrize("fault", [None, Fault(status=500), Fault(status=429), Fault(status=0)])
def test_a_server_in_trouble_is_not_waited_for(fault: Fault | None, wandb_server: WandbServer) -> None:
    if fault is None:
        wandb_server.refuse()
    else:
        wandb_server.faults.append(fault)
    assert refusal(wandb_server.url, key="9" * 40) is None


def test_a_silent_one_is_not_waited_for_either(wandb_server: WandbServer) -> None:
    with wandb_server.failing(Fault(status=200, delay_s=5.0)):
        began = time.monotonic()
        with pytest.raises(WandbError, match=r"^the server does not answer$"):
            refused(login(wandb_server.url, "9" * 40), None, within_s=0.4)
        waited_s = time.monotonic() - began
    assert waited_s < 2.5, "it is 0.4 s on a machine with nothing else to do"


@pytest.mark.parametrize("place", ["environment", "netrc"])
def test_the_key_is_the_one_that_wandb_finds(place: str, nobody_logged_in, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "environment":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    else:
        (nobody_logged_in / ".netrc").write_text(f"machine 127.0.0.1:9\n  login user\n  password {KEY}\n")
        (nobody_logged_in / ".netrc").chmod(0o600)
    monkeypatch.setenv("WANDB_ENTITY", "mine")
    assert find_login() == (Login("http://127.0.0.1:9", KEY, "mine", headers={}, proxies={}), None)


def test_without_one_there_is_none(nobody_logged_in) -> None:
    assert find_login()[0] is None
