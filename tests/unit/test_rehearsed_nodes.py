# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Nodes that rehearse an instance type: what each type gives, and what the stand-ins say, by Muster's own parsers."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.containers import rehearsal
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import collectives, devices, nvidia, programs, system
from ansible_collections.muster.fleet.plugins.module_utils.containers.stand_ins import node as stand_in
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, efa, gpu
from ansible_collections.muster.fleet.plugins.module_utils.health import gpu_checks, nccl_results
from ansible_collections.muster.fleet.plugins.module_utils.stack import facts

TYPES = [name for name in catalogue.names() if catalogue.instance_type(name)["accelerator"] in ("nvidia", "neuron")]
GIB = 1 << 30


def lay_out(root: Path, document: dict, faults: list) -> None:
    """Write what a node gets below /sys and /proc/driver into a folder; the counters of EFA are more than a thousand files."""
    files, links = system.sys_files(document, faults, stand_in.VERSIONS)
    system.write({str(root / "sys" / path): text for path, text in files.items() if "counters" not in path})
    system.write({str(root / "proc/driver" / path): text for path, text in system.proc_files(document, stand_in.VERSIONS).items()})
    for path, target in links.items():
        (root / "sys" / path).symlink_to(f"{root}{target}")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """A node of a type with faults; calling it runs a stand-in and returns (exit code, stdout, stderr)."""

    def make(kind: str, faults: list | None = None, allowed=lambda _path: True, **env: str):
        document = rehearsal.rehearsal(kind)
        stand_in.check_faults(document, [{k: v for k, v in each.items() if k != "host"} for each in faults or []])
        paths = {"DOCUMENT": document, "FAULTS": faults or [], "MANIFEST": {}}
        for name, content in paths.items():
            (tmp_path / name).write_text(json.dumps(content))
            monkeypatch.setattr(stand_in, name, str(tmp_path / name))
        devices = {path for path, _major, _minor in stand_in.device_files(document, faults or [])}
        monkeypatch.setattr(nvidia, "opened", lambda path: path in devices and allowed(path))
        for name in [name for name in os.environ if name.startswith(("SLURM", "CUDA", "OMPI", "NCCL"))]:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)

        def run(name: str, *args: str) -> tuple[int, str, str]:
            code = programs.main([f"/usr/local/bin/{name}", *args])
            return code, *capsys.readouterr()

        return run

    return make


# What a type gives


@pytest.mark.parametrize("kind", TYPES)
def test_devices_of_every_type_are_the_catalogues(kind: str) -> None:
    have, document = catalogue.instance_type(kind), rehearsal.rehearsal(kind)
    devices = stand_in.device_files(document, [])
    paths = [path for path, _major, _minor in devices]
    assert len(set(paths)) == len({device[1:] for device in devices}) == len(devices)
    assert paths == document["devices"]
    kinds = {"nvidia": "/dev/nvidia", "neuron": "/dev/neuron"}
    for accelerator, start in kinds.items():
        found = [path for path in paths if path.removeprefix(start).isdigit()]
        assert len(found) == (have["gpus"] if have["accelerator"] == accelerator else 0)
    assert sum("uverbs" in path for path in paths) == have["efa_cards"] + len(document["switch_ports"])
    assert bool(document["switches"] or document["switch_ports"]) == have["nvswitch"]
    buses = [each["bus"] for key in ("gpus", "neuron", "switches", "switch_ports", "efa") for each in document[key]]
    assert len(set(buses)) == len(buses)
    assert [each["card"] for each in document["efa"]] == [each["card"] for each in have["interfaces"] if each["type"] == "efa-only"]


@pytest.mark.parametrize("kind", TYPES)
def test_sysfs_of_every_type_is_read_as_that_type(kind: str, tmp_path: Path) -> None:
    have, document = catalogue.instance_type(kind), rehearsal.rehearsal(kind)
    lay_out(tmp_path, document, [])
    found = efa.devices(str(tmp_path))
    assert [device["name"] for device in found] == sorted(each["name"] for each in document["efa"])
    assert {device["state"] for device in found} <= {"ACTIVE"}
    assert len({device["mac"] for device in found} - {""}) == have["efa_cards"]
    assert {device["bus"] for device in found} == {each["bus"] for each in document["efa"]}
    on_bus = gpu.on_the_bus(str(tmp_path))
    assert len(on_bus) == (have["gpus"] if have["accelerator"] == "nvidia" else 0)
    assert set(on_bus.values()) <= set(have["gpu_pci"])


