"""The cost of a training step and of a noise prediction, against DDPM on the same U-Net.

    python benchmarks/engine.py [--rounds 5] [--quick]

Everything is measured side by side in one run, in turn, so that all meet the same weather; a
figure is a ratio of medians. Memory is the peak of a process that only takes that one kind of
step, less what the same process holds before it. Writes `benchmarks/results.json`, the table on
stdout, and `docs/scaling.png`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from egc.config import Config
from egc.model import Model
from egc.nn.backbone import Shape
from egc.nn.unet import UNet
from egc.objectives.base import Batch
from egc.objectives.egc import EGCObjective
from egc.training.allocator import keep_freed_memory

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PICTURE = HERE.parent / "docs" / "scaling.png"

BENCH = {
    "data": {"image_size": 32, "channels": 3},
    "network": {"channels": 64, "multipliers": [1, 2, 2], "depth": 2, "attention": [16, 8]},
}
LIMITS = {  # figure: (limit, must reach, aim)
    "train_ratio": (2.0, 2.6, 2.3),
    "train_clean_ratio": (3.0, 3.7, 3.3),
    "memory_ratio": (1.0, 1.2, 1.05),
    "eps_ratio": (2.0, 2.4, 2.1),
    "guided_eps_ratio": (2.0, 2.5, 2.2),
}


class Bench:
    """One U-Net as DDPM's noise predictor, and the same as an energy, on one random batch."""

    def __init__(self, config: Config, batch_size: int):
        self.model = Model.build(config, [str(i) for i in range(10)])
        size, channels = config.data.image_size, config.data.channels
        self.ddpm = UNet.from_config(config.network, Shape(channels, channels, size))
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size, channels, size, size)
        x0 = torch.randn(shape, generator=generator).clamp(-1, 1)
        labels = torch.randint(10, (batch_size,), generator=generator)
        t = torch.randint(1000, (batch_size,), generator=generator)
        eps = torch.randn(shape, generator=generator)
        self.batch = Batch(x0, labels, t, eps)
        self.batch_with_clean = Batch(x0, labels, t, eps, clean=x0.flip(-1))
        self.x_t = self.model.diffusion.noise(x0, t, eps)
        self.adam = {
            "ddpm": torch.optim.Adam(self.ddpm.parameters()),
            "egc": torch.optim.Adam(self.model.net.parameters()),
        }

    def ddpm_step(self) -> None:
        F.mse_loss(self.ddpm(self.x_t, self.batch.t), self.batch.eps).backward()
        self._move("ddpm")

    def egc_step(self, gradient: str, clean: bool = False, lean: bool = False) -> None:
        config = self.model.config.replace(objective={"gradient": gradient, "lean": lean})
        objective = EGCObjective(self.model.net, self.model.diffusion, config.objective)
        for part in objective.plan(self.batch_with_clean if clean else self.batch):
            objective(part).loss.backward()
        self._move("egc")

    def _move(self, which: str) -> None:
        self.adam[which].step()
        self.adam[which].zero_grad()

    def ddpm_forward(self) -> None:
        with torch.no_grad():
            self.ddpm(self.x_t, self.batch.t)

    def eps(self, guided: bool) -> None:
        self.model.net.eps(self.x_t, self.batch.t, self.batch.labels if guided else None)


