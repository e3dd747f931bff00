"""Links in the docs lead somewhere, commands in them exist, and the site has every page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from pycaffe_dist.cli.flags import FlagParser
from pycaffe_dist.cli.main import GLOG_FLAGS, commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """Return a page's text without code."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    return re.sub(r"`[^`\n]*`", "`code`", _FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as GitHub makes them."""
    names: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        kept = "".join(
            c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"
        )
        names.add(kept.replace(" ", "-"))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    wrong = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_wrong_links_are_found(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading)\n![b](c.png) `[d](e)`\n```\n[f](g)\n```\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"c\.png"):
        test_links_lead_to_files_and_headings(page)
    page.write_text("# A heading\n[a](#another)\n")
    with pytest.raises(AssertionError, match="another"):
        test_links_lead_to_files_and_headings(page)


def flags_of(name: str) -> set[str]:
    parser = FlagParser(name)
    commands()[name].add_flags(parser)
    known = {*parser.flags, *parser.without_effect, *(flag.name for flag in GLOG_FLAGS)}
    return {*known, *(f"no{flag}" for flag in known), "debug", "help", "h", "flagfile"}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.suffix == ".md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_commands_and_flags_exist(page):
    wrong = []
    for call in re.findall(r"\bpcaffe ([a-z][\w-]*(?: [^`#\n|]*)?)", commands_in(page)):
        name, *words = call.split()
        name = name.replace("-", "_")
        if name not in commands():
            wrong.append(call)
        else:
            known = known_flags(name, words)
            wrong += [word for word in words if flag_in(word) not in known]
    assert not wrong


def commands_in(page: Path) -> str:
    """Return the code of a page: its shell blocks, and what is in backticks between."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    blocks = [re.sub("#.*", "", block) for block in blocks]
    return "\n".join([*blocks, *re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))])


def flag_in(word: str) -> str:
    """Return the flag that a word of a command line gives, or an empty text."""
    flag = re.match(r"--?([a-z][\w-]*)", word)
    return flag[1].replace("-", "_") if flag else ""


def known_flags(name: str, words: list[str]) -> set[str]:
    """Return the flags of a command, and of the command that launch runs."""
    names = {name}
    if name == "launch":
        names |= {word for word in words if word in commands()} or {"train"}
    return {"", *(flag for name in names for flag in flags_of(name))}


def test_the_site_has_every_page():
    config = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/]+\.(?:md|ipynb)$", config, re.MULTILINE))
    assert named == {str(page.relative_to(DOCS)) for page in PAGES[1:]}


@pytest.mark.long
def test_the_site_is_built(tmp_path):
    pytest.importorskip("mkdocs_jupyter")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Convolution" in (tmp_path / "layers.html").read_text()
    assert "data:image/png" in (tmp_path / "examples" / "features.html").read_text()
