# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Playbooks of the local Kubernetes refuse what it cannot do, before anything starts. tests/proof/local_kubernetes.py starts a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playbook import ROOT, run_playbook


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        (
            "local_kubernetes_up",
            {"muster_local_shrink": "1"},
            "(SHRINK=1) does nothing; run make down ON=kubernetes FLEET=blue, then make site ON=kubernetes with COMPUTE.",
        ),
        ("local_kubernetes_up", {"muster_monitoring": "1"}, "leave it out, or install the operator of Prometheus"),
        ("local_kubernetes_up", {"muster_local_compute": "10"}, "A local cluster has 1 to 9 nodes, not 10."),
        ("local_kubernetes_up", {"muster_local_compute": 0}, "A local cluster has 1 to 9 nodes, not 0."),
        ("local_kubernetes_up", {"muster_local_compute": "three"}, "A local cluster has 1 to 9 nodes, not three."),
        (
            "local_fault",
            {"muster_fault_node": "node1", "muster_faults": [{"fault": "gpu_lost", "index": 0}]},
            "those of blue rehearse none; name a cluster of make site ON=kubernetes TYPE=p5.48xlarge in muster_fleet.",
        ),
    ],
)
def test_what_a_local_kubernetes_cannot_do_is_refused(name: str, given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    options = ("-i", ROOT / "inventory/local_kubernetes", "-e", json.dumps({"muster_fleet": "blue", **given}))
    done = run_playbook(tmp_path, f"playbooks/{name}.yml", *options)
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in said
    assert "usage:" not in said
    assert not (tmp_path / "state").exists()
