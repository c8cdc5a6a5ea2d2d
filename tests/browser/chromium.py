"""Find or install Chromium (``python tests/browser/chromium.py``): Debian's package as root, or Playwright's build.

The headless shell is preferred, as in Playwright. Chromium without a window uses twice as much CPU time for a page.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Return the path of Chromium on this machine, an empty string for Playwright's build, or None."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        return "" if Path(playwright.chromium.executable_path).exists() else None


def install():
    """Install the headless shell or Chromium if they are missing, and return the path as `find` does."""

    def apt_get(*arguments):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "-qq", *arguments]
        return subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment).returncode == 0

    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if shutil.which(SHELL) is None and is_root and shutil.which("apt-get"):
        if find() is None:
            apt_get("update")
        if not apt_get("install", "-y", SHELL) and find() is None:
            apt_get("install", "-y", "chromium")
    path = find()
    if path is None:
        subprocess.run([sys.executable, "-m", "playwright", "install", "--with-deps", "chromium"], check=False)
        path = find()
    return path


if __name__ == "__main__":
    path = install()
    print(
        "Chromium could not be installed: browser tests are skipped"
        if path is None
        else f"Chromium: {path or 'of Playwright'}"
    )
