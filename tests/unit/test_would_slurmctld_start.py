# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The trial start of slurmctld, with stand-ins for its commands; tests/proof/slurm_config.py has the real ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "roles/slurm/files/would-slurmctld-start.sh"
# What `unshare` starts says that it runs. It ignores SIGTERM, as a slurmctld on a busy machine is late to heed it.
UNSHARE = """#!/bin/sh
[ "$5" = true ] && exit 0
echo 'slurmctld: Running as primary controller'
trap '' TERM
sleep 30
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_slurmctld_that_must_be_killed_would_start_all_the_same(tmp_path: Path, shell: str) -> None:
    programs, copy = tmp_path / "bin", tmp_path / "copy"
    for folder in (programs, copy):
        folder.mkdir()
    for name, text in {"unshare": UNSHARE, "slurmctld": "#!/bin/sh\n", "scontrol": "#!/bin/sh\n", "chown": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (copy / "slurm.conf").write_text("NodeName=n1\n")
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C"}
    argv = [shell, str(SCRIPT), str(copy), "/etc/slurm"]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=25)
    assert (done.stdout, done.returncode) == ("slurmctld would start\n", 0)
