"""The pytest plugin, in separate pytest runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FOLDER = Path(__file__).parent


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest in a new process with the plugin by name, because an installed entry point may be older."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))

    def go(*, plugin=True):
        options = ["-p", "ipygpumem.pytest_plugin"] if plugin else []
        return pytester.runpytest_subprocess(*options, "-p", "no:cacheprovider", "--strict-markers")

    return go


class KeepImports:
    """Keep modules imported by a run in this process: pytester removes them, but PyTorch cannot be imported twice."""

    def __init__(self):
        self.modules = {}

    def pytest_unconfigure(self):
        self.modules |= {name: module for name, module in sys.modules.items() if not name.startswith("test_")}


@pytest.fixture(autouse=True)  # requested first, to finish after pytester
def keep_imports():
    plugin = KeepImports()
    yield plugin
    sys.modules.update(plugin.modules)


@pytest.fixture
def run_here(pytester, monkeypatch, keep_imports):
    """Run pytest with the plugin in this process, which is faster than in a new one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def go(*arguments, plugin="ipygpumem.pytest_plugin"):
        sys.modules.update(keep_imports.modules)
        options = ["-p", plugin, "--strict-markers", "-W", "default", *arguments]
        return pytester.runpytest_inprocess(*options, plugins=[keep_imports])

    return go


@pytest.fixture
def run_on_gpu(fake_gpu, run_here):
    """Run pytest with the plugin in this process, where there is a fake GPU."""
    return run_here


def test_limits_on_a_gpu(pytester, run_on_gpu):
    pytester.makepyfile(
        """
        import ctypes, pytest, torch
        blocks = []

        def make(mib):
            return torch.ones(mib << 20, dtype=torch.uint8, device="cuda")

        @pytest.mark.gpumem_limit("64 MiB", held=0, outside="50 MiB")
        def test_within():
            make(64)

        @pytest.mark.gpumem_limit("64 MiB")
        def test_peak():
            make(66)

        @pytest.mark.gpumem_limit(held="1 MiB")
        def test_held():
            blocks.append(make(2))

        @pytest.mark.gpumem_limit(outside="50 MiB")
        def test_outside():
            from ipygpumem.sources import cuda
            cuda._runtime().cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(60 << 20))

        @pytest.mark.gpumem_limit("1 MiB")
        def test_own_error_comes_first():
            make(10)
            assert False, "the test's own"

        class TestClass:
            pytestmark = pytest.mark.gpumem_limit("1 MiB")

            def test_inherits(self):
                make(10)

        @pytest.mark.xfail(strict=True)
        @pytest.mark.gpumem_limit("1 MiB")
        def test_expected():
            make(10)

        def test_unmarked():
            make(500)
        """
    )
    result = run_on_gpu("-rA")
    result.assert_outcomes(passed=2, failed=5, xfailed=1)
    text = result.stdout.str()
    assert "GPUMemLimitExceeded: cuda:0 peak +66.0 MiB, over the limit of 64.0 MiB (peak reached by " in text
    assert "test_limits_on_a_gpu.py:5 make" in text
    assert "GPUMemLimitExceeded: cuda:0 held +2.0 MiB, over the limit of 1.0 MiB (largest part allocated by " in text
    assert "GPUMemLimitExceeded: cuda:0 memory outside PyTorch +60.0 MiB, over the limit of 50.0 MiB" in text
    assert "the test's own" in text
    assert text.count("GPUMemLimitExceeded: ") >= 4
    assert "pytest_plugin.py" not in text, "no traceback of the plugin"


