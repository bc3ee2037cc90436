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
from egc.data.files import check_place, damaged, replaced
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
    named = dict(zip(["all"] if len(parts) == 1 else ["train", "test"], parts, strict=True))
    index: dict[str, Any] = {
        "format": FORMAT,
        "source": first.name,
        "autoencoder": config.codec.autoencoder,
        "factor": config.codec.factor,
        "shape": list(codec.shape),
        **shape,
        "flip": flip,
        "shard_images": shard_images,
        "parts": {name: len(part) for name, part in named.items()},
        "classes": first.classes,
    }
    check_place(out, _read_index(out) if (out / INDEX).exists() else None, index, "latents")
    shards = [
        (out / f"{name}-{number:05d}.npy", part, rows)
        for name, part in named.items()
        for number, rows in enumerate(_shards(len(part), shard_images))
    ]
    if is_main():
        _write_index(out, {**index, "complete": False})
        for name, part in named.items():
            np.save(out / f"{name}-labels.npy", part.labels)
    wait_for_all()
    mine = share(shards)
    images = sum(len(rows) for *_, rows in mine)
    with progress_line("Encoding", images, show=progress and is_main()) as line:
        for path, part, rows in mine:
            if path.exists():
                line.advance(len(rows))
                continue
            with replaced(path) as file:
                np.save(file, np.concatenate(list(_encoded(codec, part, rows, flip, line))))
    wait_for_all()
    if is_main():
        _write_index(out, {**index, "complete": True})
    wait_for_all()
    return index


def _shards(count: int, size: int) -> list[np.ndarray]:
    """The images of each file."""
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def _encoded(
    codec: LatentCodec, part: ImageSet, rows: np.ndarray, flip: bool, line: Line
) -> Iterator[np.ndarray]:
    """float16 (n, twins, C, h, w), a few images at a time."""
    import torch

    from egc.codec import at_once, pixels_of

    for some in _shards(len(rows), at_once(part.image_size)):
        pixels = pixels_of(part.images(rows[some])).to(codec.device)
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


def _write_index(out: Path, index: dict[str, Any]) -> None:
    with replaced(out / INDEX) as file:
        file.write(json.dumps(index, indent=2).encode() + b"\n")


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads((path / INDEX).read_text())
    except FileNotFoundError:
        raise DataError(
            f"There are no latents in {str(path)!r}; `egc codec encode` makes them."
        ) from None
    except json.JSONDecodeError as error:
        raise damaged(path / INDEX, str(error)) from None
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
        raise DataError(f"{str(path)!r} is not complete; run the same `egc codec encode` again.")
    shared = {key: index[key] for key in ("classes", "image_size", "channels", "autoencoder")}
    return [
        ImageSet(
            name=f"latents:{path}",
            read=_Reader(path, name, count, index),
            indices=np.arange(count),
            labels=np.load(path / f"{name}-labels.npy"),
            twins=count if index["flip"] else 0,
            **shared,
        )
        for name, count in index["parts"].items()
    ]


class _Reader:
    """Indices -> float16 (n, C, h, w); from `count` on, the mirrored twins."""

    def __init__(self, path: Path, name: str, count: int, index: dict[str, Any]):
        self.count = count
        self.size = index["shard_images"]
        self.shape = tuple(index["shape"])
        twins = 2 if index["flip"] else 1
        self.shards = [
            _open_shard(path / f"{name}-{number:05d}.npy", (len(rows), twins, *self.shape))
            for number, rows in enumerate(_shards(count, self.size))
        ]

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
        raise damaged(path, f"it cannot be read ({error})") from None
    if shard.shape != shape or shard.dtype != np.float16:
        raise damaged(path, f"it is {shard.dtype} of {shard.shape}, not float16 of {shape}")
    return shard
