"""The label of measured code in tables."""

from __future__ import annotations

import pytest

from ipygpumem.core.report import CODE_WIDTH, code_label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("x = 1\ny = 2", "x = 1"),
        ("\n  # why\n\n  for i in x:\n    pass", "for i in x:"),
        ("%%gpumem --snapshot a\nx = 1", "x = 1"),
        ("%%time\n%%gpumem\n# c\nx", "x"),
        ("%load_ext ipygpumem", "%load_ext ipygpumem"),
        ("# only a comment", "# only a comment"),
        ("%%bash", "%%bash"),
        ("x\t=\x1b[2J1", "x =?[2J1"),
        ("TOKEN = 'hf_swordfish'", "TOKEN = '***'"),
        ("PIN = 1234", "PIN = ***"),
        ("%%bash\nexport PASSWORD=swordfish", "export PASSWORD=***"),
        ("%%writefile .env\nWANDB_API_KEY=swordfish", "***"),
        ("%%writefile config.yaml\npassword: swordfish", "password: ***"),
        ("%%writefile config.yaml\nmodel: gpt2", "model: gpt2"),
        ("%%time\nx = f('a b')", "x = f('a b')"),
        ("%%capture\n%env TOKEN=swordfish", "%env TOKEN=***"),
        ("%%time\n!app --api-key swordfish", "!app --api-key ***"),
        ("%%time\n# c\n%%bash\nmysql -pswordfish", "mysql -p***"),
        ("%%bash\nPASSWORD=!swordfish", "***"),
        ("glpat-AbCdEfGhIjKlMnOpQrSt", "***"),
        ("xoxb-12345-abcde", "***"),
        ("sk-ant-api03-abc-def", "***"),
        ("optimizer.state", "optimizer.state"),
        ("%env TOKEN=!swordfish", "%env TOKEN=***"),
        ("env TOKEN swordfish", "env TOKEN ***"),
        ("%time " * 330 + "!mysql -pswordfish", "%time " * 13 + "%…"),
        (f"x = f({'a, ' * 30}'swordfish', token=b)", f"x = f({'a, ' * 24}a…"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_first_line_of_code(text, label):
    assert code_label(text) == label


def test_long_line_is_clipped():
    assert code_label("x" * CODE_WIDTH) == "x" * CODE_WIDTH
    label = code_label("x" * (CODE_WIDTH + 1))
    assert (len(label), label[-2:]) == (CODE_WIDTH, "x…")
    assert code_label("x" * (1 << 24))[-1] == "…"
