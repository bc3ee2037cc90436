"""ImageNet-1k in its folder layout, and CelebA-HQ: sets one has to get from their authors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from egc.config import DataConfig
from egc.data.files import asset, local_folder
from egc.data.imageset import ImageSet
from egc.data.sets.folder import open_folder, read_folder
from egc.data.sources import described
from egc.errors import DataError
from egc.registry import sources

IMAGENET = ("imagenet", "imagenet-1k")
CELEBAHQ = ("celebahq", "celeba-hq", "celeba_hq", "CelebAMask-HQ/CelebA-HQ-img")


def class_names() -> dict[str, str]:
    """WordNet id -> readable name of the 1,000 classes, in their official order."""
    lines = asset("imagenet_classes.txt").decode().splitlines()
    return dict(line.split("\t") for line in lines)


@sources.register("imagenet")
@described(("", ":PATH"), channels=3, classes=list(class_names().values()))
def open_imagenet(config: DataConfig, path: Path | None = None) -> list[ImageSet]:
    """1.28 million photographs in 1,000 classes (Russakovsky et al. 2015); [train, test]."""
    path = path or local_folder(
        "imagenet", IMAGENET, "train/n01440764/*.JPEG and val/n01440764/*.JPEG"
    )
    val = path / "val"
    if val.is_dir() and not any(entry.is_dir() for entry in val.iterdir()):
        raise DataError(
            f"{str(val)!r} has no sub-folder a class: sort the validation images into folders "
            "named by their WordNet id, such as n01440764, as those of train/ are."
        )
    names = class_names()
    return [
        replace(part, name="imagenet", classes=[names.get(name, name) for name in part.classes])
        for part in open_folder(config, path)
    ]


@sources.register("celebahq")
@described(("", ":PATH"), channels=3)
def open_celebahq(config: DataConfig, path: Path | None = None) -> list[ImageSet]:
    """30,000 faces, without labels (Karras et al. 2018); [all]."""
    path = path or local_folder("celebahq", CELEBAHQ, "a folder of images")
    return [read_folder(config, path, "celebahq", labelled=False)]
