"""How many images a second the data pipeline makes ready for the network.

    EGC_DATA=DIR python benchmarks/loader.py [--seconds 5]

A batch is read (and decoded), augmented and given its noise: what runs ahead of a GPU in a thread
(`BatchStream.prepare`). Its parts are also measured alone. CIFAR-10 is in memory; the folder of
JPEGs is decoded anew at every step, as a set larger than memory is, for a network on 32x32x4
latents, which a GPU would encode; stored latents have that shape too, with mirrored twins, in
files as `egc codec encode` writes them. Writes `benchmarks/loader.json` and the table on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from egc.codec import Codec, LatentCodec, PixelCodec
from egc.config import CodecConfig, Config
from egc.data import open_source, reader
from egc.data.augment import augment
from egc.data.imageset import ImageSet
from egc.data.sets.latents import FORMAT, open_latents
from egc.training.allocator import keep_freed_memory
from egc.training.batches import BatchStream, step_generator

RESULTS = Path(__file__).parent / "loader.json"
FILES, SIZE = 2_000, 256
LATENTS, SHARD, LATENT_SHAPE = 8_192, 4_096, (4, 32, 32)
LATENT = LatentCodec(CodecConfig("latent", channels=4, factor=8), 3, SIZE)

CIFAR = {
    "as it is": {},
    "flip, pad 4 and crop, cutout 16": {"flip": True, "pad_crop": 4, "cutout": 16},
}
JPEGS = {
    "flip": {"flip": True},
    "flip, resized crop": {"flip": True, "resized_crop": 0.08},
}


def images_a_second(work: Callable[[int], object], batch_size: int, seconds: float) -> float:
    """`work` is one step; its first one is not counted."""
    work(0)
    start = time.perf_counter()
    for step in count(1):
        work(step)
        if (passed := time.perf_counter() - start) > seconds:
            return step * batch_size / passed
    raise AssertionError("not reached")


def measure(
    data: ImageSet, config: Config, seconds: float, codec: Codec | None = None
) -> dict[str, float]:
    batch_size, seed = config.train.batch_size, config.train.seed
    codec = codec or PixelCodec(data.channels, data.image_size)
    stream = BatchStream(data, codec, config, torch.device("cpu"))
    images = torch.as_tensor(data.take(0, batch_size, seed)[0])
    work: dict[str, Callable[[int], object]] = {
        "all": stream.prepare,
        "read": lambda step: data.take(step, batch_size, seed),
    }
    if data.autoencoder is None:
        work["augment"] = lambda step: augment(
            images, config.data.augment, step_generator(seed, 0, step)
        )
    return {
        name: images_a_second(one, batch_size, seconds if name == "all" else seconds / 2)
        for name, one in work.items()
    }


def write_jpegs(place: Path) -> None:
    """Smooth shapes with some grain: files of the size that photographs have."""
    rng = np.random.default_rng(0)
    (place / "all").mkdir()
    for number in range(FILES):
        shapes = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        pixels = np.asarray(shapes.resize((SIZE, SIZE), Image.Resampling.BICUBIC), dtype=np.int16)
        grain = rng.normal(0, 6, pixels.shape)
        picture = Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))
        picture.save(place / "all" / f"{number:05d}.jpg", quality=90)


def write_latents(place: Path) -> None:
    """Shards of random latents."""
    rng = np.random.default_rng(0)
    for number in range(LATENTS // SHARD):
        latents = rng.standard_normal((SHARD, 2, *LATENT_SHAPE), dtype=np.float32)
        np.save(place / f"all-{number:05d}.npy", latents.astype(np.float16))
    np.save(place / "all-labels.npy", rng.integers(0, 1000, LATENTS))
    index = {
        "format": FORMAT,
        "autoencoder": "none",
        "shape": LATENT_SHAPE,
        "image_size": SIZE,
        "channels": 3,
        "flip": True,
        "shard_images": SHARD,
        "parts": {"all": LATENTS},
        "classes": [str(label) for label in range(1000)],
        "complete": True,
    }
    (place / "index.json").write_text(json.dumps(index))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="to measure each row for")
    args = parser.parse_args()
    keep_freed_memory()  # as in training
    rows: dict[str, dict[str, float]] = {}

    base = Config().replace(train={"batch_size": 128})
    cifar = open_source(base.replace(data={"source": "cifar10", "validation": 0.0}).data).train
    for name, options in CIFAR.items():
        config = base.replace(data={"augment": options})
        rows[f"CIFAR-10, {name}"] = measure(cifar, config, args.seconds)

    base = Config().replace(train={"batch_size": 64})
    with tempfile.TemporaryDirectory() as place:
        write_jpegs(Path(place))
        size = sum(path.stat().st_size for path in Path(place).rglob("*.jpg")) / FILES
        reader.CACHE_BYTES = 0
        source = {"source": f"folder:{place}", "test": 0.0, "validation": 0.0}
        jpegs = open_source(base.replace(data=source).data).train
        for name, options in JPEGS.items():
            config = base.replace(data={"augment": options})
            rows[f"{SIZE}x{SIZE} JPEGs, {name}"] = measure(jpegs, config, args.seconds, LATENT)

    with tempfile.TemporaryDirectory() as place:
        write_latents(Path(place))
        (stored,) = open_latents(Path(place))
        rows["stored latents, 32x32x4"] = measure(stored.with_twins(), base, args.seconds, LATENT)

    results = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
        "jpeg_bytes": round(size),
        "images_a_second": rows,
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print("| images a second | all | read alone | augment alone |")
    print("| --- | --- | --- | --- |")
    for name, row in rows.items():
        parts = ("all", "read", "augment")
        shown = (f"{row[part]:,.0f}" if part in row else "" for part in parts)
        print(f"| {name} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
