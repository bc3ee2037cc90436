"""A metric of your own in one file: how sharp samples are, beside real images.

    egc evaluate digits --import own_metric --metrics sharpness --count 64

or `python own_metric.py`. Its option becomes a flag; its rows are in the text and on the page, its
summary in the JSON.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from egc.config.parse import key
from egc.metrics.base import Column, Measured, Metric
from egc.registry import metrics
from egc.tasks.sample import sample


def sharpness(images: np.ndarray) -> float:
    """The mean absolute difference of neighbouring pixels, of uint8 (N, H, W, C)."""
    pixels = images.astype(float)
    across, down = np.diff(pixels, axis=2), np.diff(pixels, axis=1)
    return float((np.abs(across).mean() + np.abs(down).mean()) / 2)


@dataclass(frozen=True)
class Sharp(Measured):
    samples: float
    real: float
    count: int

    def summary(self) -> dict[str, Any]:
        return {"sharpness": self.samples, "sharpness_of_real": self.real, "samples": self.count}

    def rows(self) -> list[tuple[str, str]]:
        return [("sharpness", f"{self.samples:.1f} (real images {self.real:.1f})")]


@metrics.register("sharpness")
class Sharpness(Metric):
    title = "how sharp samples are"

    @dataclass(frozen=True)
    class Options(Metric.Options):
        count: int = key(64, "samples to make", low=1)

    def obstacle(self, model: Any) -> str | None:
        return None if model.net.draws else "it does not draw"

    def measure(self, model, data, options, progress) -> Sharp:
        samples = sample(
            model,
            None,
            options.count,
            sampling=model.sampling(),
            seed=options.seed,
            progress=progress,
            shared=True,
        )
        return Sharp(sharpness(samples.images), sharpness(data.test.images()), options.count)

    def columns(self, options: Any) -> list[Column]:
        return [Column("sharpness", "sharpness", lambda v: f"{v:.1f}", ["sharpness"])]


def main() -> None:
    import egc
    from egc.data import open_source

    model = egc.load("digits")
    metric = Sharpness()
    options = metric.Options(count=16)
    found = metric.measure(model, open_source(model.config.data), options, progress=False)
    print(found.rows())


if __name__ == "__main__":
    main()
