"""Only a server that clearly says so keeps a training from its start; any other answer, or none, refuses nothing."""

import json
import time
from contextlib import suppress

import pytest
import requests
from wandb_server import ENTITY, KEY, Fault

from ampsweep.tracking.wandb import server as wandb_server_questions
from ampsweep.tracking.wandb.library import Login, WandbError

REFUSES = "W&B: the server {} refuses the API key: {}"
HAS_NOT = "W&B: the server {} has no entity {!r}, or not for this API key"
URL = "http://127.0.0.1:9"


def login(url=URL, key=KEY):
    return Login(url, key, None, headers={}, proxies={})


def refusal(url=URL, key=KEY, entity=None):
    with suppress(WandbError):  # a server in trouble refuses nothing
        return wandb_server_questions.refusal(login(url, key), entity, within_s=60.0)
    return None


@pytest.fixture
def answer(monkeypatch):
    """`answer((status, text), ...)` has a server give these answers, whatever it is asked."""

    def answer(*answers):
        left = list(answers)

        def post(url, **options):
            assert options["allow_redirects"] is False, "another address would get the key"
            response = requests.Response()
            response.status_code, text = left.pop(0)
            response._content = text.encode()
            return response

        monkeypatch.setattr(requests, "post", post)

    return answer


def error(message):
    return json.dumps({"errors": [{"message": message, "path": ["viewer"]}], "data": {"viewer": None}})


def entity(value, **more):
    return json.dumps({"data": {"entity": value}, **more})


def test_an_unknown_key_or_entity_is_refused(wandb_server):
    url = wandb_server.url
    assert refusal(url) is None
    assert refusal(url, entity=ENTITY) is None
    assert refusal(url, key="9" * 40) == REFUSES.format(url, "user is not logged in")
    assert refusal(url, entity="nobody") == HAS_NOT.format(url, "nobody")
    assert wandb_server.runs == []


def test_an_entity_is_refused_only_where_the_server_is_clear(answer):
    for status, text, is_refused in (
        (200, entity(None), True),
        (200, entity({"available": True}), True),
        (404, error("entity elsewhere not found"), True),
        (403, error("no access to elsewhere"), True),
        (200, entity({"available": False}), False),
        (200, entity(None, errors=[{"message": "deadline exceeded"}]), False),
        (400, error("Cannot query field 'available'"), False),
        (404, error("no such operation"), False),
        (200, json.dumps({"data": {}}), False),
    ):
        answer((200, json.dumps({"data": {"viewer": {"username": "me"}}})), (status, text))
        assert refusal(entity="elsewhere") == (HAS_NOT.format(URL, "elsewhere") if is_refused else None)


def test_an_unclear_answer_about_the_key_refuses_nothing(answer):
    for status, text in (
        (403, "<html>blocked</html>"),
        (429, error("slow down")),
        (500, error("internal")),
        (200, "[]"),
        (200, json.dumps({"data": {"viewer": None}})),
        (200, "<html>log in</html>"),
        (302, ""),
    ):
        answer((status, text), (status, text))
        assert refusal(entity="elsewhere") is None


def test_a_refused_key_is_not_repeated(answer):
    answer((401, error(f"no user has {KEY}\nat all")))
    assert refusal() == REFUSES.format(URL, "no user has ***")
    assert KEY not in repr(login())


def test_a_silent_server_is_given_up(wandb_server):
    with wandb_server.failing(Fault(status=200, delay_s=5.0)):
        began = time.monotonic()
        with pytest.raises(WandbError, match=r"^the server does not answer$"):
            wandb_server_questions.refusal(login(wandb_server.url), None, within_s=0.3)
        assert time.monotonic() - began < 2.5, "it is 0.3 s on a machine with nothing else to do"
