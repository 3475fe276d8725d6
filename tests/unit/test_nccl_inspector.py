# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""NCCL's inspector: how it is built and started, and what its lines say.

fixtures/nccl_inspector has files that plugins of NCCL 2.28.9 and 2.30.7 wrote of one rank. Lines of more ranks and hosts, and of
point-to-point calls, are constructed in their form (inspector_json.cc, format v4.0).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_inspector import event, not_run, summary
from ansible_collections.muster.fleet.plugins.module_utils.health.nccl_judge import inspected
from ansible_collections.muster.fleet.plugins.modules import nccl_inspector

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests/fixtures/nccl_inspector"
TYPICAL = (RECORDED / "2.28.9-all_reduce/vm-pid3565.log").read_text().splitlines()[-1]


def line(rank: int = 0, number: int = 1, **more: Any) -> str:
    """A recorded line as one of an all_reduce of 1 GiB on 4 ranks of 2 nodes."""
    record = json.loads(TYPICAL)
    record["header"].update(rank=rank, n_ranks=4, nnodes=2)
    record["metadata"].update(hostname=f"compute-{rank // 2 + 1}.cluster.local", pid=100 + rank)
    record["coll_perf"].update(coll_sn=number, coll_msg_size_bytes=1 << 30, coll_exec_time_us=4000)
    record["coll_perf"].update(coll_algobw_gbs=268.435456, coll_busbw_gbs=402.653184)
    for key, value in more.items():
        part = record["header" if key in record["header"] else "coll_perf"]
        assert key in part
        part[key] = value
    return json.dumps(record, separators=(",", ":")) + "\n"


P2P = '{"header":{"id":"0x1","rank":0,"n_ranks":4,"nnodes":2},"metadata":{"hostname":"a"},"p2p_perf":{"p2p":"Send","p2p_sn":1}}\n'


def files(*lines: str) -> list[tuple[str, list[str]]]:
    """Each line in the file of its rank."""
    found: dict[str, list[str]] = {}
    for each in lines:
        found.setdefault("compute-pid%d.log" % json.loads(each)["metadata"]["pid"], []).append(each)
    return sorted(found.items())


def recorded(folder: str) -> list[tuple[str, list[str]]]:
    return [(path.name, path.read_text().splitlines(keepends=True)) for path in sorted((RECORDED / folder).iterdir())]


@pytest.mark.parametrize(
    ("folder", "sizes", "busbw", "rank"),
    [
        ("2.28.9-all_reduce", (8, 16 << 20), 1.860621, 1),
        ("2.28.9-all_gather", (32, 16 << 20), 1.864964, 1),
        ("2.28.9-reduce_scatter", (32, 16 << 20), 1.851381, 1),
        ("2.28.9-broadcast", (8, 16 << 20), 4.692928, 1),
        ("2.28.9-reduce", (8, 16 << 20), 3.741574, 1),
        ("2.30.7-all_reduce", (8 << 10, 16 << 20), 1.862273, 0),
    ],
)
def test_what_nccl_wrote_on_a_gpu(folder: str, sizes: tuple[int, int], busbw: float, rank: int) -> None:
    """Sizes as nccl-tests counts them. One of two ranks had a file, see the README there."""
    found = summary(recorded(folder))
    assert (found["lines"], found["damaged"], found["point_to_point"], found["hosts"]) == (5, 0, 0, ["vm"])
    assert (found["status"], found["reason"]) == ("not_run", "1 of 2 ranks wrote lines")
    small, large = found["rows"]
    assert (small["size"], large["size"], large["collective"]) == (*sizes, folder.partition("-")[2])
    assert (large["ranks"], large["nodes"], large["calls"], large["timing"]) == (2, 2, 3, ["kernel_gpu"])
    assert (large["slowest"]["rank"], large["slowest"]["host"]) == (rank, "vm")
    assert large["busbw"] == busbw


@pytest.mark.parametrize("op", ["alltoall", "sendrecv"])
def test_sends_of_2_28_leave_an_empty_file(op: str) -> None:
    found = summary(recorded(f"2.28.9-{op}"), 2)
    assert (found["status"], found["files"], found["lines"], found["reason"]) == ("not_run", 1, 0, "none of 0 lines is of a collective")


