import json
import random
import re
from dataclasses import replace

import pytest
from test_run_record import RECORD

from ampsweep.records import HISTORY_NAME, RecordError, RunRecord, read_history
from ampsweep.records.files import CHANGED
from ampsweep.tracking.tracker import Tracker

FILE = "run.json"


def log(directory, steps, *, digest=None, resume_after=None):
    record, history = replace(RECORD, history_digest=digest), Tracker()
    history.start(record, directory, resume_after=resume_after)
    assert record.history_digest is None
    for step in steps:
        history.log({"train/loss": 1 / step}, step)
    history.finish(record)
    return record.history_digest


def change_digit(path, line=0):
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = re.sub(r'(?<=loss": )\d', lambda digit: str((int(digit[0]) + 1) % 10), lines[line])
    path.write_text("".join(lines))


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


def test_an_edited_record_is_refused_unless_it_has_no_digest(tmp_path):
    RECORD.write(tmp_path)
    text = (tmp_path / FILE).read_text()
    changed = [text.replace(*words) for words in (("2.0", "3.0"), ('"digest"', '"other"'), ("\n", "\r\n"))]
    for edited in (*changed, json.dumps(json.loads(text)), text + "\n"):
        (tmp_path / FILE).write_bytes(edited.encode())
        with pytest.raises(RecordError) as refused:
            RunRecord.read(tmp_path)
        assert refused.value.reason == CHANGED
    content = json.loads(text)
    del content["digest"]
    (tmp_path / FILE).write_text(json.dumps(content, indent=1) + "\n")
    assert RunRecord.read(tmp_path) == RECORD


def test_a_rewritten_record_has_its_digest_and_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_API_KEY", "a-secret-of-many-letters")
    digest = log(tmp_path, range(1, 4))
    replace(RECORD, history_digest=digest).write(tmp_path)
    again = RunRecord.read(tmp_path)
    again.error = "refused: a-secret-of-many-letters"
    again.write(tmp_path)
    assert (RunRecord.read(tmp_path).error, RunRecord.read(tmp_path).history_digest) == ("refused: ***", digest)


def test_changed_and_lost_rows_are_found(tmp_path):
    path = tmp_path / HISTORY_NAME
    digest = log(tmp_path, range(1, 5))
    whole = path.read_bytes()
    assert len(read_history(tmp_path, digest)) == 4
    for line in range(4):
        path.write_bytes(whole)
        change_digit(path, line)
        assert [row["step"] for row in read_history(tmp_path)] == [1, 2, 3, 4], "it reads as well as before"
        with pytest.raises(RecordError) as refused:
            read_history(tmp_path, digest)
        assert refused.value.reason == "has been changed since its run ended: it does not match its digest"
    with pytest.raises(RecordError, match="has been changed since its run ended"):
        log(tmp_path, range(5, 7), digest=digest, resume_after=4)
    path.write_bytes(whole)
    longer = log(tmp_path, range(4, 7), digest=digest, resume_after=3)
    assert [row["step"] for row in read_history(tmp_path, longer)] == [1, 2, 3, 4, 5, 6]
    for content in (whole[: whole.rindex(b"{")], whole[whole.index(b"\n") + 1 :], b""):
        path.write_bytes(content)
        with pytest.raises(RecordError):
            read_history(tmp_path, digest)
    path.unlink()
    with pytest.raises(RecordError, match="is not there"):
        read_history(tmp_path, digest)
