# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A proof: a job document asks for a profile by nsys. Nodes without it are refused before submission; with it the ranks leave a report.

Run by `make proofs`, or `pytest --engine tests/proof/nsight_profile.py`; about five minutes on two cores.
"""

from __future__ import annotations

import json

import pytest
from e2e_fleet import ROOT, Fleet, one_sentence

pytestmark = pytest.mark.engine

NAME = "nsight"
WITHOUT = ["common", "slurm"]
# Two ranks on two nodes. nsys begins after its delay, and the program must live that long.
JOB = {
    "name": "profiled",
    "nodes": 2,
    "command": ["python3", "-c", "import time; [time.sleep(0.1) for _ in range(60)]"],
    "launcher": {"kind": "slurm", "profile": {"tool": "nsys", "ranks": [1], "delay": 1, "duration": 2}},
}
CALLS = """
import glob, sqlite3, subprocess
[report] = glob.glob("/fsx/muster/jobs/profiled-*/profile/*")
assert report.endswith("/rank-1.nsys-rep"), report
subprocess.run(["nsys", "export", "--type=sqlite", "--output=/run/profile.sqlite", report], check=True, capture_output=True)
query = "select count(*) from OSRT_API join StringIds on id = nameId where value like '%nanosleep%'"
print(sqlite3.connect("/run/profile.sqlite").execute(query).fetchone()[0])
"""


@pytest.fixture(scope="module")
def fleet(artifacts) -> Fleet:
    made = Fleet(artifacts.folder(NAME), NAME, ROOT / "inventory/local")
    artifacts.leave(f"fleet {NAME}", lambda: made.run("playbooks/local_down.yml").check_returncode())
    (made.folder / "profiled.json").write_text(json.dumps(JOB))
    for playbook in ("local_up", "provision"):
        done = play(made, f"playbooks/{playbook}.yml", WITHOUT)
        assert done.returncode == 0, done.stdout[-4000:]
    return made


def play(fleet: Fleet, playbook: str, components: list[str], *extra: str):
    return fleet.run(playbook, "-e", json.dumps({"muster_components": components}), *extra)


def test_nodes_without_nsys_are_refused_before_submission(fleet: Fleet) -> None:
    done = play(fleet, "playbooks/job.yml", WITHOUT, "-e", "job=@profiled.json")
    assert one_sentence(done).endswith(
        "Job profiled asks for a profile by nsys on 2 node(s), and 0 of 2 have it; set nsight_enabled and run provision.yml, or set "
        "launcher.profile.tool to torch."
    )
    assert fleet.ansible("controller-1", "sacct", "--allusers", "--noheader", "--name=profiled") == ""


def test_the_ranks_that_were_named_leave_a_report(fleet: Fleet) -> None:
    for playbook, *extra in (("provision",), ("job", "-e", "job=@profiled.json")):
        done = play(fleet, f"playbooks/{playbook}.yml", [*WITHOUT, "nsight"], *extra)
        assert done.returncode == 0, done.stdout[-4000:]
    # The program waits ten times a second, and nsys looked for two seconds.
    assert 10 <= int(fleet.ansible("compute-1", "python3", "-c", CALLS)) <= 40
