"""Images that cannot be read: all are named, and left out where that is asked for."""

import numpy as np
import pytest
from PIL import Image

from egc.config import DataConfig
from egc.data import UnreadableError, open_source, read_images, read_readable_images, reader
from egc.errors import ConfigError, DataError


def spoil(folder, *names):
    """Cut some images short, and make the last no image at all."""
    for name in names:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])
    (folder / names[-1]).write_text("not a picture")


BAD = ("dark/0.png", "dark/3.png", "light/9.png")


@pytest.fixture
def spoilt(photo_folder):
    spoil(photo_folder, *BAD)
    return photo_folder


def test_all_of_them_are_named(spoilt):
    with pytest.raises(UnreadableError, match=r"^3 images cannot be read") as caught:
        open_source(DataConfig(f"folder:{spoilt}"))
    for name in BAD:
        assert str(spoilt / name) in str(caught.value)
    assert "data.skip_unreadable=true" in str(caught.value)


def test_of_many_the_first_ten_and_their_number(spoilt):
    spoil(spoilt, *(f"{label}/{n}.png" for label in ("dark", "light") for n in range(1, 8)))
    with pytest.raises(UnreadableError, match=r"^16 images .*; and 6 more\.") as caught:
        open_source(DataConfig(f"folder:{spoilt}"))
    assert str(caught.value).count(".png") == 10


@pytest.mark.parametrize("cache", [0, reader.CACHE_BYTES])
def test_they_are_left_out_where_that_is_asked_for(spoilt, cache, monkeypatch, caplog):
    monkeypatch.setattr(reader, "CACHE_BYTES", cache)
    monkeypatch.setattr(reader, "CHECKED_AT_ONCE", 7)
    config = DataConfig(f"folder:{spoilt}", skip_unreadable=True, test=0.0, validation=0.0)
    train = open_source(config).train
    assert "Going on without 3 of 20 images" in caplog.text
    assert str(spoilt / "dark/3.png") in caplog.text
    assert len(train) == 17
    assert np.bincount(train.labels).tolist() == [8, 9]
    for image, label in zip(train.images(), train.labels, strict=True):
        assert (image.mean() > 120) == label  # each still has its own label


def test_large_folders_name_those_they_meet(spoilt, monkeypatch):
    monkeypatch.setattr(reader, "CACHE_BYTES", 0)
    with pytest.raises(UnreadableError, match=r"dark/0\.png"):  # the first is seen at once
        open_source(DataConfig(f"folder:{spoilt}"))
    Image.new("RGB", (12, 12)).save(spoilt / "dark" / "0.png")
    train = open_source(DataConfig(f"folder:{spoilt}", test=0.0, validation=0.0)).train
    with pytest.raises(UnreadableError, match=r"^2 images cannot be read"):
        train.images()


def test_a_folder_of_nothing_else_is_refused(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text("not a picture")
    with pytest.raises(UnreadableError, match=r"^2 images cannot be read"):
        open_source(DataConfig(f"folder:{tmp_path}", skip_unreadable=True))


def test_streams_cannot_be_looked_at_first():
    with pytest.raises(ConfigError, match=r"data\.skip_unreadable needs"):
        open_source(DataConfig("hub:some/set", streaming=True, skip_unreadable=True))


def test_read_images_names_all_of_them(spoilt):
    with pytest.raises(UnreadableError, match=r"^3 images cannot be read") as caught:
        read_images(spoilt, 12, 3)
    assert [name for name, _ in caught.value.reasons] == [str(spoilt / name) for name in BAD]


def test_the_readable_ones_can_be_had(spoilt, caplog):
    files = [spoilt / "dark" / "1.png", *(spoilt / name for name in BAD), spoilt / "light/0.png"]
    pixels, kept = read_readable_images(files, 12, 3)
    assert kept == [0, 4]
    np.testing.assert_array_equal(pixels, read_images([files[0], files[4]], 12, 3))
    assert "Going on without 3 of 5 images" in caplog.text
    with pytest.raises(UnreadableError, match=r"^3 images"):
        read_readable_images(files[1:4], 12, 3)
    # One that is not there is a mistake in the call, whatever is skipped.
    with pytest.raises(DataError, match=r"no image 'nowhere\.png'"):
        read_readable_images([*files, "nowhere.png"], 12, 3)
