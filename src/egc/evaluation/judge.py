"""An independent judge: a small conventional classifier trained on real images only.

It shares nothing with the model it judges, neither weights nor architecture. It answers two
questions about generated images: do they belong to the class that was asked for, and how far are
they from real ones (the Frechet distance in its features; not to be taken for FID, whose
features come from another network and other images).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from egc.config import AugmentConfig
from egc.data.augment import augment
from egc.data.imageset import ImageSet
from egc.evaluation.frechet import frechet_distance

FEATURES = 64


class Judge(nn.Module):
    """Three convolutions, a layer of features and a layer of logits; for small images."""

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * 64, FEATURES),
            nn.ReLU(),
        )
        self.head = nn.Linear(FEATURES, classes)

    @classmethod
    def train_on(cls, data: ImageSet, *, steps: int = 1500, seed: int = 0) -> Judge:
        """Train a judge on labelled images."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            judge = cls(data.channels, len(data.classes))
        judge.train()
        optimizer = torch.optim.AdamW(judge.parameters(), lr=4e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        generator = torch.Generator().manual_seed(seed)
        images, labels = torch.as_tensor(data.images()), torch.as_tensor(data.labels)
        for _ in range(steps):
            rows = torch.randint(len(images), (64,), generator=generator)
            moved = augment(images[rows], AugmentConfig(shift=1), generator)
            logits = judge(_tensor(moved))
            loss = F.cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return judge.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    def predict(self, images: np.ndarray) -> np.ndarray:
        """uint8 (N, H, W, C) -> class indices (N,)."""
        return self(_tensor(torch.as_tensor(images))).argmax(dim=1).numpy()

    def agreement(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of images that the judge assigns to these labels."""
        return float((self.predict(images) == labels).mean())

    def distance(self, first: np.ndarray, second: np.ndarray) -> float:
        """The Frechet distance between two sets of images, in the judge's features."""
        features = (self.body(_tensor(torch.as_tensor(x))).numpy() for x in (first, second))
        return frechet_distance(*features)


def _tensor(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1
