"""The cost of a training step and of a noise prediction, against a DDPM.

    python benchmarks/engine.py [--rounds 5] [--quick]

Three pairs, each an EGC and the DDPM that it is measured against:

    pyramid   the network made for its gradient, beside a U-Net whose forward pass has the FLOP of
              one noise prediction of it (32x32x3, 64 channels, batch 16)
    small     the same at the size of the preset `fashion-mnist` (28x28x1, 32 channels, batch 64)
    unet      that U-Net as an energy, beside itself (32x32x3, batch 16)

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
from typing import Any

import torch

from egc.config import Config
from egc.model import Model, make_objective
from egc.objectives.base import Batch
from egc.training.allocator import keep_freed_memory

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PICTURE = HERE.parent / "docs" / "scaling.png"

BIG = {
    "data": {"image_size": 32, "channels": 3},
    "network": {"channels": 64, "multipliers": [1, 2, 2], "depth": 2, "attention": [16, 8]},
}
SMALL = {
    "data": {"image_size": 28, "channels": 1},
    "network": {
        "channels": 32,
        "multipliers": [1, 2],
        "depth": 1,
        "attention": [7],
        "groups": 8,
        "stem_stride": 2,
    },
}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "pyramid": (BIG, {"kind": "pyramid", "depths": [4, 4, 6]}, 16),
    "small": (SMALL, {"kind": "pyramid", "depths": [3, 3], "head_width": 16}, 64),
    "unet": (BIG, {}, 16),
}
"""the DDPM's configuration, what EGC's network has of its own, and the batch"""
LIMITS = {  # figure of the pair `pyramid`: (limit, must reach, aim)
    "train_ratio": (1.0, 1.35, 1.15),
    "clean_ratio": (1.5, 1.9, 1.65),
    "eps_ratio": (1.0, 1.1, 0.95),
    "guided_ratio": (1.0, 1.1, 0.95),
    "memory_ratio": (1.0, 1.6, 1.2),
    "classify_ratio": (0.5, 0.5, 0.4),
}


class Bench:
    """A DDPM and an EGC on one random batch."""

    def __init__(self, twin: dict[str, Any], network: dict[str, Any], batch_size: int):
        classes = [str(i) for i in range(10)]
        config = Config.from_dict(twin)
        ddpm = config.replace(objective={"kind": "ddpm"})
        if network:  # the anchor, which costs nothing, is the twin's too
            ddpm = ddpm.replace(network={"anchor": True})
        self.models = {
            "ddpm": Model.build(ddpm, []),
            "egc": Model.build(config.replace(network=network), classes),
        }
        for model in self.models.values():
            model.net.train()
        self.objectives = {name: make_objective(model) for name, model in self.models.items()}
        self.adam = {
            name: torch.optim.Adam(model.net.parameters()) for name, model in self.models.items()
        }
        shape = (batch_size, *self.models["egc"].codec.shape)
        generator = torch.Generator().manual_seed(0)
        x0 = torch.randn(shape, generator=generator).clamp(-1, 1)
        labels = torch.randint(10, (batch_size,), generator=generator)
        t = torch.randint(1000, (batch_size,), generator=generator)
        eps = torch.randn(shape, generator=generator)
        self.batch = Batch(x0, labels, t, eps)
        self.with_clean = Batch(x0, labels, t, eps, clean=x0.flip(-1))
        self.x_t = self.models["egc"].diffusion.noise(x0, t, eps)

    def step(self, name: str, clean: bool = False, parts: int = 1) -> None:
        batch = self.with_clean if clean else self.batch
        objective = self.objectives[name]
        for piece in batch.split(parts):
            for part in objective.plan(piece, share=1 / parts):
                objective(part).loss.backward()
        self.adam[name].step()
        self.adam[name].zero_grad()

    def steps(self) -> dict[str, Callable[[], None]]:
        return {
            "ddpm": lambda: self.step("ddpm"),
            "egc": lambda: self.step("egc"),
            "egc_clean": lambda: self.step("egc", clean=True),
        }

    def predictions(self) -> dict[str, Callable[[], object]]:
        net, t, labels = self.models["egc"].net, self.batch.t, self.batch.labels

        def classify() -> None:
            with torch.no_grad():
                net.logits(self.x_t, 0)

        return {
            "forward": lambda: self.models["ddpm"].net.eps(self.x_t, t),
            "eps": lambda: net.eps(self.x_t, t),
            "guided": lambda: net.eps(self.x_t, t, labels),
            "classify": classify,
        }

    def speed(self, rounds: int) -> dict[str, float]:
        """Seconds of every kind of step and prediction."""
        training = in_turn(self.steps(), rounds)
        self.models["egc"].net.requires_grad_(False)  # as a loaded model is
        predicting = in_turn(self.predictions(), 2 * rounds)
        self.models["egc"].net.requires_grad_(True)
        return training | predicting


def in_turn(kinds: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, measured in turn after one round of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for index in range(rounds + 1):
        for name, run in kinds.items():
            started = time.perf_counter()
            run()
            if index:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(pair: str, rounds: int, memory: bool) -> dict[str, Any]:
    """All figures of a pair."""
    bench = Bench(*PAIRS[pair])
    seconds = bench.speed(rounds)
    ddpm, forward = seconds["ddpm"], seconds["forward"]
    egc_size, twin_size = (bench.models[name].size() for name in ("egc", "ddpm"))
    found: dict[str, Any] = {
        "train_ratio": seconds["egc"] / ddpm,
        "clean_ratio": seconds["egc_clean"] / ddpm,
        "eps_ratio": seconds["eps"] / forward,
        "guided_ratio": seconds["guided"] / forward,
        "classify_ratio": seconds["classify"] / forward,
        "flop_ratio": 2 * egc_size["mflop_per_image"] / twin_size["mflop_per_image"],
        "seconds": seconds,
    }
    if memory:
        megabytes = {kind: peak_memory(pair, kind) for kind in ("ddpm", "egc", "egc_parts")}
        found["memory_mb"] = megabytes
        found["memory_ratio"] = megabytes["egc"] / megabytes["ddpm"]
        found["memory_parts_ratio"] = megabytes["egc_parts"] / megabytes["ddpm"]
    return found


def peak_memory(pair: str, kind: str) -> float:
    """Megabytes that steps of one kind add, in a process of their own."""
    command = [sys.executable, __file__, "--memory-of", pair, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure_memory_here(pair: str, kind: str) -> None:
    bench = Bench(*PAIRS[pair])
    steps = {**bench.steps(), "egc_parts": lambda: bench.step("egc", parts=2)}
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far (Linux)
    before = _resident("VmRSS")
    for _ in range(3):
        steps[kind]()
    print(_resident("VmHWM") - before)


def _resident(name: str) -> float:
    """Megabytes: VmRSS held now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def profile(pair: str) -> dict[str, dict[str, float]]:
    """Where the time of a training step goes, in shares, of the DDPM and of EGC."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    bench = Bench(*PAIRS[pair])
    found = {}
    for name in ("ddpm", "egc"):
        bench.step(name)
        with record(activities=[ProfilerActivity.CPU]) as profiler:
            for _ in range(3):
                bench.step(name)
        shares = {"convolutions": 0.0, "norms": 0.0, "attention and products": 0.0, "rest": 0.0}
        for event in profiler.key_averages():
            kind = next((k for words, k in KINDS.items() if words in event.key), "rest")
            shares[kind] += event.self_cpu_time_total
        total = sum(shares.values())
        found[name] = {kind: share / total for kind, share in shares.items()}
    return found


KINDS = {"conv": "convolutions", "group_norm": "norms", "bmm": "attention and products",
         "mm": "attention and products", "attention": "attention and products",
         "softmax": "attention and products"}  # fmt: skip
"""part of a kernel's name -> what it is; the rest is element-wise"""


