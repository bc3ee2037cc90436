"""The plain classifier: cross-entropy on clean images, of the same backbone without time.

It learns from the images of the clean stream, if there is one, with their stronger augmentation.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from egc.objectives.base import Batch, Objective, Terms


class Named(NamedTuple):
    x: Tensor
    labels: Tensor
    share: float


class ClassifierObjective(Objective):
    passes = 3.0

    def plan(self, batch: Batch, share: float = 1.0) -> list[Named]:
        return [Named(*batch.to_classify(), share)]

    def forward(self, part: Named) -> Terms:
        each = self.cross_entropies(self.net(part.x, 0).logits, part.labels)
        loss = part.share * each.mean()
        return Terms.of(loss, class_clean=loss)
