from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from ipygpumem.jupyter.options import rewrite

pytestmark = pytest.mark.ipython

CALL = "get_ipython().run_line_magic('_gpumem_begin', {!r})\n"
HELP = "get_ipython().run_line_magic('gpumem', '--help')\n"


def through_ipython(cell):
    manager = TransformerManager()
    manager.cleanup_transforms.append(rewrite)
    return manager.transform_cell(cell)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%gpumem\nx\n", CALL.format("") + "x\n"),
        ("%%gpumem   --snapshot 'a b.pickle'  \nx\n", CALL.format("--snapshot 'a b.pickle'") + "x\n"),
        ("%%gpumem\t-q\nx\n", CALL.format("-q") + "x\n"),
        ("%%gpumem", CALL.format("")),
        ("%%gpumem\r\nx = 1\r\n", CALL.format("") + "x = 1\r\n"),
        ("%%gpumem -q\r\nx = 1\r\n", CALL.format("-q") + "x = 1\r\n"),
        ("%%gpumem\n\n\n  # deep\n", CALL.format("") + "\n\n# deep\n"),
        ("%%gpumem --snapshot 'ünï \\'.pickle'\nx\n", CALL.format("--snapshot 'ünï \\'.pickle'") + "x\n"),
        ("%%gpumem --help\nx\n", HELP),
        ("%%gpumem -h", HELP),
        ("%%gpumem --snapshot -h.pickle\nx\n", CALL.format("--snapshot -h.pickle") + "x\n"),
        ("%%gpumem\n%%bash -e\nls\n", CALL.format("") + "get_ipython().run_cell_magic('bash', '-e', 'ls\\n')\n"),
        ("%%gpumem\n\n%%bash\nls", CALL.format("") + "\nget_ipython().run_cell_magic('bash', '', 'ls\\n')\n"),
        ("%%gpumem -q\n%%gpumem -v x\n1\n", CALL.format("-q") + CALL.format("-v x") + "1\n"),
        ("%%gpumem\n    x = 1\n    y\n", CALL.format("") + "x = 1\ny\n"),
        ("  %%gpumem\n  x = 1\n", CALL.format("") + "x = 1\n"),
        ("%%gpumem\n>>> x = 1\n>>> y\n", CALL.format("") + "x = 1\ny\n"),
        ("%%gpumem\nIn [3]: x\n", CALL.format("") + "x\n"),
        ("\n\n%%gpumem\nx\n", CALL.format("") + "x\n"),
    ],
)
def test_rewritten_cell(cell, expected):
    assert through_ipython(cell) == expected


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "\n",
        "x\n",
        "%gpumem x\n",
        "%%gpumemory\nx\n",
        "%%time\n%%gpumem\n",
        "x = '''\n%%gpumem\n'''\n",
        "%%gpumem?\n",
    ],
)
def test_cells_that_are_not_rewritten(cell):
    lines = cell.splitlines(keepends=True)
    assert rewrite(lines) is lines


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
BODIES = st.lists(st.one_of(TEXT, st.sampled_from(["%%time", "    x", "# é", "'''", "", "%pwd", "f(\\"])), max_size=6)
ENDS = st.sampled_from(["\n", "\r\n"])


@pytest.mark.filterwarnings("ignore:`make_tokens_by_line`")  # older versions of IPython, for a line that ends in U+0085
@given(body=BODIES, end=ENDS, words=st.text(st.characters(categories=["L", "N"]), max_size=8))
@example(body=["    x = 1", "  y"], end="\n", words="")
def test_body_is_transformed_as_without_the_magic(body, end, words):
    """IPython applies the same transformations to the body as to a cell."""
    body = "".join(line + end for line in body)
    first = "".join(body.splitlines(keepends=True)[:1])
    # IPython removes blank lines at the start of a cell; below our magic they are kept, to preserve line numbers
    if not first.strip() or first.lstrip().startswith("%%gpumem"):
        return
    try:
        transformed = TransformerManager().transform_cell(body)
    except SyntaxError:
        return
    assert through_ipython(f"%%gpumem {words}{end}{body}") == CALL.format(words) + transformed


@given(body=BODIES, end=ENDS)
def test_rewriting_twice_changes_nothing(body, end):
    lines = "".join(f"{line}{end}" for line in ["%%gpumem -q", *body]).splitlines(keepends=True)
    rewritten = rewrite(lines)
    assert rewrite(list(rewritten)) == rewritten


@given(body=st.lists(TEXT.map(lambda text: "".join(text.split()))))
def test_lines_keep_their_numbers(body):
    """The number of lines is preserved, except for lines that another cell magic consumes."""
    lines = [f"{line}\n" for line in ["%%gpumem", *body]]
    if any(line.startswith("%%") for line in body):
        return
    assert rewrite(lines)[1:] == lines[1:]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("%%gpumem\n", "incomplete"),
        ("%%gpumem\nx = 1", "incomplete"),
        ("%%gpumem\nfor i in x:\n    i", "incomplete"),
        ("%%gpumem\nx = 1\n\n", "complete"),
        ("x = 1", "complete"),
        ("for i in x:", "incomplete"),
    ],
)
def test_terminal_prompt_waits_for_the_body(cpu_notebook, text, status):
    assert cpu_notebook.shell.input_transformer_manager.check_complete(text)[0] == status
