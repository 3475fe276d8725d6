# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""A fleet that rehearses p5.48xlarge: site.yml goes the whole way of GPU nodes on stand-ins, jobs get their GPUs, and faults are named."""

from __future__ import annotations

import json

import pytest
import yaml
from e2e_fleet import ROOT, Fleet, brought_up

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.hardware.nccl_env import nccl_env
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

pytestmark = pytest.mark.engine

TYPE = "p5.48xlarge"
GROUP_VARS = ROOT / "inventory/local/group_vars/all.yml"
# How each GPU's device file answers: ENXIO where the job may open it, because no hardware is behind it, and EPERM where it may not.
LOOK = """
import errno, os
def answer(path):
    try:
        return os.close(os.open(path, os.O_RDWR)) or "opened"
    except OSError as error:
        return errno.errorcode[error.errno]
names = [name for name in os.environ if name.startswith(("NCCL_", "FI_", "CUDA_VISIBLE"))]
print("RESULT", *(answer("/dev/nvidia%d" % index) for index in range(8)))
print("".join("SEES %s=%s\\n" % (name, os.environ[name]) for name in names), end="")
"""


@pytest.fixture(scope="module")
def p5(artifacts, request: pytest.FixtureRequest) -> Fleet:
    arguments = ("-e", f"muster_local_type={TYPE}", "-e", "muster_local_compute=2")
    return brought_up(artifacts, request, "rehearsal", *arguments, inventory=ROOT / "inventory/local", timeout=1500)


def report_of(run) -> dict:
    return json.loads((run / "report.json").read_text())


def answers(text: str) -> list[list[str]]:
    """How the device files answered each rank."""
    return [line.split()[1:] for line in text.splitlines() if line.startswith("RESULT")]


def run_job(fleet: Fleet, name: str, **more: object) -> str:
    """Run a job document whose ranks look at their devices and environment; return its output."""
    path = fleet.folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, "nodes": 2, "command": ["python3", "-c", f"exec({LOOK!r})"], **more}))
    done = fleet.run("playbooks/job.yml", "-e", f"job=@{path}")
    assert done.returncode == 0, done.stdout[-3000:]
    return (fleet.latest / "jobs" / name / "output.txt").read_text()


def test_the_whole_way_is_green_and_says_rehearsal(p5: Fleet) -> None:
    assert p5.first.stdout.split("SUMMARY")[1].strip().splitlines()[1].startswith(f"REHEARSAL of {TYPE}, fleet rehearsal: passed in ")
    report = report_of(p5.first_run)
    assert (report["run"]["rehearses"], report["run"]["verdict"]) == ([TYPE], "passed")
    carried = {entry["component"] for entry in report["fleet"]["versions"]}
    gpu_node = {"nvidia_driver", "nvidia_fabric", "cuda", "gdrcopy", "efa", "nccl", "aws_ofi_nccl", "nccl_tests"}
    assert gpu_node | {"docker", "nvidia_container_toolkit", "enroot_pyxis", "dcgm", "slurm", "trainer"} <= carried
    assert f"<p>REHEARSAL of {TYPE}" in (p5.first_run / "report.html").read_text()


def test_what_looked_at_a_stand_in_is_the_committed_list(p5: Fleet) -> None:
    records = report_of(p5.first_run)["checks"]["records"]
    missing = {f"{record['component']}.{record['check']}" for record in records if record["status"] == "not_run"}
    known = yaml.safe_load(GROUP_VARS.read_text())
    of_type = [name for group in ("muster_controller", "muster_gpu", "muster_efa") for name in known["__local_rehearsed"][group]]
    assert missing == {*known["__local_not_run"], *of_type}
    # Nothing that the type's nodes have would have failed.
    assert {record.get("rehearsed") for record in records} == {None, "passed"}


def test_srun_opens_the_gpus_that_it_asked_for(p5: Fleet) -> None:
    for options, wanted in ((["--gpus-per-node=2"], ["ENXIO"] * 2 + ["EPERM"] * 6), ([], ["EPERM"] * 8)):
        said = p5.ansible("controller-1", "srun", "--quiet", "-N1", *options, "python3", "-c", LOOK, user="muster")
        assert answers(said) == [wanted]


