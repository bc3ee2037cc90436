"""`hub:NAME` and `hub:NAME#SUBSET`: image sets of the `datasets` library, on disk or streamed.

NAME is a set of the Hugging Face hub, or a local directory that the library can read, such as
one of parquet files.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from egc.config import DataConfig
from egc.data.files import data_home, megabytes
from egc.data.images import open_image
from egc.data.imageset import ImageSet
from egc.data.reader import set_of_pictures, shape_of
from egc.data.sources import described
from egc.data.streamed import Stream, StreamedSet
from egc.distributed import is_main, main_first
from egc.errors import DataError, EGCError
from egc.registry import sources

TEST_SPLITS = ("test", "validation", "val", "valid")
LABELS = ("label", "labels", "fine_label", "class", "target")
MAX_HELD_OUT = 2_000
"""images of a streamed set's test split that are kept in memory"""

log = logging.getLogger("egc")


class _Columns(NamedTuple):
    """The columns of a set that are used, and how they are read."""

    source: str
    image: str
    label: str | None
    classes: list[str] | None
    """None: the labels are bare numbers"""

    @classmethod
    def of(cls, data: Any, source: str, labels: bool) -> _Columns:
        datasets, features = _library(source), data.features
        if features is None:
            raise DataError(
                f"{source} does not say what its columns are before it is read; "
                "set data.streaming=false."
            )
        images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
        if not images:
            found = ", ".join(f"{key} ({type(kind).__name__})" for key, kind in features.items())
            raise DataError(f"{source} has no column of images; its columns are {found}.")
        image = "image" if "image" in images else images[0]
        if not labels:
            return cls(source, image, None, [])
        named = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
        if named:
            label = next((key for key in LABELS if key in named), named[0])
            return cls(source, image, label, list(features[label].names))
        numbers = [key for key in LABELS if "int" in str(getattr(features.get(key), "dtype", ""))]
        if numbers:
            return cls(source, image, numbers[0], None)
        log.warning("%s has no column of labels among %s: without labels.", source, list(features))
        return cls(source, image, None, [])

    def encoded(self, data: Any) -> Any:
        """These columns, the images as the bytes they are stored as: decoding is done here."""
        kept = [self.image] if self.label is None else [self.image, self.label]
        undecoded = _library(self.source).Image(decode=False)
        return data.select_columns(kept).cast_column(self.image, undecoded)

    def picture_of(self, row: Any, name: str = "") -> Image.Image:
        content, path = row[self.image]["bytes"], row[self.image]["path"]
        if content is not None:
            return open_image(content, path or name or self.source)
        if path and Path(path).is_file():
            return open_image(path)
        # A file of its own on the hub, which the library knows how to fetch.
        with _one_sentence(name or self.source):
            return _library(self.source).Image().decode_example(row[self.image])

    def label_of(self, row: Any) -> int:
        value = None if self.label is None else row[self.label]
        return -1 if value is None else int(value)

    def rows(self, data: Any) -> tuple[Any, np.ndarray]:
        """Undecoded examples by index, and their labels; the first 2,000 of a stream."""
        rows = self.encoded(data)
        with _one_sentence(self.source):
            if not hasattr(data, "num_rows"):
                rows = list(islice(rows, MAX_HELD_OUT))
                labels = [self.label_of(row) for row in rows]
            elif self.label is None:
                labels = [-1] * len(rows)
            else:
                values = data.select_columns([self.label])[:][self.label]
                labels = [-1 if value is None else value for value in values]
        return rows, np.array(labels, dtype=np.int64)


@sources.register("hub")
@described((":NAME", ":NAME#SUBSET"))
def open_hub(config: DataConfig, rest: str) -> list[ImageSet]:
    """A set of the `datasets` library; [all], or [train, test] if it has a split to test on.

    A streamed set always gives both; its test images are the first 2,000 of that split.
    """
    name = config.source
    path, _, subset = rest.partition("#")
    parts = main_first(lambda: _load(name, path, subset or None, config.streaming))
    if "train" in parts:
        train, tests = "train", [split for split in TEST_SPLITS if split in parts]
    elif len(parts) == 1:
        train, tests = next(iter(parts)), []
    else:
        raise DataError(
            f"{name} has the splits {sorted(parts)} and none called 'train'; only sets with "
            "that split, or with a single one, can be used."
        )
    columns = _Columns.of(parts[train], name, config.labels)
    if config.streaming:
        first: ImageSet = _open_streamed(parts[train], columns, config, train)
    else:
        first = _set_of_rows(*columns.rows(parts[train]), columns, config)
    if held_out := _held_out([parts[split] for split in tests], columns):
        alike = replace(config, image_size=first.image_size, channels=first.channels)
        return [first, _set_of_rows(*held_out, columns._replace(classes=first.classes), alike)]
    if not config.streaming:
        return [first]
    log.warning("%s has no split to test on: accuracy will not be measured.", name)
    blank = np.zeros((1, first.image_size, first.image_size, first.channels), dtype=np.uint8)
    one = ImageSet.from_arrays(blank, classes=first.classes, name=name)
    return [first, one.subset(np.arange(0))]


