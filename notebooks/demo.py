"""Execute notebooks/quickstart.ipynb in a real kernel and print the report of every cell.

``make demo`` runs this script. ``python notebooks/demo.py [NOTEBOOK] [-o DIRECTORY]`` executes another notebook. The
executed notebook and an HTML page of it are written to the directory (default: demo).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("notebook", nargs="?", type=Path, default=HERE / "quickstart.ipynb")
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent / "demo", metavar="DIRECTORY")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(arguments.notebook, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        store_widget_state=False,
        on_cell_executed=show,
        extra_arguments=["--log-level=ERROR"],  # hides ipykernel's warnings about its local sockets
    )
    error = None
    try:
        client.execute()
    except CellExecutionError as cell_error:
        error = cell_error
    notebook.metadata.pop("widgets", None)
    executed = arguments.output / arguments.notebook.name
    nbformat.write(notebook, executed)
    page = executed.with_suffix(".html")
    page.write_text(html(notebook), encoding="utf-8")
    print(f"\nexecuted notebook: {executed}\npage:              {page}")
    if error is not None:
        print(error, file=sys.stderr)
    return 1 if error is not None else 0


def show(cell, cell_index, execute_reply):  # noqa: ARG001 (keywords used by nbclient)
    """Print the code of a cell and its outputs."""
    code = cell.source.splitlines()
    print(f"\n\033[2mIn [{cell.execution_count}]:\033[0m {code[0]}{' ...' if len(code) > 1 else ''}", flush=True)
    for output in cell.outputs:
        if output.output_type == "stream":
            print(output.text.rstrip())
        elif output.output_type == "error":
            print(f"{output.ename}: {output.evalue}")
        else:
            print(output.data.get("text/plain", ""))


def html(notebook) -> str:
    """Return the notebook as an HTML page."""
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter(template_name="lab").from_notebook_node(notebook)
    return body


if __name__ == "__main__":
    if sys.platform == "win32":
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    sys.exit(main())