def test_a_job_gets_all_gpus_and_nccl_s_environment_once(p5: Fleet) -> None:
    said = run_job(p5, "looks")
    assert answers(said) == [["ENXIO"] * 8] * 2
    seen = [line.removeprefix("SEES ") for line in said.splitlines() if line.startswith("SEES ")]
    assert seen.count("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7") == 2
    wanted = {each["name"]: each["value"] for each in nccl_env(catalogue.instance_type(TYPE), stack_files.load("aws-2026.11"))}
    assert {"NCCL_NET", "NCCL_SOCKET_IFNAME"} <= set(wanted)
    assert sorted(seen) == sorted([*(f"{name}={value}" for name, value in wanted.items()), "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"] * 2)


def test_a_job_that_wants_no_gpus_gets_none(p5: Fleet) -> None:
    assert answers(run_job(p5, "looks-without", gpus_per_node=0)) == [["EPERM"] * 8] * 2


def test_the_job_of_the_type_is_kept(p5: Fleet) -> None:
    """On CPUs a small model trains; the document that real nodes would run is beside it."""
    real = json.loads((p5.first_run / "jobs/train/real.json").read_text())
    assert (real["procs_per_node"], real["gpus_per_node"]) == (8, 8)
    assert "nccl" in real["command"]


def test_floors_and_ceiling_are_in_the_report(p5: Fleet) -> None:
    [entry] = [entry for entry in report_of(p5.first_run)["collectives"] if entry["collective"] == "all_reduce"]
    floor = catalogue.nccl_expectation(TYPE, 2, "all_reduce", entry["best"]["size"])["floor"]
    highest = entry["floors"][-1]["floor"]
    assert highest == pytest.approx(floor, abs=0.05)
    assert highest <= entry["best"]["busbw"] <= entry["ceiling"]
    assert (entry["verdict"], entry["rehearsed"]) == ("not_run", "passed")


def fault(fleet: Fleet, *faults: dict) -> None:
    """Give compute-2 these faults in place of those that it had."""
    done = fleet.run("playbooks/local_fault.yml", "-e", json.dumps({"muster_fault_node": "compute-2", "muster_faults": faults}))
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_slow_host_fails_the_gate(p5: Fleet) -> None:
    fault(p5, {"fault": "slow", "factor": 0.8})
    try:
        slow = p5.run("playbooks/nccl_tests.yml", "-e", "muster_rerun=true", "-e", '{"muster_collectives": {"ops": ["all_reduce"]}}')
    finally:
        fault(p5)
    assert slow.returncode != 0
    [entry] = report_of(p5.latest)["collectives"]
    assert (entry["verdict"], entry["rehearsed"], entry["collective"]) == ("not_run", "failed", "all_reduce")
    assert any("is below the floor of" in reason for reason in entry["reasons"]), entry["reasons"]


def test_a_lost_gpu_and_card_are_named_and_the_node_gets_no_job(p5: Fleet) -> None:
    fault(p5, {"fault": "gpu_missing", "index": 3}, {"fault": "efa_missing", "index": 5})
    try:
        done = p5.run("site.yml", "-e", "muster_rerun=true", "-e", '{"muster_collectives": {"ops": ["all_reduce"]}}')
        checks = report_of(p5.latest)["checks"]["records"]
    finally:
        fault(p5)
    assert done.returncode != 0
    failed = [line for line in done.stdout.split("SUMMARY")[1].splitlines() if line.startswith("FAILED")]
    assert {line.split(": ")[0] for line in failed} == {"FAILED compute-2"}
    records = {f"{each['component']}.{each['check']}": each for each in checks if each.get("rehearsed") == "failed"}
    assert {"nvidia_driver.gpus", "efa.devices"} <= set(records), failed
    assert {each["host"] for each in records.values()} == {"compute-2"}
    jobs = {job["name"]: job["nodes"] for job in report_of(p5.latest)["jobs"]}
    assert jobs.keys() >= {"train", "nccl-all_reduce"}
    assert jobs["train"] == ["compute-1"]
    assert not any("compute-2" in nodes for nodes in jobs.values())
