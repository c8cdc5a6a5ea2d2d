"""Tests of path checks and of files that are written atomically."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import pickle
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import atomic_write, check_path, open_for_appending, open_regular_file, write_file
from ipygpumem.core.report import RecordingInfo
from ipygpumem.features.profile.model import ProfileSummary
from ipygpumem.features.ranks.rank_files import make_directory

ROOT = Path(__file__).parents[2]


def test_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_path("x.pickle") == tmp_path / "x.pickle"
    assert check_path(tmp_path / "y z.pickle") == tmp_path / "y z.pickle"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_path("~/x.pickle") == tmp_path / "x.pickle"
    assert list(tmp_path.iterdir()) == []


def test_existing_file(tmp_path):
    existing = tmp_path / "x.pickle"
    existing.write_text("old")
    assert check_path(existing) == existing
    assert existing.read_text() == "old"


PICKLE = pickle.dumps({"segments": [], "device_traces": []}, 4)
JSON = '{"allocator_settings": {"a": 1}, "device_traces": [], "segments": []}'
SNAPSHOTS = {
    "pickle": PICKLE,
    "gz": gzip.compress(PICKLE),
    "two gz members": gzip.compress(b"") + gzip.compress(PICKLE),
    "xz": lzma.compress(PICKLE),
    "JSON": b'{"segments": []}',
    "JSON after a line break": b'\n {"device_traces": []}',
    "sorted keys": JSON.encode(),
    "sorted keys, gz": gzip.compress(JSON.encode()),
    "UTF-16": JSON.encode("utf-16"),
    "byte order mark": JSON.encode("utf-8-sig"),
    "PyTorch before 2.0": b'[{"device": 0, "address": 512, "total_size": 512, "blocks": []}]',
}


@pytest.mark.parametrize("content", SNAPSHOTS.values(), ids=SNAPSHOTS)
def test_snapshots_with_other_names_are_not_replaced(tmp_path, content):
    path = tmp_path / "x.html"
    path.write_bytes(content)
    with pytest.raises(OptionError, match="already exists and would be replaced by a page"):
        check_path(path, "page", "snapshot.html")
    assert check_path(path) == path
    for other in (
        b"",
        b"<!DOCTYPE html>",
        b'{"page": 1}',
        b'{"code": "{\\"segments\\": 1}"}',
        b"\x1f\x8b",
        b"\xfd7zXZ\x00",
        gzip.compress(b"a,b"),
    ):
        path.write_bytes(other)
        assert check_path(path, "page", "snapshot.html") == path


@pytest.mark.parametrize(
    ("name", "kind"), [("x.py", "snapshot"), ("x.IPYNB", "page"), ("x.pickle", "page"), ("x.pkl.xz", "table")]
)
def test_programs_and_snapshots_are_not_replaced(tmp_path, name, kind):
    path = tmp_path / name
    assert check_path(path, kind) == path
    path.write_text("")
    with pytest.raises(OptionError, match=f"already exists and would be replaced by a {kind}: choose a name such as"):
        check_path(path, kind)


def test_symbolic_link(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "link.pickle").symlink_to(tmp_path / "target" / "x.pickle")
    path = check_path(tmp_path / "link.pickle")
    with atomic_write(path):
        pass
    assert (tmp_path / "link.pickle").is_symlink()
    assert (tmp_path / "target" / "x.pickle").is_file()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (".", "is a directory: add a file name"),
        ("here/", "is a directory"),
        ("missing/x.pickle", "does not exist"),
        ("file/x.pickle", "does not exist"),
        ("/dev/null", "not a regular file"),
        ("/proc/x.pickle", "cannot write to /proc"),
        ("x" * 300, "x"),
        ("~no-such-user/x", "no-such-user"),
        ("a\0b", "path"),
    ],
)
def test_invalid_paths(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OptionError) as exc_info:
        check_path(path)
    assert message in str(exc_info.value)
    assert "\n" not in str(exc_info.value)
    assert sorted(tmp_path.iterdir()) == before


def test_long_names_are_rejected_or_written(tmp_path):
    for length in (245, 255):
        path = write_file(check_path(tmp_path / ("x" * length)), b"new")
        assert path.read_bytes() == b"new"
    with pytest.raises(OptionError, match="too long"):
        check_path(tmp_path / ("x" * 256))
    assert [len(path.name) for path in sorted(tmp_path.iterdir())] == [245, 255]


def test_links_of_another_user_are_not_followed(tmp_path, monkeypatch):
    """Another user creates a link under the name that the temporary file will have."""
    (tmp_path / "private").write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".guessed.tmp").symlink_to(tmp_path / "private")
    (tmp_path / f".x.{os.getpid()}.tmp").symlink_to(tmp_path / "private")
    with pytest.raises(OptionError, match="x was not written: File exists"):
        write_file(tmp_path / "x", b"new")
    monkeypatch.undo()
    write_file(tmp_path / "x", b"new")
    (tmp_path / "log").symlink_to(tmp_path / "private")
    with pytest.raises(OSError, match="symbolic links"):
        open_for_appending(tmp_path / "log")
    assert (tmp_path / "private").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create links of other users")
def test_links_in_directories_that_all_users_share(tmp_path):
    tmp_path.chmod(0o1777)
    private = tmp_path / "private"
    private.mkdir()
    for name, user in (("link", 65534), ("directory", 65534), ("own", 0)):
        (tmp_path / name).symlink_to(private / ("" if name == "directory" else "x"))
        os.lchown(tmp_path / name, user, user)
    (tmp_path / "file").touch()
    os.chown(tmp_path / "file", 65534, 65534)
    (private / "to_link").symlink_to("../link")
    (private / "to_directory").symlink_to(private / "to_shared" / "directory")
    (private / "to_shared").symlink_to(tmp_path)
    for path in ("link", "directory/x", "private/to_link", "private/to_directory/x", "private/../link", "file"):
        with pytest.raises(
            OptionError, match=r"^/\S*/(link|directory|file) belongs to another user: choose another path$"
        ):
            check_path(tmp_path / path)
    for path in ("directory", "private/to_directory"):
        with pytest.raises(OptionError, match="/directory belongs to another user"):
            make_directory(str(tmp_path / path / "new"))
    with pytest.raises(PermissionError, match="the file belongs to another user"):
        open_for_appending(tmp_path / "file")
    assert check_path(tmp_path / "own") == private / "x"
    assert not (private / "new").exists()
    tmp_path.chmod(0o777)  # without the sticky bit, every user can replace files, and links still lead elsewhere
    for path in ("link", "private/to_directory/x"):
        with pytest.raises(OptionError, match="belongs to another user"):
            check_path(tmp_path / path)
    assert check_path(tmp_path / "file") == tmp_path / "file"
    tmp_path.chmod(0o755)
    assert check_path(private / "to_link") == private / "x"


@pytest.mark.parametrize("name", ["x", "directory/x"])
def test_links_that_are_created_after_the_check(tmp_path, monkeypatch, name):
    """Another user creates a link as soon as the path has been examined. The link is replaced, not followed."""
    private, link = tmp_path / "private", tmp_path / "shared" / Path(name).parts[0]
    for directory in (private, link.parent):
        directory.mkdir()
    (private / "x").write_text("mine")
    examine, examined = Path.lstat, []

    def examine_first(path):
        try:
            return examine(path)
        finally:
            if path == link:
                examined.append(path)
                if len(examined) == 1:
                    link.symlink_to(private / "x" if name == "x" else private)

    monkeypatch.setattr(Path, "lstat", examine_first)
    with contextlib.suppress(OptionError):
        write_file(check_path(link.parent / name), b"new")
    assert examined
    assert [path.name for path in private.iterdir()] == ["x"]
    assert (private / "x").read_text() == "mine"
    assert (link.read_bytes() == b"new" and not link.is_symlink()) if name == "x" else link.is_symlink()


def test_file_that_is_deleted_during_the_check(tmp_path, monkeypatch):
    examine = Path.lstat

    def examine_and_delete(path):
        status = examine(path)
        if path == tmp_path / "x":
            path.unlink()
        return status

    (tmp_path / "x").touch()
    monkeypatch.setattr(Path, "lstat", examine_and_delete)
    with contextlib.suppress(OptionError):
        assert check_path(tmp_path / "x") == tmp_path / "x"
    (tmp_path / "x").touch()
    write_file(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_links_that_refer_to_each_other(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a/../a")
    with pytest.raises(OptionError, match="Too many levels of symbolic links"):
        check_path(tmp_path / "a")


def test_link_in_the_directory_of_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank_00000.json").symlink_to(tmp_path / "x")
    assert make_directory(str(tmp_path / "run")) == tmp_path / "run"
    (tmp_path / "x").touch(0o600)
    path = write_file(tmp_path / "run" / "rank_00000.json", b"new")
    assert path.is_file() and not path.is_symlink(), (
        "the link is replaced, and the permissions of its target are unused"
    )
    (tmp_path / "new").touch()
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize("permissions", [0o600, 0o664])
def test_permissions_of_a_replaced_file_are_kept(tmp_path, permissions):
    path = tmp_path / "x"
    path.touch()
    path.chmod(permissions)
    write_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == permissions
    with atomic_write(path) as file:  # also while the new file is written
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == permissions


def file_of_another_group(path):
    path.touch()
    try:
        os.chown(path, -1, next((group for group in os.getgroups() if group != path.stat().st_gid), 4242))
    except OSError as error:
        pytest.skip(f"the group of a file cannot be changed: {error}")
    path.chmod(0o660)
    return path


def test_group_of_a_replaced_file_is_kept(tmp_path, monkeypatch):
    path = file_of_another_group(tmp_path / "x")
    group = path.stat().st_gid
    write_file(path, b"new")
    assert (path.stat().st_gid, stat.S_IMODE(path.stat().st_mode)) == (group, 0o660)

    def fail(*_):
        raise PermissionError

    monkeypatch.setattr(os, "fchown", fail)
    write_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "the file belongs to another group, which had no access"


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="Python supports extended attributes on Linux")
def test_access_control_list_of_a_replaced_file_is_kept(tmp_path, monkeypatch):
    path, name, nobody = tmp_path / "x", "system.posix_acl_access", (1 << 32) - 1
    path.touch()
    entries = [(0x01, 6, nobody), (0x02, 6, 12345), (0x04, 0, nobody), (0x10, 6, nobody), (0x20, 0, nobody)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, name, access)
    except OSError as error:
        pytest.skip(f"the file system does not support access control lists: {error}")
    write_file(path, b"new")
    assert os.getxattr(path, name) == access
    assert stat.S_IMODE(path.stat().st_mode) == 0o660

    def fail(*_):
        raise PermissionError

    monkeypatch.setattr(os, "setxattr", fail)
    write_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "the bits of the group were the mask of the list"


def test_new_file_has_the_permissions_of_the_umask(tmp_path):
    write_file(tmp_path / "x", b"new")
    (tmp_path / "y").touch()
    open_for_appending(tmp_path / "z").close()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not list open files")
@pytest.mark.parametrize("function", [write_file, open_for_appending, open_regular_file])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the file is closed with a warning
def test_interrupt_while_a_file_is_opened(tmp_path, function):
    """The interrupt arrives after the system has opened the file, as soon as Python code runs."""

    def interrupt(_frame, event, callable_):
        if event == "c_return" and callable_ is os.open:
            signal.raise_signal(signal.SIGINT)

    (tmp_path / "x").touch()
    before = len(list(Path("/proc/self/fd").iterdir()))
    sys.setprofile(interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        function(tmp_path / "x", *([b""] if function is write_file else []))
    sys.setprofile(None)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_threads_that_write_one_file(tmp_path):
    """All threads have opened their temporary files before the first file is renamed."""
    barrier = threading.Barrier(4)

    def write(number):
        with atomic_write(check_path(tmp_path / "x")) as file:
            file.write(b"%d" % number * 1000)
            barrier.wait(timeout=200)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() in {b"%d" % number * 1000 for number in range(4)}


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(28, "No space left on device"), OptionError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_failed_write_leaves_the_previous_file(tmp_path, error, expected):
    path = write_file(tmp_path / "x", b"old")
    with pytest.raises(expected), atomic_write(path) as file:
        file.write(b"new")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_messages_about_paths_with_line_breaks_have_one_line(tmp_path):
    (tmp_path / "a\nb").mkdir()
    for path in (tmp_path / "a\nb", tmp_path / "a\nb" / "no" / "x", tmp_path / "a\nb" / ("x" * 256)):
        with pytest.raises(OptionError) as exc_info:
            check_path(path)
        assert len(str(exc_info.value).splitlines()) == 1
    info = RecordingInfo(str(tmp_path / "a\nb" / "x.pickle"), 1, 1)
    assert len(info.sentence().splitlines()) == 1
    sentences = ProfileSummary(trace="a\nb", timeline="c\nd").sentences()
    assert [len(sentence.splitlines()) for sentence in sentences] == [1, 1, 1]


def test_every_file_is_written_by_the_same_functions():
    """Other modules do not open files for writing."""
    writes = re.compile(r"""open\([^)\n]*["'](?:[wax]b?|r\+b?)\+?["']|write_(?:text|bytes)\(|\.touch\(|mkstemp""")
    found = {
        (path.relative_to(ROOT).as_posix(), match[0])
        for path in (ROOT / "ipygpumem").rglob("*.py")
        if path.name != "files.py" and "node_modules" not in path.parts
        for match in writes.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == {
        ("ipygpumem/sources/host.py", 'open("wb"'),  # /proc/self/clear_refs
        ("ipygpumem/features/profile/profiler_session.py", 'open("r+b"'),  # in a private temporary directory
    }


def test_path_as_bytes(tmp_path):
    assert check_path(os.fsencode(tmp_path / "x.pickle")) == tmp_path / "x.pickle"


def test_no_permission(tmp_path):
    """Run a script as another user, because root can write everywhere."""
    closed, locked = tmp_path / "closed", tmp_path / "locked.pickle"
    closed.mkdir()
    locked.write_text("old")
    tmp_path.chmod(0o777)
    closed.chmod(0o555)
    locked.chmod(0o444)
    script = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from ipygpumem.core.files import check_path
from ipygpumem.core.errors import OptionError
if os.getuid() == 0:
    os.setuid(65534)
for path in ({str(closed / "x.pickle")!r}, {str(locked)!r}):
    try:
        check_path(path)
    except OptionError as error:
        print(error)
"""
    for folder in tmp_path.parents:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # pytest closes its folders to other users
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert process.stdout.splitlines() == [
        f"cannot write to {closed}: Permission denied",
        f"{locked} is write-protected",
    ], process.stderr
