"""The whole of EGC on one page: Algorithm 1 (training) and Algorithm 2 (sampling) of the paper.

    python examples/train_minimal.py                  # a few minutes on a CPU
    python examples/train_minimal.py --train-steps 20 # a quick look

Everything the library adds to this (resuming, averages done right, many processes, reports) is in
`egc train`; the parts used here are the same.
"""

import argparse
import copy

import torch
import torch.nn.functional as F

from egc.codec import PixelCodec
from egc.config import DataConfig, DiffusionConfig
from egc.data import open_source
from egc.diffusion import Diffusion
from egc.energy import EnergyModel
from egc.nn.double_backward import double_backward, input_gradient_only
from egc.nn.readouts import DenseReadout
from egc.nn.unet import UNet
from egc.report.grid import image_grid

GAMMA, BATCH, LR = 0.1, 32, 2e-3


def loss_of(net: EnergyModel, diffusion: Diffusion, x0, labels) -> torch.Tensor:
    """Algorithm 1: the gradient of the log-density is regressed on minus the noise."""
    t = torch.randint(diffusion.steps, (len(x0),))
    eps = torch.randn_like(x0)
    x_t = diffusion.noise(x0, t, eps).requires_grad_(True)
    with double_backward():  # layers whose second derivatives are cheap
        joint = net(x_t, t)
    with input_gradient_only():
        (score,) = torch.autograd.grad(joint.log_density.sum(), x_t, create_graph=True)
    weight = diffusion.alphas_cumprod[t].sqrt().float()
    classes = weight * F.cross_entropy(joint.logits, labels, reduction="none")
    return (score + eps).square().mean() + GAMMA * classes.mean()


def sample(net: EnergyModel, diffusion: Diffusion, labels, guidance: float) -> torch.Tensor:
    """Algorithm 2: from noise to images, guided by the classifier in the same backward pass."""
    x = torch.randn(len(labels), 1, 8, 8)
    for t in reversed(range(diffusion.steps)):
        eps = net.eps(x, t, labels, guidance)
        x0 = diffusion.predict_x0(x, t, eps).clamp(-1, 1)
        mean, variance = diffusion.posterior(x0, x, t)
        x = mean + variance.sqrt() * torch.randn_like(x)
    return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-steps", type=int, default=1000)
    parser.add_argument("--levels", type=int, default=1000, help="noise levels, T")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = open_source(DataConfig("digits"))
    codec = PixelCodec(channels=1, image_size=8)
    diffusion = Diffusion(DiffusionConfig("cosine", steps=args.levels))
    backbone = UNet(
        inputs=1, outputs=10, image_size=8, channels=32, multipliers=(1, 2), depth=1,
        attention=(), head_width=64, groups=8,
    )  # fmt: skip
    net = EnergyModel(backbone, DenseReadout(10), diffusion.sigmas)
    average = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.train_steps)
    for step in range(args.train_steps):
        images, labels = data.train.take(step, BATCH, seed=0)
        loss = loss_of(net, diffusion, codec.encode(images), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(0.995, (1 + step) / (10 + step))
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 1 - decay)
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    with torch.no_grad():
        predicted = average.logits(codec.encode(data.test.images()), 0).argmax(dim=1)
    accuracy = (predicted.numpy() == data.test.labels).mean()
    print(f"test accuracy {accuracy:.1%}")
    labels = torch.arange(10).repeat_interleave(4)
    images = codec.decode(sample(average, diffusion, labels, guidance=5.0))
    image_grid(images, columns=4).save("digits.png")
    print("samples in digits.png, one class a row")


if __name__ == "__main__":
    main()