def scaling(rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds an image against batch size (32x32) and against image size (batch 16)."""
    small = {"channels": 32, "multipliers": [1, 2, 2], "depth": 1, "attention": [8], "groups": 8}
    found: dict[str, dict[str, dict[str, float]]] = {"batch": {}, "size": {}}

    def cost(size: int, count: int) -> dict[str, float]:
        network = {**small, "attention": [size // 4] if size < 32 else [8]}
        twin = {"data": {"image_size": size, "channels": 3}, "network": network}
        benches = {
            "pyramid": Bench(twin, {"kind": "pyramid", "depths": [3, 3, 3]}, count),
            "U-Net": Bench(twin, {}, count),
        }
        kinds: dict[str, Callable[[], object]] = {
            "DDPM": lambda: benches["U-Net"].step("ddpm"),
            **{name: lambda bench=bench: bench.step("egc") for name, bench in benches.items()},
        }
        return {k: 1000 * v / count for k, v in in_turn(kinds, rounds).items()}

    for count in (1, 2, 4, 8, 16, 32, 64):
        found["batch"][str(count)] = cost(32, count)
    for size in (8, 16, 32, 64):
        found["size"][str(size)] = cost(size, 16)
    return found


def draw_scaling(found: dict[str, dict[str, dict[str, float]]]) -> None:
    from egc.report.figures import COLOURS, canvas, png

    figure = canvas(8, 3.2)
    titles = {"batch": "batch size (32x32)", "size": "image side (batch 16)"}
    for axis, (what, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        points = found[what]
        for kind, colour in zip(("DDPM", "pyramid", "U-Net"), COLOURS, strict=False):
            values = [point[kind] for point in points.values()]
            name = kind if kind == "DDPM" else f"EGC, {kind}"
            axis.plot([int(key) for key in points], values, "o-", color=colour, label=name)
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
    parser.add_argument("--quick", action="store_true", help="speed alone, and nothing is written")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_flush_denormal(True)  # both as in training, and for DDPM too
    keep_freed_memory()
    if args.memory_of:
        measure_memory_here(*args.memory_of)
        return
    found = {pair: measure(pair, args.rounds, memory=not args.quick) for pair in PAIRS}
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
        **{f"pyramid_{k}": v for k, v in found["pyramid"].items() if k.endswith("_ratio")},
        "pairs": found,
    }
    if not args.quick:
        results["profile"] = profile("pyramid")
        results["scaling"] = scaling(max(3, args.rounds // 2))
        draw_scaling(results["scaling"])
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print("| figure | limit | must reach | aim | pyramid | small | U-Net |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, limits in LIMITS.items():
        cells = [str(limit) for limit in limits]
        cells += [f"{found[p][name]:.2f}" if name in found[p] else "" for p in PAIRS]
        print(f"| `pyramid_{name}` | " + " | ".join(cells) + " |")
    for name, shares in results.get("profile", {}).items():
        print(f"time of a {name} step:", ", ".join(f"{k} {v:.0%}" for k, v in shares.items()))


if __name__ == "__main__":
    main()
