"""A self-contained HTML page: sections of text and pictures, everything inline."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure
from PIL import Image

from egc.report.figures import png

STYLE = """
body { max-width: 60rem; margin: 2.5rem auto; padding: 0 1rem; color: #22252b;
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.4rem; }
.lead { color: #555; margin-top: 0; } img { max-width: 100%; height: auto; }
.pixels { image-rendering: pixelated; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; }
dl div { background: #f3f5f8; border-radius: .5rem; padding: .7rem .9rem; }
dt { font-size: .8rem; color: #555; } dd { margin: 0; font-size: 1.25rem; font-weight: 600; }
code { background: #f3f5f8; padding: .1rem .35rem; border-radius: .3rem; }
"""


Picture = TypeVar("Picture", Figure, Image.Image)


@dataclass(frozen=True)
class Section(Generic[Picture]):
    """A heading, a sentence or two, and a picture."""

    title: str
    text: str
    picture: Picture


def render(title: str, lead: str, figures: dict[str, str], sections: list[Section[Any]]) -> str:
    """The whole page as one string, pictures included."""
    numbers = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures.items()
    )
    body = "".join(_section(section) for section in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>'
        f"<dl>{numbers}</dl>{body}</body></html>\n"
    )


def write_page(path: Path, html: str) -> None:
    """Write under a temporary name first, so that a page that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(path)


def _section(section: Section[Any]) -> str:
    data = base64.b64encode(png(section.picture)).decode()
    kind = ' class="pixels"' if isinstance(section.picture, Image.Image) else ""
    return (
        f"<h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>"
        f'<img{kind} alt="{escape(section.title)}" src="data:image/png;base64,{data}">'
    )
