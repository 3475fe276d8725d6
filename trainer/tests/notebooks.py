# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m trainer.tests.notebooks`: makes notebooks of the lessons' texts and runs every cell, without Jupyter."""

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

LABS = Path(__file__).parents[1] / "labs"
LESSONS = ("data_parallel", "model_parallel")


def cells(text: str) -> list[tuple[str, str]]:
    """(kind, source) of a text's cells: blocks of Python are code, the rest is Markdown."""
    parts = re.split(r"^```python\n(.*?)^```\n", text, flags=re.MULTILINE | re.DOTALL)
    kinds = [("code" if number % 2 else "markdown", part.strip("\n")) for number, part in enumerate(parts)]
    return [(kind, source) for kind, source in kinds if source]


def execute(text: str) -> dict[str, Any]:
    """The text as an executed notebook (nbformat 4.5); raises the error of a cell that fails."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    count = 0
    for number, (kind, source) in enumerate(cells(text)):
        cell: dict[str, Any] = {"id": f"cell-{number}", "cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            count += 1
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(source, f"<cell {number}>", "exec"), namespace)
            output = {"name": "stdout", "output_type": "stream", "text": said.getvalue().splitlines(keepends=True)}
            cell |= {"execution_count": count, "outputs": [output] if said.getvalue() else []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": made, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}


def main() -> int:
    os.environ["PYTHONPATH"] = str(LABS.parents[1])
    for lesson in LESSONS:
        notebook = execute((LABS / f"{lesson}.md").read_text())
        (LABS / f"{lesson}.ipynb").write_text(json.dumps(notebook, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
