"""What tasks may ask of a network, and which of it its class can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor, nn

from egc.errors import ModelError

if TYPE_CHECKING:
    from egc.config import Config


class Network(nn.Module):
    """The network of a model: an `EnergyModel`, or one of the baselines that it is compared with.

    What it can do is said by its class; tasks ask these, and not what it is called.
    """

    denoises: ClassVar[bool] = False
    """predicts the noise of x_t: `eps` and `score`"""
    classifies: ClassVar[bool] = False
    """gives p(y|x): `logits`"""
    has_energy: ClassVar[bool] = False
    """gives an unnormalised density: `log_prob`"""
    draws: ClassVar[bool] = False
    """was trained to make images"""
    about: ClassVar[str] = ""
    """one sentence for reports"""
    takes_label: bool = False
    """is told the label (`cond`) beside the image: a label-conditioned network"""
    no_label: int = 0
    """the `cond` that means "no label", of a label-conditioned network"""

    @classmethod
    def from_config(
        cls, config: Config, shape: tuple[int, int, int], classes: int, sigmas: Tensor
    ) -> Self:
        """The network that a configuration describes.

        Args:
            shape: (C, H, W) of an image in model space.
            classes: how many; 0 without labels.
            sigmas: sigma_t for t = 0..T-1.
        """
        raise NotImplementedError

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float | Tensor = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """The predicted noise of x_t; the shape of x."""
        raise self.cannot("denoise")

    def score(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Tensor:
        """sigma_t times the score of q_t; the shape of x."""
        return -self.eps(x, t, cond=cond)

    def logits(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Tensor:
        """h(x) with p(y|x_t) = softmax(h); (B, C)."""
        raise self.cannot("classify")

    def log_prob(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float | Tensor = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """log p_t(x), guided to labels, up to a constant; (B,)."""
        raise self.cannot("give an energy")

    def cannot(self, what: str) -> ModelError:
        return ModelError(f"This network cannot {what}: {self.about or type(self).__name__}")