def test_every_efa_device_has_counters() -> None:
    files, _links = system.sys_files(rehearsal.rehearsal("p5.48xlarge"), [], stand_in.VERSIONS)
    counters = [path for path in files if "/ports/1/hw_counters/" in path]
    assert len(counters) == 32 * 22
    assert {path.rpartition("/")[2] for path in counters} >= {"tx_bytes", "rdma_read_bytes", "retrans_timeout_events"}


def test_only_devices_of_experimental_majors_are_made() -> None:
    """A driver of this machine must not answer: Linux keeps 60 to 63 and 120 to 127 for local use."""
    majors = {major for kind in TYPES for _path, major, _minor in stand_in.device_files(rehearsal.rehearsal(kind), [])}
    assert majors <= {*range(60, 64), *range(120, 128)}


def test_the_program_needs_only_the_standard_library() -> None:
    name, program = list(rehearsal.node_files("p5.48xlarge").items())[1]
    assert (name, program[:19]) == ("stand-in", b"#!/usr/bin/python3\n")
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        texts = [archive.read(each) for each in archive.namelist()]
    found = [each for text in texts for each in ast.walk(ast.parse(text))]
    imported = {each.name for one in found if isinstance(one, ast.Import) for each in one.names}
    imported |= {each.module for each in found if isinstance(each, ast.ImportFrom) and not each.level}
    assert imported <= {*sys.stdlib_module_names, "stand_ins.programs"}


# What the stand-ins say


@pytest.mark.parametrize("kind", [kind for kind in TYPES if catalogue.instance_type(kind)["accelerator"] == "nvidia"])
def test_nvidia_smi_of_every_type_is_read_as_that_type(kind: str, node, tmp_path: Path) -> None:
    have, run = catalogue.instance_type(kind), node(kind)
    code, out, err = run("nvidia-smi", "-q", "-x")
    assert (code, err) == (0, f"muster rehearsal: nvidia-smi is a stand-in for {kind}; it looked at no hardware\n")
    links = gpu.parse_nvlink(run("nvidia-smi", "nvlink", "-s")[1])
    lay_out(tmp_path, rehearsal.rehearsal(kind), [])
    found = gpu.facts(gpu.on_the_bus(str(tmp_path)), gpu.parse_smi(out), links)
    assert gpu.faults(found, have) == []
    assert (found["count"], found["models"]) == (have["gpus"], [have["gpu_model"]])
    assert {each["bus"] for each in found["gpus"]} == set(gpu.on_the_bus(str(tmp_path)))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if catalogue.instance_type(kind)["efa"]])
