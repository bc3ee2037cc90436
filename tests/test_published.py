"""The authors' checkpoints, against what their network gives (tests/fixtures/published_egc)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from egc.api import EGC, load
from egc.cli import main
from egc.errors import ConfigError, ModelError

FIXTURE = Path(__file__).parent / "fixtures" / "published_egc"
CHECKPOINT = FIXTURE / "model.pt"
SHAPE = {"heads": 2, "head_width": 16, "image_size": 16}


@pytest.fixture(scope="module")
def expected():
    with np.load(FIXTURE / "io.npz") as arrays:
        return {name: torch.as_tensor(arrays[name]) for name in arrays}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> EGC:
    """Imported by the command line and loaded from what it wrote."""
    out = tmp_path_factory.mktemp("published") / "model"
    options = ["--heads", "2", "--head-width", "16", "--image-size", "16"]
    assert main(["import", str(CHECKPOINT), "--out", str(out), *options]) == 0
    return load(out)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def test_logits_and_eps_are_theirs(model, expected):
    x, t, y = (expected[name] for name in ("x", "t", "y"))
    with torch.no_grad():
        assert relative(model.net(x, t).logits, expected["logits"]) < 1e-5
        assert relative(model.net(x, 0).logits, expected["logits_t0"]) < 1e-5
    assert len(model.classes) in y.tolist()  # "no label" is among them
    assert relative(model.eps(x, t, cond=y), expected["eps"]) < 1e-5
    untold = y == len(model.classes)
    torch.testing.assert_close(
        model.eps(x, t)[untold], expected["eps"][untold], rtol=1e-4, atol=1e-5
    )


def test_the_schedule_is_theirs(model, expected):
    np.testing.assert_allclose(model.diffusion.betas, expected["betas"], rtol=1e-12)


def test_the_architecture_is_read_off_the_shapes(model):
    with (FIXTURE / "hparams.json").open() as file:
        theirs = json.load(file)
    network = model.config.network
    assert network.channels == theirs["num_channels"]
    assert list(network.multipliers) == theirs["channel_mult"]
    assert network.depth == theirs["num_res_blocks"]
    assert list(network.attention) == theirs["attention_resolutions"]
    assert network.label_width == theirs["context_dim"]
    assert model.codec.shape == (theirs["in_channels"], 16, 16)
    assert len(model.classes) == theirs["num_classes"]
    assert network.groups == 32
    assert model.codec.scale == 0.18215


def test_no_autoencoder_is_needed_for_energies(model, expected):
    assert torch.isfinite(model.net(expected["x"], 5).log_density).all()


@pytest.fixture
def weights():
    return torch.load(CHECKPOINT, weights_only=True)


def imported(weights, folder, **changes) -> EGC:
    torch.save(weights, folder / "changed.pt")
    return EGC.from_published(folder / "changed.pt", **{**SHAPE, **changes})


@pytest.mark.parametrize(
    "key",
    [
        "label_emb.weight",
        "time_embed.2.bias",
        "input_blocks.0.0.weight",
        "input_blocks.1.0.skip_connection.weight",  # one too many
        "input_blocks.3.1.transformer_blocks.0.attn1.to_k.weight",
        "middle_block.1.proj_out.bias",
        "output_blocks.1.2.conv.weight",
        "output_blocks.3.0.emb_layers.1.weight",
        "out.2.weight",
    ],
)
def test_a_key_that_is_missing_or_too_many_is_named(weights, tmp_path, key):
    if key in weights:
        del weights[key]
    else:
        weights[key] = torch.zeros(32, 32, 1, 1)
    with pytest.raises(ModelError, match=key):
        imported(weights, tmp_path)


def test_a_shape_that_does_not_fit_is_named(weights, tmp_path):
    key = "output_blocks.0.0.out_layers.3.weight"
    weights[key] = weights[key][:, :-1]
    with pytest.raises(ModelError, match=rf"{key}.*\(64, 63, 3, 3\).*\(64, 64, 3, 3\)"):
        imported(weights, tmp_path)


def test_wrong_heads_are_told_from_the_shapes(weights, tmp_path):
    with pytest.raises(ModelError, match=r"proj_in.weight.*\(32, 32, 1, 1\).*4 heads of 64"):
        imported(weights, tmp_path, heads=4, head_width=64)
    with pytest.raises(ConfigError, match="heads must be at least 1; got 0"):
        imported(weights, tmp_path, heads=0)


def test_files_that_are_no_checkpoint(tmp_path, capsys):
    assert main(["import", str(tmp_path / "none.pt"), "--out", str(tmp_path / "m")]) == 2
    (tmp_path / "text.pt").write_text("not a checkpoint")
    assert main(["import", str(tmp_path / "text.pt"), "--out", str(tmp_path / "m")]) == 2
    torch.save([1, 2], tmp_path / "list.pt")
    assert main(["import", str(tmp_path / "list.pt"), "--out", str(tmp_path / "m")]) == 2
    messages = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in messages] == [True] * 3
    assert not (tmp_path / "m").exists()


def test_a_thousand_classes_have_imagenets_names(weights, tmp_path):
    weights["label_emb.weight"] = torch.zeros(1001, 24)
    weights["out.2.weight"], weights["out.2.bias"] = torch.zeros(1000, 32, 3, 3), torch.zeros(1000)
    classes = imported(weights, tmp_path).classes
    assert len(set(classes)) == 1000
    assert (classes[0], classes[207]) == ("tench", "golden retriever")
