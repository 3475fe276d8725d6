# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from ansible_collections.muster.fleet.plugins.module_utils.slurm import node as slurm_node
from ansible_collections.muster.fleet.plugins.module_utils.slurm import text as slurm
from ansible_collections.muster.fleet.plugins.modules import slurm_node as slurm_node_module

FIXTURES = Path(__file__).parent.parent / "fixtures" / "slurm"


def said(name):
    return (FIXTURES / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("compute-[1-2]", ["compute-1", "compute-2"]),
        ("a[08-11,20],b", ["a08", "a09", "a10", "a11", "a20", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("x", ["x"]),
        ("", []),
    ],
)
def test_host_lists_expand(text, hosts):
    assert slurm.expand(text) == hosts


@pytest.mark.parametrize("text", ["a[1-2", "a1-2]", "a[x]", "a[[1]]"])
def test_a_damaged_host_list_is_refused(text):
    with pytest.raises(ValueError, match="is not a host list"):
        slurm.expand(text)


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["compute-2", "compute-1"], "compute-[1-2]"),
        (["a10", "a9", "a8", "a1"], "a[1,8-9],a10"),
        (["a08", "a09", "a9"], "a9,a[08-09]"),
        (["login", "a1"], "login,a1"),
        ([], ""),
    ],
)
def test_host_lists_compress_and_expand_back(hosts, text):
    assert slurm.compress(hosts) == text
    assert sorted(slurm.expand(text)) == sorted(hosts)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running", {"job_id": 6, "state": "RUNNING", "ended": None, "nodes": ["compute-1", "compute-2"], "started": 1795259727}),
        ("pending", {"state": "PENDING", "reason": "Resources", "nodes": [], "started": None}),
        ("dark", {"state": "PENDING", "reason": "PartitionDown"}),
        ("done", {"state": "COMPLETED", "ended": 1795259736, "name": "muster:ok:0123456789ab"}),
        ("failed", {"state": "FAILED", "exit_code": 3, "signal": 0, "reason": "NonZeroExitCode"}),
        ("oom", {"state": "OUT_OF_MEMORY", "exit_code": 0, "signal": 125, "nodes": ["compute-2"]}),
        ("cancelled", {"state": "CANCELLED", "signal": 15}),
    ],
)
def test_scontrol_jobs(name, expected):
    record = slurm.job_record(said("scontrol_job_" + name))
    assert {key: record[key] for key in expected} == expected


def test_what_is_no_job_is_an_error():
    with pytest.raises(ValueError, match="Invalid job id"):
        slurm.job_record(said("scontrol_job_unknown"))


@pytest.mark.parametrize(
    ("job_id", "expected"),
    [
        (6, {"state": "COMPLETED", "elapsed_s": 9, "restarts": 0, "nodes": ["compute-1", "compute-2"]}),
        (10, {"state": "CANCELLED"}),
        (26, {"state": "FAILED", "reason": "OUT_OF_MEMORY", "exit_code": 1}),
        (27, {"state": "COMPLETED", "restarts": 1, "submitted": 1795260615, "elapsed_s": 1}),
        (29, {"state": "TIMEOUT"}),
    ],
)
def test_accounting_rows(job_id, expected):
    record = slurm.accounting_record(said("sacct"), job_id)
    assert {key: record[key] for key in expected} == expected


def test_no_accounting_row():
    assert slurm.accounting_record(said("sacct"), 2) is None


def test_sinfo_nodes_with_a_bar_in_the_reason():
    nodes = slurm.node_records(said("sinfo_drained"))
    assert nodes["compute-1"] == {"state": "idle", "cpus": 1, "partitions": ["main"], "reason": ""}
    assert nodes["compute-2"]["reason"] == "muster:nccl: busbw 80 GB/s | floor 320"
    assert sorted(nodes["compute-2"]["partitions"]) == ["dark", "main"]


def test_cpus_of_a_partition():
    assert slurm.cpus_of(said("sinfo_idle")) == {"compute-1": 1, "compute-2": 1}
    assert slurm.cpus_of(said("sinfo_idle"), "dark") == {"compute-2": 1}
    with pytest.raises(slurm.SlurmError, match=r"no partition drak; set launcher\.partition, did you mean dark"):
        slurm.cpus_of(said("sinfo_idle"), "drak")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("PartitionDown", "impossible"),
        ("QOSMaxCpuPerJobLimit", "impossible"),
        ("launch failed requeued held", "impossible"),
        ("ReqNodeNotAvail, May be reserved for other job", "unavailable"),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "unavailable"),
        ("Resources", None),
        ("Priority", None),
        ("BeginTime", None),
        ("AssocGrpCpuLimit", None),
    ],
)
def test_pending_reasons(reason, kind):
    assert slurm.pending_problem(reason)[0] == kind


def test_the_newest_live_job_of_a_name():
    text = "7|RUNNING|muster:a:1\n9|COMPLETED|muster:a:1\n8|PENDING|muster:a:1\n12|RUNNING|muster:b:1\n"
    assert slurm.newest_live(text, "muster:a:1") == 8
    assert slurm.newest_live("", "muster:a:1") is None


