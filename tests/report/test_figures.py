"""Names beside grids, tables on pages, and names that are no formulas."""

import re

import numpy as np
from PIL import Image

from egc.report.figures import confusion_figure, histogram, literal, png, run_curves
from egc.report.grid import image_grid
from egc.report.page import Section, Table, render


def some_images(count=6, channels=1):
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, channels), dtype=np.uint8)


def test_names_stand_beside_the_rows():
    images = some_images()
    plain = np.asarray(image_grid(images, columns=3, cell=48))
    named = np.asarray(image_grid(images, columns=3, cell=48, labels=["coat", "ankle boot"]))
    margin = named.shape[1] - plain.shape[1]
    np.testing.assert_array_equal(named[:, margin:], plain)
    rows = np.array_split(named[:, :margin], 2)
    assert all((row == 255).any() and (row < 100).any() for row in rows)  # text on white
    longer = image_grid(images, columns=3, cell=48, labels=["coat", "x" * 200])
    assert longer.width < plain.shape[1] + 400  # a name is cut, the images are not


def test_colour_grids_have_names_too():
    picture = image_grid(some_images(channels=3), columns=6, labels=["a"])
    assert picture.mode == "RGB"
    assert picture.getpixel((1, 1)) == (255, 255, 255)


def test_pages_have_tables_and_escape_them():
    table = Table(["metric", "value"], [["accuracy", "98 %"], ["<b>", "1 & 2"]])
    html = render("t", "lead", {"a": "1"}, [Section("Figures", "All of them.", table=table)])
    assert re.findall(r"<t[hd]>(.*?)</t[hd]>", html) == [
        "metric", "value", "accuracy", "98 %", "&lt;b&gt;", "1 &amp; 2",
    ]  # fmt: skip
    assert "<img" not in html


def test_pictures_of_both_kinds_are_inline():
    figure = histogram({"a": np.arange(5.0), "b": np.arange(5.0)}, "value")
    html = render("t", "lead", {}, [
        Section("One", "A figure.", figure),
        Section("Two", "A grid.", image_grid(some_images())),
    ])  # fmt: skip
    assert html.count("data:image/png;base64,") == 2
    assert html.count('class="pixels"') == 1


def test_class_names_are_no_formulas():
    """$^$ is no formula that matplotlib could read, and would fail if it were taken for one."""
    names = ["$^$", "costs $5 or $_"]
    confusion = np.array([[3, 1], [0, 4]])
    assert png(confusion_figure(confusion, names))
    assert png(histogram({name: np.arange(4.0) for name in names}, "value"))
    records = [{"step": 1, "loss": 1.0, "score": 1.0}, {"step": 2, "loss": 1.0, "score": 0.5}]
    assert png(run_curves(dict.fromkeys(names, records)))
    assert literal("$5") == r"\$5"


def test_png_of_a_picture_is_that_picture(tmp_path):
    (tmp_path / "a.png").write_bytes(png(image_grid(some_images(1))))
    np.testing.assert_array_equal(
        np.asarray(Image.open(tmp_path / "a.png")), np.asarray(image_grid(some_images(1)))
    )