def test_fi_info_of_every_type_is_read_as_that_type(kind: str, node, tmp_path: Path) -> None:
    run = node(kind)
    code, out, _err = run("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
    if not catalogue.instance_type(kind)["efa_cards"]:
        assert code == 1
        return
    assert code == 0
    lay_out(tmp_path, rehearsal.rehearsal(kind), [])
    said = run("fi_info", "--version")[1]
    found = efa.facts(efa.devices(str(tmp_path)), efa.parse_fi_info(out), efa.versions(str(tmp_path), said))
    assert efa.faults(found, catalogue.instance_type(kind)) == []
    assert found["versions"]["libfabric"] == devices.LIBFABRIC


def collect(node, kind: str, nodes: int, faults: list | None = None, **asked: str) -> dict:
    """The table of a collective on several nodes of a type."""
    each = catalogue.instance_type(kind)["gpus"]
    env = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": f"compute-[1-{nodes}]", "SLURMD_NODENAME": "compute-1"}
    run = node(kind, faults, SLURM_TASKS_PER_NODE=f"{each}(x{nodes})", **env)
    code, out, _err = run(asked.get("name", "all_reduce_perf"), "-b", "1M", "-e", asked.get("high", "16G"), "-f", "2", "-g", "1")
    assert code == 0, out
    (table,) = nccl_results.parse(out)
    return table


@pytest.mark.parametrize("nodes", [1, 2, 4, 5, 16])
@pytest.mark.parametrize(
    "kind", ["p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "g5.48xlarge", "g6e.24xlarge"]
)
def test_all_reduce_reaches_the_reference_and_is_slowed(kind: str, nodes: int, node) -> None:
    table = collect(node, kind, nodes)
    ranks = nodes * catalogue.instance_type(kind)["gpus"]
    assert (table["collective"], table["ranks"], table["concluded"]) == ("all_reduce", ranks, True)
    assert table["ranks_between"][0] <= ranks <= (table["ranks_between"][1] or ranks)
    assert table["hosts"] == [f"compute-{index}" for index in range(1, nodes + 1)]
    assert not table["damaged"]
    assert not table["problems"]
    slowed = collect(node, kind, nodes, [{"fault": "slow", "factor": 0.8, "host": f"compute-{nodes}"}])
    for row, slow in zip(table["rows"], slowed["rows"], strict=True):
        known = catalogue.nccl_expectation(kind, nodes, "all_reduce", row["size"]) or {"ceiling": None, "floor": None}
        assert row["busbw"] <= (known["ceiling"] or row["busbw"]) * 1.01, row
        if known["floor"]:
            assert row["busbw"] == pytest.approx(known["reference"], rel=0.01), row
            assert slow["busbw"] < known["floor"], row


def test_slow_host_outside_the_job_slows_nothing(node) -> None:
    rows = [collect(node, "p5.48xlarge", 2, faults)["rows"] for faults in ([], [{"fault": "slow", "factor": 0.1, "host": "compute-3"}])]
    assert rows[0] == rows[1]


def test_the_slowest_host_counts(node) -> None:
    faults = [{"fault": "slow", "factor": factor, "host": f"compute-{index}"} for index, factor in ((1, 0.9), (2, 0.5))]
    whole, slow = (collect(node, "p5.48xlarge", 2, each)["rows"][-1]["busbw"] for each in ([], faults))
    assert slow == pytest.approx(whole / 2, rel=0.01)


@pytest.mark.parametrize("name", sorted(stand_in.COLLECTIVES))
def test_every_collective_has_a_table(name: str, node) -> None:
    table = collect(node, "p5.48xlarge", 2, high="64M", name=f"{name}_perf")
    assert (table["collective"], table["ranks"], len(table["rows"])) == (name, 16, 2 * 7)


def test_other_ranks_say_nothing_and_end_well(node) -> None:
    env = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_JOB_NODELIST": "compute-[1-2]", "SLURM_TASKS_PER_NODE": "8(x2)"}
    assert node("p5.48xlarge", **env)("all_reduce_perf", "-g", "1") == (0, "", "")


def test_a_job_sees_only_the_gpus_that_it_may_open(node) -> None:
    run = node("p5.48xlarge", allowed=lambda path: path in ("/dev/nvidia0", "/dev/nvidia1"), SLURM_LOCALID="2", SLURM_PROCID="2")
    assert run("nvidia-smi", "-L")[1].count("GPU ") == 2
    code, out, _err = run("all_reduce_perf", "-g", "1")
    assert (code, out) == (1, "Invalid number of GPUs: 3 requested but only 2 were found.\n")
    code, out, _err = node("p5.48xlarge", allowed=lambda _path: False)("all_reduce_perf", "-g", "1")
    assert code == 2
    assert "no CUDA-capable device is detected" in out


def test_versions_are_read_and_name_the_rehearsal(node) -> None:
    run = node("p5.48xlarge")
    for name, args, way in (("dcgmi", ["--version"], facts.WAYS["dcgm"][0][1]), ("fi_info", ["--version"], facts.WAYS["libfabric"][0][1])):
        said = run(name, *args)[1]
        assert "rehearsal" in said
        assert re.search(way, said, re.MULTILINE)
    assert "(rehearsal)" in run("nvidia-smi", "--version")[1]
    assert "(rehearsal)" in node("trn1.32xlarge")("neuron-ls", "--version")[1]


def test_neuron_ls_of_a_type(node) -> None:
    rows = json.loads(node("trn2.48xlarge")("neuron-ls", "-j")[1])
    have = catalogue.instance_type("trn2.48xlarge")
    assert sum(row["nc_count"] for row in rows) == have["neuron_cores"]
    assert len(rows) == have["gpus"]
    lost = json.loads(node("trn2.48xlarge", [{"fault": "neuron_missing", "index": 5}])("neuron-ls", "-j")[1])
    assert [row["neuron_device"] for row in lost] == [index for index in range(16) if index != 5]


def test_a_query_and_what_it_refuses(node) -> None:
    run = node("g5.12xlarge")
    assert (
        run("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits")[1]
        == "0, 22888\n1, 22888\n2, 22888\n3, 22888\n"
    )
    code, out, _err = run("nvidia-smi", "--query-gpu=colour", "--format=csv")
    assert (code, out) == (2, 'Field "colour" is not a valid field to query.\n\n')
    code, _out, err = run("nvidia-smi", "--reset")
    assert code == 1
    assert "knows -L, -q, -q -x" in err


# What the stand-ins say is in the form of the real programs, as an H200 recorded it (fixtures/health/README.md, fixtures/nccl/README.md)

FIXTURES = Path(__file__).parents[1] / "fixtures"
H200 = json.loads((FIXTURES / "health/h200-580.json").read_text())


def shape(text: str) -> str:
    """A text without its numbers."""
    return re.sub(r"\b[0-9][0-9A-F]*(\.\d+)*\b", "0", re.sub(r"GPU-[0-9a-f-]{36}", "GPU-", text))


def test_each_field_of_nvidia_smi_has_the_real_form(node) -> None:
    run, differ = node("p5en.48xlarge"), {}
    for field, real in H200["fields"].items():
        code, out, _err = run("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader")
        said = out.splitlines()[0]
        if code != (2 if "not a valid field" in real else 0) or shape(said) != shape(real):
            differ[field] = said
    # The machine of the recording had no fabric, and a stand-in's firmware names the rehearsal.
    assert differ == {"fabric.state": "Completed", "fabric.status": "Success", "vbios_version": "96.00.rehearsal"}


def test_the_query_of_the_health_checks_has_the_real_head(node) -> None:
    [line] = [line for line in H200 if line.startswith("nvidia-smi --query-gpu=index,name,vbios") and line.endswith("csv")]
    out = node("p5en.48xlarge")(*line.split())[1]
    assert out.splitlines()[0] == H200[line][1].splitlines()[0]
    assert out.splitlines()[1].count(",") == H200[line][1].splitlines()[1].count(",")


def test_the_log_of_nvidia_smi_has_the_real_form(node) -> None:
    def lines(text: str) -> list[str]:
        return [re.sub(r">[^<]+<", "><", re.sub(r'id="[^"]+"', "", line)) for line in text.splitlines()]

    real = lines((FIXTURES / "gpu/h200-v13.xml").read_text())
    out = node("p5en.48xlarge")("nvidia-smi", "-q", "-x")[1]
    assert [line for line in lines(out) if line not in real] == []
    one = ElementTree.fromstring(out).find("gpu")
    assert one is not None
    assert [path for path in gpu_checks.XML_FIELDS.values() if one.find(path) is None] == []


def test_what_nvidia_smi_says_besides(node) -> None:
    run = node("p5en.48xlarge")
    for line in ("nvidia-smi -L", "nvidia-smi --version", "nvidia-smi -i 7 -L"):
        code, said, _err = H200[line]
        found = run(*line.split())
        assert found[0] == code
        assert [shape(each).replace(" (rehearsal)", "") for each in found[1].splitlines()[: len(said.splitlines())]] == [
            shape(each) for each in said.splitlines()
        ]
    assert node("p5en.48xlarge", [{"fault": "gpu_missing", "index": index} for index in range(8)])("nvidia-smi", "-q", "-x")[:2] == (
        H200["nvidia-smi -i 7 -q -x"][0],
        H200["nvidia-smi -i 7 -q -x"][1],
    )
    assert node("g6.xlarge")("nvidia-smi", "nvlink", "-s")[:2] == tuple(H200["nvidia-smi nvlink -s"][:2]), "nothing of a GPU without links"
    log = run("nvidia-smi", "-q")[1]
    assert "Driver Version                                         : " in log
    assert "    Persistence Mode                                   : Enabled\n" in log
    assert "        Remapping Failure Occurred                     : No\n" in log


def test_the_kernel_log_of_a_node_is_not_empty() -> None:
    lines = system.kernel_log(rehearsal.rehearsal("p5en.48xlarge"), [], stand_in.VERSIONS).splitlines()
    real = next(line for line in H200["cat /dev/kmsg"][1].splitlines() if "NVRM: loading" in line)
    assert shape(lines[1]).replace("(rehearsal)", "") == shape(real).replace("(nixbld@)  ", "")
    assert system.kernel_log(rehearsal.rehearsal("trn2.48xlarge"), [], stand_in.VERSIONS).count("\n") == 1


@pytest.mark.parametrize("name", sorted(stand_in.COLLECTIVES))
def test_nccl_tests_print_as_on_a_gpu(name: str, node) -> None:
    real = (FIXTURES / f"nccl/h200-two-ranks-{name}.txt").read_text().splitlines()
    env = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "vm-[1-2]", "SLURMD_NODENAME": "vm-1"}
    run = node("p5en.48xlarge", SLURM_TASKS_PER_NODE="1(x2)", **env)
    out = run(f"{name}_perf", "-b", "8", "-e", "16M", "-f", "2", "-g", "1", "-n", "10")[1].splitlines()

    def form(line: str) -> str:
        if re.match(r" +\d", line):
            # Size, count, type, redop, root and #wrong are the same; time, algbw and busbw are as wide.
            return line[:52] + line[77:85] + line[110:]
        return re.sub(r"Rank .*| \(rehearsal\)|(version|headers=|library=) ?[\d.]+|warmup iters: \d|bandwidth +: \S+", "", line)

    assert [form(line) for line in out] == [form(line) for line in real]


def test_nccl_names_itself_as_its_debug_level_says(node) -> None:
    for level, said in (("", 0), ("VERSION", 1), ("INFO", 1)):
        out = node("p5en.48xlarge", NCCL_DEBUG=level)("all_reduce_perf", "-b", "8", "-e", "8", "-g", "1")[1]
        assert out.count("NCCL version 2.28.9+cuda13.2\n") == said
        assert ("NCCL INFO NCCL version" in out) == (level == "INFO")


# Faults


def gpu_faults(node, tmp_path: Path, kind: str, faults: list) -> list[str]:
    run = node(kind, faults)
    lay_out(tmp_path, rehearsal.rehearsal(kind), faults)
    smi = gpu.parse_smi(run("nvidia-smi", "-q", "-x")[1])
    found = gpu.facts(gpu.on_the_bus(str(tmp_path)), smi, gpu.parse_nvlink(run("nvidia-smi", "nvlink", "-s")[1]))
    return gpu.faults(found, catalogue.instance_type(kind))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"fault": "gpu_lost", "index": 3}, "all 8 GPUs of the PCI bus and found 7; look for XID 79"),
        ({"fault": "gpu_missing", "index": 3}, "Expected 8 x H100 of p5.48xlarge on the PCI bus and found 7"),
        ({"fault": "remapped_rows", "index": 3}, "one of GPU 3 pending"),
        ({"fault": "remapped_rows", "index": 3, "failure": True}, "one of GPU 3 failed"),
    ],
)
def test_a_fault_of_a_gpu_is_found(fault: dict, sentence: str, node, tmp_path: Path) -> None:
    (found,) = gpu_faults(node, tmp_path, "p5.48xlarge", [fault])
    assert sentence in found
    assert node("p5.48xlarge", [fault])("dcgmi", "diag", "-r", "1", "-j")[0] == 226
    assert node("p5.48xlarge")("dcgmi", "diag", "-r", "1", "-j")[0] == 0


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"fault": "efa_missing", "index": 30}, "Expected 32 EFA devices of p5.48xlarge and found 31"),
        ({"fault": "efa_down", "index": 30}, "Expected every EFA port ACTIVE and found rdmap212s27 DOWN"),
    ],
)
def test_a_fault_of_an_efa_device_is_found(fault: dict, sentence: str, node, tmp_path: Path) -> None:
    infos = efa.parse_fi_info(node("p5.48xlarge", [fault])("fi_info", "-p", "efa")[1])
    lay_out(tmp_path, rehearsal.rehearsal("p5.48xlarge"), [fault])
    found = efa.faults(efa.facts(efa.devices(str(tmp_path)), infos, {}), catalogue.instance_type("p5.48xlarge"))
    assert sentence in found[0]
    files = [path for path, _major, _minor in stand_in.device_files(rehearsal.rehearsal("p5.48xlarge"), [fault])]
    assert ("/dev/infiniband/uverbs30" in files) == (fault["fault"] != "efa_missing")


