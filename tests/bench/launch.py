# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""From submission to the first step of a training on two nodes: Muster's job beside what a person would submit.

Slurm: beside `sbatch` of a script of five lines. Kubernetes: beside `kubectl create` of the manifest that job.yml renders. The time begins
when script or manifest is written, for its service gets it in the next moment, and ends when train.jsonl has its first line. The fewest
seconds count: a rank that does not find the other's name tries again some seconds later, whoever submitted the job.

A fleet's controller is another machine than its nodes. Here both share two cores, so the playbook is stopped from the moment in which the
service has the job until the first step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from localkube.cluster import Cluster

from .fleets import ROOT, Fleet
from .table import Row, row

ROUNDS = 4
NAME = "benchlaunch"
KUBECTL = [".venv/bin/python", "-m", "localkube", "kubectl", NAME]
# A step, without data to read or a checkpoint to write.
TRAIN = "python -m trainer train --model tiny --dataset synthetic --train_batch_size 2 --max_steps 1 --backend gloo --checkpoint_freq 9"
BARE = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --output=%(folder)s/bare-%%j.txt
export PYTHONPATH=%(path)s
srun %(venv)s/bin/%(train)s --checkpoint_dir %(folder)s/%(name)s
"""
SUBMIT_BARE = """
cat >%(folder)s/%(name)s.sh
date +%%s.%%N
runuser -u muster -- sbatch --parsable %(folder)s/%(name)s.sh >/dev/null
"""
WAIT = """
for _ in $(seq 1200); do [ ! -s %(file)s ] || { sleep 1; stat -c %%.9Y %(file)s; exit; }; sleep 0.1; done
echo "the first step did not come within 120 s" >&2
exit 1
"""


def document(folder: Path, name: str, checkpoints: str) -> str:
    """The path of a job document of two ranks on two nodes."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, "nodes": 2, "time_limit": 10, "command": [*TRAIN.split(), "--checkpoint_dir", checkpoints]}))
    return str(path)


def on(fleet: Fleet, script: str, text: str = "") -> list[str]:
    """What a script prints on the controller."""
    done = subprocess.run([*fleet.ssh("controller-1"), script], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"on the controller: {done.stderr[-1000:]}")
    return done.stdout.split()


@contextlib.contextmanager
def playbook(fleet: Fleet, argv: list[str]) -> Iterator[Callable[[], None]]:
    """A playbook that runs meanwhile. What it gives stops the playbook, which goes on to its end afterwards."""
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, cwd=ROOT, env=fleet.env, start_new_session=True, stdin=null, stdout=null, stderr=null)
    try:
        yield lambda: os.killpg(process.pid, signal.SIGSTOP)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        process.wait()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} ended with {process.returncode}")


def slurm(folder: Path) -> tuple[float, float]:
    """The fewest seconds of Muster's job and of bare sbatch."""
    ours, bare, shared = [], [], "/fsx/muster/bench"
    fleet = Fleet(NAME, 2, folder)
    # As the local fleet of make site.
    (fleet.inventory / "local_fleet.yml").write_text((ROOT / "inventory/local/local_fleet.yml").read_text() + "compute: 2\n")
    with fleet:
        given = json.dumps({"muster_components": ["common", "slurm", "trainer"], "common_ca_certificates": []})
        fleet.playbook("playbooks/provision.yml", "-e", given)
        on(fleet, f"install -d -o muster {shared}")
        for number in range(ROUNDS + 1):
            name = f"ours-{number}"
            asked = ["-e", given, "-e", f"job=@{document(folder, name, f'{shared}/{name}')}", "-e", "verb=submit"]
            queued = f"until squeue --noheader --name={name} | grep -q . || [ -s {shared}/{name}/train.jsonl ]; do sleep 0.1; done"
            with playbook(fleet, fleet.argv("playbooks/job.yml", *asked)) as stop:
                on(fleet, queued)
                stop()
                [end] = on(fleet, WAIT % {"file": f"{shared}/{name}/train.jsonl"})
            [began, script] = on(fleet, f"stat -c '%.9Y %n' /fsx/muster/jobs/{name}-*/job.sbatch")
            ours.append(float(end) - float(began))
            [found] = on(fleet, f"grep -o 'PYTHONPATH=[^ ;]*' {script} | head -n 1")
            [venv] = on(fleet, f"grep -o '/[^ :\"]*/venv[^/ :\"]*' {script} | head -n 1")
            values = {"folder": shared, "name": f"bare-{number}", "path": found.partition("=")[2], "venv": venv, "train": TRAIN}
            on(fleet, "squeue --noheader | grep -q . && sleep 5 || true")
            [began, end] = on(fleet, SUBMIT_BARE % values + WAIT % {"file": f"{shared}/bare-{number}/train.jsonl"}, BARE % values)
            bare.append(float(end) - float(began))
    # The first of each reads torch from the disk.
    return min(ours[1:]), min(bare[1:])


