"""`objective.kind`: what each name minimises."""

from __future__ import annotations

from egc.model import Model
from egc.objectives.base import Objective
from egc.objectives.classifier import ClassifierObjective
from egc.objectives.ddpm import DDPMObjective
from egc.objectives.egc import EGCObjective
from egc.objectives.jem import JEMObjective

OBJECTIVES: dict[str, type[Objective]] = {
    "egc": EGCObjective,
    "egc-unsupervised": EGCObjective,
    "classifier": ClassifierObjective,
    "ddpm": DDPMObjective,
    "jem": JEMObjective,
}


def make_objective(model: Model) -> Objective:
    """The objective that the model's configuration names."""
    kind = OBJECTIVES[model.config.objective.kind]
    return kind(model.net, model.diffusion, model.config.objective)
