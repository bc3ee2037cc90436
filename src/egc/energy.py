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
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from egc.nn.readout import Joint

__all__ = ["EnergyModel", "Joint"]


class EnergyModel(nn.Module):
    """A backbone that maps (x_t, t) to a feature map, and a readout that makes it an energy.

    Args:
        backbone: `(x, t, cond) -> map`.
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
        with torch.autocast(x.device.type, enabled=False):  # energies are sums: keep them exact
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
    ) -> Tensor:
        """The predicted noise, optionally guided to `labels` (a label of -1 is unguided)."""
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            t = self._each(t, x)
            joint = self(x, t, cond)
            potential = joint.log_density
            if labels is not None and guidance != 0:
                scale = guidance * self.sigmas[t].to(x.dtype) * (labels >= 0)
                log_p = joint.logits.log_softmax(dim=1)
                potential = potential + scale * log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
            (gradient,) = torch.autograd.grad(potential.sum(), x)
        return -gradient

    def _each(self, t: Tensor | int, x: Tensor) -> Tensor:
        """One timestep for each image."""
        return torch.as_tensor(t, device=x.device).expand(len(x))
