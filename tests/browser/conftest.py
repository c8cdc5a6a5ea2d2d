"""A real Chromium, and a real JupyterLab on 127.0.0.1 that ends with the tests."""

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
from browser.viewing import Viewing

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")  # no longer: Playwright's event loop runs in this thread, where others await
def browser():
    path = chromium.find()
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium, and CI skips nothing that can be installed")
        pytest.skip("no Chromium: python tests/browser/chromium.py brings one")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = {"executable_path": path} if path else {}
        running = playwright.chromium.launch(args=ARGUMENTS, **options)
        yield running
        running.close()


@pytest.fixture(params=["light", "dark"])
def page(browser, request):
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1100, "height": 800})
    opened = context.new_page()
    opened.scheme = request.param
    yield opened
    context.close()


@pytest.fixture
def viewing(browser, tmp_path):
    """Open snapshots in the viewer's page: drawn, without a complaint, and without a request to anywhere."""
    opened = []

    def view(*snapshots, **how):
        opened.append(Viewing(browser, tmp_path, *snapshots, **how).drawn())
        return opened[-1]

    yield view
    for one in opened:
        assert one.problems == []
        assert one.strangers() == []
        one.close()


class Lab:
    def __init__(self, folder, settings):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.token = "test"
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
                *(f"--port={self.port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={self.token}"),
                *(f"--ServerApp.root_dir={folder}", f"--LabApp.user_settings_dir={settings}"),
                *("--LabApp.news_url=", "--log-level=ERROR", f"--LabApp.workspaces_dir={folder / 'workspaces'}"),
            ],
            env={**os.environ, "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait()

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def wait(self):
        end = time.monotonic() + 90
        while time.monotonic() < end:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url("api"), timeout=5):
                return
            time.sleep(0.2)
        raise RuntimeError("JupyterLab did not start")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=30)


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
