"""What MkDocs does beside rendering: pages from the program itself, files from beside `docs/`.

Each section of the reference of keys is a page of its own, and `<!-- sections of keys -->` is
replaced by their list; `<!-- help of every command -->` by the help of each command. Formulas
become MathML while the site is built, so that no script draws them. Pictures and pages that stand
elsewhere in the repository are taken from there, and links to them follow.
"""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

import click
from latex2mathml.converter import convert
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from channelfit.front.main import main
from channelfit.reading.reference import reference

ROOT = Path(__file__).resolve().parent.parent
#: Pages of the site that stand outside of `docs/`, so that they lie beside what they explain.
ELSEWHERE = {"../models/README.md": "published-channels.md"}
_PICTURE = re.compile(r"(?<=\]\()\.\./([\w/.-]+\.(?:png|svg))(?=\))")
_SECTIONS = "<!-- sections of keys -->"
_HEADING = re.compile(r"^(##+) (.+)\n", re.M)
_HELP = "<!-- help of every command -->"
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of keys, and the pages and pictures that stand outside of `docs/`."""
    for name, (_, title, text) in _key_pages().items():
        files.append(File.generated(config, name, content=f"# {title}\n\n{text}"))
    for place, name in ELSEWHERE.items():
        text = (ROOT / "docs" / place).resolve().read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](../docs/", "](")))
    pages = [file.content_string for file in files.documentation_pages()]
    for name in sorted({found for text in pages for found in _PICTURE.findall(text)}):
        files.append(File.generated(config, f"pictures/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fills in what the program prints, and turns links outward into links within the site."""
    for place, name in ELSEWHERE.items():
        markdown = markdown.replace(f"]({place}", f"]({name}")
    markdown = _PICTURE.sub(r"pictures/\1", markdown)
    markdown = (
        markdown.replace(_SECTIONS, _list_of_key_pages()) if _SECTIONS in markdown else markdown
    )
    return markdown.replace(_HELP, _help_pages()) if _HELP in markdown else markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns formulas into MathML."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    return _FORMULA.sub(formula, content)


@cache
def _key_pages() -> dict[str, tuple[int, str, str]]:
    """By the name of its page level, title and text of each section of the reference."""
    _, *parts = _HEADING.split(reference())
    named = {
        slugify(title.replace("`", ""), "-"): (len(marks), title, text)
        for marks, title, text in zip(*[iter(parts)] * 3, strict=True)
    }
    links = {f"](#{slug})": f"](keys-{slug}.md)" for slug in named}
    return {
        f"keys-{slug}.md": (level, title, re.sub(r"\]\(#[\w-]+\)", lambda m: links[m[0]], text))
        for slug, (level, title, text) in named.items()
    }


def _list_of_key_pages() -> str:
    """A list for each kind of file, with its sections."""
    lines = []
    for name, (level, title, text) in _key_pages().items():
        meaning = text.strip().split("\n\n")[0].replace("\n", " ")
        lines.append(
            f"\n**[{title}]({name})**: {meaning}\n"
            if level == 2
            else f"- [{title}]({name}): {meaning}"
        )
    return "\n".join(lines)


def _help_pages() -> str:
    """A section for each command, with its help as the terminal shows it."""
    parts = []
    for name, command in main.commands.items():
        context = click.Context(command, info_name=f"channelfit {name}", max_content_width=80)
        context.terminal_width = 80
        parts.append(f"## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)
