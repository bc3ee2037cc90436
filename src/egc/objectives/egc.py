"""The EGC objective (Algorithm 1): match the score, and classify.

    x_t  = sqrt(abar_t) x_0 + sigma_t eps,    t uniform on 0..T-1
    s    = grad_x f(x_t)
    loss = mean (s + eps)^2  +  gamma * ( w_t CE(h(x_t), y)  +  CE(h(clean), y) )

The first term needs the gradient of a gradient. There are two ways to it.

`exact`: double backward. s is itself a backward pass, and training goes back through it, over
layers that are cheap to differentiate twice (`egc.nn.double_backward`).

`paired`: with r = s + eps held constant, the gradient of mean(r^2) in the parameters is 2/N times
that of the directional derivative of f along r, for which two first-order passes suffice:

    grad_theta mean(r^2) = 2/N grad_theta sum (f(x + h r) - f(x - h r)) / (2 h) + O(h^2)

with h = 0.01 / rms(r) for each image. Only first-order kernels run, and the classification terms
ride along on the same evaluations. The two sides, and the clean stream, are one pass over a batch
of two or three times the size; `lean` makes them passes of their own, one after the other, in the
memory of one.

A label-conditioned network learns the score with its label, of which a share is withheld
(`Batch.cond`), and classifies without: its classification terms are an evaluation of their own.

So a step is a list of `Pass`es, each an evaluation of the network whose loss adds to the step's.
`plan` makes the list; `forward` evaluates one.

Options of the published recipe: w_t = sqrt(abar_t), the clean stream (t = 0, its own, stronger
augmentation) and label smoothing. A label of -1 means "unknown": such an image takes part in the
score term alone. Cross-entropies are summed over labelled images and divided by all, so a batch
split into parts, or over processes, gives the same gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from egc.nn.double_backward import double_backward, input_gradient_only
from egc.objectives.base import Batch, Objective, Terms
from egc.registry import objectives

PAIR_STEP = 0.01
"""root mean square of the displacement h r, in model space"""


class Pass(NamedTuple):
    """One evaluation of the network, and the weight of each image in each term of the loss."""

    x: Tensor
    t: Tensor
    labels: Tensor
    noisy: Tensor
    """weights of the cross-entropies of the noised stream; (B,)"""
    clean: Tensor
    """weights of the cross-entropies of the clean stream; (B,)"""
    density: Tensor
    """weights of the images' score terms (exact), or of f, whose weighted sum has their gradient
    (paired); (B,)"""
    score: Tensor
    """the score term's value, where it is known already (paired); a scalar"""
    cond: Tensor | None = None
    """what a label-conditioned network is told; (B,)"""
    eps: Tensor | None = None
    """the noise that -grad f is regressed on (exact)"""


@objectives.register("egc")
class EGCObjective(Objective):
    """The loss of a batch. Its gradient is exact or paired, as configured."""

    @property
    def passes(self) -> float:
        without_label = self.net.takes_label and self.config.noisy_stream
        apart = self.config.clean_stream + without_label  # evaluations that only classify
        return (6.0 if self.config.gradient == "exact" else 8.0) + 3.0 * apart

    def plan(self, batch: Batch, share: float = 1.0) -> list[Pass]:
        """The passes of a batch, which is this share of all images of the step."""
        x0, labels, t, eps, clean_images, clean_labels, cond, _ = batch
        x_t = self.diffusion.noise(x0, t, eps)
        zero, nothing = x0.new_zeros(len(x0)), x0.new_zeros(())
        each = zero + share / len(x0)
        noisy = self._noisy_weights(each, t)
        without = None if cond is None else torch.full_like(cond, self.net.no_label)

        # Evaluations that only classify. Told its label, a network would have nothing to learn.
        classified = []
        if cond is not None and self.config.noisy_stream:
            classified.append(Pass(x_t, t, labels, noisy, zero, zero, nothing, without))
            noisy = zero
        if clean_images is not None:
            start, names = torch.zeros_like(t), labels if clean_labels is None else clean_labels
            classified.append(Pass(clean_images, start, names, zero, each, zero, nothing, without))

        if self.config.gradient == "exact":
            if classified:
                classified = [_joined(classified)]
            return [Pass(x_t, t, labels, noisy, zero, each, nothing, cond, eps), *classified]
        r, h = self._residual(x_t, t, eps, cond)
        density = each / (h.flatten() * x0[0].numel())
        score = share * r.square().mean()
        passes = [
            Pass(x_t + h * r, t, labels, noisy / 2, zero, density, score, cond),
            Pass(x_t - h * r, t, labels, noisy / 2, zero, -density, 0 * score, cond),
            *classified,
        ]
        return passes if self.config.lean else [_joined(passes)]

    def forward(self, part: Pass) -> Terms:
        """The loss of one pass."""
        score = part.score
        if part.eps is None:
            joint = self.net(part.x, part.t, part.cond)
            # The value is that of the score term; the gradient is that of the weighted sum.
            along_r = (part.density * joint.log_density).sum()
            loss = score + (along_r - along_r.detach())
        else:
            x = part.x.detach().requires_grad_(True)
            with double_backward():
                joint = self.net(x, part.t, part.cond)
            with input_gradient_only():
                (s,) = torch.autograd.grad(joint.log_density.sum(), x, create_graph=True)
            loss = score = (part.density * (s + part.eps).square().flatten(1).mean(dim=1)).sum()
        each = self.cross_entropies(joint.logits, part.labels)
        noisy, clean = (part.noisy * each).sum(), (part.clean * each).sum()
        loss = loss + self.config.gamma * (noisy + clean)
        return Terms.of(loss, score=score, class_noisy=noisy, class_clean=clean)

    def _noisy_weights(self, each: Tensor, t: Tensor) -> Tensor:
        """The weight of each image's cross-entropy in the noised stream; (B,)."""
        if not self.config.noisy_stream:
            return torch.zeros_like(each)
        if not self.config.time_weight:
            return each
        return each * self.diffusion.alphas_cumprod.to(t.device)[t].sqrt().to(each)

    def _residual(
        self, x_t: Tensor, t: Tensor, eps: Tensor, cond: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """r = s + eps, and the step h along it for each image."""
        r = self.net.score(x_t, t, cond) + eps
        every = tuple(range(1, r.ndim))
        rms = r.square().mean(dim=every, keepdim=True).sqrt().clamp(min=1e-12)
        return r, PAIR_STEP / rms


@objectives.register("egc-unsupervised")
class UnsupervisedObjective(EGCObjective):
    """The same without labels: the score term alone."""

    uses_labels = False


def _joined(passes: list[Pass]) -> Pass:
    """Several passes as one over all their images."""
    x, t, labels, noisy, clean, density, scores, cond, _ = zip(*passes, strict=True)
    return Pass(
        x=torch.cat(x),
        t=torch.cat(t),
        labels=torch.cat(labels),
        noisy=torch.cat(noisy),
        clean=torch.cat(clean),
        density=torch.cat(density),
        score=torch.stack(scores).sum(),
        cond=None if cond[0] is None else torch.cat(cond),
    )
