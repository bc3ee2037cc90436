"""How well an autoencoder of `egc codec train` gives CIFAR-10 back, beside a linear code.

    EGC_DATA=DIR python benchmarks/codec.py codecs/cifar10

The linear code keeps as many numbers an image: the first principal components of patches of
factor x factor pixels, fitted to 2,000 training images. Both are measured on 1,000 test images.
"""

from __future__ import annotations

import sys

import numpy as np
from diffusers import AutoencoderKL

from egc.codec import describe_autoencoder
from egc.config import DataConfig
from egc.data import open_source
from egc.training.autoencoder import measure


def patches(images: np.ndarray, side: int) -> np.ndarray:
    """(N, H, W, C) -> (N, positions, side * side * C)."""
    count, height, width, channels = images.shape
    grid = images.reshape(count, height // side, side, width // side, side, channels)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(count, -1, side * side * channels)


def linear_psnr(train: np.ndarray, test: np.ndarray, side: int, kept: int) -> float:
    """Of the first `kept` principal components of patches."""
    rows = patches(train.astype(np.float64), side).reshape(-1, side * side * 3)
    mean = rows.mean(axis=0)
    _, directions = np.linalg.eigh(np.cov((rows - mean).T))
    basis = directions[:, -kept:]
    centred = patches(test.astype(np.float64), side) - mean
    error = ((centred - centred @ basis @ basis.T) ** 2).mean(axis=(1, 2))
    return float((10 * np.log10(255**2 / error)).mean())


def main() -> None:
    place = sys.argv[1]
    about = describe_autoencoder(place)
    data = open_source(DataConfig("cifar10"))
    found, _ = measure(AutoencoderKL.from_pretrained(place).eval(), data.test)
    print(f"autoencoder: error {found['mean_absolute_error']:.2f}, PSNR {found['psnr']:.1f} dB")
    train, test = data.train.images(np.arange(2000)), data.test.images(np.arange(1000))
    linear = linear_psnr(train, test, about["factor"], about["latent_channels"])
    print(f"linear code of the same size: PSNR {linear:.1f} dB")


if __name__ == "__main__":
    main()
