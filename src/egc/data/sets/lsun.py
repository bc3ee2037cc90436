"""LSUN Church: a folder of images, or the lmdb databases its authors publish.

A database maps keys to encoded images (webp). It has no numbers, so its keys are listed once and
kept beside it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from egc.config import DataConfig
from egc.data.files import data_home, local_folder, replaced
from egc.data.images import open_image
from egc.data.imageset import ImageSet
from egc.data.reader import set_of_pictures
from egc.data.sets.folder import read_folder
from egc.data.sources import described
from egc.errors import DataError
from egc.registry import sources

NAME = "lsun-church"
FOLDERS = ("lsun-church", "lsun/church_outdoor")
TRAIN, TEST = "church_outdoor_train_lmdb", "church_outdoor_val_lmdb"

_databases: dict[Path, Any] = {}
"""those open in this process: lmdb allows each of them once"""
_opening = threading.Lock()


def _forget_databases() -> None:
    """lmdb's must not be carried over a fork: the new process opens its own."""
    global _opening
    for database in _databases.values():
        database.close()
    _databases.clear()
    _opening = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_databases)


@sources.register(NAME)
@described(("", ":PATH"), channels=3)
def open_lsun_church(config: DataConfig, path: Path | None = None) -> list[ImageSet]:
    """126,000 photographs of churches, without labels (Yu et al. 2015); [all] or [train, test]."""
    for place in [path] if path else [data_home() / name for name in (*FOLDERS, "lsun", ".")]:
        # PATH may name the folder that has the databases, or the training database itself.
        train = place if (place / "data.mdb").is_file() else place / TRAIN
        if train.is_dir():
            test = train.parent / TEST
            return [_open(part, config) for part in (train, test) if part.is_dir()]
    layout = f"a folder of images, or as {TRAIN}/ and {TEST}/"
    path = path or local_folder(NAME, FOLDERS, layout)
    return [read_folder(config, path, NAME, labelled=False)]


def _open(path: Path, config: DataConfig) -> ImageSet:
    """The images of one database."""
    if not (path / "data.mdb").is_file():
        raise DataError(f"{str(path)!r} is not an lmdb database: it has no file data.mdb.")
    keys = _keys(path)
    if len(keys) == 0:
        raise DataError(f"There are no images in the database {str(path)!r}.")

    def name_of(index: int) -> str:
        return f"{path}#{keys[index].decode()}"

    def picture(index: int) -> Image.Image:
        key = bytes(keys[index])
        with _database(path).begin() as transaction:
            value = transaction.get(key)
        if value is None:
            raise DataError(
                f"{str(path)!r} has no image {key.decode()!r} any more; delete "
                f"{str(_list_of(path))!r} to list its images again."
            )
        return open_image(value, name_of(index))

    return set_of_pictures(NAME, picture, np.full(len(keys), -1), [], config, name_of)


def _list_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.keys.npy")


def _keys(path: Path) -> np.ndarray:
    """All keys of a database in order, (N,) bytes; from the list beside it if it is up to date."""
    database, cached = _database(path), _list_of(path)
    count = database.stat()["entries"]
    if cached.is_file() and cached.stat().st_mtime >= (path / "data.mdb").stat().st_mtime:
        keys = np.load(cached)
        if len(keys) == count:
            return keys
    with database.begin() as transaction, transaction.cursor() as cursor:
        keys = np.array(list(cursor.iternext(keys=True, values=False)), dtype=bytes)
    try:
        with replaced(cached) as out:
            np.save(out, keys)
    except OSError:
        # Data is often on a disk one may only read: then it is listed every time.
        pass
    return keys


def _database(path: Path) -> Any:
    """The open database, for reading only and without its lock file, by any thread."""
    try:
        import lmdb
    except ImportError:
        raise DataError(
            f"{str(path)!r} is an lmdb database; to read it, pip install 'egc[lsun]'."
        ) from None
    with _opening:
        key = path.resolve()
        if key not in _databases:
            try:
                _databases[key] = lmdb.open(
                    str(path), readonly=True, lock=False, readahead=False, meminit=False
                )
            except lmdb.Error as error:
                raise DataError(f"The database {str(path)!r} cannot be read: {error}.") from None
        return _databases[key]
