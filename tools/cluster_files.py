#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Writes tests/fixtures/architectures/: what each kind of cluster gives its tool or service, on each market that it has.

With --check nothing is written; the exit code says whether the files are current. A change of a file shows in its diff what a change of
the code, of the catalogue or of a default does to a cluster.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.muster.fleet.plugins.module_utils.aws import render
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load

FOLDER = ROOT / "tests/fixtures/architectures"
RESERVATION = "cr-0123456789abcdef0"
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine"
# The markets of each kind. A reservation and a block of HyperPod are both a training plan.
MARKETS = {
    "ec2": ("on-demand", "spot", "reservation", "capacity-block"),
    "batch": ("on-demand", "reservation", "capacity-block"),
    "parallelcluster": ("on-demand", "spot", "reservation", "capacity-block"),
    "pcs": ("on-demand", "spot", "reservation", "capacity-block"),
    "eks": ("on-demand", "spot", "reservation", "capacity-block"),
    "hyperpod-slurm": ("on-demand", "reservation", "capacity-block"),
    "hyperpod-eks": ("on-demand", "spot", "reservation", "capacity-block"),
}
EXISTING_VPC: dict[str, Any] = {
    "id": "vpc-0123456789abcdef0",
    "subnets": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    "public_subnet": "subnet-0123456789abcdef2",
    "security_group": "sg-0123456789abcdef0",
}


def document(kind: str, market: str = "on-demand", group: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A cluster document with one node group on a market."""
    nodes: dict[str, Any] = {"name": "gpu", "type": "p5.48xlarge", "count": 2, "market": market}
    if market in ("reservation", "capacity-block"):
        nodes["reservation"] = PLAN if kind.startswith("hyperpod") else RESERVATION
    head: dict[str, Any] = {"name": "head", "type": "m6i.2xlarge", "role": "controller", "count": 1}
    return {
        "kind": kind,
        "name": "mine",
        "region": "us-east-1",
        "zones": ["us-east-1a", "us-east-1b"],
        "image": "ami-0123456789abcdef0",
        "storage": {"bucket": "my-bucket", "lustre": {"gib": 4800}},
        "nodes": ([head] if kind in ("parallelcluster", "hyperpod-slurm") else []) + [{**nodes, **(group or {})}],
        **changes,
    }


def examples() -> dict[str, dict[str, Any]]:
    """{name of a golden file: its cluster document}."""
    found = {f"{kind}-{market}": document(kind, market) for kind, markets in MARKETS.items() for market in markets}
    head = {"name": "head", "type": "m6i.2xlarge", "role": "controller", "count": 1}
    login = {"name": "login", "type": "m6i.2xlarge", "role": "login", "count": 2}
    cpu = {"name": "cpu", "type": "c7i.48xlarge", "count": 0, "min": 0, "max": 8}
    trn = {"name": "trn", "type": "trn2.48xlarge", "count": 4}
    database = {"uri": "db.example.com:3306", "user": "slurm", "database": "mine"}
    secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:slurm"
    found["parallelcluster-cpu"] = document("parallelcluster", nodes=[head, login, cpu], image="", os="alinux2023", key_pair="mine")
    storage = {"bucket": "my-bucket", "openzfs": {"gib": 512}}
    found["parallelcluster-trn"] = document(
        "parallelcluster",
        nodes=[head, trn],
        vpc=EXISTING_VPC,
        storage=storage,
        accounting={**database, "secret": secret},
        setup={"collection": "s3://my-bucket/muster-fleet-0.2.0.tar.gz"},
    )
    found["pcs-cpu"] = document("pcs", nodes=[login, cpu], vpc={"stack": "shared-vpc"}, accounting={"managed": True}, storage=storage)
    found["ec2-slurm"] = document(
        "ec2", nodes=[{**head, "type": "c7i.2xlarge"}, {"name": "gpu", "type": "p5.48xlarge", "market": "spot", "max": 4}]
    )
    found["eks-unmanaged"] = document("eks", "spot", {"managed": False, "type": "g6e.48xlarge", "count": 0, "max": 4}, vpc=EXISTING_VPC)
    found["eks-trn"] = document("eks", group=trn, zones=["us-east-1b", "us-east-1c"], image="", vpc={"nat": "zone"})
    return found


def text_of(cluster: dict[str, Any]) -> str:
    """All files that are of the kind itself, one after another."""
    loaded = load(cluster)
    created = {name: text for name, text in render.files(loaded).items() if name == "create.sh"}
    found = {**render.own_files(loaded), **created}
    return "".join(f"==> {name} <==\n{text}" for name, text in found.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    texts = {FOLDER / f"{name}.txt": text_of(cluster) for name, cluster in examples().items()}
    others = sorted(set(FOLDER.glob("*")) - set(texts))
    old = [path for path, text in texts.items() if not path.exists() or path.read_text() != text] + others
    if options.check:
        for path in old:
            print(f"{path.relative_to(ROOT)} is not current; run `make docs`")
        return 1 if old else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text)
    for path in others:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
