# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""`python -m tests.bench.inventory`, part of `make bench`: muster.fleet.aws_fleet beside boto3's bare pagination and amazon.aws.aws_ec2.

All three read the same recorded pages (tests/support/ec2_replay.py). The seconds are CPU-seconds of the process that reads, less those of
its bare start. For the plugins, that is an `ansible-inventory` with one host; for the program that paginates, a Python that does nothing.
Arguments choose the sizes: `python -m tests.bench.inventory 1000 5000x32`. Then it only prints, because docs/inventory.md shows all sizes.
"""

from __future__ import annotations

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
import sys, time
import boto3
client = boto3.client("ec2", region_name="us-east-1", endpoint_url=sys.argv[1])
began = time.process_time()
pages = client.get_paginator("describe_instances").paginate()
found = [each for page in pages for part in page["Reservations"] for each in part["Instances"]]
print(len(found), time.process_time() - began)
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


def measure(size: str, which: tuple[str, ...], collections: Path | None = None, runs: int = 1) -> dict[str, float]:
    """Seconds and MiB for a size: 5000 instances, or 5000x32 for instances with 32 network cards each. The least of several runs."""
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
        seen = []
        for _each in range(runs):
            bare, python = run([*inventory, "-i", "localhost,", "--list"], env), run([sys.executable, "-c", ""], env)
            program = run([sys.executable, "-c", PAGES, env["AWS_URL"]], env)
            hosts, pages = program.output.split()
            assert hosts == count
            found = {"pages": float(pages), "program": program.cpu_s - python.cpu_s, "program MiB": program.mib - python.mib}
            for name in which:
                file, text, how = FILES[name]
                path = Path(made) / file
                path.write_text(text)
                took = run([*inventory, "-i", str(path), how], env)
                assert took.output.count("i-0") >= int(count), f"{name} has not all {count} hosts"
                found |= {name: took.cpu_s - bare.cpu_s, f"{name} MiB": took.mib - bare.mib}
            seen.append(found)
        api.stdin.close()
    return {name: min(each[name] for each in seen) for name in seen[0]}


def table(found: dict[str, dict[str, float]]) -> str:
    lines = [
        "| Instances | pages | program | aws_fleet, few variables: --list | / pages | / program | / aws_ec2 | MiB / program"
        " | all variables: --graph | / pages | --list | / pages | aws_ec2 |",
        "|" + "---|" * 13,
    ]
    for size, row in found.items():

        def cell(name: str, by: str = "", digits: int = 2, row: dict[str, float] = row) -> str:
            if name not in row or (by and by not in row):
                return "not measured"
            return f"{row[name] / (row[by] if by else 1):.{digits}f}"

        cells = [cell("pages"), cell("program"), cell("fleet"), cell("fleet", "pages"), cell("fleet", "program")]
        cells += [cell("fleet", "aws_ec2", 3), cell("fleet MiB", "program MiB")]
        cells += [cell("all variables, --graph"), cell("all variables, --graph", "pages")]
        cells += [cell("all variables"), cell("all variables", "pages"), cell("aws_ec2")]
        lines.append(f"| {size.replace('x32', ', 32 cards')} | {' | '.join(cells)} |")
    machine = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}"
    when = f"CPU-seconds, measured {time.strftime('%Y-%m-%d')}, {machine}. The bounds at 5,000 are 1.5, 0.12 and 2."
    return "\n".join([when, "", *lines])


def kinds(size: str) -> tuple[str, ...]:
    """What to measure at a size. ansible-inventory needs many minutes to print all variables of thousands of hosts with 32 cards."""
    count, _x, cards = size.partition("x")
    return ("fleet", "all variables, --graph") if int(count) * int(cards or 1) > 50_000 else tuple(FILES)


def write(text: str) -> None:
    page = ROOT / "docs/inventory.md"
    old = page.read_text()
    page.write_text(old[: old.index(BEGIN) + len(BEGIN)] + "\n" + text + "\n" + old[old.index(END) :])


def main(sizes: tuple[str, ...] = SIZES) -> None:
    sys.path.insert(0, str(ROOT / "tests/support"))
    import amazon_aws

    text = table({size: measure(size, kinds(size), amazon_aws.collections()) for size in sizes})
    print(text)
    if sizes == SIZES:
        write(text)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or SIZES)
