"""Attacks on many images, whoever is asked: which of them are still named rightly.

A model may be asked as it stands, with its purification, or bare, without. An attack that fails
proves nothing until it has been seen to work: `run_checks` looks for signs that it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from egc.codec import unit_pixels
from egc.data.imageset import ImageSet
from egc.distributed import gather, share
from egc.metrics.attacks import BARE, DEFENDED, RADIUS, Attack, judge, mixed
from egc.metrics.fitting import AT_ONCE, labelled
from egc.model import Model
from egc.report.figures import COLOURS, INK, canvas, literal
from egc.report.progress import Line, progress_line
from egc.tasks.predict import Predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLACK = 0.01
"""share of images by which an attack that should be stronger may fall behind by chance"""


class Trial:
    """Images to attack, and which of them were still named rightly after each attack."""

    def __init__(
        self,
        ways: Mapping[str, Predictor],
        data: ImageSet,
        count: int | None,
        seed: int,
        show: bool,
    ):
        self.ways, self.data, self.positions = ways, data, labelled(data, count)
        self.seed, self.show = seed, show
        self.right: dict[tuple[Attack, str], np.ndarray] = {}

    def accuracy(self, attack: Attack, judged: str = DEFENDED) -> float:
        return float(self.right[attack, judged].mean())

    def worst(self, attack: Attack) -> float:
        """Accuracy over both attacks, on the defended model and on the bare one."""
        both = [self.right[attack._replace(way=way), DEFENDED] for way in (DEFENDED, BARE)]
        return float((both[0] & both[1]).mean())

    def run(self, attacks: Sequence[Attack], judges: Sequence[str] = ()) -> None:
        """Run what has not been run, and judge it as it attacks or as is said."""
        judged = [(attack, who) for attack in attacks for who in judges or [attack.way]]
        judged = [pair for pair in dict.fromkeys(judged) if pair not in self.right]
        if not judged:
            return
        mine = share(self.positions.tolist())
        rows: list[np.ndarray] = []
        count = len(dict.fromkeys(attack for attack, _ in judged))
        with progress_line("Attacking", len(mine) * count, show=self.show) as line:
            for start in range(0, len(mine), AT_ONCE):
                rows += self._rows(np.array(mine[start : start + AT_ONCE]), judged, line)
        table = np.array(gather(rows)).reshape(len(self.positions), -1)
        self.right |= dict(zip(judged, table.T, strict=True))

    def _rows(
        self, positions: np.ndarray, judged: Sequence[tuple[Attack, str]], line: Line
    ) -> list[np.ndarray]:
        """For each image, whether it was named rightly, by attack and judge."""
        pixels, labels = images_at(self.ways[DEFENDED].model, self.data, positions)
        seeds = mixed(positions.tolist(), self.seed)
        moved: dict[Attack, Tensor] = {}
        columns = []
        for attack, who in judged:
            if attack not in moved:
                moved = {attack: attack.run(self.ways[attack.way], pixels, labels, seeds)}
                line.advance(len(positions), note=attack.name)
            answers = judge(self.ways[who], moved[attack], seeds)
            columns.append((answers == labels).cpu().numpy())
        return list(np.stack(columns, axis=1))


class Check(NamedTuple):
    """Whether an attack behaves as one that works."""

    passed: bool
    numbers: dict[str, float]
    warning: str
    """what it means that it did not pass"""


def run_checks(trial: Trial, attacks: Sequence[Attack]) -> dict[str, Check]:
    """Look for signs that the attacks fail for another reason than the model's strength."""
    clean = trial.accuracy(attacks[0]._replace(name="none", epsilon=0.0))
    names = [attack.name for attack in attacks]
    leading = [a for a in attacks if a.name == ("pgd" if "pgd" in names else names[0])]

    def telling(attack: Attack) -> tuple[float, float]:
        return -abs(trial.accuracy(attack) - clean / 2), attack.epsilon

    pgd = max(leading, key=telling)._replace(name="pgd")
    # Within this any image can be turned into an even grey, which shows no class.
    pixels = trial.data.channels * trial.data.image_size**2
    large = 0.5 * (pixels**0.5 if pgd.norm == "l2" else 1) / RADIUS[pgd.norm]
    tried = {
        "pgd": pgd,
        "fgsm": pgd._replace(name="fgsm"),
        "pgd_fewer_steps": pgd._replace(steps=max(1, pgd.steps // 4)),
        "random_search": pgd._replace(name="random"),
        "pgd_large": pgd._replace(epsilon=large),
    }
    trial.run(list(tried.values()))
    found = {name: trial.accuracy(attack) for name, attack in tried.items()}
    labels = trial.data.labels[trial.positions]
    chance = float(np.bincount(labels).max() / len(labels))
    slack = max(SLACK, 1 / len(labels))

    def against(other: str, warning: str) -> Check:
        numbers = {"epsilon": pgd.epsilon, "pgd": found["pgd"], other: found[other]}
        return Check(found["pgd"] <= found[other] + slack, numbers, warning)

    masked = "the gradients may be masked, so do not trust these figures."
    return {
        "falls_at_large_epsilon": Check(
            found["pgd_large"] <= chance + slack,
            {"epsilon": large, "pgd": found["pgd_large"], "chance": chance},
            "Accuracy does not fall to chance where every image can be made grey: " + masked,
        ),
        "pgd_at_least_fgsm": against("fgsm", "PGD is weaker than one step of FGSM: " + masked),
        "more_steps_never_help": against(
            "pgd_fewer_steps", "PGD is weaker with more steps than with fewer: take more steps."
        ),
        "random_search_weaker_than_pgd": against(
            "random_search", "A search without gradients is stronger than PGD: " + masked
        ),
    }


def images_at(model: Model, data: ImageSet, positions: np.ndarray) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) in 0..1 and labels, where the model is."""
    labels = torch.as_tensor(data.labels[positions], device=model.device)
    return unit_pixels(data.images(positions)).to(model.device), labels


@dataclass(frozen=True)
class Examples:
    """Images, what an attack made of them, and what the model took that for."""

    attack: Attack
    images: np.ndarray
    """(N, H, W, C), floats in 0..1"""
    attacked: np.ndarray
    """of the same shape"""
    labels: np.ndarray
    taken_for: np.ndarray
    """class indices; (N,)"""
    classes: list[str]


def attack_examples(
    asked: Predictor, data: ImageSet, attack: Attack, *, count: int = 8, seed: int = 0
) -> Examples:
    """Attack some images, with the seeds that a `Trial` of all images gives them."""
    positions = labelled(data, count)
    pixels, labels = images_at(asked.model, data, positions)
    seeds = mixed(positions.tolist(), seed)
    moved = attack.run(asked, pixels, labels, seeds)
    answers = judge(asked, moved, seeds).cpu().numpy()
    before, after = (x.permute(0, 2, 3, 1).cpu().numpy() for x in (pixels, moved))
    return Examples(attack, before, after, data.labels[positions], answers, asked.model.classes)


def examples_figure(examples: Examples) -> Figure:
    """Images, the change an attack made (0 is grey, epsilon black or white), and the outcome."""
    count = len(examples.images)
    change = examples.attacked - examples.images
    scale = 2 * max(float(np.abs(change).max()), 1e-6)
    rows = {"image": examples.images, "change": 0.5 + change / scale, "sum": examples.attacked}
    figure = canvas(1.1 * count + 0.6, 3.8)
    grid = figure.subplots(len(rows), count, squeeze=False)
    for line, (title, pictures) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(title, fontsize=9)
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
    for index, (label, taken_for) in enumerate(
        zip(examples.labels, examples.taken_for, strict=True)
    ):
        grid[0, index].set_title(literal(examples.classes[label]), fontsize=9)
        colour = INK if label == taken_for else COLOURS[-1]
        name = literal(examples.classes[taken_for])
        grid[-1, index].set_xlabel(name, fontsize=9, color=colour)
    return figure
