"""The EGC objective (Algorithm 1): match the score, and classify.

    x_t  = sqrt(abar_t) x_0 + sigma_t eps,    t uniform on 0..T-1
    s    = grad_x f(x_t)
    loss = mean (s + eps)^2  +  gamma * ( w_t CE(h(x_t), y)  +  CE(h(clean), y) )

The first term needs the gradient of a gradient: s is itself a backward pass, and training goes
back through it, over layers that are cheap to differentiate twice (`egc.nn.double_backward`).

A label-conditioned network learns the score with its label, of which a share is withheld
(`Batch.cond`), and classifies without: its classification terms are an evaluation of their own.

So a step is a list of `Pass`es, each an evaluation of the network whose loss adds to the step's.
`plan` makes the list; `forward` evaluates one. Passes that only classify do without the energy;
they come first, so that the last pass, in which processes exchange gradients, meets all weights.

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


class Pass(NamedTuple):
    """One evaluation of the network, and the weight of each image in each term of the loss."""

    x: Tensor
    t: Tensor
    labels: Tensor
    noisy: Tensor
    """weights of the cross-entropies of the noised stream; (B,)"""
    clean: Tensor
    """weights of the cross-entropies of the clean stream; (B,)"""
    cond: Tensor | None = None
    """what a label-conditioned network is told; (B,)"""
    eps: Tensor | None = None
    """the noise that -grad f is regressed on; None: the pass only classifies"""
    share: float = 0.0
    """weight of the score term"""


@objectives.register("egc")
class EGCObjective(Objective):
    """Score matching and classification of a batch."""

    def cost(self, forward: float, classify: float) -> float:
        without_label = self.net.takes_label and self.config.noisy_stream
        return 6 * forward + 3 * classify * (self.clean_share + without_label)

    def plan(self, batch: Batch, share: float = 1.0) -> list[Pass]:
        """The passes of a batch, which is this share of all images of the step."""
        x0, labels, t, eps, clean_images, clean_labels, cond, _ = batch
        x_t = self.diffusion.noise(x0, t, eps)
        zero = x0.new_zeros(len(x0))
        noisy = self._noisy_weights(zero + share / len(x0), t)

        # Passes that only classify. Told its label, a network would have nothing to learn.
        classified = []
        if cond is not None and self.config.noisy_stream:
            classified.append(Pass(x_t, t, labels, noisy, zero, self._without_label(t)))
            noisy = zero
        if clean_images is not None:
            names = labels if clean_labels is None else clean_labels
            start, nothing = torch.zeros_like(names), x0.new_zeros(len(names))
            without = None if cond is None else self._without_label(names)
            each = nothing + share / len(names)
            classified.append(Pass(clean_images, start, names, nothing, each, without))
        if len(classified) > 1:
            classified = [_joined(classified)]
        return [*classified, Pass(x_t, t, labels, noisy, zero, cond, eps, share)]

    def forward(self, part: Pass) -> Terms:
        """The loss of one pass."""
        if part.eps is None:
            logits = self.net.logits(part.x, part.t, part.cond)
            score = logits.new_zeros(())
        else:
            x = part.x.detach().requires_grad_(True)
            with double_backward():
                joint = self.net(x, part.t, part.cond)
            with input_gradient_only():
                (s,) = torch.autograd.grad(joint.log_density.sum(), x, create_graph=True)
            logits, score = joint.logits, part.share * (s + part.eps).square().mean()
        each = self.cross_entropies(logits, part.labels)
        noisy, clean = (part.noisy * each).sum(), (part.clean * each).sum()
        loss = score + self.config.gamma * (noisy + clean)
        return Terms.of(loss, score=score, class_noisy=noisy, class_clean=clean)

    def _noisy_weights(self, each: Tensor, t: Tensor) -> Tensor:
        """The weight of each image's cross-entropy in the noised stream; (B,)."""
        if not self.config.noisy_stream:
            return torch.zeros_like(each)
        if not self.config.time_weight:
            return each
        return each * self.diffusion.alphas_cumprod.to(t.device)[t].sqrt().to(each)

    def _without_label(self, like: Tensor) -> Tensor:
        return torch.full_like(like, self.net.no_label)


@objectives.register("egc-unsupervised")
class UnsupervisedObjective(EGCObjective):
    """The same without labels: the score term alone."""

    uses_labels = False


def _joined(passes: list[Pass]) -> Pass:
    """Several passes that classify as one over all their images."""
    x, t, labels, noisy, clean, cond, _, _ = zip(*passes, strict=True)
    return Pass(
        x=torch.cat(x),
        t=torch.cat(t),
        labels=torch.cat(labels),
        noisy=torch.cat(noisy),
        clean=torch.cat(clean),
        cond=torch.cat(cond),
    )
