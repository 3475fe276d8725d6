# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m tests.bench.inventory`, part of `make bench`: muster.fleet.aws_fleet beside boto3's bare pagination and amazon.aws.aws_ec2.

All three read the same recorded pages (tests/support/ec2_replay.py). The seconds are CPU-seconds of the process that reads, the plugins'
less those of an `ansible-inventory` that has one host. `pages` is the loop over boto3's paginator alone, without importing boto3.
With sizes as arguments only these are measured: `python -m tests.bench.inventory 1000 5000x32`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- inventory: written by python -m tests.bench.inventory -->", "<!-- end of inventory -->"
SIZES = ("100", "1000", "5000", "10000", "100x32", "1000x32", "5000x32", "10000x32")

PAGES = """
import json, resource, sys, time
import boto3
client = boto3.client("ec2", region_name="us-east-1", endpoint_url=sys.argv[1])
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
pages = client.get_paginator("describe_instances").paginate()
found = [each for page in pages for part in page["Reservations"] for each in part["Instances"]]
took = time.process_time() - began
print(json.dumps({"hosts": len(found), "cpu_s": took, "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}))
"""

# The same groups for both plugins.
OPTIONS = """
regions: [us-east-1]
hostnames: [instance-id]
filters: {instance-state-name: [running]}
keyed_groups:
  - {key: tags.Role, prefix: role}
  - {key: tags.Cluster, prefix: cluster}
  - {key: instance_type, prefix: type}
  - {key: placement.availability_zone, prefix: az}
compose:
  ansible_host: private_ip_address
  gpu_count: "{'p5.48xlarge': 8, 'p5en.48xlarge': 8}.get(instance_type, 0)"
"""
FLEET = f"plugin: muster.fleet.aws_fleet\n{OPTIONS}"
FILES = {
    "fleet": ("aws_fleet.yml", FLEET + "variables: [instance_id, instance_type, private_ip_address]\n", "--list"),
    "all variables, --graph": ("aws_fleet.yml", FLEET, "--graph"),
    "all variables": ("aws_fleet.yml", FLEET, "--list"),
    "aws_ec2": ("aws_ec2.yml", f"plugin: amazon.aws.aws_ec2\n{OPTIONS}", "--list"),
}


class Run(NamedTuple):
    """A process that ended: CPU-seconds, peak memory in MiB, output."""

    cpu_s: float
    mib: float
    output: str


def run(argv: list[str], env: dict[str, str]) -> Run:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(argv, cwd=ROOT, env=env, stdout=out, stderr=err)
        _pid, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            err.seek(0)
            raise SystemExit(f"{' '.join(argv)} ended with {child.returncode}:\n{err.read()[-2000:]}")
        out.seek(0)
        return Run(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out.read())


def measure(size: str, which: tuple[str, ...], collections: Path | None = None) -> dict[str, float]:
    """Seconds and MiB for a size such as 5000 or 5000x32, where 32 are the cards of each instance."""
    count, _x, cards = size.partition("x")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ANSIBLE_"))}
    env |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}
    env |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    env["ANSIBLE_COLLECTIONS_PATH"] = f"{ROOT}/collections:{collections}" if collections else f"{ROOT}/collections"
    inventory = [sys.executable, "-c", "from ansible.cli.inventory import main; main()"]
    serve = [sys.executable, "tests/support/ec2_replay.py", count, cards or "1"]
    with tempfile.TemporaryDirectory() as made, subprocess.Popen(serve, cwd=ROOT, stdin=-1, stdout=-1, text=True) as api:
        assert api.stdin and api.stdout
        env["AWS_URL"] = api.stdout.readline().strip()
        bare = run([*inventory, "-i", "localhost,", "--list"], env)
        pages = json.loads(run([sys.executable, "-c", PAGES, env["AWS_URL"]], env).output)
        found = {"pages": pages["cpu_s"], "pages MiB": pages["mib"], "start": bare.cpu_s}
        for name in which:
            file, text, how = FILES[name]
            path = Path(made) / file
            path.write_text(text)
            took = run([*inventory, "-i", str(path), how], env)
            assert took.output.count("i-0") >= int(count), f"{name} has not all {count} hosts"
            found |= {name: took.cpu_s - bare.cpu_s, f"{name} MiB": took.mib - bare.mib}
        api.stdin.close()
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    lines = [
        "| Instances | pages | aws_fleet, few variables | / pages | / aws_ec2 | MiB / pages | all variables, --graph | --list | aws_ec2 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size, row in found.items():
        cells = [f"{row['pages']:.2f}", f"{row['fleet']:.2f}", f"{row['fleet'] / row['pages']:.2f}", f"{row['fleet'] / row['aws_ec2']:.3f}"]
        cells += [f"{row['fleet MiB'] / row['pages MiB']:.2f}"]
        cells += [f"{row[name]:.2f}" for name in ("all variables, --graph", "all variables", "aws_ec2")]
        lines.append(f"| {size.replace('x32', ', 32 cards')} | {' | '.join(cells)} |")
    machine = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}"
    when = f"CPU-seconds, measured {time.strftime('%Y-%m-%d')}, {machine}. The bounds at 5,000 are 1.5, 0.12 and 2."
    return "\n".join([when, "", *lines])


def main(sizes: tuple[str, ...] = SIZES) -> None:
    sys.path.insert(0, str(ROOT / "tests/support"))
    import amazon_aws

    text = table({size: measure(size, tuple(FILES), amazon_aws.collections()) for size in sizes})
    print(text)
    page = ROOT / "docs/inventory.md"
    old = page.read_text()
    page.write_text(old[: old.index(BEGIN) + len(BEGIN)] + "\n" + text + "\n" + old[old.index(END) :])


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or SIZES)
