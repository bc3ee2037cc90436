"""The idea of the paper on one page: one network, read forwards and backwards.

Forwards, the network is a classifier of the joint energy of an image and a label,

    log p(x_t, y) = f(x_t) + log_softmax(h(x_t))[y] + const          (eq. 16)

Backwards, the gradient of f with respect to the image is the score of a diffusion model.
Training regresses it on minus the noise (Algorithm 1), so with x_t = sqrt(abar_t) x_0 +
sigma_t eps the network satisfies

    grad_x f(x_t) = -eps_hat,   score of q_t = grad_x f / sigma_t,   log q_t = f / sigma_t + const

and conditioning on a label adds the classifier's gradient at the same scale (eq. 17):

    eps_hat = -grad_x [ f(x) + w * sigma_t * log_softmax(h(x))[y] ]

The bracket is one scalar per image, so guidance costs nothing: one forward and one backward pass.

A label-conditioned network (the paper's "dagger" rows) has a density for each label, f(x|y),
beside that without, f(x). It classifies without the label, so guidance by the classifier,
classifier-free guidance (s), or both, is the gradient of one scalar again, over two evaluations:

    eps_hat = -grad_x [ f(x) + s (f(x|y) - f(x)) + w * sigma_t * log_softmax(h(x))[y] ]
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egc.nn.readout import Joint

__all__ = ["EnergyModel", "Joint"]


class EnergyModel(nn.Module):
    """A backbone that maps (x_t, t) to a feature map, and a readout that makes it an energy.

    Args:
        backbone: `(x, t, cond) -> map`; a label-conditioned one takes the absence of `cond`,
            which is a class index an image, as "no label".
        readout: `map -> Joint`.
        sigmas: sigma_t for t = 0..T-1; shape (T,).
    """

    sigmas: Tensor

    def __init__(self, backbone: nn.Module, readout: nn.Module, sigmas: Tensor):
        super().__init__()
        self.backbone = backbone
        self.readout = readout
        self.register_buffer("sigmas", sigmas.to(torch.float32), persistent=False)

    def forward(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Joint:
        """The joint model at x_t: (B, ...) images, integer timesteps 0..T-1 (one or one each)."""
        feature_map = self.backbone(x, self._each(t, x), cond)
        # Energies are sums: keep them exact. ("meta" is a model without weights, for its size.)
        device = "cpu" if x.is_meta else x.device.type
        with torch.autocast(device, enabled=False):
            return self.readout(feature_map.to(x.dtype))

    def score(self, x: Tensor, t: Tensor | int, cond: Tensor | None = None) -> Tensor:
        """grad_x f(x_t), which is sigma_t times the score of q_t; the shape of x.

        Works under `no_grad` too, since it opens gradients for itself.
        """
        return -self.eps(x, t, cond=cond)

    def eps(
        self,
        x: Tensor,
        t: Tensor | int,
        labels: Tensor | None = None,
        guidance: float = 1.0,
        cond: Tensor | None = None,
        cfg: float = 1.0,
    ) -> Tensor:
        """The predicted noise.

        Args:
            labels, guidance: the classes that the classifier guides to (-1: none), and how much.
            cond, cfg: the classes that a label-conditioned network is told, and the scale of its
                classifier-free guidance; 1 takes its word as it is.
        """
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            t = self._each(t, x)
            told, plain = self._joints(x, t, cond, needs_plain=labels is not None or cfg != 1)
            potential = told.log_density
            if cfg != 1:
                potential = torch.lerp(plain.log_density, potential, cfg)
            if labels is not None and guidance != 0:
                scale = guidance * self.sigmas[t].to(x.dtype) * (labels >= 0)
                log_p = plain.logits.log_softmax(dim=1)
                potential = potential + scale * log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
            (gradient,) = torch.autograd.grad(potential.sum(), x)
        return -gradient

    def _joints(
        self, x: Tensor, t: Tensor, cond: Tensor | None, needs_plain: bool
    ) -> tuple[Joint, Joint]:
        """The joint model told `cond` and the plain one, in one evaluation."""
        if cond is None or not needs_plain:
            joint = self(x, t, cond)
            return joint, joint
        nothing = torch.full_like(cond, self.no_label)
        both = self(torch.cat([x, x]), torch.cat([t, t]), torch.cat([cond, nothing]))
        (f, f_plain), (h, h_plain) = (part.chunk(2) for part in both)
        return Joint(f, h), Joint(f_plain, h_plain)

    @property
    def label_conditioned(self) -> bool:
        """Whether the network takes `cond`."""
        return bool(getattr(self.backbone, "label_conditioned", False))

    @property
    def no_label(self) -> int:
        """The `cond` that means "no label", of a label-conditioned network."""
        return int(getattr(self.backbone, "no_label", 0))

    def _each(self, t: Tensor | int, x: Tensor) -> Tensor:
        """One timestep for each image."""
        return torch.as_tensor(t, device=x.device).expand(len(x))
