"""Sets of the `datasets` library, on disk and streamed, from local directories of parquet."""

from dataclasses import replace

import datasets
import numpy as np
import pytest

from egc.config import DataConfig
from egc.data import open_source, reader, streamed
from egc.data.sets import hub
from egc.data.sources import open_parts
from egc.data.streamed import StreamedSet
from egc.errors import ConfigError, DataError
from tests.made import encoded, pictures

pytestmark = pytest.mark.usefixtures("home")


def write_parquet(
    place, splits, columns=("image", "label"), names=("cat", "dog"), size=10, shards=1
):
    """A directory of parquet files as the hub has them; the images of each split."""
    place.mkdir(parents=True, exist_ok=True)
    image, label = columns
    kinds = {image: datasets.Image()}
    if label:
        kinds[label] = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    found = {}
    for seed, (split, count) in enumerate(splits.items()):
        found[split] = pictures(count, size, seed=seed)
        rows = {image: [{"bytes": encoded(p), "path": None} for p in found[split]]}
        if label:
            rows[label] = [i % 2 if split != "secret" else -1 for i in range(count)]
        data = datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))
        for i in range(shards):
            part = data.shard(shards, i, contiguous=True)
            part.to_parquet(str(place / f"{split}-{i:05d}-of-{shards:05d}.parquet"))
    return found


@pytest.mark.parametrize("cache", [0, reader.CACHE_BYTES])
def test_hub_directory(tmp_path, cache, monkeypatch, home):
    monkeypatch.setattr(reader, "CACHE_BYTES", cache)
    pixels = write_parquet(tmp_path / "set", {"train": 12, "test": 4})
    parts = open_parts(DataConfig(f"hub:{tmp_path / 'set'}"))
    for part, split in zip(parts, ("train", "test"), strict=True):
        np.testing.assert_array_equal(part.images(), pixels[split])
        np.testing.assert_array_equal(part.labels, np.arange(len(part)) % 2)
        assert part.classes == ["cat", "dog"]
    np.testing.assert_array_equal(parts[0].images(np.array([7, 1])), pixels["train"][[7, 1]])
    assert (home / "hub").is_dir()  # what the library makes of it is with the other data
    splits = open_source(DataConfig(f"hub:{tmp_path / 'set'}", validation=0.25, image_size=8))
    assert [len(part) for part in splits] == [9, 3, 4]
    assert splits.test.images().shape == (4, 8, 8, 3)


def test_hub_validation_stands_in_for_test(tmp_path):
    pixels = write_parquet(tmp_path / "set", {"train": 6, "validation": 4})
    parts = open_parts(DataConfig(f"hub:{tmp_path / 'set'}"))
    np.testing.assert_array_equal(parts[1].images(), pixels["validation"])


def test_hub_test_split_without_labels_gives_way(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "TEST_SPLITS", ("secret", "validation"))
    loaded = {}
    for split in ("train", "secret", "validation"):
        pixels = write_parquet(tmp_path / split, {split: 4})
        found = datasets.load_dataset(str(tmp_path / split), cache_dir=str(tmp_path / "cache"))
        loaded[split] = next(iter(found.values()))
    monkeypatch.setattr(hub, "_load", lambda *args: loaded)
    parts = open_parts(DataConfig("hub:anything"))
    np.testing.assert_array_equal(parts[1].images(), pixels["validation"])


def test_hub_single_split_and_other_columns(tmp_path, caplog):
    write_parquet(tmp_path / "one", {"train": 6}, columns=("img", "fine_label"))
    (part,) = open_parts(DataConfig(f"hub:{tmp_path / 'one'}"))
    assert (len(part), part.classes) == (6, ["cat", "dog"])
    write_parquet(tmp_path / "numbers", {"train": 6}, names=None)
    (part,) = open_parts(DataConfig(f"hub:{tmp_path / 'numbers'}"))
    assert part.classes == ["0", "1"]
    write_parquet(tmp_path / "bare", {"train": 6}, columns=("picture", None))
    (part,) = open_parts(DataConfig(f"hub:{tmp_path / 'bare'}"))
    assert part.classes == []
    assert (part.labels == -1).all()
    assert "no column of labels among ['picture']" in caplog.text


