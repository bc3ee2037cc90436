"""A user's own folder of images: one sub-folder a class, or no sub-folders and no labels.

folder/cat/*.png  folder/dog/*.png          two classes, split at random into train and test
folder/train/cat/*.png  folder/test/...     the same with a split of its own (or `val`)
folder/*.png                                no labels: trained without supervision
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from egc.config import DataConfig
from egc.data.description import described
from egc.data.images import image_paths, open_image
from egc.data.imageset import ImageSet
from egc.data.reader import set_of_pictures
from egc.errors import DataError
from egc.registry import sources


@sources.register("folder")
@described((":PATH",))
def open_folder(config: DataConfig, path: Path) -> list[ImageSet]:
    """A folder of images, one sub-folder a class; [all], or [train, test] if it has both."""
    _check_there(path)
    train = path / "train"
    test = next((p for name in ("test", "val") if (p := path / name).is_dir()), None)
    if not (train.is_dir() and test):
        return [_read_folder(config, path)]
    first = _read_folder(config, train)
    alike = replace(config, image_size=first.image_size, channels=first.channels)
    return [first, _read_folder(alike, test, first.classes)]


def open_unlabelled(config: DataConfig, path: Path, name: str) -> ImageSet:
    """All images below a folder, whatever its sub-folders mean."""
    _check_there(path)
    return _set_of_files(config, name, image_paths(path), path)


def _check_there(path: Path) -> None:
    if not path.is_dir():
        raise DataError(f"There is no folder {str(path)!r} to read images from.")


def _read_folder(config: DataConfig, path: Path, classes: list[str] | None = None) -> ImageSet:
    """The images of one folder; a test folder must have the `classes` of its train folder."""
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    names = [folder.name for folder in folders]
    files: list[str] = []
    labels: list[int] = []
    if not folders:
        files = image_paths(path)
    for label, folder in enumerate(folders):
        found = image_paths(folder)
        if not found:
            raise DataError(f"The class folder {str(folder)!r} has no images in it.")
        files += found
        labels += [label] * len(found)
    if files and classes is not None and names != classes:
        raise DataError(
            f"{str(path)!r} has the classes {names[:8]}, "
            f"but the training folder has {classes[:8]}."
        )
    return _set_of_files(config, f"folder:{path}", files, path, labels, names)


def _set_of_files(
    config: DataConfig,
    name: str,
    files: list[str],
    path: Path,
    labels: Sequence[int] = (),
    classes: Sequence[str] = (),
) -> ImageSet:
    """Files with a label each, or none at all."""
    if not files:
        raise DataError(f"There are no images in the folder {str(path)!r}.")
    return set_of_pictures(
        name,
        lambda index: open_image(files[index]),
        np.asarray(labels or [-1] * len(files), dtype=np.int64),
        list(classes),
        config,
        files.__getitem__,
    )
