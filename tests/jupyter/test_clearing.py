"""A pending ``clear_output(wait=True)`` is not triggered by the report."""

import pytest

pytestmark = pytest.mark.ipython

ALLOCATE = "kept = [bytearray(30 << 20)]\nimport sys\nfrom IPython.display import clear_output, display\n"


@pytest.mark.parametrize(
    ("tail", "reports"),
    [
        ("display('frame'); clear_output(wait=True)", 0),
        ("display('frame'); clear_output(wait=True); display('next')", 1),
        ("clear_output(wait=True); print('text')", 1),
        ("clear_output(wait=True); print('text', file=sys.stderr)", 1),
        ("clear_output(wait=True)\n42", 1),
        ("clear_output(wait=True)\n42;", 0),
        ("clear_output(wait=True)\n1 / 0", 1),
        ("clear_output()", 1),
        ("h = display('frame', display_id=True); clear_output(wait=True); h.update('other')", 0),
    ],
)
def test_last_plot_is_not_cleared(cpu_notebook, tail, reports):
    result = cpu_notebook.run(ALLOCATE + tail)
    assert sum("RSS" in text for text in result.texts) == reports, result.texts


def test_publisher_methods_are_restored(cpu_notebook):
    publisher = cpu_notebook.shell.display_pub
    assert "clear_output" in vars(publisher)
    assert "publish" not in vars(publisher), "the method is wrapped only until the next output"
    publisher.clear_output(wait=True)
    assert "publish" in vars(publisher)
    cpu_notebook.run("%unload_ext ipygpumem")
    assert "publish" not in vars(publisher)
    assert "clear_output" not in vars(publisher)
