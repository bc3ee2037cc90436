"""A self-contained HTML page: sections of text, pictures and tables, everything inline."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

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
table { border-collapse: collapse; margin: .8rem 0; } th { text-align: left; color: #555; }
th, td { padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid #e3e6eb; }
td { font-variant-numeric: tabular-nums; }
code { background: #f3f5f8; padding: .1rem .35rem; border-radius: .3rem; }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, and what they are about."""

    title: str
    text: str
    picture: Any = None
    """a figure of matplotlib or a picture of PIL"""
    table: Table | None = None


def render(
    title: str, lead: str, figures: Mapping[str, str], sections: Sequence[Section] = ()
) -> str:
    """The page as one string, pictures included; `figures` are the few to see first."""
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
    """Write under a temporary name first, so that a page that is there is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(path)


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>"]
    if section.table is not None:
        parts += ["<table>", _row("th", section.table.head)]
        parts += [_row("td", row) for row in section.table.rows] + ["</table>"]
    if section.picture is not None:
        data = base64.b64encode(png(section.picture)).decode()
        kind = ' class="pixels"' if isinstance(section.picture, Image.Image) else ""
        name = escape(section.title)
        parts.append(f'<img{kind} alt="{name}" src="data:image/png;base64,{data}">')
    return "".join(parts)


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
