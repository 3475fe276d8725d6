# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""One sentence refuses an invalid Slurm configuration before a node is made, started or reached; all sentences are in
tests/unit/test_slurm_faults.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_10_bad_input import NAME, PLAYBOOK, Refuse, inventory, refuse  # noqa: F401 (fixtures)

pytestmark = pytest.mark.engine

NO_ACCOUNTING = {"slurm_config": {"AccountingStorageType": "accounting_storage/none"}}
ONE = {"name": "compute", "hosts": ["node-1"]}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"slurm_partitions": [{"name": "main", "nodegroups": ["comptue"]}]},
            "The partition main names the node group comptue, which slurm_nodegroups does not have; did you mean compute?",
        ),
        (
            {**NO_ACCOUNTING, "slurm_qos": [{"name": "high"}]},
            "AccountingStorageType is accounting_storage/none, and without slurmdbd Slurm has no QOS and no limits: remove the QOS high",
        ),
        (
            {"slurm_nodegroups": [{**ONE, "params": {"Gres": "gpu:h100:8"}}]},
            "The node group compute has the gres gpu and no device for it: add a line to slurm_gres with AutoDetect",
        ),
        (
            {"slurm_nodegroups": [{**ONE, "instance_type": "p5.48xlage"}]},
            "The catalogue has no instance type p5.48xlage; the nearest are p5.48xlarge, p5e.48xlarge, p5.4xlarge.",
        ),
        (
            {"slurm_users": [{"name": name, "uid": 2000, "account": "muster"} for name in ("muster", "ada")]},
            "Users muster and ada of slurm_users both have the UID 2000; give each its own UID.",
        ),
        (
            {"slurm_pam_adopt": {"admins": ["sudo"]}, "slurm_config": {"PrologFlags": "Alloc"}},
            "slurm_pam_adopt needs Contain in PrologFlags, or a job has no processes to add to; add it to slurm_config.",
        ),
    ],
)
def test_invalid_slurm_configuration(refuse: Refuse, inventory, tmp_path: Path, variables: dict[str, object], sentence: str) -> None:  # noqa: F811
    (tmp_path / "variables.json").write_text(json.dumps({"muster_fleet": NAME, **variables}))
    said = refuse(*PLAYBOOK, *inventory("node-1"), "-e", f"@{tmp_path}/variables.json")
    assert sentence in said
