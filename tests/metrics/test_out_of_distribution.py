"""Out-of-distribution figures by hand and beside scikit-learn, scores, the stored threshold."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import egc
from egc.cli import main
from egc.config import DataConfig
from egc.data import open_source
from egc.errors import ConfigError, DataError, ModelError
from egc.metrics import fitting
from egc.metrics.out_of_distribution import (
    MADE,
    aupr,
    auroc,
    detection,
    evaluate_out_of_distribution,
    fpr95,
    roc_figure,
    score_figure,
)
from egc.metrics.threshold import accepting, ood_threshold, store_threshold
from egc.model import objective_of
from egc.report.figures import png
from egc.tasks.out_of_distribution import (
    SCORES,
    Curve,
    curve_vectors,
    flagging_score,
    is_out_of_distribution,
    offered,
    ood_scores,
)
from tests.conftest import shaken


@pytest.fixture(scope="module")
def digits():
    return egc.load("digits")


@pytest.fixture(scope="module")
def splits():
    return open_source(DataConfig("digits"))


@pytest.fixture(scope="module")
def ready(digits, splits, tmp_path_factory):
    """The digits with a threshold, as a directory."""
    path = digits.save(tmp_path_factory.mktemp("models") / "digits")
    store_threshold(path, ood_threshold(digits, splits.validation))
    return path


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_by_hand():
    assert detection(np.array([1.0, 2]), np.array([3.0, 4])) == {
        "auroc": 1, "aupr": 1, "fpr95": 0,
    }  # fmt: skip
    assert detection(np.array([3.0, 4]), np.array([1.0, 2]))["auroc"] == 0
    assert fpr95(np.array([3.0, 4]), np.array([1.0, 2])) == 1
    # Pairs of (familiar, novel) in the right order: 3 of 4, and one tie.
    familiar, novel = np.array([1.0, 3]), np.array([2.0, 3])
    assert auroc(familiar, novel) == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    # At 3: one of two raised is novel, and half of the novel found; at 2: 2 of 3, and the rest.
    assert aupr(familiar, novel) == pytest.approx(0.5 * 1 / 2 + 0.5 * 2 / 3)
    assert fpr95(familiar, novel) == 1


def test_all_equal_is_guessing():
    familiar, novel = np.zeros(30), np.zeros(10)
    assert auroc(familiar, novel) == 0.5
    assert aupr(familiar, novel) == 0.25
    assert fpr95(familiar, novel) == 1


@pytest.mark.parametrize("count", [1, 7, 19, 20, 40, 100, 333])
@pytest.mark.parametrize("levels", [4, 1_000_000], ids=["ties", "none"])
def test_beside_sklearn(count, levels):
    rng = np.random.default_rng(count)
    familiar = rng.integers(0, levels, count).astype(float)
    novel = rng.integers(levels // 4, levels + levels // 4, 50).astype(float)
    truth = np.r_[np.zeros(count), np.ones(50)]
    scores = np.r_[familiar, novel]
    assert auroc(familiar, novel) == pytest.approx(roc_auc_score(truth, scores))
    assert aupr(familiar, novel) == pytest.approx(average_precision_score(truth, scores))
    false, true, _ = roc_curve(1 - truth, -scores, drop_intermediate=False)
    assert fpr95(familiar, novel) == pytest.approx(false[(true >= 0.95).argmax()])


@pytest.mark.parametrize("count", [1, 19, 20, 21, 100, 144, 1000])
def test_a_threshold_accepts_its_share_and_no_more_than_it_must(count):
    scores = np.random.default_rng(0).permutation(count).astype(float)
    threshold = accepting(scores)
    assert (scores <= threshold).mean() >= 0.95
    assert (scores <= threshold - 1).mean() < 0.95


# --- scores --------------------------------------------------------------------------------------


def test_scores_are_what_they_say(digits, splits):
    images = splits.test.images(np.arange(5))
    x = digits.codec.encode(images)
    score = {name: ood_scores(digits, images, name) for name in SCORES if name != "curve"}
    np.testing.assert_allclose(score["energy"], digits.energy(images), rtol=1e-6)
    np.testing.assert_allclose(
        score["softmax"], 1 - digits.predict_proba(images).max(axis=1), atol=1e-6
    )
    lengths = digits.net.score(x, 0).flatten(1).norm(dim=1)
    np.testing.assert_allclose(score["gradient"], lengths, rtol=1e-5)
    assert (score["denoising"] > 0).all()
    vectors, named = curve_vectors(digits, images)
    assert vectors.shape == (5, 5)
    np.testing.assert_array_equal(named, digits.predict_proba(images).argmax(axis=1))
    expected = digits.log_density(images, t=200) / float(digits.diffusion.sigmas[200])
    np.testing.assert_allclose(vectors[:, 3], expected, rtol=1e-5)


def test_a_score_is_a_function_of_the_image_alone(digits, splits):
    images = splits.test.images(np.arange(6))
    curve = Curve.fit(*curve_vectors(digits, splits.train.images(np.arange(200))), 10)
    for name in SCORES:
        together = ood_scores(digits, images, name, curve)
        for batch_size in (1, 4):
            alone = ood_scores(digits, images[::-1].copy(), name, curve, batch_size)
            np.testing.assert_allclose(alone[::-1], together, rtol=1e-3, atol=1e-5)


def test_the_distance_to_a_gaussian_is_mahalanobis():
    rng = np.random.default_rng(0)
    root = np.array([[2.0, 0.0], [1.0, 0.5]])
    classes = np.arange(20_000) % 2
    centres = np.array([[0.0, 0.0], [10.0, -5.0]])
    vectors = rng.standard_normal((20_000, 2)) @ root.T + centres[classes]
    curve = Curve.fit(vectors, classes, 2)
    np.testing.assert_allclose(curve.means, centres, atol=0.1)
    np.testing.assert_allclose(curve.covariance, root @ root.T, atol=0.1)
    whitened = np.array([[3.0, 4.0], [0.0, 0.0]])
    points = whitened @ root.T + centres[[1, 0]]
    np.testing.assert_allclose(curve.distance(points, np.array([1, 0])), [5, 0], atol=0.15)
    again = Curve.from_dict(json.loads(json.dumps(curve.to_dict())))
    np.testing.assert_array_equal(
        again.distance(points, classes[:2]), curve.distance(points, classes[:2])
    )


def test_a_class_without_images_is_like_all():
    vectors = np.random.default_rng(0).standard_normal((50, 3))
    curve = Curve.fit(vectors, np.zeros(50, dtype=int), 2)
    np.testing.assert_allclose(curve.means[1], vectors.mean(axis=0))
    assert np.isfinite(Curve.fit(vectors[:1], np.zeros(1, dtype=int), 1).covariance).all()


@pytest.mark.parametrize(
    ("kind", "expected", "flagging"),
    [
        ("egc", SCORES, "curve"),
        ("egc-unsupervised", ("energy", "gradient", "curve", "denoising"), "curve"),
        ("classifier", ("energy", "softmax", "gradient"), "energy"),
        ("jem", ("energy", "softmax", "gradient"), "energy"),
        ("ddpm", ("gradient", "denoising"), "denoising"),
    ],
)
def test_a_model_offers_what_its_network_has(tiny_config, splits, kind, expected, flagging):
    config = tiny_config.replace(objective={"kind": kind})
    classes = splits.test.classes if objective_of(config).uses_labels else []
    model = shaken(egc.EGC.build(config, classes))
    assert offered(model) == expected
    assert flagging_score(model) == flagging
    found = evaluate_out_of_distribution(
        model, splits.test, ["noise"], fit_on=splits.validation, count=5
    )
    assert tuple(found.familiar) == expected
    for score in expected:
        assert np.isfinite(found.familiar[score]).all()
    for missing in set(SCORES) - set(expected):
        with pytest.raises(ModelError, match=f"no out-of-distribution score '{missing}'"):
            ood_scores(model, splits.test.images(np.arange(1)), missing)
    model.facts["out_of_distribution"] = ood_threshold(model, splits.validation)
    assert model.facts["out_of_distribution"]["score"] == flagging
    assert is_out_of_distribution(model, splits.validation.images())[0].mean() < 0.1


def test_a_curve_must_be_fitted(tiny):
    with pytest.raises(ModelError, match="fitted first"):
        ood_scores(tiny, np.zeros((1, 8, 8, 1), dtype=np.uint8), "curve")


def test_a_model_without_labels_has_a_curve_of_one_class(tiny_config, splits):
    model = shaken(egc.EGC.build(tiny_config, []))
    assert np.shape(ood_threshold(model, splits.validation)["means"]) == (1, 5)


# --- other data ----------------------------------------------------------------------------------


def test_made_images(splits):
    images = splits.test.images(np.arange(20))
    made = {name: make(images, np.random.default_rng(0)) for name, make in MADE.items()}
    for pixels in made.values():
        assert pixels.shape == images.shape
        assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(made["upside-down"][:, ::-1, ::-1], images)
    rows = (20, 64)
    assert not np.array_equal(made["shuffled"], images)
    np.testing.assert_array_equal(
        np.sort(made["shuffled"].reshape(rows)), np.sort(images.reshape(rows))
    )
    assert (made["constant"].reshape(rows).std(axis=1) == 0).all()
    assert len(np.unique(made["constant"])) > 5
    assert made["noise"].mean() == pytest.approx(127.5, abs=10)
    colour = np.random.default_rng(1).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    shuffled = MADE["shuffled"](colour, np.random.default_rng(0)).reshape(3, 16, 3)
    for before, after in zip(colour.reshape(3, 16, 3), shuffled, strict=True):
        assert sorted(map(tuple, before)) == sorted(map(tuple, after))  # colours stay whole


def test_digits_are_told_from_others(digits, splits):
    others = ["noise", "upside-down", "digits"]
    found = evaluate_out_of_distribution(
        digits, splits.test, others, fit_on=splits.validation, count=40
    )
    table = found.table
    assert table["noise"].keys() == set(SCORES)
    for score in SCORES:
        assert table["noise"][score]["auroc"] > 0.97
        assert table["noise"][score]["fpr95"] < 0.2
    assert 0.7 < table["upside-down"]["curve"]["auroc"] < 1
    assert table["digits"]["curve"]["auroc"] == pytest.approx(0.5, abs=0.2)
    summary = json.loads(json.dumps(found.summary()))
    assert summary["images"] == 40
    assert summary["other_images"] == dict.fromkeys(others, 40)
    for figure in (score_figure(found), roc_figure(found)):
        assert png(figure).startswith(b"\x89PNG")


def test_processes_share_the_images(tiny, splits, monkeypatch):
    """Whoever scores an image, it lands in its place."""
    wanted = {"fit_on": splits.validation, "count": 7}
    one = evaluate_out_of_distribution(tiny, splits.test, ["noise"], **wanted)
    monkeypatch.setattr(fitting, "share", lambda items: items[::-1])
    monkeypatch.setattr(fitting, "gather", lambda rows: rows[::-1])
    other = evaluate_out_of_distribution(tiny, splits.test, ["noise"], **wanted)
    for score in SCORES:
        np.testing.assert_allclose(other.familiar[score], one.familiar[score], rtol=1e-3)


def test_other_images_take_the_model_s_shape(digits, splits, photo_folder):
    """12x12 colour photos become 8x8 and grey."""
    found = evaluate_out_of_distribution(
        digits, splits.test, [f"folder:{photo_folder}"], fit_on=splits.validation, count=30
    )
    assert [len(of["energy"]) for of in found.others.values()] == [20]


def test_other_data_that_cannot_be_had_are_refused(digits, splits):
    wanted = {"fit_on": splits.train, "count": 10}
    with pytest.raises(ConfigError, match=r"no other images 'upsidedown'\. Did you mean"):
        evaluate_out_of_distribution(digits, splits.test, ["upsidedown"], **wanted)
    with pytest.raises(ConfigError, match="at least 1 image and other data"):
        evaluate_out_of_distribution(digits, splits.test, [], **wanted)
    latents = replace(splits.test, autoencoder="some/where")
    with pytest.raises(DataError, match="latents"):
        evaluate_out_of_distribution(digits, latents, ["noise"], **wanted)
    with pytest.raises(DataError, match="no images"):
        evaluate_out_of_distribution(digits, splits.test.subset(np.arange(0)), ["noise"], **wanted)


# --- the stored threshold ------------------------------------------------------------------------


def test_the_threshold_is_kept_with_the_model(ready, digits, splits):
    model = egc.load(ready)
    stored = model.facts["out_of_distribution"]
    assert stored["score"] == "curve"
    assert stored["share"] == 0.95
    assert stored["images"] == len(splits.validation)
    assert model.facts["test_accuracy"] == digits.facts["test_accuracy"]
    assert not list(ready.glob("*.part"))
    flags, scores = is_out_of_distribution(model, splits.validation.images())
    assert flags.mean() <= 0.08
    assert scores.shape == (len(splits.validation),)
    test_flags, _ = is_out_of_distribution(model, splits.test.images())
    assert test_flags.mean() == pytest.approx(0.05, abs=0.05)
    noise = np.random.default_rng(0).integers(0, 256, (100, 8, 8, 1), dtype=np.uint8)
    assert is_out_of_distribution(model, noise)[0].mean() > 0.95


def test_a_model_without_a_threshold_says_how_to_get_one(digits, splits, tmp_path):
    model = egc.EGC(**{**vars(digits), "facts": {}})
    with pytest.raises(
        ModelError, match="egc evaluate MODEL --metrics out_of_distribution --store"
    ):
        is_out_of_distribution(model, splits.test.images(np.arange(1)))
    model.facts = {"out_of_distribution": {"score": "curve", "threshold": 1.0}}
    with pytest.raises(ModelError, match="incomplete"):
        is_out_of_distribution(model, splits.test.images(np.arange(1)))
    with pytest.raises(DataError, match="20 validation images or more; digits has 19"):
        ood_threshold(digits, splits.validation.subset(np.arange(19)))
    with pytest.raises(ModelError, match="is it a model directory"):
        store_threshold(tmp_path, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        store_threshold(tmp_path, {})


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def pictures(splits, tmp_path):
    """Two digits and a picture of noise."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index in range(2):
        pixels = splits.validation.images(np.array([index]))[0, ..., 0]
        Image.fromarray(pixels).save(folder / f"digit{index}.png")
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    return folder


def test_classify_flags_what_is_out_of_distribution(ready, pictures, capsys):
    assert main(["classify", str(ready), str(pictures), "--flag-ood"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "\tin distribution (score " in lines[0]
    assert "\tin distribution (score " in lines[1]
    assert "\tOUT OF DISTRIBUTION (score " in lines[2]
    assert main(["classify", str(ready), str(pictures), "--flag-ood", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["out_of_distribution"] for row in found["images"]] == [False, False, True]
    assert [row["score"] > found["threshold"] for row in found["images"]] == [
        False, False, True,
    ]  # fmt: skip
    assert main(["classify", str(ready), str(pictures), "--json"]) == 0
    assert "out_of_distribution" not in json.loads(capsys.readouterr().out)["images"][0]


def test_classify_cannot_flag_without_a_threshold(digits, pictures, tmp_path, capsys):
    model = egc.EGC(**{**vars(digits), "facts": {}})
    path = model.save(tmp_path / "bare")
    assert main(["classify", str(path), str(pictures), "--flag-ood"]) == 2
    error = capsys.readouterr().err
    assert "error: This model has no out-of-distribution threshold" in error
    assert "egc evaluate MODEL --metrics out_of_distribution --store" in error
