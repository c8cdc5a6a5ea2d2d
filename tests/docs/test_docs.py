"""The documentation site builds without a warning, its links lead somewhere, and its words exist."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ipygpumem
from ipygpumem.features.history.report_files import read_rows
from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT
from ipygpumem.jupyter.settings import Settings

pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
GUIDE = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]


class Page(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.anchors |= {facts[name] for name in ("id", "name") if facts.get(name)}
        self.links += [facts[name] for name in ("href", "src") if facts.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}, folder


def test_every_link_within_the_site_leads_somewhere(site):
    pages, folder = site
    lost = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
            other = target.resolve().relative_to(folder.resolve()).as_posix()
            anchors = pages[other].anchors if other in pages else set()
            if not target.exists() or (parts.fragment and parts.fragment not in anchors | {"", "top"}):
                lost.append(f"{name}: {link}")
    assert not lost
    assert len(pages) > 15


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_are_as_executed_with_their_figures(path):
    found = read_rows(path)
    assert found.rows and not found.faults
    assert {row.device for row in found.rows} == {"cuda:0"}


def test_the_site_says_what_the_help_says(site):
    from ipygpumem.jupyter.commands import help_text

    text = (site[1] / "made" / "magics.html").read_text(encoding="utf-8")
    for line in help_text().splitlines():
        assert line.strip().split("  ")[0].replace("<", "&lt;").replace("'", "&#39;") in text
    settings = site[0]["made/settings.html"].anchors
    assert {name.replace("_", "-") for name in Settings.class_traits(config=True)} <= settings


def test_the_reference_has_every_public_name(site):
    anchors = site[0]["api.html"].anchors
    functions = {"load_ipython_extension", "unload_ipython_extension", "__version__"}
    results = {"Ranks", "Merged", "Spread", "Engines", "ProfileFacts", "CategoryPeak", "HostReport", "DeviceReport"}
    names = {*ipygpumem.__all__, *results} - functions
    assert not {name for name in names if not any(one.endswith(f".{name}") for one in anchors)}


def test_options_keep_their_dashes(site):
    for name in ("many.html", "profile.html", "api.html"):
        text = (site[1] / name).read_text(encoding="utf-8")
        assert "\N{EN DASH}" not in text.partition("<article")[2].partition("</article>")[0], name


def test_the_first_page_leads_to_every_page_of_the_guide(site):
    listed = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("```{toctree}")[0]
    assert all(f"({path.name})" in listed for path in ROOT.glob("docs/*.md") if path.name not in {"index.md", "api.md"})


@pytest.mark.parametrize("path", GUIDE, ids=lambda path: path.name)
def test_words_of_the_guide_exist(path):
    text = path.read_text(encoding="utf-8")
    words = {command.word for command in COMMANDS}
    for line in re.findall(r"(?<!%)%gpumem ([a-z]+)(?=[`\s.,;])(?! =)", text):
        assert line in words | {"y"}, f"%gpumem {line}"
    flags = {flag for option in (*CELL, *STATEMENT) for flag in option.flags}
    for line in re.findall(r"%%gpumem ([^`\n]+)", text):
        for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line):
            assert flag in flags, f"%%gpumem {line}"
    traits = set(Settings.class_traits(config=True))
    for name in re.findall(r"GPUMem\.([a-z_]+)", text):
        assert name in traits, f"GPUMem.{name}"


def test_commands_of_the_guide_exist():
    listed = subprocess.run(
        [sys.executable, "-m", "ipygpumem", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    for path in GUIDE:
        for word in re.findall(r"(?:^|`)ipygpumem ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf"^ +{word}\b", listed, re.MULTILINE), f"{path.name}: ipygpumem {word}"
