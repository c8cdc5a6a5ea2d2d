"""One Chromium and one JupyterLab on 127.0.0.1 for all tests in this directory."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from browser import chromium
from browser.snapshot_page import SnapshotPage

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
MAX_OPEN_PAGES = 3


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(
    scope="package"
)  # not the session: Playwright runs an event loop in this thread, which would disturb other tests
def browser():
    path = chromium.find()
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is not installed, and tests are not skipped in CI")
        pytest.skip("Chromium is not installed: run python tests/browser/chromium.py")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": path} if path else {}
        running = playwright.chromium.launch(args=ARGUMENTS, **options)
        yield running
        running.close()


@pytest.fixture
def page(browser, request):
    """A new page. Parametrize it indirectly with "light" or "dark" to select the color scheme."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 800})
    context.set_default_timeout(60_000)
    opened = context.new_page()
    opened.scheme = scheme
    yield opened
    context.close()


@pytest.fixture(scope="module")
def open_pages():
    """The pages that earlier tests have opened, by the snapshots that they show."""
    opened = {}
    yield opened
    for view in opened.values():
        view.close()


@pytest.fixture
def viewing(browser, tmp_path, open_pages):
    """A function that opens snapshots in the viewer's page.

    If an earlier test has opened the same snapshots, their page is reset and used again; ``fresh=True`` opens a new
    one. After the test, the pages must have logged nothing and requested nothing from elsewhere.
    """
    used = []

    def view(*snapshots, fresh=False, **options):
        key = (*map(id, snapshots), *sorted(options.items()))
        if fresh or {"hash_", "text"} & options.keys():
            key = object()
        if key in open_pages:
            open_pages[key].reset()
        else:
            while len(open_pages) >= MAX_OPEN_PAGES:
                open_pages.pop(next(iter(open_pages))).close()
            open_pages[key] = SnapshotPage(browser, tmp_path, *snapshots, **options).drawn()
            open_pages[key].snapshots = snapshots  # keeps them alive, so that their ids stay unique
        used.append(open_pages[key])
        return used[-1]

    yield view
    for opened in used:
        assert opened.messages == []
        assert opened.foreign_requests() == []
        opened.requests.clear()


class Lab:
    def __init__(self, folder, settings):
        self.folder, self.settings = folder, settings
        self.token = "test"
        self.start()
        end = time.monotonic() + 200
        while not self.responds():
            assert time.monotonic() < end, "JupyterLab did not start"
            if self.process.poll() is not None:  # another process has used the port in the meantime
                self.start()
            time.sleep(0.2)

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                *(f"--port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
                *(f"--ServerApp.root_dir={self.folder}", f"--LabApp.user_settings_dir={self.settings}"),
                "--LabApp.expose_app_in_browser=True",
                *("--LabApp.news_url=", "--log-level=ERROR", f"--LabApp.workspaces_dir={self.folder / 'workspaces'}"),
            ],
            env={
                **os.environ,
                **{f"JUPYTER_{name}_DIR": str(self.folder / name.lower()) for name in ("CONFIG", "DATA")},
                "IPYTHONDIR": str(self.folder / "ipython"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def notebook_url(self, name):
        """Return the URL of a notebook in its own workspace, in which no tabs of other tests are restored."""
        return self.url(f"lab/workspaces/{Path(name).stem}/tree/{name}")

    @staticmethod
    def open(tab, name):
        """Open a notebook in the page of the fixture ``tab``."""
        tab.evaluate("(path) => jupyterapp.commands.execute('docmanager:open', { path }).then(() => null)", name)

    def responds(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(self.url("api"), timeout=5):
            return True
        return False

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # the server waits for kernels, which end when it has ended
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    pytest.importorskip("jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    settings = folder / "settings"
    theme = settings / "@jupyterlab" / "apputils-extension"
    theme.mkdir(parents=True)
    (theme / "themes.jupyterlab-settings").write_text(json.dumps({"adaptive-theme": True}))
    (theme / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    running = Lab(folder, settings)
    yield running
    running.close()


@pytest.fixture(scope="package")
def lab_page(browser, lab):
    context = browser.new_context()
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.goto(lab.url("lab"))
    page.wait_for_function("window.jupyterapp?.restored.then(() => true)")
    yield page
    context.close()


@pytest.fixture
def tab(lab_page, request):
    """A page with JupyterLab and no open notebook, for `Lab.open`. Parametrize it with "light" or "dark".

    The tests share it, because loading JupyterLab takes longer than most of them.
    """
    lab_page.scheme = getattr(request, "param", "light")
    lab_page.set_viewport_size({"width": 1100, "height": 900})
    lab_page.emulate_media(color_scheme=lab_page.scheme)
    yield lab_page
    lab_page.evaluate("for (const widget of [...jupyterapp.shell.widgets('main')]) widget.dispose()")
    while lab_page.locator(".jp-Dialog").count():
        lab_page.keyboard.press("Escape")
        lab_page.wait_for_timeout(50)
