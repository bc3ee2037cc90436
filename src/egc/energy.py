"""The idea of the paper on one page: one network, read forwards and backwards.

Forwards, the network is a classifier of the joint energy of an image and a label,

    log p(x_t, y) = f(x_t) + log_softmax(h(x_t))[y] + const          (eq. 16)

Backwards, the gradient of f with respect to the image is the score of a diffusion model.
Training regresses it on minus the noise (Algorithm 1), so with x_t = sqrt(abar_t) x_0 +
sigma_t eps the network satisfies

    grad_x f(x_t) = -eps_hat,   score of q_t = grad_x f / sigma_t,   log q_t = f / sigma_t + const

and conditioning on a label adds the classifier's gradient (eq. 17). All of it is one scalar an
image, `log_prob`,

    log p_t(x) = f(x) / sigma_t + w * log_softmax(h(x))[y] + const

whose gradient is the guided score. So guidance costs nothing: one forward and one backward pass.
`eps` is -sigma_t times that gradient, which is what samplers of diffusion models ask for.

A label-conditioned network (the paper's "dagger" rows) has a density for each label, f(x|y),
beside that without, f(x). It classifies without the label, so guidance by the classifier,
classifier-free guidance (s), or both, is the gradient of one scalar again, over two evaluations:

    log p_t(x) = [ f(x) + s (f(x|y) - f(x)) ] / sigma_t + w * log_softmax(h(x))[y] + const

f may start from an anchor, the log-density of Gaussian data, which nobody has to learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from egc.errors import ConfigError
from egc.nn.anchor import GaussianAnchor
from egc.nn.backbone import Shape
from egc.nn.network import Network
from egc.nn.readouts import Joint, Maps
from egc.registry import backbones, readouts

if TYPE_CHECKING:
    from egc.config import Config

__all__ = ["EnergyModel", "Joint"]


class EnergyModel(Network):
    """A backbone that maps (x_t, t) to feature maps, and a readout that makes them an energy.

    Args:
        backbone: `(x, t, cond) -> map`, or a list of maps; a label-conditioned one takes the
            absence of `cond`, which is a class index an image, as "no label".
        readout: `(maps, x, t) -> Joint`.
        sigmas: sigma_t for t = 0..T-1; shape (T,).
        anchor: `(x, t) -> (B,)`, a log-density known beforehand, to which the readout's adds.
    """

    denoises = classifies = has_energy = draws = True
    about = "One network: its forward pass classifies, its backward pass generates."
    timed: ClassVar[bool] = True
    """whether its backbone sees the noise level"""

    readout: Any
    sigmas: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        readout: nn.Module,
        sigmas: Tensor,
        anchor: GaussianAnchor | None = None,
    ):
        super().__init__()
        self.backbone = backbone
        self.readout = readout
        self.anchor = anchor
        self.register_buffer("sigmas", sigmas.to(torch.float32), persistent=False)

    @classmethod
    def from_config(
        cls, config: Config, shape: tuple[int, int, int], classes: int, sigmas: Tensor
    ) -> Self:
        network = config.network
        if network.label_width and not (cls.denoises and classes):
            raise ConfigError(
                f"network.label_width = {network.label_width} is for diffusion models of data "
                "with labels; set network.label_width = 0."
            )
        kind = backbones[network.kind]
        name = network.readout or kind.readout
        readout = readouts[name].from_config(network, classes)
        if not (readout.map_channels or kind.gives_levels):
            raise ConfigError(
                f'network.readout = "{name}" reads the maps of all levels, which '
                f'network.kind = "{network.kind}" does not give; take kind = "pyramid".'
            )
        between = Shape(shape[0], readout.map_channels, shape[1], classes, cls.timed)
        anchored = kind.anchored if network.anchor is None else network.anchor
        anchor = GaussianAnchor(shape, sigmas) if anchored and cls.timed else None
        return cls(kind.from_config(network, between), readout, sigmas, anchor)

    def forward(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Joint:
        """The joint model at x_t: (B, ...) images, integer timesteps 0..T-1 (one or one each)."""
        t = self._each(t, x)
        maps = self._maps(x, t, cond)
        with _full_precision(x):
            joint: Joint = self.readout(maps, x, t)
            if self.anchor is None:
                return joint
            return joint._replace(log_density=self.anchor(x, t) + joint.log_density)

    def logits(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Tensor:
        """h(x_t) alone, which some readouts give without the energy; (B, C)."""
        t = self._each(t, x)
        maps = self._maps(x, t, cond)
        with _full_precision(x):
            return self.readout.logits(maps, x, t)

    def log_densities(self, x: Tensor, t: Tensor | int) -> Tensor:
        """f(x_t) in the parts it is a sum of, such as the anchor and the levels; (B, parts)."""
        t = self._each(t, x)
        maps = self._maps(x, t, None)
        with _full_precision(x):
            parts = self.readout.log_densities(maps, x, t)
            if self.anchor is None:
                return parts
            return torch.cat([self.anchor(x, t)[:, None], parts], dim=1)

    def log_prob(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float | Tensor = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """log p_t(x) up to a constant, whose gradient is the guided score; (B,).

        Args:
            labels, guidance: the classes that the classifier guides to (-1: none), and how much.
                One class an image, (B,), or several, (B, K), each with a weight in (K,).
            cond, cfg: the classes that a label-conditioned network is told, and the scale of its
                classifier-free guidance; 1 takes its word as it is.
        """
        t = self._each(t, x)
        guided = labels is not None and (isinstance(guidance, Tensor) or guidance != 0)
        conditioned, plain = self._joints(x, t, cond, needs_plain=guided or cfg != 1)
        f = conditioned.log_density
        if cfg != 1:
            f = torch.lerp(plain.log_density, f, cfg)
        log_prob = f / self.sigma(t, x)
        if labels is None or not guided:
            return log_prob
        log_p = plain.log_p(labels[:, None] if labels.ndim == 1 else labels)
        return log_prob + (guidance * log_p).sum(dim=1)

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float | Tensor = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """The predicted noise, -sigma_t grad_x `log_prob`; arguments as there.

        Works under `no_grad` too, since it opens gradients for itself.
        """
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            log_prob = self.log_prob(x, t, labels, guidance, cond, cfg)
            scaled = self.sigma(self._each(t, x), x) * log_prob
            (gradient,) = torch.autograd.grad(scaled.sum(), x)
        return -gradient

    def sigma(self, t: Tensor, x: Tensor) -> Tensor:
        """sigma_t of each image, by which f is a log-density; (B,)."""
        return self.sigmas[t].to(x.dtype)

    def _maps(self, x: Tensor, t: Tensor, cond: Tensor | None) -> Maps:
        maps = self.backbone(x, t, cond)
        if isinstance(maps, Tensor):
            return maps.to(x.dtype)
        return [each.to(x.dtype) for each in maps]

    def _joints(
        self, x: Tensor, t: Tensor, cond: Tensor | None, needs_plain: bool
    ) -> tuple[Joint, Joint]:
        """The joint model with `cond` and the plain one, in one evaluation."""
        if cond is None or not needs_plain:
            joint = self(x, t, cond)
            return joint, joint
        nothing = torch.full_like(cond, self.no_label)
        both = self(torch.cat([x, x]), torch.cat([t, t]), torch.cat([cond, nothing]))
        (f, f_plain), (h, h_plain) = (part.chunk(2) for part in both)
        return Joint(f, h), Joint(f_plain, h_plain)

    @property
    def takes_label(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.backbone, "takes_label", False))

    @property
    def no_label(self) -> int:  # type: ignore[override]
        return int(getattr(self.backbone, "no_label", 0))

    def _each(self, t: Tensor | int, x: Tensor) -> Tensor:
        """One timestep for each image."""
        return torch.as_tensor(t, device=x.device).expand(len(x))


def _full_precision(x: Tensor) -> torch.autocast:
    """Energies are sums: keep them exact. ("meta" is a model without weights, for its size.)"""
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)
