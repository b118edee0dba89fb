"""A folder of images trains as it is."""

import sys

import numpy as np
import pytest
import torch

from ampsweep.data.image_folder import ImageFiles, ImageFolder

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def draw(file, colour, size=(20, 30)):
    """An image whose left half is black."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[:, size[1] // 2 :] = colour
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path):
    """Ten red and ten blue images in different formats, and a file that is no image."""
    folder = tmp_path / "images"
    for number in range(10):
        draw(folder / f"blue/{number}.png", (0, 0, 255), size=(20 + number, 30))
        draw(folder / f"red/more/{number}.JPG", (255, 0, 0))
    (folder / "red/notes.txt").write_text("no image")
    return folder


def make(folder, **changes):
    settings = {"image_size": 8, "num_classes": 2, "val_fraction": 0.2, "augment": True, "batch_size": 4, "seed": 0}
    return ImageFolder(path=str(folder), device=torch.device("cpu"), **settings | changes)


def val_images(data):
    return torch.cat([images for images, _ in data.val_batches()])


def test_images_are_held_out_or_taken_from_folders(folder):
    data = make(folder)
    assert len(val_images(data)) == data.num_train_batches == 4
    other = make(folder, seed=1, batch_size=2)
    assert torch.equal(val_images(data), val_images(other))
    assert data.fingerprint == other.fingerprint
    draw(folder / "red/new.png", (9, 9, 9))
    assert make(folder).fingerprint != data.fingerprint
    for number in range(9):
        for name in "ab":
            draw(folder / f"both/{'train' if number < 6 else 'val'}/{name}/{number}.bmp", (9, 9, 9))
    data = make(folder / "both")
    assert (data.num_train_batches, len(val_images(data))) == (3, 6)


def test_training_images_are_cut_out_and_mirrored_at_random(folder):
    data = make(folder, batch_size=16)
    first, labels = data.train_batch(0)
    assert (first.shape, first.dtype) == ((16, 3, 8, 8), torch.float32)
    assert 0 <= first.min() < 0.9 <= first.max() <= 1
    blue_is_more = first[:, 2].mean((1, 2)) > first[:, 0].mean((1, 2))
    assert torch.equal(labels, (~blue_is_more).long()), "classes are numbered in the order of their folders"
    assert torch.equal(first, data.train_batch(0)[0])
    is_black = [first[:, :, :, column].amax((1, 2)) < 0.2 for column in (0, -1)]
    assert all(0 < side.sum() < 16 for side in is_black), "half of them are mirrored"
    assert not torch.equal(first, data.train_batch(1)[0])


def test_without_augmentation_an_image_is_its_centre(folder):
    draw(folder / "one.png", (255, 255, 255), size=(32, 64))
    image, label = ImageFiles([(str(folder / "one.png"), 5)], 4, augment=False)[0]
    assert label == 5
    assert torch.allclose(image[:, :, :2], torch.zeros(3, 4, 2), atol=0.2)
    assert torch.allclose(image[:, :, 2:], torch.ones(3, 4, 2), atol=0.2)


@pytest.mark.parametrize(
    ("num_workers", "cut", "reason"),
    [
        (0, lambda content: b"hello", "it is damaged, or no image"),
        (0, None, "No such file or directory"),
        (0, lambda content: content[:60], "image file is truncated|damaged|broken"),
        (2, lambda content: content[:-30], "image file is truncated|damaged|broken|Truncated"),
    ],
)
def test_a_damaged_image_is_named(folder, opened, num_workers, cut, reason):
    data = opened(make(folder, num_workers=num_workers))
    for file in folder.rglob("blue/*.png"):
        file.unlink() if cut is None else file.write_bytes(cut(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"^image {folder}/blue/\d\.png cannot be read: .*({reason})"):
        [data.train_batch(index) for index in range(4)]


def test_folders_and_settings_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "empty/a").mkdir(parents=True)
    for path, changes, sentence in (
        (folder, {"num_classes": 3}, "num_classes is 3, but data folder .* has 2 folders"),
        (tmp_path / "empty", {"num_classes": 1}, r"data folder .*/empty/a has no image"),
        (tmp_path / "nowhere", {}, r"data folder .* cannot be read: No such file or directory"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make(path, **changes)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"by Pillow, which is not installed: pip install 'ampsweep\[images\]'"):
        make(folder)
