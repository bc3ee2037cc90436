"""Many samples to measure a model by, drawn in pieces that survive a kill.

Image i has the seed `seed + i` and a label that depends on i and the proportions of the classes
alone: pieces give the same images as one call, and those of a smaller count are the first of a
larger one. In a folder they are kept as

    FOLDER/RECIPE/recipe.json     what the images are a function of; RECIPE is its hash
    FOLDER/RECIPE/0000256.npz     images, labels and seeds from image 256 on

so that images of other weights, seeds or guidance never get mixed up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from egc.data.files import replaced
from egc.distributed import from_main, is_main
from egc.errors import ConfigError
from egc.metrics.frechet import load_arrays, save_arrays
from egc.model import Model
from egc.report.progress import progress_line
from egc.tasks.sample import Samples, sample

CHUNK = 256
"""images in a file"""
RECIPE_FILE = "recipe.json"


@dataclass(frozen=True)
class Drawing:
    """What sampled images are a function of."""

    weights: str
    """a hash of the model"""
    proportions: tuple[float, ...] | None
    """of the classes; None: without labels"""
    seed: int
    sampler: str | None
    """None: Langevin dynamics, of models that do not denoise"""
    steps: int
    guidance: float
    cfg: float | None
    """None: the network is not label-conditioned"""

    @classmethod
    def of(
        cls, model: Model, *, proportions: np.ndarray | None = None, seed: int = 0, **how: Any
    ) -> Self:
        """The drawing that `model.sample` would do with these keys of a `SampleConfig`."""
        sampling = model.sampling(**how)
        return cls(
            weights=model_hash(model),
            proportions=None if proportions is None else tuple(map(float, proportions)),
            seed=seed,
            sampler=sampling.sampler if model.net.denoises else None,
            steps=sampling.steps,
            guidance=sampling.guidance,
            cfg=sampling.cfg if model.net.takes_label else None,
        )

    def labels(self, count: int) -> np.ndarray:
        """The labels of the first images: every class in turn, as often as it is due."""
        if self.proportions is None:
            return np.full(count, -1)
        due = np.array(self.proportions) / sum(self.proportions)
        labels = np.empty(count, dtype=int)
        owed = np.zeros(len(due))
        for index in range(count):
            owed += due
            labels[index] = owed.round(9).argmax()
            owed[labels[index]] -= 1
        return labels

    def folder(self, root: Path) -> Path:
        """Where such images are kept below `root`."""
        recipe = json.dumps(asdict(self), sort_keys=True)
        return Path(root) / hashlib.sha256(recipe.encode()).hexdigest()[:12]

    def summary(self) -> dict[str, Any]:
        """What to say of the images beside their figures."""
        conditional = self.proportions is not None
        return {
            "sampler": self.sampler or "langevin",
            "steps": self.steps,
            "seed": self.seed,
            "conditional": conditional,
            "guidance": self.guidance if conditional else None,
            "cfg": self.cfg if conditional else None,
            "model_weights": self.weights[:12],
        }


def draw(
    model: Model,
    count: int,
    root: Path | None = None,
    *,
    drawing: Drawing | None = None,
    progress: bool = True,
) -> Iterator[Samples]:
    """Draw `count` images, chunk by chunk; of several processes, each draws its share.

    Below `root`, chunks are kept, and those that are there already are not drawn again. `drawing`
    says how (`Drawing.of`); by default without labels, as the model is used to.
    """
    if count < 1:
        raise ConfigError(f"The number of images must be at least 1; got {count}.")
    return _chunks(model, count, root, drawing or Drawing.of(model), progress)


def _chunks(
    model: Model, count: int, root: Path | None, drawing: Drawing, progress: bool
) -> Iterator[Samples]:
    folder = None if root is None else drawing.folder(root)
    if folder is not None and is_main():
        with _writing(folder / RECIPE_FILE) as place, replaced(place) as out:
            out.write(f"{json.dumps(asdict(drawing), indent=2)}\n".encode())
    how = {name: getattr(drawing, name) for name in ("steps", "sampler", "guidance", "cfg")}
    labels, sampling = drawing.labels(count), model.sampling(**how)
    with progress_line("Drawing", count, show=progress and is_main()) as line:
        for start in range(0, count, CHUNK):
            wanted = labels[start : start + CHUNK]
            path = None if folder is None else folder / f"{start:07d}.npz"
            chunk = None if path is None else _stored(path, model, wanted)
            if chunk is None:
                chunk = sample(
                    model,
                    None if drawing.proportions is None else wanted.tolist(),
                    len(wanted),
                    sampling=sampling,
                    seed=drawing.seed + start,
                    progress=False,
                    shared=True,
                )
                if path is not None:
                    arrays = {"images": chunk.images, "labels": chunk.labels, "seeds": chunk.seeds}
                    with _writing(path):
                        save_arrays(path, **arrays)
            line.advance(len(chunk))
            yield chunk


def _stored(path: Path, model: Model, labels: np.ndarray) -> Samples | None:
    """The chunk of the main process's disk, if it holds these images."""
    stored = from_main(lambda: load_arrays(path))
    if not {"images", "labels", "seeds"} <= stored.keys():
        return None
    if len(stored["images"]) < len(labels):  # the end of a smaller count
        return None
    first = slice(len(labels))
    return Samples(stored["images"][first], labels, stored["seeds"][first], model.classes)


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Say what to do where the images cannot be kept."""
    try:
        yield path
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"Images cannot be kept in {path} ({reason}); name another folder."
        ) from None


def model_hash(model: Model) -> str:
    """A hash of all that images of given seeds depend on: weights, diffusion, codec, classes."""
    config = model.config.to_dict()
    parts = {name: config[name] for name in ("network", "diffusion", "codec", "objective")}
    digest = hashlib.sha256(json.dumps([parts, model.classes], sort_keys=True).encode())
    for name, weight in sorted(model.net.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
