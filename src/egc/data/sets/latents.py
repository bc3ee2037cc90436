"""Stored latents: a data set encoded once, read at the speed of the disk (`latents:PATH`).

A directory of memory-mapped shards, written by `egc codec encode`:

    index.json            source, classes, autoencoder, shapes, and whether it is complete
    PART-labels.npy       labels of a part (`all`, or `train` and `test`); (N,)
    PART-00000.npy        latents of its first images; float16 (n, twins, C, h, w)

A twin is the latent of the image mirrored left to right, since latents cannot be mirrored
themselves. The latents are the autoencoder's own: the codec shifts and scales them.

Shards are written under a temporary name and renamed, so one that is there is complete: the same
command again goes on with those that are missing. Of several processes, each makes its share.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from egc.config import Config, DataConfig
from egc.data.files import check_place
from egc.data.imageset import ImageSet
from egc.data.sources import described
from egc.distributed import is_main, share, wait_for_all
from egc.errors import ConfigError, DataError
from egc.registry import sources
from egc.report.progress import Line, progress_line

if TYPE_CHECKING:
    # Writing latents needs PyTorch; reading them, or listing sources, does not.
    import torch

    from egc.codec import LatentCodec

FORMAT = 1
SHARD_IMAGES = 4096
INDEX = "index.json"


def encode_parts(
    parts: list[ImageSet],
    config: Config,
    out: Path,
    *,
    flip: bool = False,
    shard_images: int = SHARD_IMAGES,
    device: torch.device | str = "cpu",
    progress: bool = True,
) -> dict[str, Any]:
    """Write the latents of a data set's parts into `out`; gives the index.

    Args:
        parts: [all], or [train, test].
        config: which autoencoder.
        flip: store the mirrored twin of every image too.
    """
    from egc.codec import LatentCodec, settle_codec

    if config.codec.kind != "latent":
        raise ConfigError('Encoding needs codec.kind = "latent" and a codec.autoencoder.')
    first = parts[0]
    shape = {"image_size": first.image_size, "channels": first.channels}
    config = settle_codec(config.replace(data=shape))
    codec = LatentCodec(config.codec, first.channels, first.image_size).to(device)
    names = ["all"] if len(parts) == 1 else ["train", "test"]
    index: dict[str, Any] = {
        "format": FORMAT,
        "source": first.name,
        "autoencoder": config.codec.autoencoder,
        "factor": config.codec.factor,
        "shape": list(codec.shape),
        **shape,
        "flip": flip,
        "shard_images": shard_images,
        "parts": {name: len(part) for name, part in zip(names, parts, strict=True)},
        "classes": first.classes,
    }
    check_place(out, _read_index(out) if (out / INDEX).exists() else None, index, "latents")
    jobs = [
        (out / f"{name}-{number:05d}.npy", part, np.arange(start, end))
        for name, part in zip(names, parts, strict=True)
        for number, start in enumerate(range(0, len(part), shard_images))
        for end in [min(start + shard_images, len(part))]
    ]
    if is_main():
        out.mkdir(parents=True, exist_ok=True)
        _write_json(out / INDEX, {**index, "complete": False})
        for name, part in zip(names, parts, strict=True):
            np.save(out / f"{name}-labels.npy", part.labels)
    wait_for_all()
    mine = share(jobs)
    images = sum(len(rows) for *_, rows in mine)
    with progress_line("Encoding", images, show=progress and is_main()) as line:
        for path, part, rows in mine:
            if path.exists():
                line.advance(len(rows))
                continue
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                np.save(file, np.concatenate(list(_encoded(codec, part, rows, flip, line))))
            temporary.replace(path)
    wait_for_all()
    if is_main():
        _write_json(out / INDEX, {**index, "complete": True})
    wait_for_all()
    return index


def _encoded(
    codec: LatentCodec, part: ImageSet, rows: np.ndarray, flip: bool, line: Line
) -> Iterator[np.ndarray]:
    """float16 (n, twins, C, h, w), a few images at a time."""
    import torch

    from egc.codec import PIXELS_AT_ONCE, pixels_of

    at_once = max(1, PIXELS_AT_ONCE // part.image_size**2)
    for start in range(0, len(rows), at_once):
        pixels = pixels_of(part.images(rows[start : start + at_once])).to(codec.device)
        with torch.no_grad():
            twins = [codec.raw(pixels)] + ([codec.raw(pixels.flip(-1))] if flip else [])
        latents = torch.stack(twins, dim=1).cpu()
        if not torch.isfinite(latents.half()).all():
            raise DataError(
                "The autoencoder gave latents that are not finite numbers of 16 bits; "
                "is it one that was trained on such images?"
            )
        line.advance(len(pixels))
        yield latents.half().numpy()


def _write_json(path: Path, table: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(table, indent=2) + "\n")
    temporary.replace(path)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / INDEX).read_text())
    except FileNotFoundError:
        raise DataError(
            f"There are no latents in {str(path)!r}: it has no {INDEX}; `egc codec encode` "
            "writes one."
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path / INDEX} is damaged ({error}).") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise DataError(f"{path / INDEX} is not of format {FORMAT}, which this version reads.")
    return index


@sources.register("latents")
@described((":PATH",))
def open_source(config: DataConfig, path: Path) -> list[ImageSet]:
    """What `egc codec encode` wrote; [all], or [train, test]."""
    return open_latents(path)


def open_latents(path: Path) -> list[ImageSet]:
    index = _read_index(path)
    if not index["complete"]:
        raise DataError(
            f"The latents in {str(path)!r} are not complete; run the same `egc codec encode` "
            "again."
        )
    parts = []
    for name, count in index["parts"].items():
        labels = np.load(path / f"{name}-labels.npy")
        parts.append(
            ImageSet(
                name=f"latents:{path}",
                read=_Reader(path, name, count, index),
                indices=np.arange(count),
                labels=labels,
                classes=index["classes"],
                image_size=index["image_size"],
                channels=index["channels"],
                autoencoder=index["autoencoder"],
                twins=count if index["flip"] else 0,
            )
        )
    return parts


class _Reader:
    """Indices -> float16 (n, C, h, w); from `count` on, the mirrored twins."""

    def __init__(self, path: Path, name: str, count: int, index: dict[str, Any]):
        self.count = count
        self.size = index["shard_images"]
        self.shape = tuple(index["shape"])
        files = [path / f"{name}-{i:05d}.npy" for i in range(-(-count // self.size))]
        twins = 2 if index["flip"] else 1
        self.shards = []
        for number, file in enumerate(files):
            rows = min(self.size, count - number * self.size)
            self.shards.append(_open_shard(file, (rows, twins, *self.shape)))

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        twin, place = np.divmod(indices, self.count)
        shard, row = np.divmod(place, self.size)
        latents = np.empty((len(indices), *self.shape), dtype=np.float16)
        for number in np.unique(shard):
            here = shard == number
            latents[here] = self.shards[number][row[here], twin[here]]
        return latents


def _open_shard(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    try:
        shard = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"The latents {str(path)!r} cannot be read: {error}.") from None
    if shard.shape != shape or shard.dtype != np.float16:
        raise DataError(
            f"The latents {str(path)!r} are {shard.dtype} of shape {shard.shape}, not float16 of "
            f"{shape}; delete the file and run the same `egc codec encode` again."
        )
    return shard