def test_a_row_for_each_collective_and_size() -> None:
    busbw = {0: 400.0, 1: 410.0, 2: 300.0, 3: 410.0}
    lines = [line(rank, number, coll_busbw_gbs=busbw[rank]) for rank in busbw for number in (1, 2, 3)]
    lines += [line(rank, 4, coll="AllGather", coll_msg_size_bytes=1 << 20) for rank in busbw]
    found = summary(files(*lines), 4)
    assert (found["status"], found["reason"], found["files"], found["lines"], found["damaged"]) == ("passed", "", 4, 16, 0)
    assert (found["ranks"], found["communicators"], found["hosts"]) == (4, 1, ["compute-1", "compute-2"])
    gather, reduced = found["rows"]
    assert (gather["collective"], gather["size"]) == ("all_gather", 4 << 20), "nccl-tests counts the parts of all ranks"
    assert reduced == {
        "collective": "all_reduce",
        "size": 1 << 30,
        "ranks": 4,
        "nodes": 2,
        "calls": 3,
        "busbw": 405.0,
        "hosts": {"compute-1": 405.0, "compute-2": 355.0},
        "slowest": {"rank": 2, "host": "compute-2", "busbw": 300.0},
        "timing": ["kernel_gpu"],
    }


def test_lines_that_cannot_be_read_are_counted() -> None:
    good = line()
    lines = [good, good[:-40], "\n", "[]\n", '{"header":{}}\n', line(coll_busbw_gbs="nan"), line(coll_exec_time_us=0), line(rank=-1), P2P]
    found = summary([("a.log", lines)], 1)
    assert (found["lines"], found["damaged"], found["point_to_point"], len(found["rows"])) == (8, 6, 1, 1)
    assert found["examples"] == [
        "a.log line 2: it is not JSON",
        "a.log line 4: it is not of the inspector's form",
        "a.log line 5: it has no 'coll_perf'",
    ]
    for text in (lines[5], lines[6], lines[7]):
        with pytest.raises(ValueError, match=r"is not a number|its time is 0"):
            event(text)


def test_several_communicators() -> None:
    """A split of the ranks has communicators of its own, with ranks from 0 on."""
    lines = [line(rank) for rank in range(4)]
    lines += [line(rank, 1, id=name, n_ranks=2, nnodes=1) for name in ("0xa", "0xb") for rank in (0, 1)]
    found = summary(files(*lines), 4)
    assert (found["status"], found["communicators"], found["ranks"]) == ("passed", 3, 4)
    assert [(row["ranks"], row["calls"]) for row in found["rows"]] == [(2, 2), (4, 1)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "no process wrote a file"),
        ([("a.log", [P2P])], "none of 1 lines is of a collective"),
        ([("a.log", ["{torn"])], "none of 1 lines is of a collective: a.log line 1: it is not JSON"),
        ([("a.log", [])], "none of 0 lines is of a collective"),
        (files(line(0), line(1), line(3)), "3 of 4 ranks wrote lines"),
    ],
)
def test_what_does_not_show_every_rank_is_not_run(lines: list, reason: str) -> None:
    for expected in (4, None):
        found = summary(lines, expected)
        assert found["status"] == "not_run"
        assert found["reason"].startswith(reason)


def document() -> dict[str, Any]:
    table = {"collective": "all_reduce", "verdict": "passed", "remarks": []}
    return {"verdict": "passed", "reasons": [], "remarks": [], "tables": [table, {**table, "collective": "broadcast"}]}


def test_it_joins_the_verdict_and_changes_none() -> None:
    busbw = {0: 400.0, 1: 400.0, 2: 370.0, 3: 400.0}
    found = inspected(document(), summary(files(*[line(rank, coll_busbw_gbs=busbw[rank]) for rank in busbw])), 0.95)
    said = "NCCL's inspector: busbw 400 GB/s at 1 GiB, the median of 1 call on 4 ranks; the slowest is rank 2 on compute-2 with 370 GB/s"
    assert found["tables"][0]["remarks"] == [said]
    assert found["tables"][1]["remarks"] == []
    assert (found["verdict"], found["remarks"]) == ("passed", ["all_reduce: " + said])
    assert inspected(document(), found["inspector"], 0.90)["remarks"] == [], "370 of 400 is more than nine tenths"
    assert inspected(document(), {}) == document()
    assert inspected(document(), not_run("for this"))["remarks"] == ["NCCL's inspector did not run: for this"]


