"""The documentation builds without a warning, its links have targets, and the options and names in it exist."""

import argparse
import ast
import contextlib
import fcntl
import html
import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ipygpumem
from ipygpumem.cli.parser import parser
from ipygpumem.core.host_report import HostReport
from ipygpumem.core.report import DeviceReport
from ipygpumem.features.history.load import read_rows
from ipygpumem.features.history.reports import Reports
from ipygpumem.features.ranks.collect import Ranks
from ipygpumem.features.ranks.merge import MergedReports
from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT
from ipygpumem.jupyter.settings import Settings

pytest.importorskip("sphinx")
pytest.importorskip("myst_nb")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
DOCUMENTS = [
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/design/*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


def relative(path):
    return path.relative_to(ROOT).as_posix()


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the built site by path, and the site's directory.

    One test process builds it for all, because the build writes to ``docs/generated``.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "site"
    complete = folder.with_suffix(".complete")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", folder]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            complete.touch()
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}, folder


def test_links_within_the_site(site):
    pages, folder = site
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
            target_name = target.resolve().relative_to(folder.resolve()).as_posix()
            anchors = pages[target_name].anchors if target_name in pages else set()
            if not target.exists() or (parts.fragment and parts.fragment not in anchors | {"", "top"}):
                broken.append(f"{name}: {link}")
    assert not broken
    assert len(pages) > 30


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_between_documents_in_the_repository(path):
    """GitHub also shows these documents. The generated pages exist only in the built site."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("generated/")]
    assert not [link for link in local if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_files_named_in_the_documentation_exist(path):
    text = path.read_text(encoding="utf-8")
    folders = (
        "core|sources|measurement|display|commands|features|jupyter|viewer|snapshot|cli|compat|tests|docs|ipygpumem"
    )
    names = re.findall(rf"`((?:{folders})/[\w./*-]*)`", text)
    assert not [name for name in names if not any((folder / name).exists() for folder in (ROOT, ROOT / "ipygpumem"))]


def test_map_of_folders_is_complete():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code_map = text.partition("## Where things are")[2].partition("## ")[0]
    package = ROOT / "ipygpumem"
    folders = {
        init.parent.name for pattern in ("*/__init__.py", "features/*/__init__.py") for init in package.glob(pattern)
    }
    assert set(re.findall(r"(?:^ +| {2,})(\w+)/ ", code_map, re.MULTILINE)) == folders


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_executed_on_a_gpu_and_contain_reports(path):
    rows = read_rows(path)
    assert rows.rows and not rows.faults
    assert {row.device for row in rows.rows} == {"cuda:0"}


def test_reference_of_magics_and_settings(site):
    page = (site[1] / "generated" / "magics.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for command in COMMANDS:
        for specification in (command, *command.subcommands):
            assert f"{specification.help[0].upper()}{specification.help[1:]}." in text, specification.name
    options = [option for command in COMMANDS for option in command.options_of("magic")]
    for option in (*CELL, *STATEMENT, *options):
        assert option.help.replace("%%%%", "%%") in text, option.flags
        assert all(flag in text for flag in option.flags if flag.startswith("-")), option.flags
    settings = site[0]["generated/settings.html"].anchors
    assert {name.replace("_", "-") for name in Settings.class_traits(config=True)} <= settings


def test_reference_of_public_names(site):
    anchors = site[0]["api.html"].anchors
    functions = {"load_ipython_extension", "unload_ipython_extension", "__version__"}
    results = {
        "Ranks",
        "MergedReports",
        "Spread",
        "Engines",
        "ProfileSummary",
        "CategoryPeak",
        "HostReport",
        "DeviceReport",
    }
    names = {*ipygpumem.__all__, *results} - functions
    assert not {name for name in names if not any(anchor.endswith(f".{name}") for anchor in anchors)}


def test_reference_of_properties(site):
    page = html.unescape(re.sub(r"<[^>]+>", "", (site[1] / "api.html").read_text(encoding="utf-8")))
    for result in (DeviceReport, HostReport, Reports, Ranks, MergedReports):
        for name, member in inspect.getmembers(result, lambda member: isinstance(member, property) and member.__doc__):
            assert member.__doc__.splitlines()[0].replace("`", "") in page, f"{result.__name__}.{name}"


def test_options_keep_their_dashes(site):
    for name in ("many.html", "profile.html", "api.html"):
        text = (site[1] / name).read_text(encoding="utf-8")
        assert "\N{EN DASH}" not in text.partition("<article")[2].partition("</article>")[0], name


def test_first_page_and_readme_link_to_every_page_of_the_guide():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("```{toctree}")[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"index.md", "api.md"}
    assert not [page for page in pages if f"({page})" not in index or f"(docs/{page})" not in readme]


def test_list_of_design_decisions_is_complete():
    pages = {path.name for path in ROOT.glob("docs/design/*.md")} - {"index.md"}
    index = (ROOT / "docs" / "design" / "index.md").read_text(encoding="utf-8").partition("```{toctree}")[0]
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert not [page for page in pages if f"({page})" not in index or f"(docs/design/{page})" not in contributing]


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_commands_options_and_settings_exist(path):
    text = path.read_text(encoding="utf-8")
    options = {command.name: {flag for o in command.options_of("magic") for flag in o.flags} for command in COMMANDS}
    for name, arguments in re.findall(r"(?<!%)%gpumem ([a-z]+)(?=[`\s.,;])(?! =)([^`\n]*)", text):
        assert name in {*options, "y"}, f"%gpumem {name}"
        assert set(_flags(arguments)) <= options.get(name, set()), f"%gpumem {name}{arguments}"
    cell_flags = {flag for option in (*CELL, *STATEMENT) for flag in option.flags}
    for line in re.findall(r"%%gpumem ([^`\n]+)", text):
        assert set(_flags(line)) <= cell_flags, f"%%gpumem {line}"
    assert set(re.findall(r"GPUMem\.([a-z_]+)", text)) <= set(Settings.class_traits(config=True))


def _flags(text):
    return re.findall(r"(?<!\S)--?[a-z][a-z-]*", text)


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_shell_commands_exist(path):
    subparsers = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, usage in re.findall(r"^ipygpumem ([a-z]+)(.*)", "\n".join(_code(path)), re.MULTILINE):
        assert name in subparsers.choices, f"ipygpumem {name}"
        assert set(_flags(usage)) <= set(subparsers.choices[name]._option_string_actions), f"ipygpumem {name}{usage}"


def _code(path):
    """Return the code blocks and the inline code of a document."""
    text = path.read_text(encoding="utf-8")
    blocks = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return blocks.findall(text) + re.findall(r"`([^`\n]+)`", blocks.sub("", text))


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_python_examples_use_existing_names(path):
    for node in _python_nodes(path):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ipygpumem":
            assert hasattr(ipygpumem, node.attr) or find_spec(ast.unparse(node)), ast.unparse(node)
        if isinstance(node, ast.Call):
            function = getattr(ipygpumem, ast.unparse(node.func).removeprefix("ipygpumem."), None)
            if callable(function):
                names = set(inspect.signature(function).parameters)
                assert {keyword.arg for keyword in node.keywords} <= names, ast.unparse(node)


def _python_nodes(path):
    """Yield the syntax nodes of the Python code in a document. Other code, such as commands, is skipped."""
    for code in _code(path):
        with contextlib.suppress(SyntaxError):
            yield from ast.walk(ast.parse(code))


def test_shell_help_lists_every_command():
    text = subprocess.run(
        [sys.executable, "-m", "ipygpumem", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    subparsers = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert not [name for name in subparsers.choices if not re.search(rf"^ +{name}\b", text, re.MULTILINE)]
