"""A readout of your own in one file: a quadratic energy at every position.

    egc train digits --import own_readout --run runs/quadratic --set network.readout=quadratic

or `python own_readout.py`. A readout turns the backbone's maps into the log-density f and the
logits h; it may look at the image and the noise level too. Here

    f(x) = -1/2 |W map|^2 / positions - 1/2 a_t |x|^2,      h = the mean of a linear map

with a learned a_t >= 0 that pulls towards zero, more or less so at each noise level.
"""

from typing import Self

import torch.nn.functional as F
from torch import Tensor, nn

from egc.config import NetworkConfig
from egc.nn.double_backward import Conv2d
from egc.nn.readouts import Joint, Maps, Readout, single
from egc.registry import readouts


@readouts.register("quadratic")
class QuadraticReadout(Readout):
    def __init__(self, outputs: int, width: int):
        super().__init__()
        self.map_channels = width
        self.energy = Conv2d(width, 16, 3, padding=1)
        self.classes = nn.Linear(width, outputs)
        self.pull = nn.Linear(1, 1)

    @classmethod
    def from_config(cls, network: NetworkConfig, classes: int) -> Self:
        return cls(classes or network.components, network.channels)

    def forward(self, maps: Maps, x: Tensor, t: Tensor) -> Joint:
        quadratic = self.energy(single(maps)).square().mean(dim=(2, 3)).sum(dim=1)
        pull = F.softplus(self.pull(t[:, None].to(x.dtype) / 1000))[:, 0]
        f = -0.5 * quadratic - 0.5 * pull * x.square().sum(dim=(1, 2, 3))
        return Joint(f, self.logits(maps, x, t))

    def logits(self, maps: Maps, x: Tensor, t: Tensor) -> Tensor:
        """Classifying does without the energy."""
        return self.classes(single(maps).mean(dim=(2, 3)))


def main() -> None:
    from egc import EGC

    settings = ["network.readout=quadratic", "train.steps=4", "sample.steps=4"]
    model = EGC.fit("digits", preset="digits-demo", settings=settings, report=False)
    print(model.predict(model.sample("3", count=2).images))


if __name__ == "__main__":
    main()
