"""The ablation of the network made for its gradient, and how figures grow with compute.

    python benchmarks/pyramid.py ablation [--budgets 10] [--seeds 0 1]
    python benchmarks/pyramid.py curve [--budgets 10 30 100] [--seeds 0]
    python benchmarks/pyramid.py try --set objective.gamma=0.1 train.lr=2e-3 [--only DDPM]

Fashion-MNIST, each network trained with an equal budget of TFLOP (counted as in `egc compare`),
measured on validation images: the noise error over all t, and by quarters of t; accuracy; the
judge-Frechet distance of 1,000 samples (DDIM, 25 steps) to the validation images. Everything found
is kept in `benchmarks/pyramid.json`, which the same command goes on with; runs are kept in
`runs/pyramid`. Draws `docs/pyramid-curve.png`.

The variants are readouts of their own, registered here: what they have in common with `levels` is
in the package, what is not worth shipping is below.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from egc.baselines.compare import steps_for
from egc.config import Config, NetworkConfig
from egc.metrics.generation import evaluate_generation
from egc.model import Model
from egc.nn.double_backward import Conv2d
from egc.nn.layers import norm_silu
from egc.nn.pyramid import LevelsReadout, PoolReadout
from egc.nn.readouts import Maps, single
from egc.registry import readouts
from egc.training.fit import fit
from egc.training.prepare import prepare

HERE = Path(__file__).parent
RESULTS, RUNS = HERE / "pyramid.json", HERE.parent / "runs" / "pyramid"
PICTURE = HERE.parent / "docs" / "pyramid-curve.png"
UNET = {"kind": "unet", "depth": 1, "depths": []}
"""of a DDPM or a U-Net EGC of about the same cost"""
SLOWER = {"train": {"lr": 2e-3}}
"""as in `hybrids-fashion`"""
VARIANTS: dict[str, dict[str, Any]] = {
    "pyramid": {},
    "energies at the last level only": {"network": {"readout": "last"}},
    "energies of globally pooled features (GradResNet)": {"network": {"readout": "global"}},
    "no anchor": {"network": {"anchor": False}},
    "logsumexp energies": {"network": {"readout": "logsumexp"}},
    "bilinear energies": {"network": {"readout": "bilinear"}},
    "logits from the middle level": {"network": {"readout": "mid-logits"}},
    "U-Net, dense": {"network": UNET},
    "DDPM": {"network": {**UNET, "anchor": True}, "objective": {"kind": "ddpm"}, **SLOWER},
    "DDPM, no anchor": {"network": UNET, "objective": {"kind": "ddpm"}, **SLOWER},
    "classifier": {"network": {"readout": "pool"}, "objective": {"kind": "classifier"}, **SLOWER},
}
CURVE = ("pyramid", "U-Net, dense", "DDPM", "classifier")


@readouts.register("last")
class LastReadout(LevelsReadout):
    """An energy at the deepest level alone."""

    def log_densities(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        return self.energies[-1](single(maps))[:, None]


class VariantEnergy(nn.Module):
    """-1/2 |W m|^2 of the mean m of all positions, or a form of each position's own."""

    def __init__(self, width: int, groups: int, channels: int, form: str):
        super().__init__()
        self.form = form
        self.norm = norm_silu(groups, width)
        kernel = 1 if form == "global" else 3
        self.out = Conv2d(width, channels, kernel, padding=kernel // 2)

    def forward(self, h: Tensor) -> Tensor:
        a = self.norm(h)
        positions = h.shape[-1] * h.shape[-2]
        if self.form == "global":
            mean = a.mean(dim=(2, 3), keepdim=True)
            return -0.5 * positions * self.out(mean).square().sum(dim=(1, 2, 3))
        found = self.out(a)
        if self.form == "logsumexp":
            return found.logsumexp(dim=1).sum(dim=(1, 2))
        one, other = found.chunk(2, dim=1)
        return (one * other).sum(dim=(1, 2, 3))


class VariantReadout(LevelsReadout):
    """Levels of another form."""

    form = ""

    def __init__(self, widths: list[int], groups: int, channels: int, classes: int):
        super().__init__(widths, groups, channels, classes)
        self.energies = nn.ModuleList(
            VariantEnergy(width, groups, channels, self.form) for width in widths
        )


for name in ("global", "logsumexp", "bilinear"):
    readouts.register(name)(type(f"{name}Readout", (VariantReadout,), {"form": name}))


@readouts.register("mid-logits")
class MidLogitsReadout(LevelsReadout):
    """Logits from the second level."""

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        readout = super().from_config(network, classes)
        width = network.channels * network.multipliers[1]
        readout.pool = PoolReadout(width, network.groups, classes)
        return readout

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        return super().logits(maps[1], x, t)


def configuration(name: str, budget: float, seed: int, settings: Sequence[str]) -> Config:
    config = Config.load("fashion-mnist").replace(**VARIANTS[name]).with_settings(settings)
    steps = steps_for(config, budget)
    ema = min(config.train.ema, 1 - 6 / steps)  # a short training has a short average
    train = {"steps": steps, "warmup": min(config.train.warmup, steps // 10), "seed": seed,
             "ema": ema, "preview_every": 10**6}  # fmt: skip
    return config.replace(train=train)


def measure(model: Model, config: Config) -> dict[str, Any]:
    """Everything that the model can show, on validation images."""
    splits = prepare(None, config.replace(objective={"kind": "egc"}, data={"labels": True}))[1]
    validation, found = splits.validation, {}
    if model.net.denoises:
        errors = noise_errors(model, validation.images())
        found["noise_error"] = float(errors.mean())
        found["noise_error_quarters"] = [float(part.mean()) for part in errors.chunk(4)]
    if model.classifies:
        guess = model.net.logits(model.codec.encode(validation.images()), 0).argmax(dim=1)
        found["accuracy"] = float((guess.numpy() == validation.labels).mean())
    if model.net.draws:
        for guidance in (0.0, config.sample.guidance) if model.classifies else (0.0,):
            asked = "data" if guidance else "none"
            drawn = evaluate_generation(
                model, splits.train, validation, count=1000, steps=25, guidance=guidance,
                labels=asked, progress=False,
            ).summary()  # fmt: skip
            shown = ("judge_frechet", "judge_precision", "judge_recall", "agreement")
            found["guided" if guidance else "unguided"] = {k: drawn.get(k) for k in shown}
    return found


def noise_errors(model: Model, images: np.ndarray) -> Tensor:
    """mean (eps_hat - eps)^2 of each image, t rising evenly over them; (N,)."""
    x0 = model.codec.encode(images)
    t = torch.linspace(0, model.diffusion.steps - 1, len(x0)).long()
    eps = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
    x_t = model.diffusion.noise(x0, t, eps)
    parts = zip(x_t.split(250), t.split(250), eps.split(250), strict=True)
    return torch.cat(
        [(model.net.eps(x, at) - e).square().mean(dim=(1, 2, 3)) for x, at, e in parts]
    )


def run(name: str, budget: float, seed: int, settings: Sequence[str] = ()) -> None:
    """Train and measure one, unless it is known already."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    key = " | ".join([name, f"{budget:g} TFLOP", f"seed {seed}", *settings])
    if key in known:
        return
    config = configuration(name, budget, seed, settings)
    folder = "".join(letter if letter.isalnum() else "-" for letter in key)
    model = fit(preset=config, run=RUNS / folder, report=False)
    size = model.size()
    found = {"steps": config.train.steps, **size, **measure(model, config)}
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**known, key: found}, indent=2) + "\n")
    print(key, json.dumps(found), flush=True)


def figures(name: str, budget: float, seeds: list[int]) -> list[dict[str, Any]]:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    keys = [f"{name} | {budget:g} TFLOP | seed {seed}" for seed in seeds]
    return [known[key] for key in keys if key in known]


def table(budgets: list[float], seeds: list[int], names: list[str]) -> None:
    print("| | TFLOP | noise error | accuracy | judge-Frechet, unguided | guided | recall |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        for budget in budgets:
            each = figures(name, budget, seeds)
            if each:
                cells = [_mean(each, ("noise_error",), "{:.4f}"),
                         _mean(each, ("accuracy",), "{:.1%}"),
                         _mean(each, ("unguided", "judge_frechet"), "{:.1f}"),
                         _mean(each, ("guided", "judge_frechet"), "{:.1f}"),
                         _mean(each, ("unguided", "judge_recall"), "{:.0%}")]  # fmt: skip
                print(f"| {name} | {budget:g} | " + " | ".join(cells) + " |")


def _mean(each: list[dict[str, Any]], path: tuple[str, ...], show: str) -> str:
    values = []
    for found in each:
        value: Any = found
        for step in path:
            value = value.get(step) if value else None
        if value is not None:
            values.append(value)
    if not values:
        return "-"
    spread = f" ± {show.format(np.ptp(values) / 2)}" if len(values) > 1 else ""
    return show.format(np.mean(values)) + spread


def draw(budgets: list[float], seeds: list[int]) -> None:
    from egc.report.figures import COLOURS, canvas, png

    figure = canvas(4.8, 3.2)
    axis = figure.subplots()
    for name, colour in zip(CURVE[:3], COLOURS, strict=False):
        points = [(b, np.mean([e["noise_error"] for e in each]))
                  for b in budgets if (each := figures(name, b, seeds))]  # fmt: skip
        if points:
            label = name if name == "DDPM" else f"EGC, {name.split(',')[0]}"
            axis.plot(*zip(*points, strict=True), "o-", color=colour, label=label)
    axis.set_xscale("log")
    axis.set_xlabel("TFLOP of training")
    axis.set_ylabel("noise error on validation images")
    axis.grid(alpha=0.25, which="both")
    axis.legend(frameon=False)
    PICTURE.write_bytes(png(figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["ablation", "curve", "try"])
    parser.add_argument("--budgets", type=float, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--only", nargs="+", choices=[*VARIANTS])
    parser.add_argument("--set", nargs="+", default=[], help="keys of the configuration")
    args = parser.parse_args()
    ablation = args.what == "ablation"
    budgets = args.budgets or ([10.0, 30.0, 100.0] if args.what == "curve" else [10.0])
    seeds = args.seeds or ([0, 1] if ablation else [0])
    own = {"ablation": [*VARIANTS][:8], "curve": [*CURVE], "try": ["pyramid"]}
    names = args.only or own[args.what]
    for budget in budgets:
        for seed in seeds:
            for name in names:
                run(name, budget, seed, args.set)
    if args.what != "try":
        table(budgets, seeds, names)
    if args.what == "curve":
        draw(budgets, seeds)


if __name__ == "__main__":
    main()
