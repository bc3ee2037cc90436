"""An independent judge: a small conventional classifier trained on real images only.

It shares nothing with the model it judges, neither weights nor architecture. It answers two
questions about generated images: do they belong to the class that was asked for, and how far are
they from real ones (the Frechet distance in its features; not to be taken for FID, whose
features come from another network and other images). Images of 16 pixels and more are seen in
strides of two, and those of more than 32 after averaging: a judge is trained in about a minute.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.codec import pixels_of
from egc.config import AugmentConfig
from egc.data.augment import augment
from egc.data.files import data_home
from egc.data.imageset import ImageSet, hold_out
from egc.distributed import main_first
from egc.errors import DataError
from egc.metrics.fitting import AT_ONCE, labelled
from egc.metrics.frechet import Features, fingerprint, frechet_distance, load_arrays, save_arrays

FEATURES = 64
STRIDED, SIDE = 16, 32
"""from the first on, images are seen in strides of two; larger than the second, averaged first"""
STEPS = 1600
"""that a judge is trained for whose features are compared"""
HELD_OUT, HELD_OUT_IMAGES = 0.1, 2000
"""of the training images, to know the judge's accuracy by"""
MIN_LABELLED_IMAGES = 20
"""that a judge is trained on"""
RECIPE = 1
"""changed with the architecture or the training, so that no stored judge is taken for a new one"""

log = logging.getLogger("egc")


class Judge(nn.Module):
    """Three convolutions, a layer of features and a layer of logits; for small images."""

    def __init__(self, channels: int, classes: int, image_size: int = 8):
        super().__init__()
        self.side = min(image_size, SIDE)
        stride = 2 if image_size >= STRIDED else 1
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3, stride, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * 64, FEATURES), nn.ReLU()),
        )
        self.head = nn.Linear(FEATURES, classes)

    @classmethod
    def train_on(cls, data: ImageSet, *, steps: int | None = None, seed: int = 0) -> Judge:
        """Train a judge on the labelled ones of some images; `STEPS` long, if not said."""
        steps = steps or STEPS
        known = labelled(data)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            judge = cls(data.channels, len(data.classes), data.image_size)
        if data.image_size >= STRIDED:  # faster for larger images
            judge.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        judge.train()
        optimizer = torch.optim.AdamW(judge.parameters(), lr=4e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            rows = known[torch.randint(len(known), (64,), generator=generator).numpy()]
            moved = augment(torch.as_tensor(data.images(rows)), AugmentConfig(shift=1), generator)
            logits = judge(pixels_of(moved))
            labels = torch.as_tensor(data.labels[rows])
            loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        judge.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return judge.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        return self.body(F.adaptive_avg_pool2d(x, self.side))

    def look(self, images: np.ndarray) -> Features:
        """uint8 (N, H, W, C) -> features (N, 64), and probabilities of the classes."""
        device = self.head.weight.device
        rows, probabilities = [], []
        for start in range(0, len(images), AT_ONCE):
            some = images[start : start + AT_ONCE].copy()  # reversed arrays too
            x = pixels_of(torch.as_tensor(some).to(device))
            rows.append(self.features(x))
            probabilities.append(self.head(rows[-1]).softmax(dim=1))
        return Features(torch.cat(rows).cpu().numpy(), torch.cat(probabilities).cpu().numpy())

    def predict(self, images: np.ndarray) -> np.ndarray:
        """uint8 (N, H, W, C) -> class indices (N,)."""
        probabilities = self.look(images).probabilities
        assert probabilities is not None
        return probabilities.argmax(axis=1)

    def agreement(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of images that the judge assigns to these labels."""
        return float((self.predict(images) == labels).mean())

    def distance(self, first: np.ndarray, second: np.ndarray) -> float:
        """The Frechet distance between two sets of images, in the judge's features."""
        return frechet_distance(self.look(first).rows, self.look(second).rows)


@dataclass
class JudgeFeatures:
    """A judge as a network that images are compared in; its figures are called after it."""

    judge: Judge
    accuracy: float
    """on labelled images of the training set that it was not trained on"""
    digest: str
    """a hash of its weights"""
    kind = "judge"
    prefix = "judge_"

    @classmethod
    def train_on(cls, data: ImageSet, *, device: torch.device | str = "cpu") -> JudgeFeatures:
        """A judge of these labelled images: trained, or stored since the last time."""
        known = 0 if data.autoencoder else int((data.labels >= 0).sum())
        if known < MIN_LABELLED_IMAGES:
            raise DataError(
                f"{data.name} has {known} labelled pictures, too few to train a judge on "
                f'({MIN_LABELLED_IMAGES} at least); compare with features="inception".'
            )
        recipe = f"{RECIPE} {STEPS} {FEATURES} {fingerprint(data)} {data.classes}"
        name = hashlib.sha256(recipe.encode()).hexdigest()[:20]
        path = data_home() / "reference" / f"judge-{name}.npz"
        judge, accuracy = main_first(lambda: _stored(path, data) or _trained(path, data))
        digest = hashlib.sha256()
        for weight in judge.state_dict().values():
            digest.update(weight.numpy().tobytes())
        return cls(judge.to(device), accuracy, digest.hexdigest())

    def __call__(self, images: np.ndarray) -> Features:
        return self.judge.look(images)


def _trained(path: Path, data: ImageSet) -> tuple[Judge, float]:
    """A new judge, and its accuracy on images that were held out; written to `path`."""
    log.info("Training a judge on %s (about a minute, once).", data.name)
    rest, held = hold_out(data.subset(labelled(data)), HELD_OUT)
    held = held.subset(np.arange(min(len(held), HELD_OUT_IMAGES)))
    judge = Judge.train_on(rest, steps=STEPS)
    accuracy = judge.agreement(held.images(), held.labels)
    weights = {f"weight.{name}": weight.numpy() for name, weight in judge.state_dict().items()}
    try:
        save_arrays(path, accuracy=np.array(accuracy), **weights)
    except OSError as error:
        log.warning("The judge could not be kept in %s (%s).", path, error)
    return judge, accuracy


def _stored(path: Path, data: ImageSet) -> tuple[Judge, float] | None:
    if not (stored := load_arrays(path)):
        return None
    judge = Judge(data.channels, len(data.classes), data.image_size)
    named = {k.removeprefix("weight."): v for k, v in stored.items() if k.startswith("weight.")}
    try:
        judge.load_state_dict({name: torch.as_tensor(v) for name, v in named.items()})
        return judge.eval().requires_grad_(False), float(stored["accuracy"])
    except (KeyError, RuntimeError):
        log.warning("%s is damaged and is made again.", path)
        return None