def test_hub_mistakes(tmp_path, monkeypatch):
    words = tmp_path / "words"
    words.mkdir()
    datasets.Dataset.from_dict({"text": ["a"], "n": [1]}).to_parquet(str(words / "train.parquet"))
    with pytest.raises(DataError, match=r"no column of images; its columns are text \(Value\), n"):
        open_parts(DataConfig(f"hub:{words}"))
    with pytest.raises(DataError, match=r"nothing.* cannot be read: .*; check the name"):
        open_parts(DataConfig(f"hub:{tmp_path / 'nothing'}"))
    with pytest.raises(ConfigError, match="names no set"):
        open_parts(DataConfig("hub:"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        open_parts(DataConfig(f"hub:{tmp_path / 'empty'}"))

    def offline(*args, **options):
        raise ConnectionError("Couldn't reach the Hub\nand more lines\nof this")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    with pytest.raises(
        DataError, match="no/such cannot be read: Couldn't reach the Hub; check"
    ) as caught:
        open_parts(DataConfig("hub:no/such"))
    assert "more lines" not in str(caught.value)


def test_hub_damaged_image_is_named(tmp_path):
    place = tmp_path / "set"
    place.mkdir()
    rows = {
        "image": [
            {"bytes": encoded(pictures(1, 8)[0]), "path": None},
            {"bytes": b"x", "path": None},
        ]
    }
    kinds = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict(rows, features=kinds).to_parquet(str(place / "train.parquet"))
    with pytest.raises(DataError, match=r"set\[1\]' cannot be read"):
        open_parts(DataConfig(f"hub:{place}"))


def test_hub_downloads_are_announced(tmp_path, monkeypatch, caplog):
    write_parquet(tmp_path / "set", {"train": 4})
    builder = datasets.load_dataset_builder(
        str(tmp_path / "set"), cache_dir=str(tmp_path / "cache")
    )
    builder.info.download_size = 12_300_000
    whole = datasets.load_dataset
    asked = []

    def from_the_hub(path, subset, **options):
        asked.append((path, subset))
        assert "Downloading hub:some/set#small (12.3 MB)" in caplog.text  # before, not after
        return whole(str(tmp_path / "set"), cache_dir=options["cache_dir"])

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *args, **options: builder)
    monkeypatch.setattr(datasets, "load_dataset", from_the_hub)
    assert len(open_parts(DataConfig("hub:some/set#small"))[0]) == 4
    assert asked == [("some/set", "small")]


# --- streamed -----------------------------------------------------------------------------------


@pytest.fixture
def stream_config(tmp_path, monkeypatch):
    write_parquet(tmp_path / "set", {"train": 20, "test": 7}, shards=3)
    monkeypatch.setattr(streamed, "BUFFER", 5)
    return DataConfig(f"hub:{tmp_path / 'set'}", streaming=True)


def steps_of(config, steps, batch_size=6, seed=0, **share):
    train = open_source(config).train
    return [train.take(step, batch_size, seed, **share) for step in steps]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("known", [False, True])
def test_streamed_batches_are_a_function_of_seed_and_step(stream_config, known, caplog):
    if known:
        # Once the library has prepared a set, it knows how long its splits are.
        open_parts(replace(stream_config, streaming=False))
    train = open_source(stream_config).train
    assert isinstance(train, StreamedSet)
    assert len(train) == (20 if known else 0)
    assert (train.classes, train.image_size, train.channels) == (["cat", "dog"], 10, 3)
    row = steps_of(stream_config, range(12))
    assert all(x.shape == (6, 10, 10, 3) and x.dtype == np.uint8 for x, _ in row)
    assert all(y.dtype == np.int64 for _, y in row)
    assert not caplog.records
    # The same, from any step on, and back, and twice.
    order = [7, 8, 3, 3, 0, 1, 11]
    for step, batch in zip(order, steps_of(stream_config, order), strict=True):
        assert same(batch, row[step])
    assert "reading up to it" in caplog.text
    assert not same(steps_of(stream_config, [0], seed=1)[0], row[0])
    assert same(steps_of(stream_config, [2], batch_size=4)[0], (row[1][0][2:], row[1][1][2:]))


def test_streamed_passes_have_every_image_once_in_an_order_of_their_own(stream_config):
    pixels, labels = zip(*steps_of(stream_config, range(3), batch_size=20), strict=True)
    plain = open_parts(replace(stream_config, streaming=False))[0]
    number = {image.tobytes(): i for i, image in enumerate(plain.images())}
    orders = [[number[image.tobytes()] for image in batch] for batch in pixels]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(20)]}) == 4
    for order, found in zip(orders, labels, strict=True):
        np.testing.assert_array_equal(found, plain.labels[order])