def _load(name: str, path: str, subset: str | None, streaming: bool) -> Any:
    """All splits of a set, a dictionary of the library's; says what it is about to download."""
    datasets = _library(name)
    local = Path(path).expanduser()
    # Beside the other data if the user said where that is, else where the library always puts it.
    cache = str(data_home() / "hub") if os.environ.get("EGC_DATA") else None
    with _one_sentence(name):
        if local.is_dir():
            path = str(local)
        elif is_main():
            builder = datasets.load_dataset_builder(path, subset, cache_dir=cache)
            size = builder.info.download_size
            large = megabytes(size) if size else "of unknown size"
            if streaming:
                log.info("Streaming %s (%s in all): read as needed, none of it kept.", name, large)
            elif not Path(builder.cache_dir).exists():
                log.info("Downloading %s (%s) to %s.", name, large, builder.cache_dir)
        return datasets.load_dataset(path, subset, streaming=streaming, cache_dir=cache)


def _library(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name} needs the library `datasets`; pip install 'egc[hub]'.") from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    """Whatever the library raises within becomes one sentence."""
    try:
        yield
    except EGCError:
        raise
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise DataError(
            f"{name} cannot be read: {line.rstrip('.')}; check the name, and that the hub can be "
            "reached or the set is already on this machine."
        ) from None


def _held_out(candidates: list[Any], columns: _Columns) -> tuple[Any, np.ndarray] | None:
    """The first split that has labels, as those of a test split are often kept secret."""
    found = None
    for data in candidates:
        rows, labels = columns.rows(data)
        if len(labels) and (columns.label is None or labels.max() >= 0):
            return rows, labels
        if len(labels) and found is None:
            found = rows, labels
    return found


def _set_of_rows(rows: Any, labels: np.ndarray, columns: _Columns, config: DataConfig) -> ImageSet:
    name, classes = config.source, columns.classes
    if len(labels) == 0:
        raise DataError(f"{name} has no images.")
    if classes is None:
        classes = [str(number) for number in range(labels.max() + 1)]
    if labels.min() < -1 or labels.max() >= len(classes):
        raise DataError(
            f"{name} has labels {labels.min()} to {labels.max()}, but {len(classes)} classes."
        )

    def name_of(index: int) -> str:
        return f"{name}[{index}]"

    def picture(index: int) -> Image.Image:
        return columns.picture_of(rows[index], name_of(index))

    return set_of_pictures(name, picture, labels, classes, config, name_of)


def _open_streamed(data: Any, columns: _Columns, config: DataConfig, split: str) -> StreamedSet:
    name = config.source
    if columns.classes is None:
        raise DataError(
            f"The labels of {name} are numbers without names, which cannot be counted while "
            "streaming; set data.labels=false or data.streaming=false."
        )
    rows = columns.encoded(data)

    def examples(rng: np.random.Generator) -> Iterator[Any]:
        # Not by the library's own shuffle: its order depends on the library's version.
        shards = rows.num_shards
        with _one_sentence(name):
            for index in rng.permutation(shards):
                yield from rows.shard(num_shards=shards, index=int(index))

    with _one_sentence(name):
        first = next(iter(rows), None)
    if first is None:
        raise DataError(f"{name} has no images.")
    image_size, channels = shape_of(columns.picture_of(first), f"{name}[0]", config)
    splits = data.info.splits or {}
    size = splits[split].num_examples or 0 if split in splits else 0
    return StreamedSet(
        name=name,
        read=lambda indices: np.zeros((0, image_size, image_size, channels), dtype=np.uint8),
        indices=np.arange(0),
        labels=np.zeros(0, dtype=np.int64),
        classes=columns.classes,
        image_size=image_size,
        channels=channels,
        stream=Stream(name, examples, size),
        picture=columns.picture_of,
        label=columns.label_of,
    )