def first_step(path: Path) -> float:
    """When a file of the claim got its one line, in seconds since 1970."""
    until = time.time() + 120
    while not (path.exists() and path.stat().st_size):
        if time.time() > until:
            raise SystemExit(f"{path} has no step after 120 s")
        time.sleep(0.1)
    time.sleep(1)
    return path.stat().st_mtime


def manifests(cluster: Cluster, name: str) -> list[Path]:
    """The stored manifests of a job."""
    return list((cluster.folder.parent / "jobs").glob(f"{name}-*/manifest.json"))


def submitted(cluster: Cluster, name: str) -> None:
    """Wait until the API has the job."""
    until = time.time() + 120
    while not (found := manifests(cluster, name)):
        if time.time() > until:
            raise SystemExit(f"job {name} has no manifest after 120 s")
        time.sleep(0.1)
    subprocess.run(
        [*KUBECTL, "wait", "--for=create", f"pytorchjob/{found[0].parent.name}", "--timeout=60s"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def kubernetes(folder: Path) -> tuple[float, float]:
    """The fewest seconds of Muster's job and of kubectl with the same manifest."""
    ours, bare = [], []
    (folder / "kubernetes").mkdir()
    cluster, fleet = Cluster(NAME), Fleet(NAME, 2, folder / "kubernetes")
    argv = [".venv/bin/ansible-playbook", "-i", "inventory/local_kubernetes", "-e", f"muster_fleet={NAME}"]
    # The cluster's state is the user's.
    del fleet.env["XDG_STATE_HOME"]
    claim = cluster.volumes / "fsx-claim"
    try:
        fleet.measure([*argv, "site.yml"])
        for number in range(ROUNDS + 1):
            name = f"ours-{number}"
            asked = ["-e", f"job=@{document(folder, name, f'/checkpoints/{name}')}"]
            with playbook(fleet, [*argv, "playbooks/job.yml", *asked, "-e", "verb=submit"]) as stop:
                submitted(cluster, name)
                stop()
                step = first_step(claim / name / "train.jsonl")
            [stored] = manifests(cluster, name)
            ours.append(step - stored.stat().st_mtime)
            text = json.dumps(json.loads(stored.read_text())).replace(name, f"bare-{number}")
            time.sleep(5)
            began = time.time()
            subprocess.run([*KUBECTL, "create", "-f", "-"], cwd=ROOT, input=text, capture_output=True, text=True, check=True)
            bare.append(first_step(claim / f"bare-{number}" / "train.jsonl") - began)
            time.sleep(5)
    finally:
        fleet.measure([*argv, "playbooks/local_kubernetes_down.yml"])
    return min(ours[1:]), min(bare[1:])


def rows(folder: Path) -> list[Row]:
    out = []
    for service, other in ((slurm, "bare sbatch"), (kubernetes, "kubectl with the same manifest")):
        ours, bare = service(folder)
        what = f"From submission to the first step, {service.__name__.capitalize()}"
        out.append(row(what, f"{ours:.2f} s", f"{other}, {bare:.2f} s", ours / bare, "≤ 1.1"))
    return out