def test_the_module_reads_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        (tmp_path / f"compute-pid{rank}.log").write_text(line(rank))
    (tmp_path / "notes.txt").write_text("{")
    for folder, status in ((tmp_path, "passed"), (tmp_path / "gone", "not_run")):
        with patch_module_args({"folder": str(folder), "expect_ranks": 4}), pytest.raises(SystemExit):
            nccl_inspector.main()
        result = json.loads(capsys.readouterr().out)
        assert (result["status"], result["changed"], result["damaged"]) == (status, False, 0)


SOURCES = {
    "Makefile": "src.build:\nsrc.install:\n\tmkdir -p $(PREFIX)/lib\n\techo nccl >$(PREFIX)/lib/libnccl.so.2\n",
    # NVIDIA's has these flags in 2.28.
    "inspector/Makefile": "CXXFLAGS := -O3 -march=native -Wall\n"
    "libnccl-profiler-inspector.so:\n\techo plugin with $(CUDA_HOME), $(CXXFLAGS) >$@\n",
}


@pytest.mark.parametrize("where", ["plugins/profiler", "ext-profiler"])
@pytest.mark.parametrize("options", [("inspector",), ("90",)])
def test_the_build_has_the_inspector_when_it_is_asked_for(tmp_path: Path, where: str, options: tuple[str, ...]) -> None:
    for name, text in SOURCES.items():
        path = tmp_path / "nccl-1" / (name if name == "Makefile" else f"{where}/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with tarfile.open(tmp_path / "nccl.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "nccl-1", "nccl-1")
    words = ["nccl", "2.30.7", str(tmp_path / "nccl.tar.gz"), "/opt/nccl", "id", str(tmp_path / "out/result.tar.gz")]
    (tmp_path / "out").mkdir()
    script = ROOT / "roles/phases/files/source-build.sh"
    subprocess.run(["bash", str(script), *words, str(ROOT / "roles/nccl/files/build-nccl.sh"), *options], check=True)
    with tarfile.open(tmp_path / "out/result.tar.gz") as built:
        names = {name for name in built.getnames() if built.getmember(name).isfile() and "muster" not in name}
        built.extractall(tmp_path / "opt", filter="data")
    plugin, wrapper = "./lib/libnccl-profiler-inspector.so", "./bin/nccl-inspector"
    assert names == {"./lib/libnccl.so.2"} | ({plugin, wrapper} if options == ("inspector",) else set())
    if options != ("inspector",):
        return
    run = [str(tmp_path / "opt" / wrapper), "env"]
    assert (tmp_path / "opt" / plugin).read_text().endswith(", -O3 -Wall\n"), "the node may have an older CPU than the builder"
    job = tmp_path / "jobs/a b"
    shown = subprocess.run(run, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"], "MUSTER_JOB_DIR": str(job)})
    assert {each for each in shown.stdout.splitlines() if each.startswith("NCCL_")} == {
        "NCCL_PROFILER_PLUGIN=/opt/nccl/lib/libnccl-profiler-inspector.so",
        "NCCL_INSPECTOR_ENABLE=1",
        f"NCCL_INSPECTOR_DUMP_DIR={job}/nccl-inspector-0",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500",
    }
    assert (job / "nccl-inspector-0").is_dir(), "ranks that start together cannot all make it"
    mine = tmp_path / "mine"
    own = {"PATH": os.environ["PATH"], "NCCL_INSPECTOR_DUMP_DIR": str(mine), "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "0"}
    shown = subprocess.run(run, capture_output=True, text=True, check=True, env=own)
    assert f"NCCL_INSPECTOR_DUMP_DIR={mine}\n" in shown.stdout and "MICROSECONDS=0\n" in shown.stdout
    assert mine.is_dir()
    own["NCCL_INSPECTOR_DUMP_DIR"] = str(tmp_path / "nccl.tar.gz/mine")
    shown = subprocess.run(run, capture_output=True, text=True, check=True, env=own)
    assert "nccl.tar.gz" in shown.stderr and "NCCL_INSPECTOR_ENABLE=1\n" in shown.stdout, "the job itself still runs"


PLAY = """\
- hosts: localhost
  gather_facts: false
  vars_files: [{vars}]
  tasks:
    - ansible.builtin.set_fact:
        __collective_reasons: []
    - ansible.builtin.include_tasks: tasks/collective_job.yml
    - ansible.builtin.copy: {{dest: {folder}/reasons.json, content: "{{{{ __collective_reasons | to_json }}}}"}}
"""
RUN = """\
- ansible.builtin.set_fact:
    run_job: {folder: "{{ lookup('env', 'PWD') }}/job", nodes: [compute-1, compute-2], pods: {}, result: {restarts: 1}}
"""


@pytest.mark.parametrize(
    ("inspector", "wrote", "allowed", "reasons"),
    [
        ({"run": True, "reason": ""}, True, False, 0),
        ({"run": True, "reason": ""}, False, False, 1),
        ({"run": True, "reason": ""}, False, True, 0),
        ({"run": False, "reason": "compute-2 without it"}, True, False, 1),
        ({"run": False, "reason": ""}, True, False, 0),
    ],
)
def test_the_playbook_joins_it_to_the_verdict(tmp_path: Path, inspector: dict, wrote: bool, allowed: bool, reasons: int) -> None:
    """The tasks of nccl_tests.yml, with a job that has run already and was requeued once."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/collective_job.yml").write_text((ROOT / "playbooks/tasks/collective_job.yml").read_text())
    (tmp_path / "tasks/run_job.yml").write_text(RUN)
    (tmp_path / "job/nccl-inspector-1").mkdir(parents=True)
    for rank in range(16 if wrote else 15):
        (tmp_path / f"job/nccl-inspector-1/compute-pid{rank}.log").write_text(line(rank, n_ranks=16))
    (tmp_path / "run/jobs/nccl-all_reduce").mkdir(parents=True)
    output = (ROOT / "tests/fixtures/nccl/constructed-2.19.txt").read_text()
    (tmp_path / "run/jobs/nccl-all_reduce/output.txt").write_text(output)
    document = {"name": "nccl-all_reduce", "nodes": 2, "launcher": {"kind": "slurm"}}
    job = {"document": document, "real": None, "op": "all_reduce", "datatype": "float", "ranks": 16, "floors": [], "type": ""}
    given = {
        "collective_job": {**job, "hosts": ["localhost"], "inspector": inspector},
        "__run_dir": str(tmp_path / "run"),
        "muster_collectives": {"inspector": True},
    }
    (tmp_path / "vars.json").write_text(json.dumps(given))
    (tmp_path / "play.yml").write_text(PLAY.format(vars=tmp_path / "vars.json", folder=tmp_path))
    local: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    local["muster_allow_not_run"] = ["collectives.inspector"] if allowed else []
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"localhost": local}}}))
    done = run_playbook(tmp_path, "-i", tmp_path / "hosts.json", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "run/jobs/nccl-all_reduce/nccl.json").read_text())
    assert verdict["verdict"] == "passed", verdict["reasons"]
    said = json.loads((tmp_path / "reasons.json").read_text())
    assert len(said) == reasons
    if inspector["run"]:
        assert not {"changed", "failed"} & set(verdict["inspector"]), "only what the document has"
        assert (verdict["inspector"]["status"], verdict["inspector"]["ranks"]) == (("passed", 16) if wrote else ("not_run", 15))
    if reasons:
        why = inspector["reason"] or "15 of 16 ranks wrote lines"
        assert said[0].startswith(f"NCCL's inspector did not run ({why}); leave inspector out of muster_collectives")
    else:
        assert ("inspector" in verdict) == inspector["run"]