def test_streamed_share_of_each_process(stream_config):
    whole = steps_of(stream_config, range(4))
    for rank in range(2):
        mine = steps_of(stream_config, range(4), rank=rank, processes=2)
        for (x, y), (all_x, all_y) in zip(mine, whole, strict=True):
            assert same((x, y), (all_x[rank::2], all_y[rank::2]))


def test_streamed_validation_and_test_are_halves_of_the_test_split(stream_config, monkeypatch):
    splits = open_source(stream_config)
    assert [len(part) for part in splits[1:]] == [4, 3]
    plain = open_parts(replace(stream_config, streaming=False))[1]
    number = {image.tobytes(): i for i, image in enumerate(plain.images())}
    halves = [[number[image.tobytes()] for image in part.images()] for part in splits[1:]]
    assert sorted(halves[0] + halves[1]) == list(range(7))
    for part, half in zip(splits[1:], halves, strict=True):
        np.testing.assert_array_equal(part.labels, plain.labels[half])
    again = open_source(stream_config)
    np.testing.assert_array_equal(splits.test.images(), again.test.images())
    monkeypatch.setattr(hub, "MAX_HELD_OUT", 3)
    assert [len(part) for part in open_source(stream_config)[1:]] == [2, 1]


def test_streamed_without_a_test_split_or_labels(tmp_path, caplog):
    write_parquet(tmp_path / "set", {"train": 5}, names=None)
    config = DataConfig(f"hub:{tmp_path / 'set'}", streaming=True)
    with pytest.raises(DataError, match=r"numbers without names.*data\.labels=false"):
        open_source(config)
    splits = open_source(replace(config, labels=False))
    assert [len(part) for part in splits[1:]] == [0, 0]
    assert "no split to test on" in caplog.text
    assert splits.train.classes == []
    assert (splits.train.take(0, 8, seed=0)[1] == -1).all()
    with pytest.raises(DataError, match="streamed"):
        splits.train.images()
    write_parquet(tmp_path / "both", {"train": 5, "test": 3}, names=None)
    splits = open_source(replace(config, source=f"hub:{tmp_path / 'both'}", labels=False))
    assert [part.labels.tolist() for part in splits[1:]] == [[-1, -1], [-1]]


def test_a_stream_shorter_than_announced_stays_in_step():
    def numbers(rng):
        return iter(range(5))

    row = streamed.Stream("numbers", numbers, size=8)
    whole = [row.batch(step, 3, seed=0) for step in range(20)]
    for step in (9, 19, 2):
        other = streamed.Stream("numbers", numbers, size=8)
        assert other.batch(step, 3, seed=0) == whole[step]
    with pytest.raises(DataError, match="no images"):
        streamed.Stream("nothing", lambda rng: iter(()), size=8).batch(0, 3, seed=0)


def test_a_stream_that_failed_starts_again(monkeypatch):
    faults = [True, False]

    monkeypatch.setattr(streamed, "BUFFER", 1)

    def numbers(rng):
        yield from range(5)
        if faults.pop(0):
            raise DataError("the line is cut")
        yield from range(5, 10)

    row = streamed.Stream("numbers", numbers, size=0)
    assert row.batch(0, 3, seed=0) == [0, 1, 2]
    with pytest.raises(DataError, match="cut"):
        row.batch(1, 3, seed=0)
    assert row.batch(1, 3, seed=0) == [3, 4, 5]


def test_streaming_is_for_the_hub_only():
    for source in ("digits", "cifar10", "folder:photos"):
        with pytest.raises(ConfigError, match=r"data\.streaming is for hub: sources only"):
            open_parts(DataConfig(source, streaming=True))


def test_few_labels_need_images_that_can_be_counted(stream_config):
    with pytest.raises(ConfigError, match=r"data\.streaming = false"):
        open_source(replace(stream_config, labels_fraction=0.5))


def test_labels_of_a_stream_can_be_forgotten(stream_config):
    for part in open_parts(replace(stream_config, labels=False)):
        assert part.classes == []
        assert (part.labels == -1).all()
    assert (steps_of(replace(stream_config, labels=False), [0])[0][1] == -1).all()