def in_turn(kinds: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each, measured in turn after one round of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for index in range(rounds + 1):
        for name, run in kinds.items():
            started = time.perf_counter()
            run()
            if index:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def speed(bench: Bench, rounds: int) -> dict[str, float]:
    """Seconds of every kind of step."""
    training = in_turn(
        {
            "ddpm": bench.ddpm_step,
            "exact": lambda: bench.egc_step("exact"),
            "paired": lambda: bench.egc_step("paired"),
            "paired_lean": lambda: bench.egc_step("paired", lean=True),
            "exact_clean": lambda: bench.egc_step("exact", clean=True),
            "paired_clean": lambda: bench.egc_step("paired", clean=True),
        },
        rounds,
    )
    bench.model.net.requires_grad_(False)  # as a loaded model is
    sampling = in_turn(
        {
            "ddpm_forward": bench.ddpm_forward,
            "eps": lambda: bench.eps(guided=False),
            "guided_eps": lambda: bench.eps(guided=True),
        },
        2 * rounds,
    )
    bench.model.net.requires_grad_(True)
    return training | sampling


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    ddpm, forward = seconds["ddpm"], seconds["ddpm_forward"]
    return {
        "train_ratio": min(seconds["exact"], seconds["paired"]) / ddpm,
        "train_clean_ratio": min(seconds["exact_clean"], seconds["paired_clean"]) / ddpm,
        "exact_ratio": seconds["exact"] / ddpm,
        "paired_ratio": seconds["paired"] / ddpm,
        "lean_ratio": seconds["paired_lean"] / ddpm,
        "exact_clean_ratio": seconds["exact_clean"] / ddpm,
        "paired_clean_ratio": seconds["paired_clean"] / ddpm,
        "eps_ratio": seconds["eps"] / forward,
        "guided_eps_ratio": seconds["guided_eps"] / forward,
    }


def peak_memory(kind: str) -> float:
    """Megabytes that steps of one kind add, in a process of their own."""
    command = [sys.executable, __file__, "--memory-of", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure_memory_here(kind: str) -> None:
    bench = Bench(Config.from_dict(BENCH), 16)
    steps = {
        "ddpm": bench.ddpm_step,
        "exact": lambda: bench.egc_step("exact"),
        "paired": lambda: bench.egc_step("paired"),
        "paired_lean": lambda: bench.egc_step("paired", lean=True),
    }
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    before = _resident("VmRSS")
    for _ in range(3):
        steps[kind]()
    print(_resident("VmHWM") - before)


def _resident(name: str) -> float:
    """Megabytes: VmRSS held now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def scaling(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds an image against batch size (32x32) and against image size (batch 16)."""
    small = {"channels": 32, "multipliers": [1, 2, 2], "depth": 1, "attention": [8], "groups": 8}
    found: dict[str, dict[str, dict[str, float]]] = {"batch": {}, "size": {}}

    def cost(size: int, count: int) -> dict[str, float]:
        attention = [size // 4] if size < 32 else [8]
        network = {**small, "attention": attention}
        config = {"data": {"image_size": size, "channels": 3}, "network": network}
        if size == 64:
            network.update(multipliers=[1, 2, 2, 2])
        bench = Bench(Config.from_dict(config), count)
        kinds = {
            "ddpm": bench.ddpm_step,
            "exact": lambda: bench.egc_step("exact"),
            "paired": lambda: bench.egc_step("paired"),
        }
        return {k: 1000 * v / count for k, v in in_turn(kinds, rounds).items()}

    for count in (1, 2, 4, 8, 16, 32, 64):
        found["batch"][str(count)] = cost(32, count)
    for size in (8, 16, 32, 64):
        found["size"][str(size)] = cost(size, 16)
    return found


def draw_scaling(found: dict[str, dict[str, dict[str, float]]]) -> None:
    from matplotlib.figure import Figure

    from egc.report.figures import COLOURS, png

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    titles = {"batch": "batch size (32x32)", "size": "image side (batch 16)"}
    for axis, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        points = found[what]
        for kind, colour in zip(("ddpm", "exact", "paired"), COLOURS, strict=False):
            values = [point[kind] for point in points.values()]
            axis.plot([int(key) for key in points], values, "o-", color=colour, label=kind)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(title)
        axis.set_ylabel("ms an image, one training step")
        axis.grid(alpha=0.25, which="both")
        axis.legend(frameon=False)
    PICTURE.write_bytes(png(figure))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="speed of the two networks only")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_flush_denormal(True)  # both as in training, and for DDPM too
    keep_freed_memory()
    if args.memory_of:
        measure_memory_here(args.memory_of)
        return
    results: dict = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
    }
    if not args.quick:
        memory = {k: peak_memory(k) for k in ("ddpm", "exact", "paired", "paired_lean")}
        results["memory_mb"] = memory
        results["memory_ratio"] = memory["paired_lean"] / memory["ddpm"]
    seconds = speed(Bench(Config.from_dict(BENCH), 16), args.rounds)
    results.update(ratios(seconds), seconds=seconds)
    digits = Config.load("digits").replace(data={"image_size": 8, "channels": 1})
    of_digits = speed(Bench(digits, digits.train.batch_size), 4 * args.rounds)
    results["digits"] = {**ratios(of_digits), "seconds": of_digits}
    if not args.quick:
        results["scaling"] = scaling(max(3, args.rounds // 2))
        draw_scaling(results["scaling"])
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print("| figure | limit | must reach | aim | measured | digits preset |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (limit, must, aim) in LIMITS.items():
        if name in results:
            other = results["digits"].get(name)
            shown = f"{other:.2f}" if other else ""
            print(f"| `{name}` | {limit} | {must} | {aim} | {results[name]:.2f} | {shown} |")
    for name in ("exact", "paired", "lean", "exact_clean", "paired_clean"):
        key = f"{name}_ratio"
        print(f"| `{key}` | | | | {results[key]:.2f} | {results['digits'][key]:.2f} |")


if __name__ == "__main__":
    main()
