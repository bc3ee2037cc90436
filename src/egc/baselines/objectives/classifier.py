"""The plain classifier: cross-entropy on clean images, of the same backbone without time.

It learns from the images of the clean stream, if there is one, with their stronger augmentation.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from egc.baselines.networks import Classifier
from egc.objectives.base import Batch, Objective, Terms
from egc.registry import objectives


class Labelled(NamedTuple):
    x: Tensor
    labels: Tensor
    share: float


@objectives.register("classifier")
class ClassifierObjective(Objective):
    network = Classifier
    needs_labels = True

    def cost(self, forward: float, classify: float) -> float:
        return 3 * classify * (self.clean_share or 1)

    def plan(self, batch: Batch, share: float = 1.0) -> list[Labelled]:
        return [Labelled(*batch.to_classify(), share)]

    def forward(self, part: Labelled) -> Terms:
        each = self.cross_entropies(self.net.logits(part.x, 0), part.labels)
        loss = part.share * each.mean()
        return Terms.of(loss, class_clean=loss)
