"""A record and its history are as the run left them, or a reader says that they are not."""

import json
import random
from dataclasses import replace

import pytest
from test_run_record import RECORD

from ampsweep.record import HISTORY_NAME, RecordError, RunRecord, read_history
from ampsweep.record.digests import CHANGED
from ampsweep.tracking.tracker import Tracker

FILE = "run.json"


def of_rows(directory, steps, *, digest=None, resume_after=None):
    """The digest of a history after a process has logged these steps."""
    record, history = replace(RECORD, history_digest=digest), Tracker()
    history.start(record, directory, resume_after=resume_after)
    assert record.history_digest is None
    for step in steps:
        history.log({"train/loss": 1 / step}, step)
    history.finish(record)
    return record.history_digest


def change_digit(path, *, after=0):
    """Change the last digit that goes before a line's end, which leaves the file what it is."""
    content = bytearray(path.read_bytes())
    place = next(place for place in range(after, len(content)) if content[place : place + 1].isdigit())
    content[place] = ord("0") + (content[place] - ord("0") + 1) % 10
    path.write_bytes(content)


def test_each_flipped_bit_of_a_record_is_found(tmp_path):
    replace(RECORD, history_digest="0" * 32).write(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    drawn = random.Random(0)
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << drawn.randrange(8)
        (tmp_path / FILE).write_bytes(flipped)
        with pytest.raises(RecordError):
            RunRecord.read(tmp_path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("2.0", "3.0"),
        lambda text: text.replace('"digest"', '"other"'),
        lambda text: json.dumps(json.loads(text)),
        lambda text: text + "\n",
        lambda text: text.replace("\n", "\r\n"),
    ],
    ids=["a figure", "the key of the digest", "the layout", "a line more", "line ends"],
)
def test_a_record_that_was_edited_says_so(tmp_path, edit):
    RECORD.write(tmp_path)
    text = edit((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_bytes(text.encode())
    with pytest.raises(RecordError) as refused:
        RunRecord.read(tmp_path)
    assert refused.value.reason == CHANGED


def test_records_without_a_digest_are_read(tmp_path):
    """Those of earlier versions, and of who edits one on purpose."""
    RECORD.write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    del content["digest"]
    (tmp_path / FILE).write_text(json.dumps(content, indent=1) + "\n")
    assert RunRecord.read(tmp_path) == RECORD


def test_what_rewrites_a_record_keeps_it_right(tmp_path):
    digest = of_rows(tmp_path, range(1, 4))
    replace(RECORD, history_digest=digest).write(tmp_path)
    again = RunRecord.read(tmp_path)
    again.error = "changed by whom it belongs to"
    again.write(tmp_path)
    assert (RunRecord.read(tmp_path).error, RunRecord.read(tmp_path).history_digest) == (again.error, digest)


def test_a_secret_is_hidden_before_the_digest_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_API_KEY", "a-secret-of-many-letters")
    replace(RECORD, error="refused: a-secret-of-many-letters").write(tmp_path)
    assert RunRecord.read(tmp_path).error == "refused: ***"


@pytest.mark.parametrize("line", range(4))
def test_a_changed_digit_of_a_row_is_found(tmp_path, line):
    digest = of_rows(tmp_path, range(1, 5))
    assert len(read_history(tmp_path, digest)) == 4
    content = (tmp_path / HISTORY_NAME).read_bytes()
    begin = sum(map(len, content.splitlines(keepends=True)[:line])) + len('{"step": 1, ')
    change_digit(tmp_path / HISTORY_NAME, after=begin)
    assert [row["step"] for row in read_history(tmp_path)] == [1, 2, 3, 4], "it reads as well as before"
    with pytest.raises(RecordError) as refused:
        read_history(tmp_path, digest)
    assert refused.value.reason == "has been changed since its run ended: it does not match its digest"


def test_rows_that_are_gone_are_found(tmp_path):
    path = tmp_path / HISTORY_NAME
    digest = of_rows(tmp_path, range(1, 5))
    lines = path.read_bytes().splitlines(keepends=True)
    for content in (lines[:-1], lines[1:], []):
        path.write_bytes(b"".join(content))
        with pytest.raises(RecordError):
            read_history(tmp_path, digest)
    path.unlink()
    with pytest.raises(RecordError, match="is not there"):
        read_history(tmp_path, digest)


def test_a_resumed_run_has_a_digest_of_all_its_rows(tmp_path):
    first = of_rows(tmp_path, range(1, 4))
    both = of_rows(tmp_path, range(2, 7), digest=first, resume_after=1)
    assert [row["step"] for row in read_history(tmp_path, both)] == [1, 2, 3, 4, 5, 6]
    change_digit(tmp_path / HISTORY_NAME, after=len('{"step": 1, '))
    with pytest.raises(RecordError):
        read_history(tmp_path, both)


def test_a_changed_history_is_not_gone_on_with(tmp_path):
    first = of_rows(tmp_path, range(1, 4))
    change_digit(tmp_path / HISTORY_NAME, after=len('{"step": 1, '))
    with pytest.raises(RecordError, match="has been changed since its run ended"):
        of_rows(tmp_path, range(4, 7), digest=first, resume_after=3)


def test_a_line_torn_by_a_killed_process_is_cut(tmp_path):
    of_rows(tmp_path, range(1, 4))
    with (tmp_path / HISTORY_NAME).open("ab") as history:
        history.write(b'{"step": 4, "tr')
    digest = of_rows(tmp_path, range(2, 6), resume_after=1)
    assert [row["step"] for row in read_history(tmp_path, digest)] == [1, 2, 3, 4, 5]
