"""Programs: their cells, requirements and known answers."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent / "programs"
_CELL = re.compile(r"^# %%[ ]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of a program. ``measured`` cells run under the options, three times unless ``once`` is true."""

    code: str
    measured: bool
    once: bool


@dataclass(frozen=True)
class Program:
    """A program, read from a file whose head defines the constants described here.

    Attributes:
        requires: REQUIRES, the libraries that the program imports besides torch.
        gpus: GPUS, the number of GPUs that it needs.
        ranks: RANKS, the number of processes that torchrun starts; 0 for a program that runs in a kernel.
        model: MODEL, the variable for ``--modules``; None if the program has no single model.
        raises: RAISES, whether a cell raises an exception on purpose.
        varies: VARIES, what differs between two runs without the extension, with the reason; as ``option: category``,
            what differs under an option because of PyTorch.
        needs_cuda: CUDA, whether the program cannot run on a CPU.
        answer: ANSWER, the largest consumers of memory by which the program was designed. ``lines`` is part of a line
            that reaches the peak, ``peak`` part of the line that allocated most of the memory in use at the peak,
            ``modules`` a pattern of the module that owns most of it, ``kind`` its kind, and ``who`` the holder of most
            memory at the end. Alternatives are separated by ``|``.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    requires: tuple[str, ...]
    gpus: int
    ranks: int
    model: str | None
    raises: bool
    varies: dict[str, str]
    needs_cuda: bool
    answer: dict[str, str]

    @property
    def missing(self) -> list[str]:
        return [library for library in self.requires if importlib.util.find_spec(library) is None]


def read_program(path: Path) -> Program:
    text = path.read_text(encoding="utf-8")
    head, *parts = _CELL.split(text)
    tree = ast.parse(head)
    constants = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
    }
    cells = tuple(
        Cell(code.strip("\n"), "measured" in title.split(), "once" in title.split())
        for title, code in zip(parts[::2], parts[1::2], strict=True)
    )
    return Program(
        path.stem,
        ast.get_docstring(tree).splitlines()[0].rstrip("."),
        cells,
        tuple(constants.get("REQUIRES", ())),
        constants.get("GPUS", 1),
        constants.get("RANKS", 0),
        constants.get("MODEL", "model"),
        constants.get("RAISES", False),
        constants.get("VARIES", {}),
        constants.get("CUDA", False),
        constants["ANSWER"],
    )


def read_programs() -> list[Program]:
    return [read_program(path) for path in sorted(DIRECTORY.glob("*.py"))]
