"""The viewer as an HTML file and in a browser."""

from __future__ import annotations

import json
import shutil
import webbrowser

import pytest

from cli.commands import GPT, OOM, run


def test_html_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "html", GPT)
    assert (status, err) == (0, "")
    assert out.startswith("gpt_small.html: 0.")
    text = (tmp_path / "gpt_small.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>gpt_small.pickle.xz</title>" in text
    status, out, _ = run(capsys, "html", GPT, OOM, "-o", "both.html", "--json", "--strip-paths", "--no-source")
    assert status == 0
    assert json.loads(out) == {
        "page": str(tmp_path / "both.html"),
        "bytes": (tmp_path / "both.html").stat().st_size,
    }
    assert "<title>snapshot 1 and snapshot 2</title>" in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([GPT, "-o", "no/x.html"], 2, "does not exist"),
        ([GPT, "-o", "."], 2, "is a directory: add a file name"),
        (["missing.pickle"], 1, "missing.pickle: No such file or directory"),
        ([GPT, "missing.pickle"], 1, "missing.pickle: No such file or directory"),
        ([GPT, "--set", "garbage_collection_threshold:0.8"], 2, "threshold requires a memory limit"),
        ([GPT, "--set", "per_process_memory_fraction:0.8"], 2, "fraction requires a memory limit"),
    ],
)
def test_errors_of_html(capsys, tmp_path, monkeypatch, arguments, status, message):  # noqa: PLR0917 (fixtures)
    monkeypatch.chdir(tmp_path)
    result, out, err = run(capsys, "html", *arguments)
    assert (result, out) == (status, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opens", [True, False])
def test_view(capsys, tmp_path, monkeypatch, opens):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.get", lambda: webbrowser.GenericBrowser(shutil.which("true" if opens else "false")))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ipygpumem.viewer.write._delete_later", lambda directory: None)
    status, out, _ = run(capsys, "view", GPT)
    (path,) = tmp_path.glob("ipygpumem-*/gpt_small.html")
    assert status == 0
    assert out.splitlines()[-1] == str(path)
    assert ("no browser was found" in out) is not opens
    status, out, _ = run(capsys, "view", GPT, "--json")
    assert json.loads(out)["opened"] is opens
