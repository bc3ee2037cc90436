"""Where data lives on disk, and how files get there: announced, checked, all or nothing."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from urllib.request import urlopen

from egc.distributed import is_main, main_first
from egc.errors import DataError, RunError
from egc.report.progress import Line, progress_line

CHUNK = 1 << 20
TIMEOUT = 60
"""seconds a server may stay silent"""

Found = TypeVar("Found")

log = logging.getLogger("egc")


class Remote(NamedTuple):
    """An official file: where it is served, what it is called here, and how to know it."""

    url: str
    name: str
    """below the data directory, such as mnist/train-labels-idx1-ubyte.gz"""
    md5: str
    size: int


def data_home() -> Path:
    """The directory all data is looked for in and downloaded to: EGC_DATA, or ~/.cache/egc."""
    return Path(os.environ.get("EGC_DATA") or "~/.cache/egc").expanduser()


def asset(name: str) -> bytes:
    """A file that ships with the package."""
    return (resources.files("egc.data") / "assets" / name).read_bytes()


def find(*names: str) -> Path | None:
    """The first of these files or directories that the data directory has."""
    return next((path for name in names if (path := data_home() / name).exists()), None)


def found_or_fetched(look: Callable[[], Found | None], *files: Remote) -> Found:
    """What `look` finds, once the main process has downloaded `files` if it finds nothing."""

    def get() -> Found | None:
        found = look()
        if found is None and is_main():
            for file in files:
                if not (data_home() / file.name).exists():
                    fetch(file)
            found = look()
        return found

    found = main_first(get)
    if found is None:
        raise DataError(
            f"{files[0].name} was downloaded by the main process, but is not in {data_home()} "
            "here; set EGC_DATA to a directory that all machines share."
        )
    return found


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write; it appears under its name only once all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Under a name of its own: two processes at once must not write into one file.
    handle, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)


def fetch(file: Remote) -> Path:
    """Download one file; it appears under its name only if its size and sum are right."""
    path = data_home() / file.name
    log.info("Downloading %s (%s) from %s to %s.", path.name, megabytes(file.size), file.url, path)
    try:
        with (
            replaced(path) as out,
            urlopen(file.url, timeout=TIMEOUT) as answer,
            progress_line(f"{path.name} (MB)", round(file.size / 1e6)) as line,
        ):
            _copy(answer, out, file, line)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(
            f"Downloading {path.name} failed ({error}); try again, or download {file.url} "
            f"yourself and put it into {path.parent} (set EGC_DATA to keep data in another "
            "directory)."
        ) from None
    return path


def check_sum(path: Path, file: Remote) -> None:
    """Refuse a file that is not the official one."""
    with path.open("rb") as content:
        found = hashlib.file_digest(content, _md5).hexdigest()
    if found != file.md5:
        raise damaged(path, f"its MD5 sum is {found}, that of the official file {file.md5}")


def check_size(path: Path, found: int, expected: int) -> None:
    """Refuse a file that is cut short or too long."""
    if found != expected:
        raise damaged(path, f"it has {found:,} bytes instead of {expected:,}")


def damaged(path: Path, why: str) -> DataError:
    return DataError(f"{str(path)!r} is damaged or incomplete: {why}; delete it and get it again.")


def local_folder(name: str, folders: Iterable[str], layout: str) -> Path:
    """The first of these folders in the data directory, of a set that cannot be downloaded."""
    if found := find(*folders):
        return found
    places = " or ".join(str(data_home() / folder) for folder in folders)
    raise DataError(
        f"There is no {name} in {places}: it has no open download; get it from its authors, "
        f"arrange it as {layout}, and set EGC_DATA to the directory above it or say "
        f"data.source={name}:PATH."
    )


def check_place(
    out: Path, before: Mapping[str, Any] | None, now: Mapping[str, Any], what: str
) -> None:
    """Refuse to write unless `out` is empty, or `what` is there half way, by the same settings."""
    if before is None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RunError(f"{out} is neither empty nor {what}; choose another place.")
    elif differ := [key for key in now if before.get(key) != now[key]]:
        key = differ[0]
        raise RunError(
            f"{out} is {what} by other settings ({key} was {before.get(key)!r}, now "
            f"{now[key]!r}); choose another place, or the same settings to go on."
        )


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


_md5 = partial(hashlib.md5, usedforsecurity=False)


def _copy(answer: IO[bytes], out: IO[bytes], file: Remote, line: Line) -> None:
    """Write what the server sends; a ValueError if that is not the official file."""
    digest = _md5()
    done = 0
    while done <= file.size and (chunk := answer.read(CHUNK)):
        out.write(chunk)
        digest.update(chunk)
        line.advance(round((done + len(chunk)) / 1e6) - round(done / 1e6))
        done += len(chunk)
    if done < file.size:
        raise ValueError(f"the connection ended after {done:,} of {file.size:,} bytes")
    if done > file.size:
        raise ValueError(f"the server sent more than the {file.size:,} bytes of the official file")
    if (found := digest.hexdigest()) != file.md5:
        raise ValueError(f"its MD5 sum is {found}, that of the official file {file.md5}")
