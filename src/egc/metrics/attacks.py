"""Attacks: the image near a given one that a model names wrongly.

    maximise  -log p(y|x')   over   |x' - x| <= epsilon,  x' in [0, 1]^d

in pixels of 0..1, as floats (rounding to 8 bits is left out, as is the custom), in the maximum
norm `linf` or the Euclidean norm `l2`. `fgsm` takes one step along the gradient (Goodfellow et al.
2015), `pgd` many small ones from random points of the ball (Madry et al. 2018), `random_search`
none: it is the control that shows whether gradients lead anywhere. `autoattack` (Croce & Hein
2020) is four attacks without parameters, for the figure to be quoted.

Where the answer is random, gradients and answers are means over draws (expectation over
transformation, Athalye et al. 2018). An attack gives pixels; whether they fool the model is judged
afterwards, by asking it again with other draws (`judge`). Every image has a seed of its own, so
the batch does not matter.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from egc.codec import LEVEL, UNIT
from egc.errors import ConfigError

log = logging.getLogger("egc")

RADIUS = {"linf": LEVEL / UNIT, "l2": 1.0}
"""what an epsilon of 1 is in pixels of 0..1: a grey level of 255, or the length itself"""
DEFENDED, BARE = "defended", "bare"
"""a model is asked as it was said, or without its purification"""
QUERIES = 5
"""of the random search for each step of PGD"""
START, NOISE, SEARCH, JUDGE = range(4)
"""what a random number is for: streams that share nothing"""


class Asked(Protocol):
    """What is attacked, such as a `Predictor`."""

    @property
    def is_random(self) -> bool: ...

    def __call__(self, pixels: Tensor, seeds: Sequence[int]) -> Tensor:
        """Pixels (B, C, H, W) in 0..1 and a seed for each -> log p(y|x), (B, classes)."""
        ...


class Ball(NamedTuple):
    """All images within `epsilon` of an image, in the norm `linf` or `l2`."""

    norm: str
    epsilon: float

    def project(self, moved: Tensor, pixels: Tensor) -> Tensor:
        """The image of the ball and of the range of pixels that `moved` goes back to."""
        change = moved - pixels
        if self.norm == "linf":
            change = change.clamp(-self.epsilon, self.epsilon)
        else:
            change = change * (self.epsilon / _length(change).clamp(min=self.epsilon))
        # Clipping to 0..1 only brings it nearer to `pixels`, so it stays in the ball.
        return (pixels + change).clamp(0, 1)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of length 1 in this norm along which the loss grows the most."""
        if self.norm == "linf":
            return gradient.sign()
        # Where a model is sure, gradients are so small that their squares would vanish.
        largest = gradient.flatten(1).abs().amax(dim=1).clamp(min=torch.finfo().tiny)
        gradient = gradient / largest[:, None, None, None]
        return gradient / _length(gradient).clamp(min=torch.finfo().tiny)

    def random(self, pixels: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """A point of the ball an image, each as likely as any other, clipped to 0..1."""
        if self.norm == "linf":
            change = 2 * _random(torch.rand, generators, pixels) - 1
        else:
            change = self.steepest(_random(torch.randn, generators, pixels))
            radius = torch.stack([torch.rand(1, generator=g) for g in generators]).to(pixels)
            change = change * radius[..., None, None] ** (1 / pixels[0].numel())
        return self.project(pixels + self.epsilon * change, pixels)


class Attack(NamedTuple):
    """One attack, and how hard it tries."""

    name: str
    """a key of `ATTACKS`, or "none\""""
    epsilon: float
    """in units of `RADIUS`"""
    norm: str = "linf"
    steps: int = 20
    """of PGD"""
    restarts: int = 1
    """random starts of PGD; 0: one run from the image itself"""
    draws: int = 4
    """of noise a step, where the model's answer is random"""
    way: str = DEFENDED
    """how the model is asked while it is attacked"""

    @property
    def ball(self) -> Ball:
        return Ball(self.norm, self.epsilon * RADIUS[self.norm])

    @property
    def kind(self) -> str:
        """What it is called."""
        names = {"fgsm": "FGSM", "autoattack": "AutoAttack", "random": "random search"}
        return names.get(self.name, f"PGD-{self.steps}")

    @property
    def distance(self) -> str:
        """The epsilon in words."""
        return f"{self.epsilon:g}" + ("/255" if self.norm == "linf" else "")

    @property
    def title(self) -> str:
        return f"{self.kind} at {self.distance}"

    def run(self, asked: Asked, pixels: Tensor, labels: Tensor, seeds: Sequence[int]) -> Tensor:
        """Pixels within epsilon that are meant to be named wrongly."""
        if self.name == "none":
            return pixels
        return ATTACKS[self.name](self, asked, pixels, labels, seeds)


def fgsm(
    how: Attack, asked: Asked, pixels: Tensor, labels: Tensor, seeds: Sequence[int]
) -> Tensor:
    """One step of the full length."""
    options: Any = {"steps": 1, "size": how.ball.epsilon, "draws": how.draws}
    *_, (end, _) = ascent(asked, pixels, labels, how.ball, seeds, **options)
    return end


def pgd(how: Attack, asked: Asked, pixels: Tensor, labels: Tensor, seeds: Sequence[int]) -> Tensor:
    """Many steps, back into the ball after each; the worst image of the way is kept."""
    ball, size = how.ball, 2.5 * how.ball.epsilon / how.steps
    options: Any = {"steps": how.steps, "size": size, "draws": how.draws}
    found = _Found(asked, pixels, labels)
    for restart in range(max(1, how.restarts)):
        rows = found.standing()
        if not len(rows):
            break
        x, mine = pixels[rows], mixed([seeds[i] for i in rows.tolist()], restart)
        start = ball.random(x, _generators(mine, START)) if how.restarts else x
        for moved, log_p in ascent(asked, x, labels[rows], ball, mine, start=start, **options):
            found.keep(rows, moved, log_p)
    return found.pixels


def ascent(
    asked: Asked,
    pixels: Tensor,
    labels: Tensor,
    ball: Ball,
    seeds: Sequence[int],
    *,
    steps: int,
    size: float,
    draws: int = 1,
    start: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Climb -log p(y|x) inside the ball, yielding every image on the way and its log p(y|x).

    The first is the start, so there is one more than steps.
    """
    moved = pixels if start is None else start
    for step in range(steps + 1):
        moved = moved.detach().requires_grad_(step < steps)
        gradient, answers = torch.zeros_like(pixels), []
        with torch.set_grad_enabled(step < steps):
            for draw in _draws(asked, draws, seeds, NOISE, step):
                log_p = asked(moved, draw)
                answers.append(log_p.detach())
                if step < steps:
                    loss = -log_p.gather(1, labels[:, None]).sum()
                    gradient += torch.autograd.grad(loss, moved)[0]
        moved = moved.detach()
        yield moved, torch.stack(answers).mean(dim=0)
        moved = ball.project(moved + size * ball.steepest(gradient), pixels)


def random_search(
    how: Attack, asked: Asked, pixels: Tensor, labels: Tensor, seeds: Sequence[int]
) -> Tensor:
    """Change some pixels at random and keep what is worse for the model; no gradients.

    The share of pixels that a try changes falls from all to few. All tries of an image meet the
    same draws of noise, so that they can be compared.
    """
    ball, found = how.ball, _Found(asked, pixels, labels)
    for query in range(QUERIES * how.steps * max(1, how.restarts)):
        rows = found.standing()
        if not len(rows):
            break
        mine = [seeds[i] for i in rows.tolist()]
        generators = _generators(mine, SEARCH, query)
        x, best = pixels[rows], found.pixels[rows]
        changed = _random(torch.rand, generators, x) < (1 + query) ** -0.5
        kick = _random(torch.randn, generators, x)
        if ball.norm == "linf":
            moved = torch.where(changed, x + ball.epsilon * kick.sign(), best)
        else:
            moved = best + ball.epsilon * ball.steepest(kick * changed)
        moved = ball.project(moved, x)
        with torch.no_grad():
            answers = [asked(moved, draw) for draw in _draws(asked, how.draws, mine, NOISE)]
        found.keep(rows, moved, torch.stack(answers).mean(dim=0))
    return found.pixels


def autoattack(
    how: Attack, asked: Asked, pixels: Tensor, labels: Tensor, seeds: Sequence[int]
) -> Tensor:
    """AutoAttack: its `standard` attacks, or `rand` where the answer is random."""
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise ConfigError(
            "AutoAttack needs a package more: run `pip install 'egc[attack]'`."
        ) from None
    with torch.no_grad():
        classes = asked(pixels[:1], seeds[:1]).shape[1]
    rounds = np.random.default_rng(seeds[0])

    def answer(x: Tensor) -> Tensor:
        return asked(x, rounds.integers(2**31, size=len(x)).tolist())

    attacks = _suite(classes, asked.is_random)
    options: Any = {"eps": how.ball.epsilon, "norm": {"linf": "Linf", "l2": "L2"}[how.norm]}
    options |= {"version": "custom", "attacks": attacks, "seed": seeds[0], "device": pixels.device}
    tracer = sys.gettrace()  # which AutoAttack takes away from debuggers
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(sys.stderr):
            suite: Any = AutoAttack(answer, **options)
            suite.apgd.n_restarts = suite.fab.n_restarts = 1
            suite.apgd.eot_iter = 20 if asked.is_random else 1
            suite.fab.n_target_classes = min(9, classes - 1)
            suite.apgd_targeted.n_target_classes = min(9, classes - 1)
            found, _ = suite.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    finally:
        sys.settrace(tracer)
    return how.ball.project(found, pixels)


def _suite(classes: int, is_random: bool) -> list[str]:
    """The attacks of AutoAttack that so many classes allow.

    With fewer than four classes there is no targeted DLR loss, with fewer than three none at all;
    then the untargeted forms take their place.
    """
    if classes < (3 if is_random else 4):
        without = "its targeted DLR attack" if classes == 3 else "its attacks on the DLR loss"
        log.warning("With %d classes, AutoAttack runs without %s.", classes, without)
    dlr = ["apgd-dlr"] if classes >= 3 else []
    if is_random:
        return ["apgd-ce", *dlr]
    return ["apgd-ce", *(["apgd-t", "fab-t"] if classes >= 4 else [*dlr, "fab"]), "square"]


ATTACKS = {"fgsm": fgsm, "pgd": pgd, "random": random_search, "autoattack": autoattack}


def judge(asked: Asked, pixels: Tensor, seeds: Sequence[int]) -> Tensor:
    """The class that each image is taken for, with draws of noise that no attack has seen."""
    with torch.no_grad():
        return asked(pixels, mixed(seeds, JUDGE)).argmax(dim=1)


def mixed(seeds: Sequence[int], *stream: int) -> list[int]:
    """Another seed an image for each purpose, unlike those of its neighbours."""
    states = (np.random.SeedSequence((int(s), *stream)).generate_state(1) for s in seeds)
    return [int(state[0]) for state in states]


class _Found:
    """The worst image so far of each, by the lead of the best wrong class."""

    def __init__(self, asked: Asked, pixels: Tensor, labels: Tensor):
        self.is_random, self.labels = asked.is_random, labels
        self.pixels = pixels.clone()
        self.lead = torch.full((len(pixels),), -torch.inf, device=pixels.device)

    def standing(self) -> Tensor:
        """Positions of images still to be attacked: all of them, if answers are random."""
        return torch.nonzero((self.lead <= 0) | self.is_random)[:, 0]

    def keep(self, rows: Tensor, moved: Tensor, log_p: Tensor) -> None:
        """Take over the images that are worse than what was found before."""
        own = self.labels[rows, None]
        others = log_p.scatter(1, own, -torch.inf).amax(dim=1)
        lead = others - log_p.gather(1, own)[:, 0]
        better = lead > self.lead[rows]
        self.pixels[rows[better]] = moved[better]
        self.lead[rows[better]] = lead[better]


def _draws(asked: Asked, draws: int, seeds: Sequence[int], *stream: int) -> list[list[int]]:
    """Seeds for each draw of noise; a fixed answer needs one draw."""
    count = draws if asked.is_random else 1
    return [mixed(seeds, *stream, draw) for draw in range(count)]


def _generators(seeds: Sequence[int], *stream: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in mixed(seeds, *stream)]


def _random(kind: Any, generators: Sequence[torch.Generator], like: Tensor) -> Tensor:
    """Random numbers of each image's own generator, in the shape of `like`."""
    return torch.stack([kind(like.shape[1:], generator=g) for g in generators]).to(like)


def _length(change: Tensor) -> Tensor:
    """The Euclidean norm of each image, (B, 1, 1, 1)."""
    return change.flatten(1).norm(dim=1)[:, None, None, None]
