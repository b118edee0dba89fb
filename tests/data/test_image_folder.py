"""A folder of images trains as it is."""

import sys

import numpy as np
import pytest
import torch

from ampsweep.data.image_folder import ImageFiles, ImageFolder

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
CPU = torch.device("cpu")


def draw(file, colour, size=(20, 30)):
    """An image whose left half is black."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[:, size[1] // 2 :] = colour
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path):
    """Ten red and ten blue images in formats of their own, and what is no image."""
    for number in range(10):
        draw(tmp_path / f"blue/{number}.png", (0, 0, 255), size=(20 + number, 30))
        draw(tmp_path / f"red/more/{number}.JPG", (255, 0, 0))
    (tmp_path / "red/notes.txt").write_text("no image")
    return tmp_path


def make(folder, **changes):
    settings = {"image_size": 8, "num_classes": 2, "val_fraction": 0.2, "augment": True, "batch_size": 4, "seed": 0}
    return ImageFolder(path=str(folder), device=CPU, **settings | changes)


def test_images_come_with_the_number_of_their_folder(folder):
    images, labels = make(folder).train_batch(0)
    assert images.shape == (4, 3, 8, 8)
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) >= (0, 0.9)
    assert images.max() <= 1
    blue_is_more = images[:, 2].mean((1, 2)) > images[:, 0].mean((1, 2))
    assert torch.equal(labels, (~blue_is_more).long())


def test_held_out_images_are_the_same_for_every_seed(folder):
    data = make(folder)
    images = torch.cat([batch[0] for batch in data.val_batches()])
    assert len(images) == 4
    assert data.num_train_batches == 4
    assert torch.equal(images, torch.cat([batch[0] for batch in make(folder, seed=1).val_batches()]))


def test_folders_for_training_and_validation_are_taken(folder):
    for split, count in (("train", 6), ("val", 3)):
        for number in range(count):
            draw(folder / f"both/{split}/a/{number}.bmp", (9, 9, 9))
            draw(folder / f"both/{split}/b/{number}.bmp", (9, 9, 9))
    data = make(folder / "both")
    assert data.num_train_batches == 3
    assert sum(len(labels) for _, labels in data.val_batches()) == 6


def test_training_images_are_cut_out_and_mirrored_at_random(folder):
    data = make(folder, batch_size=16)
    first, again = data.train_batch(0)[0], data.train_batch(0)[0]
    assert torch.equal(first, again)
    left_is_black = first[:, :, :, 0].amax((1, 2)) < 0.2
    assert 0 < left_is_black.sum() < 16
    assert not torch.equal(first, data.train_batch(1)[0])


def test_without_augmentation_an_image_is_its_centre(folder):
    draw(folder / "one.png", (255, 255, 255), size=(32, 64))
    image, label = ImageFiles([(str(folder / "one.png"), 5)], 4, augment=False)[0]
    assert label == 5
    assert torch.allclose(image[:, :, :2], torch.zeros(3, 4, 2), atol=0.2)
    assert torch.allclose(image[:, :, 2:], torch.ones(3, 4, 2), atol=0.2)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is damaged, or no image"),
        (b"hello", "it is damaged, or no image"),
        (None, "No such file or directory"),
        (slice(60), "image file is truncated|damaged|broken"),
        (slice(-30), "image file is truncated|damaged|broken|Truncated"),
    ],
)
def test_a_damaged_image_is_named(folder, num_workers, content, told):
    data = make(folder, num_workers=num_workers)
    for file in folder.rglob("blue/*.png"):
        whole = file.read_bytes()
        file.write_bytes(whole[content] if isinstance(content, slice) else content or b"")
        if content is None:
            file.unlink()
    with pytest.raises(ValueError, match=rf"^image {folder}/blue/\d\.png cannot be read: .*({told})"):
        [data.train_batch(index) for index in range(4)]
    data.stop_workers()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_classes": 3}, "num_classes is 3, but data folder .* has 2 folders"),
        ({"image_size": 0}, "image_size must be at least 1, got 0"),
        ({"val_fraction": 1.5}, "val_fraction"),
        ({"num_workers": 1.5}, "num_workers must be a whole number, got 1.5"),
    ],
)
def test_settings_that_do_not_fit_are_refused(folder, changes, told):
    with pytest.raises(ValueError, match=told):
        make(folder, **changes)


def test_a_class_without_images_is_told(folder):
    (folder / "green").mkdir()
    with pytest.raises(ValueError, match=r"data folder .*/green has no image"):
        make(folder, num_classes=3)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"data folder .* cannot be read: No such file or directory"):
        make(tmp_path / "nowhere")


def test_without_pillow_the_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"by Pillow, which is not installed: pip install 'ampsweep\[images\]'"):
        make(folder)


def test_the_fingerprint_tells_folders_apart(folder):
    before = make(folder).fingerprint
    assert make(folder, seed=3, batch_size=2).fingerprint == before
    draw(folder / "red/new.png", (9, 9, 9))
    assert make(folder).fingerprint != before
