"""The EGC objective (Algorithm 1): match the score, and classify.

    x_t  = sqrt(abar_t) x_0 + sigma_t eps,    t uniform on 0..T-1
    s    = grad_x f(x_t)
    loss = mean (s + eps)^2  +  gamma * ( w_t CE(h(x_t), y)  +  CE(h(clean), y) )

The first term needs the gradient of a gradient. There are two ways to it.

`exact`: double backward. s is itself a backward pass, and training goes back through it. The fused
attention kernels have no second derivative, so the forward pass is held to the plain one.

`paired`: with r = s + eps held constant, the gradient of mean(r^2) in the parameters is 2/N times
that of the directional derivative of f along r, for which two first-order passes suffice:

    grad_theta mean(r^2) = 2/N grad_theta sum (f(x + h r) - f(x - h r)) / (2 h) + O(h^2)

with h = 0.01 / rms(r) for each image. Only first-order kernels run, and the classification terms
ride along on the same evaluations.

Either way s is computed inside `forward`, so that wrappers of the module (DDP) see a single loss
to go back from.

Options of the published recipe: w_t = sqrt(abar_t), the clean stream (t = 0, its own, stronger
augmentation) and label smoothing. A label of -1 means "unknown": such an image takes part in the
score term alone. Cross-entropies are summed over labelled images and divided by all, so a batch
split over processes gives the same gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from egc.config import ObjectiveConfig
from egc.diffusion import Diffusion
from egc.energy import EnergyModel

PAIR_STEP = 0.01
"""root mean square of the displacement h r, in model space"""


class Batch(NamedTuple):
    """What one training step sees, in model space."""

    x0: Tensor
    """images of the noised stream; (B, C, H, W)"""
    labels: Tensor
    """class indices, -1 where unknown; (B,)"""
    clean: Tensor | None = None
    """the same images as the clean stream sees them"""


class Terms(NamedTuple):
    """The loss and its parts, the parts detached."""

    loss: Tensor
    parts: dict[str, Tensor]


class EGCObjective(nn.Module):
    """The loss of a batch. Its gradient is exact or paired, as configured."""

    def __init__(self, net: EnergyModel, diffusion: Diffusion, config: ObjectiveConfig):
        super().__init__()
        self.net = net
        self.diffusion = diffusion
        self.config = config

    def forward(self, batch: Batch, generator: torch.Generator) -> Terms:
        """Draw noise levels and noise from `generator`, and evaluate the loss."""
        x0 = batch.x0
        t = torch.randint(self.diffusion.steps, (len(x0),), generator=generator).to(x0.device)
        eps = torch.randn(x0.shape, generator=generator, dtype=x0.dtype).to(x0.device)
        x_t = self.diffusion.noise(x0, t, eps)
        if self.config.gradient == "exact":
            return self._exact(batch, x_t, t, eps)
        return self._paired(batch, x_t, t, eps)

    def _exact(self, batch: Batch, x_t: Tensor, t: Tensor, eps: Tensor) -> Terms:
        x_t.requires_grad_(True)
        with sdpa_kernel(SDPBackend.MATH):
            joint = self.net(x_t, t)
        (s,) = torch.autograd.grad(joint.log_density.sum(), x_t, create_graph=True)
        clean_logits = None if batch.clean is None else self.net(batch.clean, 0).logits
        return self._terms((s + eps).square().mean(), [joint.logits], clean_logits, batch, t)

    def _paired(self, batch: Batch, x_t: Tensor, t: Tensor, eps: Tensor) -> Terms:
        r = self.net.score(x_t, t) + eps
        each_image = tuple(range(1, r.ndim))
        rms = r.square().mean(dim=each_image, keepdim=True).sqrt().clamp(min=1e-12)
        h = PAIR_STEP / rms
        # Both sides, and the clean stream, in one pass.
        inputs = [x_t + h * r, x_t - h * r]
        times = [t, t]
        if batch.clean is not None:
            inputs.append(batch.clean)
            times.append(torch.zeros_like(t))
        joint = self.net(torch.cat(inputs), torch.cat(times))
        f_plus, f_minus, *_ = joint.log_density.split(len(t))
        logits_plus, logits_minus, *clean = joint.logits.split(len(t))
        # The value is mean(r^2); the gradient is that of the directional derivative along r.
        along_r = ((f_plus - f_minus) / (2 * h.flatten())).sum() * 2 / r.numel()
        score_loss = r.square().mean() + (along_r - along_r.detach())
        return self._terms(
            score_loss, [logits_plus, logits_minus], clean[0] if clean else None, batch, t
        )

    def _terms(
        self,
        score_loss: Tensor,
        noisy_logits: list[Tensor],
        clean_logits: Tensor | None,
        batch: Batch,
        t: Tensor,
    ) -> Terms:
        """Add the classification terms to the score term."""
        loss = score_loss
        parts = {"score": score_loss.detach()}
        if self.config.noisy_stream:
            weight = torch.ones_like(t, dtype=score_loss.dtype)
            if self.config.time_weight:
                weight = self.diffusion.alphas_cumprod.to(t.device)[t].sqrt().to(weight)
            each = [self._cross_entropy(logits, batch.labels) for logits in noisy_logits]
            parts["class_noisy"] = ce = (weight * torch.stack(each).mean(dim=0)).mean()
            loss = loss + self.config.gamma * ce
        if clean_logits is not None:
            parts["class_clean"] = ce = self._cross_entropy(clean_logits, batch.labels).mean()
            loss = loss + self.config.gamma * ce
        return Terms(loss, {"loss": loss.detach()} | {k: v.detach() for k, v in parts.items()})

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One value an image, zero where the label is unknown."""
        return F.cross_entropy(
            logits,
            labels,
            reduction="none",
            ignore_index=-1,
            label_smoothing=self.config.label_smoothing,
        )
