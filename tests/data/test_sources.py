"""Named data sets: tiny files in every format always, the real files where EGC_DATA has them."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import multiprocessing
import os
import pickle
import struct
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image

from egc.config import DataConfig
from egc.data import files, images, open_source, reader
from egc.data.files import Remote, data_home, fetch
from egc.data.sets import cifar, idx, lsun
from egc.data.sets.imagenet import class_names
from egc.data.sources import open_parts, source_forms
from egc.errors import ConfigError, DataError
from egc.registry import sources
from tests.conftest import NOWHERE
from tests.made import encoded, pictures

REAL = os.environ.get("EGC_DATA")
pytestmark = pytest.mark.usefixtures("home")


def md5(content):
    return hashlib.md5(content).hexdigest()


# --- CIFAR --------------------------------------------------------------------------------------

ROWS = 6


def python2_pickle(tree):
    """A dictionary of strings, numbers, lists and byte arrays, as Python 2 wrote it."""

    def string(text):
        raw = text if isinstance(text, bytes) else text.encode()
        return b"T" + struct.pack("<i", len(raw)) + raw

    def number(value):
        return b"J" + struct.pack("<i", value)

    def value_of(value):
        if isinstance(value, np.ndarray):
            assert value.dtype == np.uint8
            dtype = (
                b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
            )
            shape = b"(" + b"".join(map(number, value.shape)) + b"t"
            start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
            return (
                start + b"(K\x01" + shape + dtype + b"K\x00tb" + b"I00\n"
                + string(value.tobytes()) + b"tb"
            )  # fmt: skip
        if isinstance(value, list):
            return b"](" + b"".join(map(value_of, value)) + b"e"
        return string(value) if isinstance(value, str) else number(value)

    items = b"".join(string(key) + value_of(value) for key, value in tree.items())
    return b"\x80\x02}(" + items + b"u."


class TinyCifar:
    """A few random images in the layouts of CIFAR."""

    def __init__(self, spec):
        self.spec = spec
        self.fine = spec.label_bytes == 2
        rng = np.random.default_rng(1)
        names = [*spec.train, *spec.test]
        self.images = {name: pictures(ROWS, 32, seed=i) for i, name in enumerate(names)}
        self.labels = {name: rng.integers(0, len(spec.classes), ROWS) for name in names}

    def planes(self, name):
        return self.images[name].transpose(0, 3, 1, 2).reshape(ROWS, -1)

    def binary(self):
        for name, labels in self.labels.items():
            columns = [labels[:, None] // 5] * self.fine + [labels[:, None], self.planes(name)]
            yield f"{name}.bin", np.concatenate(columns, axis=1).astype(np.uint8).tobytes()

    def python(self, dump=python2_pickle):
        for name, labels in self.labels.items():
            tree = {"data": self.planes(name), self.spec.label_key: labels.tolist()}
            tree |= {"coarse_labels": [0] * ROWS} if self.fine else {}
            tree |= {"batch_label": "training batch 1 of 5", "filenames": ["a.png"] * ROWS}
            yield name, dump(tree)

    def write(self, folder, contents):
        folder.mkdir(parents=True)
        for name, content in contents:
            (folder / name).write_bytes(content)

    def archive(self, path, folder, contents):
        with tarfile.open(path, "w:gz") as out:
            for name, content in reversed(list(contents)):
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size = len(content)
                out.addfile(member, io.BytesIO(content))

    def check(self, parts):
        for part, names in zip(parts, (self.spec.train, self.spec.test), strict=True):
            expected = np.concatenate([self.images[name] for name in names])
            np.testing.assert_array_equal(part.images(), expected)
            labels = np.concatenate([self.labels[name] for name in names])
            np.testing.assert_array_equal(part.labels, labels)
            assert part.classes == self.spec.classes
            assert (part.image_size, part.channels) == (32, 3)


@pytest.fixture(params=["cifar10", "cifar100"])
def tiny_cifar(request, monkeypatch):
    spec = getattr(cifar, request.param.upper())
    small = replace(
        spec, train=dict.fromkeys(spec.train, ROWS), test=dict.fromkeys(spec.test, ROWS)
    )
    monkeypatch.setattr(cifar, request.param.upper(), small)
    return TinyCifar(small)


def opened(tiny):
    return open_parts(DataConfig(tiny.spec.name))


@pytest.mark.parametrize("below", ["", "cifar"])
def test_cifar_directories(tiny_cifar, home, below):
    below = tiny_cifar.spec.name if below else ""
    tiny_cifar.write(home / below / tiny_cifar.spec.binary, tiny_cifar.binary())
    tiny_cifar.check(opened(tiny_cifar))


@pytest.mark.parametrize("dump", [python2_pickle, functools.partial(pickle.dumps, protocol=2)])
def test_cifar_python_directories(tiny_cifar, home, dump):
    tiny_cifar.write(home / tiny_cifar.spec.python, tiny_cifar.python(dump))
    tiny_cifar.check(opened(tiny_cifar))


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar_archives(tiny_cifar, home, kind, monkeypatch):
    spec = tiny_cifar.spec
    which = ["binary", "python"].index(kind)
    path = home / spec.archives[which].name
    tiny_cifar.archive(path, getattr(spec, kind), getattr(tiny_cifar, kind)())
    with pytest.raises(
        DataError, match=rf"{path.name}.* damaged.*MD5 sum is .*{spec.archives[which].md5}"
    ):
        opened(tiny_cifar)
    right = list(spec.archives)
    right[which] = right[which]._replace(md5=md5(path.read_bytes()))
    monkeypatch.setattr(cifar, spec.name.upper(), replace(spec, archives=tuple(right)))
    tiny_cifar.check(opened(tiny_cifar))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="damaged or incomplete"):
        opened(tiny_cifar)


@pytest.mark.parametrize("kind", ["binary", "python"])
def test_cifar_cut_short(tiny_cifar, home, kind):
    place = home / getattr(tiny_cifar.spec, kind)
    tiny_cifar.write(place, getattr(tiny_cifar, kind)())
    last = sorted(place.iterdir())[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{last.name}.*get it again"):
        opened(tiny_cifar)
    last.unlink()
    with pytest.raises(DataError, match=rf"no file '{last.name}'"):
        opened(tiny_cifar)


def test_cifar_labels_out_of_range(tiny_cifar, home):
    name = next(iter(tiny_cifar.labels))
    tiny_cifar.labels[name][0] = 200
    tiny_cifar.write(home / tiny_cifar.spec.binary, tiny_cifar.binary())
    with pytest.raises(DataError, match=r"to 200, but there are 100? classes"):
        opened(tiny_cifar)


class Trap:
    def __reduce__(self):
        return os.system, ("touch trapped",)


def test_a_pickle_runs_nothing(tiny_cifar, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for bad in ({"data": Trap()}, {"nothing": 1}, [1, 2], {"data": 3, "labels": 4}):
        tiny_cifar.write(
            home / tiny_cifar.spec.python, [(n, pickle.dumps(bad)) for n in tiny_cifar.labels]
        )
        with pytest.raises(DataError, match="get it again"):
            opened(tiny_cifar)
        for path in (home / tiny_cifar.spec.python).iterdir():
            path.unlink()
        (home / tiny_cifar.spec.python).rmdir()
    assert not (tmp_path / "trapped").exists()


def test_cifar_class_names():
    assert cifar.CIFAR10.classes[:3] == ["airplane", "automobile", "bird"]
    names = cifar.CIFAR100.classes
    assert len(set(names)) == 100
    assert names == sorted(names)


# --- idx ----------------------------------------------------------------------------------------


def write_idx(place, packed=True, size=28):
    """Files like those of MNIST; the images and labels in them."""
    place.mkdir(parents=True, exist_ok=True)
    parts = []
    for seed, (part, count) in enumerate((("train", 20), ("t10k", 8))):
        pixels, labels = pictures(count, size, 1, seed), np.arange(count, dtype=np.uint8) % 10
        parts.append((pixels, labels))
        for name, head, values in (
            (f"{part}-images-idx3-ubyte", (0x803, count, size, size), pixels),
            (f"{part}-labels-idx1-ubyte", (0x801, count), labels),
        ):
            content = struct.pack(f">{len(head)}I", *head) + values.tobytes()
            if packed:
                (place / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (place / name).write_bytes(content)
    return parts


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("source", "below"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "../debian/fashion-mnist"),
    ],
)
def test_idx_files(home, source, below, packed):
    expected = write_idx(home / below, packed)
    parts = open_parts(DataConfig(source))
    for part, (pixels, labels) in zip(parts, expected, strict=True):
        np.testing.assert_array_equal(part.images(), pixels)
        np.testing.assert_array_equal(part.labels, labels)
    assert parts[0].classes[-1] == {"mnist": "9", "fashion-mnist": "Ankle boot"}[source]


def test_idx_files_of_the_other_set_are_not_taken(home, monkeypatch):
    """MNIST and Fashion-MNIST call their files the same."""
    write_idx(home / "fashion-mnist")
    monkeypatch.setenv("EGC_DATA", str(home / "fashion-mnist"))
    assert len(open_parts(DataConfig("fashion-mnist"))) == 2
    with pytest.raises(DataError, match="Downloading train-images"):
        open_parts(DataConfig("mnist"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-1], "instead of"),
        (lambda content: content + b"x", "instead of"),
        (lambda content: b"\0\0\x08\x01" + content[4:], "begins with 0x801"),
        (lambda content: b"", "begins with 0x0"),
    ],
)
def test_idx_damaged(home, damage, words):
    write_idx(home / "mnist", packed=False)
    path = home / "mnist" / "t10k-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"t10k-images.*{words}.*get it again"):
        open_parts(DataConfig("mnist"))


def test_idx_packed_file_cut_short(home):
    write_idx(home / "mnist")
    path = home / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match=r"train-images.* cannot be unpacked"):
        open_parts(DataConfig("mnist"))


def test_arrays_are_resized_as_asked_and_it_is_said_once(home, caplog):
    (pixels, _), _ = write_idx(home / "mnist")
    parts = open_parts(DataConfig("mnist", image_size=32, channels=3))
    assert "L to colour (28 of 28), resized to 32x32 (28 of 28)" in caplog.text
    assert len(caplog.records) == 1
    for part in parts:
        assert (part.image_size, part.channels) == (32, 3)
        assert part.images().shape == (len(part), 32, 32, 3)
    expected = (
        Image.fromarray(pixels[3, ..., 0])
        .convert("RGB")
        .resize((32, 32), Image.Resampling.LANCZOS)
    )
    np.testing.assert_array_equal(parts[0].images(np.array([3]))[0], np.asarray(expected))
    again = open_parts(DataConfig("mnist", image_size=28, channels=1))
    np.testing.assert_array_equal(again[0].images(), pixels)
    assert len(caplog.records) == 1


# --- downloads ----------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Serves what `contents` has, and breaks off where `cut` says so."""

    contents: dict[str, bytes] = {}  # noqa: RUF012
    cut = False

    def do_GET(self):
        content = self.contents.get(self.path.removeprefix("/"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.cut else content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    """Where files are served, and the class whose attributes say which."""
    monkeypatch.setattr(Server, "contents", {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()


def left_over(home):
    return [path for path in home.rglob("*") if path.is_file()]


def test_download_says_what_it_does_and_is_whole(home, server, caplog):
    content = os.urandom(3_000_000)
    Server.contents["a.bin"] = content
    path = fetch(Remote(f"{server}a.bin", "below/a.bin", md5(content), len(content)))
    assert path == home / "below" / "a.bin"
    assert path.read_bytes() == content
    assert left_over(home) == [path]
    assert f"Downloading a.bin (3.0 MB) from {server}a.bin to {path}" in caplog.text


@pytest.mark.parametrize("fault", ["sum", "cut", "longer", "404", "gone", "address"])
def test_a_failed_download_leaves_nothing(home, server, fault, monkeypatch):
    content = os.urandom(200_000)
    Server.contents["a.bin"] = content
    file = Remote(f"{server}a.bin", "a.bin", md5(content), len(content))
    words = {
        "sum": f"MD5 sum is .*, that of the official file {md5(b'')}",
        "cut": "after 100,000 of 200,000 bytes",
        "longer": "more than the 199,999 bytes",
        "404": "404",
        "gone": "refused",
        "address": "unknown url type",
    }[fault]
    monkeypatch.setattr(Server, "cut", fault == "cut")
    change = {
        "sum": {"md5": md5(b"")},
        "longer": {"size": 199_999},
        "404": {"url": f"{server}b.bin"},
        "gone": {"url": f"{NOWHERE}a.bin"},
        "address": {"url": "nowhere"},
    }
    file = file._replace(**change.get(fault, {}))
    with pytest.raises(DataError, match=words) as caught:
        fetch(file)
    assert f"download {file.url} yourself and put it into {home}" in str(caught.value)
    assert "EGC_DATA" in str(caught.value)
    assert left_over(home) == []


def test_an_interrupted_download_leaves_nothing(home, server, monkeypatch):
    Server.contents["a.bin"] = b"abc"

    def stopped(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "_copy", stopped)
    with pytest.raises(KeyboardInterrupt):
        fetch(Remote(f"{server}a.bin", "a.bin", md5(b"abc"), 3))
    assert left_over(home) == []


def test_a_data_directory_that_cannot_be_made(home, server, monkeypatch):
    (home / "file").write_text("not a directory")
    monkeypatch.setenv("EGC_DATA", str(home / "file"))
    with pytest.raises(DataError, match=r"Downloading a\.bin failed"):
        fetch(Remote(f"{server}a.bin", "a.bin", md5(b""), 1))


def test_mnist_is_downloaded_once(home, server, tmp_path, monkeypatch, caplog):
    expected = write_idx(tmp_path / "served")
    Server.contents.update({p.name: p.read_bytes() for p in (tmp_path / "served").iterdir()})
    sums = [
        (name, md5(Server.contents[f"{name}.gz"]), len(Server.contents[f"{name}.gz"]))
        for name, *_ in idx.MNIST_SUMS
    ]
    monkeypatch.setattr(idx, "MNIST_SERVER", server)
    monkeypatch.setattr(idx, "MNIST_SUMS", sums)
    for _ in range(2):
        part = open_parts(DataConfig("mnist"))[0]
        np.testing.assert_array_equal(part.images(), expected[0][0])
    assert caplog.text.count("Downloading") == 4
    assert len(left_over(home / "mnist")) == 4


def test_cifar_is_downloaded(tiny_cifar, home, server, tmp_path, monkeypatch, caplog):
    spec = tiny_cifar.spec
    path = tmp_path / spec.archives[0].name
    tiny_cifar.archive(path, spec.binary, tiny_cifar.binary())
    content = Server.contents[path.name] = path.read_bytes()
    remote = Remote(f"{server}{path.name}", path.name, md5(content), len(content))
    whole = replace(spec, archives=(remote, spec.archives[1]))
    monkeypatch.setattr(cifar, spec.name.upper(), whole)
    tiny_cifar.check(opened(tiny_cifar))
    assert path.name in caplog.text
    assert left_over(home) == [home / path.name]


def test_only_the_main_process_downloads(home, server, monkeypatch):
    Server.contents["a.bin"] = b"abc"
    remote = Remote(f"{server}a.bin", "a.bin", md5(b"abc"), 3)
    monkeypatch.setattr(files, "is_main", lambda: False)
    with pytest.raises(DataError, match="directory that all machines share"):
        files.found_or_fetched(lambda: files.find("a.bin"), remote)
    assert left_over(home) == []
    # What the main process got while this one waited is found.
    arrived = lambda: (home / "a.bin").write_bytes(b"abc")  # noqa: E731
    monkeypatch.setattr("egc.distributed.wait_for_all", arrived)
    assert files.found_or_fetched(lambda: files.find("a.bin"), remote) == home / "a.bin"


def test_data_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_home() == tmp_path / "data"
    monkeypatch.setenv("EGC_DATA", "~/elsewhere")
    assert data_home() == tmp_path / "elsewhere"
    for unset in (True, False):
        monkeypatch.delenv("EGC_DATA") if unset else monkeypatch.setenv("EGC_DATA", "")
        assert data_home() == tmp_path / ".cache" / "egc"
    monkeypatch.setenv("EGC_DATA", str(tmp_path / "missing"))
    with pytest.raises(DataError, match="Downloading cifar-10-binary"):
        open_parts(DataConfig("cifar10"))


# --- folders ------------------------------------------------------------------------------------


def write_images(place, count, size=16, seed=0, suffix="JPEG"):
    place.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(pictures(count, size, seed=seed)):
        Image.fromarray(pixels).save(place / f"{number}.{suffix}")


def test_imagenet_folder_has_readable_names(home):
    names = class_names()
    assert len(names) == len(set(names.values())) == 1000
    assert list(names) == sorted(names)
    for part, count in (("train", 3), ("val", 1)):
        for wnid in ("n02012849", "n01440764", "n03126707"):
            write_images(home / "imagenet" / part / wnid, count)
    for source in ("imagenet", f"imagenet:{home / 'imagenet'}"):
        train, test = open_parts(DataConfig(source))
        assert train.classes == test.classes == ["tench", "crane (bird)", "crane (machine)"]
        assert (len(train), len(test), train.image_size) == (9, 3, 16)
        assert train.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    splits = open_source(DataConfig("imagenet", validation=0.34))
    assert [len(part) for part in splits] == [6, 3, 3]


def test_imagenet_folder_with_other_names_keeps_them(home):
    write_images(home / "x" / "cat", 2)
    write_images(home / "x" / "n01440764", 2)
    (part,) = open_parts(DataConfig(f"imagenet:{home / 'x'}"))
    assert part.classes == ["cat", "tench"]


def test_imagenet_validation_images_must_be_sorted(home):
    write_images(home / "imagenet" / "train" / "n01440764", 2)
    write_images(home / "imagenet" / "val", 2)
    with pytest.raises(DataError, match=r"val.* has no sub-folder a class"):
        open_parts(DataConfig("imagenet"))


@pytest.mark.parametrize("below", ["celebahq", "celeba-hq", "CelebAMask-HQ/CelebA-HQ-img"])
def test_celebahq(home, below):
    write_images(home / below / "a", 3, suffix="jpg")
    write_images(home / below / "b", 2, suffix="png")
    (part,) = open_parts(DataConfig("celebahq", image_size=8))
    assert (len(part), part.classes, part.image_size) == (5, [], 8)
    assert (part.labels == -1).all()


@pytest.mark.parametrize("name", ["imagenet", "celebahq", "lsun-church"])
def test_sets_without_a_download_say_what_to_do(home, name):
    with pytest.raises(
        DataError, match=rf"no {name} in .*EGC_DATA.*data\.source={name}:PATH"
    ) as caught:
        open_parts(DataConfig(name))
    assert str(home / name) in str(caught.value)
    with pytest.raises(DataError, match="nowhere"):
        open_parts(DataConfig(f"{name}:/nowhere"))


def test_image_paths_are_in_the_order_of_paths(tmp_path):
    names = ["b/1.png", "b-c.png", "b.JPG", "a/x/2.webp", "a/x.png", "a/y/3.png", "B/4.gif"]
    for name in [*names, ".hidden/5.png", "a/.6.png", "a/notes.txt", "png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = sorted(tmp_path / name for name in names)
    assert images.image_files(tmp_path) == expected
    assert images.image_paths(tmp_path) == [str(path) for path in expected]


# --- lmdb ---------------------------------------------------------------------------------------


def write_lmdb(place, pixels):
    """A database like LSUN's: sums as keys, webp images as values, in the order of the keys."""
    place.mkdir(parents=True, exist_ok=True)
    values = {hashlib.sha1(p.tobytes()).hexdigest().encode(): encoded(p, "WEBP") for p in pixels}
    with (
        lmdb.open(str(place), map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in values.items():
            transaction.put(key, value)
    order = sorted(range(len(pixels)), key=lambda i: list(values)[i])
    return pixels[order]


@pytest.fixture
def church(home):
    train = write_lmdb(home / "lsun" / lsun.TRAIN, pictures(9, 12))
    test = write_lmdb(home / "lsun" / lsun.TEST, pictures(4, 12, seed=1))
    yield home / "lsun", train, test
    lsun._forget_databases()


@pytest.mark.parametrize("cache", [0, reader.CACHE_BYTES])
def test_lsun_databases(church, cache, monkeypatch):
    monkeypatch.setattr(reader, "CACHE_BYTES", cache)
    place, train, test = church
    for source in ("lsun-church", f"lsun-church:{place}", f"lsun-church:{place / lsun.TRAIN}"):
        parts = open_parts(DataConfig(source))
        np.testing.assert_array_equal(parts[0].images(), train)
        np.testing.assert_array_equal(parts[1].images(), test)
        assert parts[0].classes == []
        assert (parts[0].labels == -1).all()
    np.testing.assert_array_equal(parts[0].images(np.array([5, 2])), train[[5, 2]])


def test_lsun_keys_are_listed_once(church, monkeypatch):
    place, train, _ = church
    open_parts(DataConfig("lsun-church"))
    listed = place / f"{lsun.TRAIN}.keys.npy"
    assert len(np.load(listed)) == 9
    before = listed.stat().st_mtime_ns
    open_parts(DataConfig("lsun-church"))
    assert listed.stat().st_mtime_ns == before
    # A list that does not fit the database is made again; one that cannot be kept, every time.
    np.save(listed, np.load(listed)[:3])
    assert len(open_parts(DataConfig("lsun-church"))[0]) == 9

    def refused(*args, **options):
        raise PermissionError

    listed.unlink()
    monkeypatch.setattr(files.tempfile, "mkstemp", refused)
    np.testing.assert_array_equal(open_parts(DataConfig("lsun-church"))[0].images(), train)
    assert not listed.exists()


def read_elsewhere(part, queue):
    queue.put(part.images(np.array([1, 3])))


def test_lsun_survives_a_fork(church, monkeypatch):
    monkeypatch.setattr(reader, "CACHE_BYTES", 0)
    _, train, _ = church
    part = open_parts(DataConfig("lsun-church"))[0]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=read_elsewhere, args=(part, queue))
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), train[[1, 3]])
    child.join()
    np.testing.assert_array_equal(part.images(), train)


def test_lsun_folder_of_images(home):
    write_images(home / "lsun-church", 4)
    (part,) = open_parts(DataConfig("lsun-church"))
    assert (len(part), part.classes) == (4, [])


def test_lsun_damaged(home, church):
    place, *_ = church
    bad = home / "bad" / lsun.TRAIN
    bad.mkdir(parents=True)
    with pytest.raises(DataError, match=r"no file data\.mdb"):
        open_parts(DataConfig(f"lsun-church:{home / 'bad'}"))
    (bad / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(DataError, match="cannot be read"):
        open_parts(DataConfig(f"lsun-church:{home / 'bad'}"))
    lsun._forget_databases()
    with (
        lmdb.open(str(place / lsun.TRAIN), map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        transaction.put(b"0", b"not a picture")
    with pytest.raises(DataError, match=r"train_lmdb#0' cannot be read"):
        open_parts(DataConfig("lsun-church"))


def test_missing_extras_are_named(church, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(DataError, match=r"pip install 'egc\[lsun\]'"):
        open_parts(DataConfig("lsun-church"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'egc\[hub\]'"):
        open_parts(DataConfig("hub:cifar10"))


# --- all sources --------------------------------------------------------------------------------


def test_labels_can_be_forgotten(home):
    write_idx(home / "mnist")
    for config in (DataConfig("mnist"), DataConfig("digits")):
        for part in open_parts(replace(config, labels=False)):
            assert part.classes == []
            assert (part.labels == -1).all()


def test_unknown_sources_are_told_the_known_ones():
    with pytest.raises(ConfigError, match="Did you mean 'cifar10' or 'cifar100'"):
        open_parts(DataConfig("cifar1"))
    with pytest.raises(ConfigError, match="not a known source") as caught:
        open_parts(DataConfig("zzzz"))
    named = [form for form in source_forms() if ":" not in form]
    for name in (*named, "folder:PATH", "imagenet:PATH", "hub:NAME"):
        assert name in str(caught.value)
    assert {"digits", "cifar10", "cifar100", "mnist", "fashion-mnist", "imagenet"} < set(named)
    assert all(sources[name].__doc__ for name in sources.names())


# --- the real files -----------------------------------------------------------------------------


@contextlib.contextmanager
def real(name, *needed):
    if not REAL or not any((Path(REAL) / path).exists() for path in needed):
        pytest.skip(f"no {name} in EGC_DATA")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EGC_DATA", REAL)
        yield


def test_real_cifar10():
    with real("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py", "cifar-10-binary.tar.gz"):
        train, test = open_parts(DataConfig("cifar10"))
    assert (len(train), len(test)) == (50_000, 10_000)
    assert train.labels[:8].tolist() == [6, 9, 9, 4, 1, 1, 2, 7]
    assert test.labels[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    assert np.bincount(train.labels).tolist() == [5_000] * 10
    assert np.bincount(test.labels).tolist() == [1_000] * 10
    means = train.images().mean(axis=(0, 1, 2)) / 255
    assert means == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)


def test_real_fashion_mnist():
    with real("fashion-mnist", "fashion-mnist"):
        train, test = open_parts(DataConfig("fashion-mnist"))
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.labels[:8].tolist() == [9, 0, 0, 3, 0, 2, 7, 2]
    assert np.bincount(train.labels).tolist() == [6_000] * 10
    assert np.bincount(test.labels).tolist() == [1_000] * 10
    assert train.images().mean() / 255 == pytest.approx(0.2860, abs=1e-4)
    assert train.classes[train.labels[0]] == "Ankle boot"
