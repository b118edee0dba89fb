"""Images and tables of any usual kind become files that a row names; anything else is refused in a sentence."""

import json
import re

import numpy as np
import pytest
import torch

from ampsweep.recorder.media import MediaError, prepared, write_media

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
GRAY = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51


def test_an_image_has_the_same_bytes_however_it_is_given():
    of_torch = torch.from_numpy(GRAY)
    several = {
        "bytes": GRAY,
        "floats": GRAY / 255,
        "channel": GRAY[:, :, None],
        "torch": of_torch,
        "first": of_torch[None].to(torch.bfloat16) / 255,
        "batch": of_torch[None, None] / 255,
        "pillow": Image.fromarray(GRAY),
        "list": [GRAY],
    }
    for name, (image,) in prepared(several).items():
        assert np.array_equal(np.asarray(image), GRAY), name
    (colors,) = prepared({"image": torch.rand(3, 4, 5)})["image"]
    (outside,) = prepared({"image": np.array([[-1.0, np.nan, 2.0]])})["image"]
    assert (colors.size, colors.mode, np.asarray(outside).tolist()) == ((5, 4), "RGB", [[0, 0, 255]])


def test_files_are_named_by_step_and_number(tmp_path):
    rows = [{"text": "a", "n": torch.tensor(2)}, {"text": "b", "more": np.float32(0.5)}]
    row = write_media(tmp_path, {"one": GRAY, "some": [GRAY, GRAY], "table": rows, "none": []}, 40)
    assert row == {
        "media/one": ["media/one-40.png"],
        "media/some": ["media/some-40-0.png", "media/some-40-1.png"],
        "media/table": ["media/table-40.json"],
        "media/none": [],
    }
    assert np.array_equal(np.asarray(Image.open(tmp_path / "media/one-40.png")), GRAY)
    table = json.loads((tmp_path / "media/table-40.json").read_text())
    assert table == {"columns": ["text", "n", "more"], "data": [["a", 2, None], ["b", None, 0.5]]}


IMAGE = "media: an image is (H, W) or (H, W, channels), of torch (channels, H, W), in bytes or from 0 to 1, got"
REFUSED = {
    "media must return a mapping of images and tables, got list": [GRAY],
    "media must have names of letters, digits, '_', '-' and '.', got 'a/b'": {"a/b": GRAY},
    "media must be images or tables (lists of mappings), got str as text": {"text": "a"},
    f"{IMAGE} int64 (2, 2) in counts": {"counts": np.zeros((2, 2), int)},
    f"{IMAGE} uint8 (2, 2, 5) in a": {"a": np.zeros((2, 2, 5))},
    "media must be images or tables (lists of mappings), got dict as rows": {"rows": [{}, 1]},
    "media: a table holds strings and numbers, got list in rows": {"rows": [{"a": [1]}]},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_neither_is_refused(sentence):
    with pytest.raises(MediaError, match=f"^{re.escape(sentence)}$"):
        prepared(REFUSED[sentence])
