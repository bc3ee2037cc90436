"""Augmentation, each kind against a slow statement of what it must do to a single image."""

import numpy as np
import pytest
import torch
from PIL import Image

from egc.config import AugmentConfig
from egc.data.augment import augment


def noise(count, size, channels=3, seed=0):
    """Images whose pixels tell where they come from."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, size, size, channels)
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator)


def changed(images, seed=0, **options):
    return augment(images, AugmentConfig(**options), torch.Generator().manual_seed(seed))


RECIPES = [
    {"flip": True},
    {"shift": 2},
    {"pad_crop": 4},
    {"cutout": 5},
    {"resized_crop": 0.08},
    {"flip": True, "pad_crop": 4, "cutout": 16},
    {"resized_crop": 0.3, "pad_crop": 1, "shift": 1, "flip": True, "cutout": 3},
]


@pytest.mark.parametrize("options", RECIPES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_function_of_the_generator_alone(options, channels):
    images = noise(16, 12, channels)
    before = images.clone()
    first = changed(images, seed=1, **options)
    assert first.dtype == torch.uint8
    assert first.shape == images.shape
    assert torch.equal(first, changed(images, seed=1, **options))
    assert not torch.equal(first, changed(images, seed=2, **options))
    assert torch.equal(images, before)  # the images of the data set stay as they are
    state = torch.get_rng_state()
    changed(images, **options)
    assert torch.equal(state, torch.get_rng_state())


def test_nothing_to_do_is_nothing_done():
    images = noise(4, 8)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert augment(images, AugmentConfig(), generator) is images
    assert torch.equal(generator.get_state(), state)


def test_flip_and_shift_are_what_the_shipped_models_were_trained_with():
    """The same random numbers, used in the same way, as when they were the only two kinds."""
    images = noise(32, 8, 1)
    generator = torch.Generator().manual_seed(5)
    flipped = torch.rand(32, generator=generator) < 0.5
    dy, dx = torch.randint(-2, 3, (2, 32, 1), generator=generator)
    out = changed(images, seed=5, flip=True, shift=2)
    for i in range(32):
        image = images[i].numpy()[:, ::-1] if flipped[i] else images[i].numpy()
        rows = np.clip(np.arange(8) + dy[i].item(), 0, 7)
        columns = np.clip(np.arange(8) + dx[i].item(), 0, 7)
        np.testing.assert_array_equal(out[i].numpy(), image[rows][:, columns])


def test_flip_mirrors_about_half():
    images = noise(400, 6)
    mirrored = 0
    for image, out in zip(images.numpy(), changed(images, flip=True).numpy(), strict=True):
        is_mirrored = np.array_equal(out, image[:, ::-1])
        assert is_mirrored or np.array_equal(out, image)
        mirrored += is_mirrored
    assert 150 < mirrored < 250


def test_pad_crop_is_a_window_of_the_framed_image():
    images = noise(400, 6)
    seen = set()
    for image, out in zip(images.numpy(), changed(images, pad_crop=2).numpy(), strict=True):
        framed = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        places = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if np.array_equal(out, framed[top : top + 6, left : left + 6])
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == 25  # every place occurs


@pytest.mark.parametrize("side", [1, 2, 3, 4, 40])
def test_cutout_greys_a_square_around_some_pixel(side):
    images = noise(400, 5)
    images[images == 128] = 127
    seen = set()
    for image, out in zip(images.numpy(), changed(images, cutout=side).numpy(), strict=True):
        centres = []
        for y in range(5):
            for x in range(5):
                top, left = y - side // 2, x - side // 2
                expected = image.copy()
                expected[max(top, 0) : top + side, max(left, 0) : left + side] = 128
                if np.array_equal(out, expected):
                    centres.append((y, x))
        # A square larger than the image covers it wherever its centre is.
        assert len(centres) == (25 if side == 40 else 1)
        seen.update(centres)
    assert len(seen) == 25  # every centre occurs


def test_cutout_comes_last():
    """Whatever else happens, what was cut out is a clean grey square."""
    out = changed(noise(50, 32), flip=True, pad_crop=4, resized_crop=0.5, cutout=16).numpy()
    for image in out:
        assert (image == 128).all(-1).sum() >= 64  # a quarter at least, in a corner


def test_resized_crop_is_a_part_enlarged():
    """Against Pillow: there is a part, of allowed area and ratio, that gives the same image."""
    size, smallest = 12, 0.2
    # Smooth images, so that wrong places are told from rounding.
    images = np.stack(
        [
            np.asarray(Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC))
            for small in noise(10, 4, seed=3).numpy()
        ]
    )
    found = []
    outs = changed(torch.from_numpy(images), resized_crop=smallest).numpy()
    for image, out in zip(images, outs, strict=True):
        picture = Image.fromarray(image)
        best = (999, 0, 0)
        for width in range(1, size + 1):
            for height in range(1, size + 1):
                for left in range(size - width + 1):
                    for top in range(size - height + 1):
                        box = (left, top, left + width, top + height)
                        part = picture.crop(box)
                        large = part.resize((size, size), Image.Resampling.BILINEAR)
                        error = np.abs(np.asarray(large).astype(int) - out.astype(int)).max()
                        best = min(best, (error, width, height))
        assert best[0] <= 1
        found.append(best[1:])
    for width, height in found:
        # A side is rounded by half a pixel at most.
        assert (width + 0.5) * (height + 0.5) >= smallest * size * size
        assert (width - 0.5) / (height + 0.5) <= 4 / 3
        assert (width + 0.5) / (height - 0.5) >= 3 / 4
    assert len(set(found)) > 5


def test_resized_crop_of_the_whole_is_the_image():
    images = noise(20, 9)
    assert torch.equal(changed(images, resized_crop=1.0), images)


def test_resized_crop_shares_are_spread_over_the_range():
    """Of a horizontal ramp, the range of values that is left tells the width of the part."""
    ramp = torch.arange(0, 256, 4, dtype=torch.uint8).repeat(64, 1)
    images = ramp[None, :, :, None].repeat(500, 1, 1, 1)
    both = torch.cat([images, images.transpose(1, 2)], dim=-1)
    out = changed(both.repeat(1, 1, 1, 2)[..., :3], resized_crop=0.08).float()
    across = (out[..., 0].amax((1, 2)) - out[..., 0].amin((1, 2))) / 4 + 1
    down = (out[..., 1].amax((1, 2)) - out[..., 1].amin((1, 2))) / 4 + 1
    share = across * down / 64**2
    assert 0.06 < share.min() < 0.15
    assert share.max() > 0.9
    assert 0.45 < share.mean() < 0.6
    ratio = across / down
    assert 0.7 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.43
    assert abs(ratio.log().mean()) < 0.03


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tiny_images(size):
    images = noise(8, size)
    for options in RECIPES:
        assert changed(images, **options).shape == images.shape


def test_one_image_and_none():
    for count in (0, 1):
        images = noise(count, 8)
        for options in RECIPES:
            assert changed(images, **options).shape == images.shape
