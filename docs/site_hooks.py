"""What MkDocs does beside rendering: pages from the program itself, files from beside `docs/`.

A comment `<!-- generated: channelfit ... -->` in a page is replaced by what that command prints,
and `<!-- help of every command -->` by the help of each. Formulas become MathML while the site is
built, so that no script draws them. Pictures and pages that stand elsewhere in the repository are
taken from there, and links to them follow.
"""

from __future__ import annotations

import html
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from channelfit.front.main import main

ROOT = Path(__file__).resolve().parent.parent
#: Pages of the site that stand outside of `docs/`, so that they lie beside what they explain.
ELSEWHERE = {"../models/README.md": "published-channels.md"}
_PICTURE = re.compile(r"(?<=\]\()\.\./([\w/.-]+\.(?:png|svg))(?=\))")
_GENERATED = re.compile(r"<!-- generated: channelfit ([\w -]+) -->")
_HELP = "<!-- help of every command -->"
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
log = logging.getLogger("mkdocs.hooks.channelfit")  # a warning ends a strict build


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and the pictures that stand outside of `docs/`."""
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
    markdown = _GENERATED.sub(lambda found: _printed(found[1], page), markdown)
    return markdown.replace(_HELP, _help_pages()) if _HELP in markdown else markdown


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns formulas into MathML."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    return _FORMULA.sub(formula, content)


def _printed(words: str, page: Page) -> str:
    command = [sys.executable, "-m", "channelfit", *shlex.split(words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        log.warning("%s: `channelfit %s` fails: %s", page.file.src_path, words, done.stderr.strip())
        return f"This part is printed by `channelfit {words}`."
    return re.sub(r"\A# .*\n", "", done.stdout)  # the page has a title of its own


def _help_pages() -> str:
    """A section for each command, with its help as the terminal shows it."""
    parts = []
    for name, command in main.commands.items():
        context = click.Context(command, info_name=f"channelfit {name}", max_content_width=80)
        context.terminal_width = 80
        parts.append(f"## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)
