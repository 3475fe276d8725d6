# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Commands as a user types them, also when make has started the tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Variables that make passes to the makes that it starts. They change its output, and a make that a user types has none of them.
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")


def typed(argv: list[str], environment: Mapping[str, str], timeout: float = 600) -> subprocess.CompletedProcess:
    """Run a command in the root of the checkout, without a standard input; `stdout` has all of its output."""
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={name: value for name, value in environment.items() if name not in OF_MAKE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