def test_a_throttled_gpu_says_so(node) -> None:
    run = node("p5.48xlarge", [{"fault": "throttle", "index": 6}])
    said = run("nvidia-smi", "--query-gpu=index,clocks_event_reasons.hw_slowdown,temperature.gpu", "--format=csv,noheader")[1].splitlines()
    assert said[6] == "6, Active, 91"
    assert said[5] == "5, Not Active, 34"


def test_xid_lines_are_the_drivers() -> None:
    document = rehearsal.rehearsal("p5.48xlarge")
    faults = [
        {"fault": "xid", "index": 1, "code": 94},
        {"fault": "gpu_lost", "index": 0},
        {"fault": "xid", "index": 0, "code": 48, "host": "b"},
    ]
    lines = system.xid_lines(document, faults).splitlines()
    assert [line.partition(";")[2][:40] for line in lines] == [
        "NVRM: Xid (PCI:0000:2c:1e): 94, pid=<unk",
        "NVRM: Xid (PCI:0000:10:1e): 79, pid=<unk",
    ]


def test_a_neighbours_fault_is_not_this_nodes(node) -> None:
    run = node("p5.48xlarge", [{"fault": "gpu_lost", "index": 0, "host": "compute-2"}])
    assert len(run("nvidia-smi", "-L")[1].splitlines()) == 8


