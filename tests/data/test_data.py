"""Images in: the shipped digits, folders, arrays, and what is refused."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from egc.codec import PixelCodec
from egc.config import AugmentConfig, Config, DataConfig
from egc.data import ImageSet, open_source, read_images, reader
from egc.data.augment import augment
from egc.errors import ConfigError, DataError
from egc.training.prepare import open_clean


def test_digits_are_all_there_and_split_the_same_way_every_time():
    splits = open_source(DataConfig("digits"))
    assert sum(map(len, splits)) == 1797
    assert len(splits.test) == 359  # a fifth
    assert splits.train.classes == [str(i) for i in range(10)]
    indices = np.concatenate([part.indices for part in splits])
    assert len(set(indices)) == 1797
    again = open_source(DataConfig("digits"))
    assert np.array_equal(splits.test.indices, again.test.indices)
    # The first digits of the original file are 0, 1, 2, 3, ...
    everything = open_source(DataConfig("digits", test=0.0, validation=0.0)).train
    order = np.argsort(everything.indices)
    assert everything.labels[order][:10].tolist() == list(range(10))


def test_folder_of_classes(photo_folder):
    splits = open_source(DataConfig(f"folder:{photo_folder}", validation=0.25))
    assert [len(part) for part in splits] == [12, 4, 4]
    assert splits.train.classes == ["dark", "light"]
    assert (splits.train.image_size, splits.train.channels) == (12, 3)
    for image, label in zip(splits.train.images(), splits.train.labels, strict=True):
        assert (image.mean() > 120) == label


def test_folder_with_its_own_split(photo_folder, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    photo_folder.rename(root / "train")
    for name in ("dark", "light"):
        (root / "test" / name).mkdir(parents=True)
        Image.new("RGB", (12, 12)).save(root / "test" / name / "a.png")
    splits = open_source(DataConfig(f"folder:{root}", validation=0.0))
    assert [len(part) for part in splits] == [20, 0, 2]
    (root / "test" / "light").rename(root / "test" / "bright")
    with pytest.raises(DataError, match="bright"):
        open_source(DataConfig(f"folder:{root}"))


def test_folder_without_subfolders_is_unlabelled(photo_folder):
    splits = open_source(DataConfig(f"folder:{photo_folder / 'dark'}"))
    assert splits.train.classes == []
    assert (splits.train.labels == -1).all()


def test_folder_is_resized_and_says_so(photo_folder, caplog):
    Image.new("L", (30, 20), 40).save(photo_folder / "dark" / "wide.png")
    with caplog.at_level(logging.INFO, "egc"):
        splits = open_source(DataConfig(f"folder:{photo_folder}", image_size=12))
    assert splits.train.images().shape[1:] == (12, 12, 3)
    assert "L to colour (1 of 21)" in caplog.text
    assert "cut to a centred square and resized to 12x12 (1 of 21)" in caplog.text


def test_large_folders_are_read_as_needed(photo_folder, monkeypatch):
    expected = open_source(DataConfig(f"folder:{photo_folder}")).train.images()
    monkeypatch.setattr(reader, "CACHE_BYTES", 0)
    lazy = open_source(DataConfig(f"folder:{photo_folder}")).train
    assert lazy.read.cache is None
    np.testing.assert_array_equal(lazy.images(), expected)


def test_folder_mistakes(photo_folder, tmp_path):
    def opening(path, **options):
        return open_source(DataConfig(f"folder:{path}", **options))

    with pytest.raises(DataError, match="no folder"):
        opening(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in the folder"):
        opening(tmp_path / "empty")
    (photo_folder / "hollow").mkdir()
    with pytest.raises(DataError, match=r"class folder .*hollow.* has no images"):
        opening(photo_folder)
    (photo_folder / "hollow").rmdir()
    whole = (photo_folder / "dark" / "3.png").read_bytes()
    (photo_folder / "dark" / "3.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"dark/3\.png.* cannot be read"):
        opening(photo_folder)
    (photo_folder / "dark" / "3.png").write_text("not a picture")
    with pytest.raises(DataError, match=r"dark/3\.png.* cannot be read"):
        opening(photo_folder)


def test_not_square_needs_a_size(photo_folder):
    Image.new("RGB", (30, 20)).save(photo_folder / "dark" / "0.png")
    with pytest.raises(DataError, match=r"30x20 and not square.*data\.image_size"):
        open_source(DataConfig(f"folder:{photo_folder}"))


@pytest.mark.parametrize("source", ["digit", "folder", "foldr:x"])
def test_unknown_source(source):
    with pytest.raises(ConfigError, match="not a known source"):
        open_source(DataConfig(source))


def test_read_images_takes_all_forms(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), dtype=np.uint8)
    picture = Image.fromarray(pixels[..., 0])
    picture.save(tmp_path / "a.png")
    forms = [picture, tmp_path / "a.png", str(tmp_path / "a.png"), tmp_path, pixels,
             pixels[..., 0], pixels[None], [pixels], [picture]]  # fmt: skip
    for form in forms:
        np.testing.assert_array_equal(read_images(form, 8, 1), pixels[None])
    assert read_images([picture, tmp_path / "a.png", pixels], 8, 1).shape == (3, 8, 8, 1)


def test_read_images_converts_what_is_natural(caplog):
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    assert read_images(clear, 8, 1).min() == 255  # transparent is white paper
    deep = Image.fromarray(np.full((8, 8), 0x8000, dtype=np.uint16))
    assert read_images(deep, 8, 1)[0, 0, 0, 0] == 0x80
    assert read_images(Image.new("RGB", (16, 16), "red"), 8, 3)[0, 4, 4].tolist() == [255, 0, 0]
    assert "RGBA to grey" in caplog.text
    assert "resized to 8x8" in caplog.text


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((8, 8), dtype=np.float32), "uint8 with values 0 to 255; got float32"),
        (np.zeros((1, 8, 8, 2), dtype=np.uint8), "got shape"),
        (3, "got int"),
        ([], "no image"),
        ("nowhere.png", "no image 'nowhere.png'"),
    ],
)
def test_read_images_refuses(images, words):
    with pytest.raises(DataError, match=words):
        read_images(images, 8, 1)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((2, 8, 8, 1)), None, "uint8 array"),
        (np.zeros((2, 8, 9, 1), np.uint8), None, "square"),
        (np.zeros((2, 8, 8, 1), np.uint8), [0], "as many labels"),
        (np.zeros((2, 8, 8, 1), np.uint8), [0, -2], "Labels must be"),
    ],
)
def test_arrays_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        ImageSet.from_arrays(images, labels)


def test_pixel_codec_is_exact_and_knows_the_order():
    codec = PixelCodec(3, 5)
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), dtype=np.uint8)
    x = codec.encode(images)
    assert x.shape == (4, *codec.shape)
    assert x.min() >= -1
    assert x.max() <= 1
    assert x[1, 2, 3, 4] == pytest.approx(images[1, 3, 4, 2] / 127.5 - 1)
    np.testing.assert_array_equal(codec.decode(x), images)
    assert codec.decode(torch.full((1, 3, 5, 5), 7.0)).max() == 255


def test_augment_moves_whole_images():
    images = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8, 1).expand(200, -1, -1, -1)
    out = augment(images, AugmentConfig(flip=True, shift=1), torch.Generator().manual_seed(0))
    # Away from the edges, each result is the original moved by -1, 0 or 1, mirrored or not.
    seen = set()
    for one in out[..., 0]:
        for mirrored in (False, True):
            base = images[0, ..., 0].flip(1) if mirrored else images[0, ..., 0]
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    moved = base.roll((-dy, -dx), (0, 1))
                    if torch.equal(one[1:-1, 1:-1], moved[1:-1, 1:-1]):
                        seen.add((mirrored, dy, dx))
    assert len(seen) == 18
    assert augment(images, AugmentConfig(), torch.Generator()) is images


def test_some_labels_are_kept_evenly():
    whole = open_source(DataConfig("digits")).train
    some = open_source(DataConfig("digits", labels_fraction=0.05)).train
    kept = some.labels >= 0
    assert kept.sum() == round(0.05 * len(whole))
    counts = np.bincount(some.labels[kept], minlength=10)
    assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(some.labels[kept], whole.labels[kept])
    np.testing.assert_array_equal(some.indices, whole.indices)
    validation = open_source(DataConfig("digits", labels_fraction=0.05)).validation
    assert (validation.labels >= 0).all()


def test_labels_can_be_listed(tmp_path):
    whole = open_source(DataConfig("digits")).train
    listed = tmp_path / "labels.txt"
    listed.write_text("\n".join(map(str, whole.indices[:7])))
    some = open_source(DataConfig("digits", labels_list=str(listed))).train
    np.testing.assert_array_equal(np.flatnonzero(some.labels >= 0), np.arange(7))
    listed.write_text("one two")
    with pytest.raises(DataError, match="whole numbers, one a line"):
        open_source(DataConfig("digits", labels_list=str(listed)))
    listed.write_text("99999")
    with pytest.raises(DataError, match="lists none of the"):
        open_source(DataConfig("digits", labels_list=str(listed)))
    with pytest.raises(DataError, match="no list of labels"):
        open_source(DataConfig("digits", labels_list="nowhere.txt"))


def test_the_clean_stream_of_few_labels_is_of_those():
    config = Config().replace(data={"labels_fraction": 0.02}, objective={"clean_stream": True})
    train = open_source(config.data).train
    clean = open_clean(config, train)
    assert len(clean) == (train.labels >= 0).sum()
    assert (clean.labels >= 0).all()
    assert open_clean(config, open_source(DataConfig("digits")).train) is None