def test_gpus_of_a_partition():
    """The column %G as Slurm 24.11 prints it; a node stands there once for each partition."""
    main = "a1|main*|gpu:h100:8(S:0-1)\na2|main*|gpu:4\na3|main*|(null)\na4|main*|nvme:2,gpu:a100:2,gpu:t4:1(S:0)\n"
    text = main + "a1|debug|gpu:h100:8(S:0-1)\n"
    assert slurm.gpus_of(text) == {"a1": 8, "a2": 4, "a3": 0, "a4": 3}
    assert slurm.gpus_of(text, "debug") == {"a1": 8}
    assert slurm.gpus_of(text, "none") == {}


NODES = {
    "a1": {"state": "idle", "reason": ""},
    "a2": {"state": "drained", "reason": "muster:nccl: slow"},
    "a3": {"state": "draining*", "reason": "bad disk, ticket 4711"},
    "a4": {"state": "down*", "reason": "Not responding"},
    "a5": {"state": "down", "reason": "on fire"},
    "a6": {"state": "drained", "reason": "muster:nccl2: slow"},
}


def test_draining_leaves_what_is_out_of_service():
    changes, notes = slurm_node.plan(NODES, ["a[1-6]"], "drained", "nccl", "very\nslow")
    assert changes == dict.fromkeys(["a1", "a4"], "muster:nccl: very slow")
    assert notes == ["a3 stays draining*: bad disk, ticket 4711", "a5 stays down: on fire", "a6 stays drained: muster:nccl2: slow"]
    assert slurm_node.command(changes, "drained") == [
        "scontrol", "update", "NodeName=a[1,4]", "State=DRAIN", "Reason=muster:nccl: very slow",
    ]  # fmt: skip


def test_only_the_same_check_gives_a_newer_reason():
    changes, _notes = slurm_node.plan(NODES, ["a[2,3,6]"], "drained", "nccl", "very slow", update_reason=True)
    assert changes == {"a2": "muster:nccl: very slow"}
    assert slurm_node.plan(NODES, ["a2"], "drained", "nccl", "slow", update_reason=True)[0] == {}


def test_nodes_that_left_the_configuration():
    text = (
        "NodeName=a1 Arch=x86_64 State=IDLE Comment=State=DYNAMIC\nNodeName=a2 State=DOWN*+DRAIN \n"
        "NodeName=d1 State=IDLE+DYNAMIC_NORM \nslurm_load_node error\n"
    )
    assert slurm_node.leaving(text, ["a1"]) == ["a2"]
    assert slurm_node.leaving(text, ["a1", "a2"]) == []


@pytest.fixture
def slurm_says(tmp_path, monkeypatch):
    """A function that puts a slurm.conf here and a Slurm whose slurmctld answers with a text, or not at all."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_node_module, "CONFIGURATION", str(tmp_path / "slurm.conf"))

    def say(conf, answer):
        if conf:
            (tmp_path / "slurm.conf").write_text(conf)
        (tmp_path / "answer").write_text(answer)
        found = f"cat {tmp_path}/answer" if answer else "echo slurm_load_node error: no answer >&2; exit 1"
        for name, text in (("scontrol", found), ("sinfo", "echo 'a2|idle|1|compute|none'")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)

    return say


ALL_BUT_A1 = {"check_mode": True, "all_but": ["a1"], "state": "drained", "check": "leaving", "reason": "gone"}


@pytest.mark.parametrize(
    ("conf", "answer", "leaving"),
    [("", "", []), ("NodeName=a1\n", "", []), ("NodeName=a[1-2]\n", "NodeName=a1 State=IDLE\nNodeName=a2 State=IDLE\n", ["a2"])],
)
def test_nodes_that_are_not_in_the_inventory_are_leaving(call, slurm_says, conf, answer, leaving):
    slurm_says(conf, answer)
    assert list(call(slurm_node_module, **ALL_BUT_A1)["nodes"]) == leaving


def test_a_slurmctld_that_does_not_answer_may_have_jobs_there(call, slurm_says):
    slurm_says("# NodeName=a9\nNodeName=DEFAULT CPUs=1\nNodeName=a[1-2] CPUs=1\n nodename = a3\n", "")
    result = call(slurm_node_module, **ALL_BUT_A1)
    assert result["failed"]
    assert result["msg"].startswith(
        "a[2-3] left the inventory, and whether jobs run there is unknown because slurmctld does not answer: slurm"
    )


@pytest.mark.parametrize("names", [[], [""], [" ", ""]])
def test_no_node_is_no_success(call, slurm_says, names):
    slurm_says("", "")
    result = call(slurm_node_module, names=names, state="drained", check="nccl", reason="slow")
    assert result["failed"]
    assert result["msg"] == "names has no node to be drained; name one, or skip the task when there is none."


def test_resuming_undoes_only_own_drains():
    changes, notes = slurm_node.plan(NODES, ["a[1-6]"], "resumed", "nccl", "")
    assert list(changes) == ["a2"]
    assert [note.split()[0] for note in notes] == ["a3", "a4", "a5", "a6"]
    assert slurm_node.command(changes, "resumed") == ["scontrol", "update", "NodeName=a2", "State=RESUME"]


def test_unknown_nodes_and_checks_are_named():
    with pytest.raises(slurm_node.SlurmNodeError, match="no node a11; did you mean a1"):
        slurm_node.plan(NODES, ["a11"], "drained", "nccl", "x")
    with pytest.raises(slurm_node.SlurmNodeError, match="no usable name"):
        slurm_node.plan(NODES, ["a1"], "drained", "a:b", "x")


def test_a_draining_node_is_busy_and_a_drained_one_is_not():
    assert slurm_node.busy(NODES, ["a2", "a3", "a4"]) == ["a3"]
