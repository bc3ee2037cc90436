"""What a data source says of itself before it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

Opener = TypeVar("Opener", bound=Callable[..., Any])


class Description(NamedTuple):
    """What is known of a source's images without having them; None: not before they are seen."""

    image_size: int | None = None
    channels: int | None = None
    classes: Sequence[str] = ()
    """empty: the images have no labels"""


def described(forms: tuple[str, ...] = ("",), **known: Any) -> Callable[[Opener], Opener]:
    """A decorator for the function that opens a source.

    Args:
        forms: what may follow the source's name: nothing (""), ":PATH", or another word.
        known: what its images always are, as in `Description`.
    """
    about = Description(**known) if known else None

    def add(opener: Opener) -> Opener:
        vars(opener).update(forms=forms, description=about)
        return opener

    return add


def forms_of(opener: Callable[..., Any]) -> tuple[str, ...]:
    """What may follow the name of a source; nothing, unless it says otherwise."""
    return getattr(opener, "forms", ("",))
