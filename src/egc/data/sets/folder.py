"""A user's own folder of images: one sub-folder a class, or no sub-folders and no labels.

folder/cat/*.png  folder/dog/*.png          two classes, split at random into train and test
folder/train/cat/*.png  folder/test/...     the same with a split of its own (or `val`)
folder/*.png                                no labels: trained without supervision
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from egc.config import DataConfig
from egc.data.images import image_paths, open_image
from egc.data.imageset import ImageSet
from egc.data.reader import set_of_pictures
from egc.data.sources import described
from egc.errors import DataError
from egc.registry import sources


@sources.register("folder")
@described((":PATH",))
def open_folder(config: DataConfig, path: Path) -> list[ImageSet]:
    """A folder of images, one sub-folder a class; [all], or [train, test] if it has both."""
    train = path / "train"
    test = next((p for name in ("test", "val") if (p := path / name).is_dir()), None)
    if not (train.is_dir() and test):
        return [read_folder(config, path)]
    first = read_folder(config, train)
    alike = replace(config, image_size=first.image_size, channels=first.channels)
    return [first, read_folder(alike, test, classes=first.classes)]


def read_folder(
    config: DataConfig,
    path: Path,
    name: str = "",
    classes: list[str] | None = None,
    labelled: bool = True,
) -> ImageSet:
    """The images of one folder.

    Args:
        classes: what a test folder must have, as its train folder does.
        labelled: whether its sub-folders are classes; else all images below are of one kind.
    """
    if not path.is_dir():
        raise DataError(f"There is no folder {str(path)!r} to read images from.")
    names: list[str] = []
    if labelled:
        entries = (p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        names = sorted(entry.name for entry in entries)
    files = [] if names else image_paths(path)
    labels = [-1] * len(files)
    for label, folder in enumerate(names):
        found = image_paths(path / folder)
        if not found:
            raise DataError(f"The class folder {str(path / folder)!r} has no images in it.")
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"There are no images in the folder {str(path)!r}.")
    if classes is not None and names != classes:
        raise DataError(
            f"{str(path)!r} has the classes {names[:8]}, "
            f"but the training folder has {classes[:8]}."
        )
    return set_of_pictures(
        name or f"folder:{path}",
        lambda index: open_image(files[index]),
        np.array(labels),
        names,
        config,
        files.__getitem__,
    )