def test_limit_on_the_host(pytester, run):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpumem_limit(host="30 MiB")
        def test_over():
            x = b"x" * (64 << 20)

        @pytest.mark.gpumem_limit(host="500 MiB")
        def test_within():
            x = b"x" * (64 << 20)

        @pytest.mark.gpumem_limit("1 MiB")
        def test_no_gpu_no_peak():
            x = b"x" * (64 << 20)
        """
    )
    result = run()
    if sys.platform == "linux":
        result.assert_outcomes(passed=2, failed=1, warnings=1)
        result.stdout.re_match_lines([r".*GPUMemLimitExceeded: host peak \+6\d\.\d MiB, over the limit of 30.0 MiB"])
    else:  # the high-water mark cannot be reset there
        result.assert_outcomes(passed=3, warnings=3)
    reason = "limits on GPU memory (peak 1.0 MiB) were not checked because no GPU was measured: torch was not imported"
    assert f"gpumem_limit: {reason}" in result.stdout.str()


def test_table_of_all_tests(pytester, run_on_gpu):
    pytester.makepyfile(
        """
        import torch
        blocks = []

        def test_small():
            torch.ones(1 << 20, dtype=torch.uint8, device="cuda")

        def test_large():
            blocks.append(torch.ones(300 << 20, dtype=torch.uint8, device="cuda"))

        def test_fails():
            torch.ones(20 << 20, dtype=torch.uint8, device="cuda")
            assert False

        def test_without_memory():
            pass
        """
    )
    result = run_on_gpu("--gpumem", "--junitxml=out.xml")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.re_match_lines(
        [
            r"=+ memory usage of the tests \(ipygpumem\) =+",
            r" +GPU peak +GPU held +outside PyTorch +host peak +test",
            r" *\+300.0 MiB +\+300.0 MiB +\+0.0 MiB .*test_large",
            r" *\+20.0 MiB .*test_fails",
            r" *\+1.0 MiB +\+0.0 MiB +\+0.0 MiB .*test_small",
            r"not shown: 1 test with 0\.0 MiB in all columns",
        ]
    )
    xml = (pytester.path / "out.xml").read_text()
    assert f'<property name="gpumem_peak" value="{300 << 20}"' in xml


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ("gpumem_limit('much')", "'much' is not a size"),
        ("gpumem_limit(-1)", "-1 is not a size"),
        ("gpumem_limit()", "no limit is set"),
        ("gpumem_limit(peek='1 GiB')", "gpumem_limit() got an unexpected keyword argument 'peek'"),
        ("gpumem_limit('1 GiB', '2 GiB')", "gpumem_limit() takes from 0 to 1 positional arguments but 2 were given"),
        ("gpumem_limit('1 GiB', peak=3)", "gpumem_limit() got multiple values for argument 'peak'"),
        ("gpumem_limit([1])", "not a size"),
    ],
)
def test_invalid_marks_are_reported_before_any_test(pytester, run_here, mark, reason):
    pytester.makepyfile(
        f"""
        import pytest

        def test_first():
            open("ran", "w").close()

        @pytest.mark.{mark}
        def test_bad():
            pass
        """
    )
    result = run_here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line.startswith("ERROR: ")]
    assert "::test_bad: invalid mark gpumem_limit: " in line
    assert reason in line
    assert not (pytester.path / "ran").exists()


def test_marks_of_class_and_method_are_combined(pytester, run_on_gpu):
    """For each limit, the innermost mark that sets it takes precedence."""
    pytester.makepyfile(
        """
        import pytest, torch

        blocks = []
        pytestmark = pytest.mark.gpumem_limit(held="1 MiB")

        def take(n):
            blocks.append(torch.ones(n << 20, dtype=torch.uint8, device="cuda"))

        @pytest.mark.gpumem_limit("64 MiB")
        class TestClass:
            @pytest.mark.gpumem_limit("90 MiB", held="80 MiB")
            def test_nearer(self):
                take(70)

            @pytest.mark.gpumem_limit(host="9 GiB")
            def test_peak_of_the_class(self):
                take(70)
                blocks.clear()

            def test_held_of_the_module(self):
                take(2)
        """
    )
    result = run_on_gpu("-rA")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.re_match_lines_random(
        [
            r"PASSED .*test_nearer",
            r"GPUMemLimitExceeded: cuda:0 peak \+70.0 MiB, over the limit of 64.0 MiB.*",
            r"GPUMemLimitExceeded: cuda:0 held \+2.0 MiB, over the limit of 1.0 MiB.*",
        ]
    )


def test_unchecked_limits_are_warnings(pytester, fake_gpu, run_on_gpu):
    fake_gpu.nvml_device.regime = "hidden"
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.gpumem_limit(outside=0)
        def test_it():
            torch.ones(1, device="cuda")
        """
    )
    result = run_on_gpu()
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*gpumem_limit: the limit of 0 (cuda:0, outside PyTorch) was not checked: *"])
    result = run_on_gpu("-W", "error")
    result.assert_outcomes(failed=1)


def test_unused_plugin_imports_nothing(pytester, run):
    pytester.makepyfile(
        """
        import sys

        def test_it():
            imported = {name.removeprefix("ipygpumem.") for name in sys.modules if name.startswith("ipygpumem")}
            assert imported <= {"ipygpumem", "core", "core.errors", "core.text", "core.version", "pytest_plugin"}
            heavy = {"torch", "numpy", "IPython", "pynvml", "psutil", "jinja2"} & set(sys.modules)
            assert not heavy
        """
    )
    run().assert_outcomes(passed=1)


def test_markers_and_help(run_here):
    run_here("--markers").stdout.fnmatch_lines(["@pytest.mark.gpumem_limit(peak=None, *"])
    run_here("--help").stdout.fnmatch_lines(["*--gpumem*report the GPU and host memory usage of every test*"])


def test_mark_is_unknown_without_the_plugin(pytester, run):
    """This ensures that the tests above test the plugin."""
    pytester.makepyfile("import pytest\n\n@pytest.mark.gpumem_limit('1 GiB')\ndef test_it(): pass\n")
    assert run(plugin=False).ret != 0


def test_entry_point(pytester, run_here, monkeypatch, tmp_path_factory):
    declared = (FOLDER.parent / "pyproject.toml").read_text()
    group, point = "[project.entry-points.pytest11]", 'ipygpumem = "ipygpumem.pytest_plugin"'
    assert f"{group}\n{point}\n" in declared
    installed = tmp_path_factory.mktemp("installed")
    info = installed / "ipygpumem-9.9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ipygpumem\nVersion: 9.9.9\n")
    (info / "entry_points.txt").write_text("[pytest11]\nipygpumem = ipygpumem.pytest_plugin\n")
    monkeypatch.syspath_prepend(installed)
    pytester.makepyfile("def test_it(): pass\n")
    run_here("--gpumem", plugin="ipygpumem").assert_outcomes(passed=1)  # the name of the entry point


def test_mark_of_a_parameter_set_wins(pytester, run_on_gpu):
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.gpumem_limit("64 MiB", held="1 MiB")
        @pytest.mark.parametrize("mib", [
            pytest.param(100, marks=pytest.mark.gpumem_limit("128 MiB")),
            pytest.param(50, marks=pytest.mark.gpumem_limit("32 MiB")),
            100,
        ])
        def test_it(mib):
            torch.ones(mib << 20, dtype=torch.uint8, device="cuda")
        """
    )
    result = run_on_gpu()
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*over the limit of 32.0 MiB*", "*over the limit of 64.0 MiB*"])
