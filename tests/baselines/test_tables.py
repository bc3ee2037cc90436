"""What is said of a comparison: means with their spread, and nobody where it has no figure."""

import pytest

from egc.baselines.compare import read_comparison
from egc.baselines.tables import comparison_table, scatter_figure

FILE = """
budget = 2.5
seeds = [3, 4]

[evaluate.robustness]
epsilons = [4, 12]

[[entry]]
name = "a"
preset = "digits"
"""


@pytest.fixture
def comparison(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    return read_comparison(tmp_path / "mine.toml")


def test_all_that_figures_depend_on_is_said(comparison):
    said = comparison.summary()
    assert (said["budget_tflop"], said["seeds"]) == (2.5, [3, 4])
    assert said["evaluate"]["robustness"]["epsilons"] == [4, 12]
    assert said["evaluate"]["robustness"]["attack_steps"] == 20
    assert said["evaluate"]["generation"]["count"] == 2000
    titles = {column.key: column.title for column in comparison.columns()}
    assert titles["pgd_4"] == "PGD-20 at 4/255"
    assert titles["pgd_12"] == "PGD-20 at 12/255"


def test_the_table_shows_the_spread_over_seeds(comparison):
    row = {"name": "a", "accuracy": 0.5, "accuracy_each": [0.4, 0.6], "steps": 1200}
    assert comparison_table([row], comparison).splitlines()[2] == (
        "| a | 50.0 % ± 14.1 % | 1,200 |"
    )
    once = {**row, "accuracy_each": [0.5]}
    assert comparison_table([once], comparison).splitlines()[2] == "| a | 50.0 % | 1,200 |"


def test_what_has_one_figure_is_beside_the_plane():
    rows = [
        {"name": "both", "accuracy": 0.9, "fid": 3.0},
        {"name": "DDPM", "accuracy": None, "fid": 2.0},
        {"name": "classifier", "accuracy": 0.95, "fid": None},
    ]
    plane, unnamed, unsampled = scatter_figure(rows).axes
    assert [c.get_label() for c in plane.collections] == ["both"]
    assert not plane.lines
    (ddpm,), (classifier,) = unnamed.lines, unsampled.lines
    assert (ddpm.get_label(), list(ddpm.get_ydata())) == ("DDPM", [2, 2])
    assert (classifier.get_label(), list(classifier.get_xdata())) == ("classifier", [0.95, 0.95])
    for strip in (unnamed, unsampled):
        box, other = strip.get_position(), plane.get_position()
        assert box.x0 >= other.x1 or box.y0 >= other.y1


@pytest.mark.parametrize("rows", [[{"name": "a", "accuracy": 0.5}], [{"name": "b", "fid": 3.0}]])
def test_a_plane_may_be_empty(rows):
    assert len(scatter_figure(rows).axes) == 2