@pytest.mark.parametrize(
    ("kind", "faults", "sentence"),
    [
        ("p5.48xlarge", {"fault": "gpu_lost"}, "Faults are a list such as"),
        ("p5.48xlarge", [{"fault": "gpu_los", "index": 1}], "There is no fault gpu_los; known are gpu_lost, gpu_missing"),
        ("p5.48xlarge", [{"fault": "gpu_lost", "index": 8}], "gpu_lost cannot have index 8: p5.48xlarge has 8 GPUs, from 0 to 7."),
        ("p5.48xlarge", [{"fault": "gpu_lost", "index": True}], "gpu_lost cannot have index true"),
        ("p5.48xlarge", [{"fault": "gpu_lost"}], "gpu_lost cannot have index null"),
        ("g5.xlarge", [{"fault": "efa_missing", "index": 0}], "efa_missing cannot have index 0: g5.xlarge has 0 EFA devices."),
        ("p5.48xlarge", [{"fault": "slow", "index": 1}], "Fault slow has no index."),
        ("p5.48xlarge", [{"fault": "slow", "factor": 0}], "Fault slow cannot have factor 0: give a number above 0"),
        ("p5.48xlarge", [{"fault": "xid", "index": 0}], "Fault xid needs a code"),
    ],
)
def test_faults_that_a_type_cannot_have(kind: str, faults: object, sentence: str) -> None:
    with pytest.raises(stand_in.Refused) as refused:
        stand_in.check_faults(rehearsal.rehearsal(kind), faults)
    assert sentence in str(refused.value)


