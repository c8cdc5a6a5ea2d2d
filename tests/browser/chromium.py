"""Find or install Chromium (``python tests/browser/chromium.py``): Debian's package as root, or Playwright's build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


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
    """Install Chromium if it is missing, and return its path as `find` does."""
    path = find()
    if path is None and hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(
                command, check=False, stdout=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            )
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