# The programs by themselves


@pytest.mark.parametrize("name", [*stand_in.names(rehearsal.rehearsal("p5.48xlarge")), "neuron-ls", "muster-rehearsal"])
def test_a_real_node_has_no_use_for_a_stand_in(name: str, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_bytes(rehearsal.node_files("p5.48xlarge")["stand-in"])
    done = subprocess.run([sys.executable, "-I", "-S", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"{name} is a stand-in of a rehearsal and this node rehearses nothing: install the vendor's program.\n"


def test_a_program_that_the_type_does_not_use(node) -> None:
    assert node("p5.48xlarge")("neuron-ls") == (1, "", "p5.48xlarge has no devices for neuron-ls.\n")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("compute-1", ["compute-1"]),
        ("compute-[1-3,7],login-1", ["compute-1", "compute-2", "compute-3", "compute-7", "login-1"]),
        ("a[08-10]b[1,3]", ["a08b1", "a08b3", "a09b1", "a09b3", "a10b1", "a10b3"]),
    ],
)
def test_hosts_of_a_job(text: str, hosts: list[str]) -> None:
    assert collectives.expand(text) == hosts


def test_tasks_of_a_job() -> None:
    assert collectives.tasks("8(x2),4", ["a", "b", "c"]) == [8, 8, 4]
    assert collectives.job(
        {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "a[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    ) == (
        *(3, 1),
        ["a1", "a1", "a2", "a2"],
    )


def test_a_neuron_node_starts_with_the_driver_that_the_stack_installs() -> None:
    """Its module is loaded before the package comes, as on an image, and another version would be drift."""
    stack = yaml.safe_load((Path(__file__).parents[2] / "stacks/aws-2026.11.yml").read_text())
    named = [package for source in stack["neuron"]["sources"] for package in source.get("packages", []) if "aws-neuronx-dkms" in package]
    assert named
    assert {re.search(r"\d+(\.\d+)+", package)[0] for package in named} == {stand_in.VERSIONS["neuron"]}
