# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The catalogue against the cloud's own answer, published figures and what else must agree with it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.muster.fleet.plugins.filter.catalogue import FilterModule
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue, catalogue_data

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("tools_catalogue", ROOT / "tools/catalogue.py")
assert SPEC and SPEC.loader
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

KEPT = yaml.safe_load((ROOT / "catalogue/types.yml").read_text())
GIB = 1 << 30
CORRECTED = {(name, each["field"]) for each in KEPT["corrections"] for name in each["types"]}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict]:
    """DescribeInstanceTypes as moto ships it. Only a file is read: importing moto would take a second."""
    spec = importlib.util.find_spec("moto")
    assert spec and spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "ec2/resources/instance_types.json.gz"
    return json.loads(gzip.decompress(path.read_bytes()))


def from_answer(answer: dict) -> dict:
    """The catalogue's fields, computed from the answer without the generator's code."""
    devices = (answer.get("GpuInfo") or {}).get("Gpus", []) + (answer.get("NeuronInfo") or {}).get("NeuronDevices", [])
    network = answer["NetworkInfo"]
    numbers = [float(number) for number in re.findall(r"[\d.]+", network["NetworkPerformance"])]
    has_efa = network.get("EfaSupported", False)
    cards = [
        {"card": card["NetworkCardIndex"], "max_interfaces": card["MaximumNetworkInterfaces"], "efa": "efa" in card["InterfaceTypes"]}
        for card in network["NetworkCards"]
    ]
    return {
        "arch": answer["ProcessorInfo"]["SupportedArchitectures"],
        "vcpus": answer["VCpuInfo"]["DefaultVCpus"],
        "cores": answer["VCpuInfo"]["DefaultCores"],
        "threads_per_core": answer["VCpuInfo"]["DefaultThreadsPerCore"],
        "memory_mib": answer["MemoryInfo"]["SizeInMiB"],
        "accelerator_name": devices[0]["Name"] if devices else None,
        "gpus": sum(device["Count"] for device in devices) or None,
        "neuron_cores": sum(device["Count"] * device["CoreInfo"]["Count"] for device in devices if "CoreInfo" in device),
        "gpu_memory_mib": devices[0]["MemoryInfo"]["SizeInMiB"] if devices else None,
        "wire_gbps": numbers[0] * numbers[1] if len(numbers) == 2 else numbers[0],
        "efa_cards": network["EfaInfo"]["MaximumEfaInterfaces"] if has_efa else 0,
        "network_cards": cards,
        "card_gbps": [card["PeakBandwidthInGbps"] for card in network["NetworkCards"]],
        "nvme": [(disk["Count"], disk["SizeInGB"]) for disk in (answer.get("InstanceStorageInfo") or {}).get("Disks", [])],
        "boot_modes": set(answer["SupportedBootModes"]),
        "markets": set(answer["SupportedUsageClasses"]),
    }


def from_catalogue(name: str) -> dict:
    have = catalogue.instance_type(name)
    plain = {field: have[field] for field in ("vcpus", "cores", "threads_per_core", "memory_mib", "gpus", "neuron_cores")}
    plain |= {field: have[field] for field in ("gpu_memory_mib", "wire_gbps", "efa_cards")}
    modes = {"both": {"legacy-bios", "uefi"}}.get(have["boot_mode"], {have["boot_mode"]})
    return plain | {
        "arch": [have["arch"]],
        "accelerator_name": have["gpu_model"],
        "network_cards": [{key: card[key] for key in ("card", "max_interfaces", "efa")} for card in have["network_cards"]],
        "card_gbps": [card["gbps"] for card in have["network_cards"]],
        "nvme": [(have["nvme"]["count"], have["nvme"]["size_gb"])] if have["nvme"]["count"] else [],
        "boot_modes": modes,
        "markets": set(have["markets"]),
    }


@pytest.mark.parametrize("name", [name for name in catalogue.names() if name not in KEPT["absent"]])
def test_every_field_is_the_answers_or_corrected_with_a_source(name, answers):
    there, here = from_answer(answers[name]), from_catalogue(name)
    assert there.keys() == here.keys()
    wrong = {field for field in there if there[field] != here[field]}
    assert wrong == {field for corrected, field in CORRECTED if corrected == name}


def test_every_accelerated_type_of_ec2_is_supported_or_says_why_not(answers):
    """The enum of EC2's API, which has types that DescribeInstanceTypes no longer or not yet lists."""
    spec = importlib.util.find_spec("botocore")
    assert spec and spec.submodule_search_locations
    [path] = Path(spec.submodule_search_locations[0]).glob("data/ec2/2016-11-15/service-2.json*")
    raw = path.read_bytes()
    enum = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["shapes"]["InstanceType"]["enum"]
    # GPUs that are older than Volta, FPGAs and video cards.
    left_out = {"p2", "g2", "g3", "g3s", "f1", "f2", "vt1"}
    keys = ("GpuInfo", "NeuronInfo", "InferenceAcceleratorInfo", "FpgaInfo", "MediaAcceleratorInfo")
    accelerated = {name for name in {*enum, *answers} if re.match(r"(p\d|g\d|gr\d|trn\d|inf\d|dl\d)", name)}
    accelerated |= {name for name, answer in answers.items() if any(key in answer for key in keys)}
    accelerated = {name for name in accelerated if name.split(".")[0] not in left_out}
    unsupported = set(catalogue_data.UNSUPPORTED)
    assert accelerated == set(catalogue.names()) | unsupported
    assert not set(catalogue.names()) & unsupported
    assert not set(KEPT["absent"]) & set(answers)


@pytest.mark.parametrize(("name", "why"), [(name, why) for name, (_accelerator, why) in catalogue_data.UNSUPPORTED.items()])
def test_a_type_without_support_is_refused_with_the_reason(name, why):
    with pytest.raises(catalogue.CatalogueError) as refused:
        catalogue.instance_type(f"ml.{name}")
    assert str(refused.value).startswith(f"Muster does not support {name} (")
    assert str(refused.value).endswith(f": {why}; docs/catalogue.md lists the types that it supports.")
    assert f"`{name}`" in (ROOT / "docs/catalogue.md").read_text()


def test_facts_of_types_that_the_answer_lacks():
    gb200, p3 = catalogue.instance_type("p6e-gb200.36xlarge"), catalogue.instance_type("p3.16xlarge")
    assert (gb200["nvme"], gb200["efa_counts"]) == ({"count": 3, "size_gb": 7500}, [4, 8, 16])
    assert (p3["gpus"], p3["gpu_memory_gib"], p3["efa"], p3["boot_mode"], p3["nvlink"]) == (8, 16, 0, "legacy-bios", 300)


def test_corrections_and_absent_types_say_why():
    for each in [*KEPT["corrections"], *KEPT["absent"].values()]:
        assert each["why"] and each["source"]


def test_the_api_part_is_what_the_answer_gives(tmp_path, answers):
    """--api writes the committed file from the answer, in the form of the command line tool as well."""
    for folder in ("catalogue", "plugins/module_utils/hardware", "trainer", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "catalogue/types.yml", tmp_path / "catalogue")
    (tmp_path / "answer.json").write_text(json.dumps({"InstanceTypes": list(answers.values())}))
    assert tool.main(["--api", str(tmp_path / "answer.json")], tmp_path) == 0
    for path in ("catalogue/api.json", "plugins/module_utils/hardware/catalogue_data.py", "trainer/devices.json", "docs/catalogue.md"):
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), path


def test_a_stale_output_is_named(tmp_path, capsys):
    for path in ("catalogue/types.yml", "catalogue/api.json", "plugins/module_utils/hardware/catalogue_data.py", "trainer/devices.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "docs").mkdir()
    assert tool.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "docs/catalogue.md is not current; run `make docs`\n"
    assert not (tmp_path / "docs/catalogue.md").exists()


def test_python_data_and_the_trainers_devices_are_one():
    devices = json.loads((ROOT / "trainer/devices.json").read_text())
    assert list(devices["types"]) == catalogue.names()
    assert set(devices["devices"]) == set(catalogue_data.ACCELERATORS)
    for name, there in devices["types"].items():
        have = catalogue.instance_type(name)
        assert there == {
            "device": have["gpu_model"],
            "devices": have["gpus"],
            "memory_gib": have["gpu_memory_gib"],
            "nvlink_gbytes": have["nvlink"],
            "nvlink_domain": have["nvlink_domain"],
            "network_gbits": have["efa_gbps"] or have["wire_gbps"],
            "host_memory_gib": round(have["memory_mib"] / 1024, 1),
        }
        assert devices["devices"][there["device"]]["peak_flops"] == have["peak_flops"]


@pytest.mark.parametrize(
    ("driver_says", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA T4G", "T4G"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server"),
        ("NVIDIA H20", None),
        ("NVIDIA A100X", None),
    ],
)
def test_a_device_is_found_by_the_drivers_name(driver_says, device):
    table = json.loads((ROOT / "trainer/devices.json").read_text())["devices"]
    found = [name for name, each in table.items() if any(re.search(rf"\b{re.escape(word)}\b", driver_says) for word in each["names"])]
    assert found == ([device] if device else [])
    assert catalogue.model_of(driver_says) == (device or "")


@pytest.mark.parametrize("name", catalogue.names())
def test_interfaces_that_ec2_takes(name):
    """The rules of RunInstances for network cards, for each layout."""
    have = catalogue.instance_type(name)
    cards = {card["card"]: card for card in have["network_cards"]}
    for layout in ("efa-only", "efa", "ena"):
        asked = catalogue.ec2_interfaces(name, "subnet-1", ["sg-1", "sg-2"], layout)
        places = [(each["NetworkCardIndex"], each["DeviceIndex"]) for each in asked]
        assert places[0] == (0, 0) and len(set(places)) == len(places)
        assert asked[0]["InterfaceType"] in ("interface", "efa")
        assert "AssociatePublicIpAddress" not in asked[0]
        efa = [each["NetworkCardIndex"] for each in asked if each["InterfaceType"] != "interface"]
        assert len(set(efa)) == len(efa) == (0 if layout == "ena" else have["efa_cards"])
        assert all(cards[card]["efa"] for card in efa)
        assert all(device < cards[card]["max_interfaces"] for card, device in places)
        assert {each["SubnetId"] for each in asked} == {"subnet-1"}
        assert all(each["Groups"] == ["sg-1", "sg-2"] for each in asked)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("g5.48xlarge", ["0/0 interface", "0/1 efa-only"]),
        ("g5.xlarge", ["0/0 interface"]),
        ("p4d.24xlarge", ["0/0 interface", "0/1 efa-only", *(f"{card}/0 efa-only" for card in range(1, 4))]),
        ("p5.48xlarge", ["0/0 interface", "0/1 efa-only", *(f"{card}/0 efa-only" for card in range(1, 32))]),
        ("p5en.48xlarge", ["0/0 interface", "0/1 efa-only", *(f"{card}/0 efa-only" for card in range(1, 16))]),
        ("p6-b200.48xlarge", ["0/0 interface", "0/1 efa-only", *(f"{card}/0 efa-only" for card in range(1, 8))]),
        ("p6-b300.48xlarge", ["0/0 interface", *(f"{card}/0 efa-only" for card in range(1, 17))]),
        ("p6e-gb200.36xlarge", ["0/0 interface", *(f"{card}/0 efa-only" for card in (1, 5, 9, 13))]),
        ("trn1.32xlarge", ["0/0 interface", "0/1 efa-only", *(f"{card}/0 efa-only" for card in range(1, 8))]),
    ],
)
def test_the_layout_that_aws_recommends(name, layout):
    asked = catalogue.ec2_interfaces(name, "subnet-1", "sg-1")
    assert [f"{each['NetworkCardIndex']}/{each['DeviceIndex']} {each['InterfaceType']}" for each in asked] == layout


def test_the_older_layout_for_services_without_efa_only():
    asked = catalogue.ec2_interfaces("p5.48xlarge", "subnet-1", "sg-1", "efa")
    assert [(each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in asked] == [
        (card, 1 if card else 0, "efa") for card in range(32)
    ]
    asked = catalogue.ec2_interfaces("p6-b300.48xlarge", "subnet-1", "sg-1", "efa")
    assert [(each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"]) for each in asked] == [
        (card, 0, "efa" if card else "interface") for card in range(17)
    ]


def test_the_numbers_of_the_source_documents():
    """What the documents that the project grew from say of these types."""
    assert catalogue.instance_type("p4d.24xlarge")["efa_cards"] == 4
    assert (catalogue.instance_type("p6-b200.48xlarge")["efa_cards"], catalogue.instance_type("p6-b200.48xlarge")["gpus"]) == (8, 8)
    assert (catalogue.instance_type("p5.48xlarge")["gpus"], catalogue.instance_type("p5.48xlarge")["efa_cards"]) == (8, 32)


@pytest.mark.parametrize(
    ("name", "nodes", "size", "gbps"),
    [
        ("p4de.24xlarge", 2, 2 * GIB, 78.3),
        ("p5.48xlarge", 1, 16 * GIB, 483),
        ("p5.48xlarge", 2, 16 * GIB, 487),
        ("p5.48xlarge", 2, 2 * GIB, 438),  # on EKS
        ("p6-b200.48xlarge", 4, 16 * GIB, 377),
    ],
)
def test_published_bus_bandwidths(name, nodes, size, gbps):
    points = [point for point in catalogue.instance_type(name)["busbw"] if (point["nodes"], point["bytes"]) == (nodes, size)]
    assert gbps in [round(point["gbps"], 1 if gbps % 1 else None) for point in points]
    assert all(point["source"] and point["date"] and point["stack"] for point in points)
    expected = catalogue.nccl_expectation(name, nodes, "all_reduce", size)
    assert expected["published"]
    assert expected["floor"] == pytest.approx(0.9 * gbps, rel=0.002)


@pytest.mark.parametrize("point", catalogue_data.BUSBW, ids=lambda point: f"{point['type']}-{point['nodes']}-{point['bytes']}")
def test_what_was_published_meets_its_own_expectation(point):
    expected = catalogue.nccl_expectation(point["type"], point["nodes"], point["collective"], point["bytes"])
    assert expected["floor"] <= point["gbps"] <= expected["ceiling"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # A floor depends on size and nodes: the healthy cluster of 377 GB/s at 16 GiB gives 295 at 128 MiB.
        (("p6-b200.48xlarge", 4, "all_reduce", 128 << 20), (265.5, 516.7, True)),
        (("p6-b200.48xlarge", 16, "all_reduce", 16 * GIB), (339.3, 423.3, True)),
        # Without a point: the slower of NVLink and EFA, from full_speed_bytes on.
        (("p6-b200.48xlarge", 4, "all_reduce", 64 << 20), (None, 516.7, False)),
        (("p5en.48xlarge", 4, "all_reduce", 4 * GIB), (324.0, 516.7, False)),
        (("p5en.48xlarge", 16, "all_reduce", 8 * GIB), (324.0, 423.3, False)),
        (("p5en.48xlarge", 32, "all_reduce", 16 * GIB), (332.9, 411.3, True)),
        (("p4d.24xlarge", 8, "all_reduce", 4 * GIB), (43.2, 56.2, False)),
        (("p6-b300.48xlarge", 4, "all_reduce", 64 * GIB), (648.0, 1033.3, False)),
        (("p6-b300.48xlarge", 4, "all_reduce", 32 * GIB), (None, 1033.3, False)),
        (("p5en.48xlarge", 4, "all_reduce", 1 * GIB), (None, 516.7, False)),
        # Two nodes may exceed a ring, so EFA gives them no floor where it is slower than NVLink.
        (("p4d.24xlarge", 2, "all_reduce", 16 * GIB), (None, 93.8, False)),
        (("p5.48xlarge", 2, "all_reduce", 64 << 20), (None, 750.0, False)),
        (("p5.48xlarge", 2, "alltoall", 16 * GIB), (None, 93.8, False)),
        (("p5.48xlarge", 16, "alltoall", 16 * GIB), (None, 52.9, False)),
        (("p5.48xlarge", 4, "broadcast", 16 * GIB), (None, 400.0, False)),
        (("p5.48xlarge", 4, "alltoallv", 16 * GIB), None),
        # The 72 GPUs of an UltraServer share NVLink, and EFA carries only what leaves it.
        (("p6e-gb200.36xlarge", 1, "all_reduce", 16 * GIB), (648.0, 1350.0, False)),
        (("p6e-gb200.36xlarge", 4, "all_reduce", 16 * GIB), (648.0, 1687.5, False)),
        (("p6e-gb200.36xlarge", 18, "all_reduce", 16 * GIB), (648.0, 1775.0, False)),
        (("p6e-gb200.36xlarge", 18, "alltoall", 16 * GIB), (None, 900.0, False)),
        (("p6e-gb200.36xlarge", 36, "alltoall", 16 * GIB), (None, 99.3, False)),
        (("p6e-gb200.36xlarge", 36, "all_reduce", 16 * GIB), (648.0, 1787.5, False)),
        # One node of the second UltraServer has no more than its own 1600 Gbit/s.
        (("p6e-gb200.36xlarge", 19, "all_reduce", 16 * GIB), (None, 1776.3, False)),
        # The rule of thumb needs GPUDirect RDMA, one GPU has no wire, and Neuron has no NCCL.
        (("g5.48xlarge", 4, "all_reduce", 16 * GIB), (None, 16.1, False)),
        (("g5.xlarge", 1, "all_reduce", 16 * GIB), None),
        (("trn1.32xlarge", 4, "all_reduce", 16 * GIB), None),
    ],
)
def test_expected_bandwidth(asked, expected):
    found = catalogue.nccl_expectation(*asked)
    assert (found and (found["floor"], found["ceiling"], found["published"])) == expected
    assert found is None or bool(found["source"]) == (found["floor"] is not None)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 17, 18, 19, 36, 100])
def test_no_type_is_asked_for_more_than_its_wires_carry(nodes):
    for name in catalogue.names():
        found = catalogue.nccl_expectation(name, nodes, "all_reduce", 64 * GIB)
        if found and found["reference"] and found["ceiling"]:
            assert found["reference"] <= found["ceiling"], name
            assert found["published"] or found["reference"] <= 0.96 * found["ceiling"], name


def test_the_sizes_where_the_expectation_changes():
    assert catalogue.nccl_sizes("p6-b200.48xlarge", 4, "all_reduce") == [128 << 20, 256 << 20, GIB, 4 * GIB, 16 * GIB]
    assert catalogue.nccl_sizes("p5.48xlarge", 1, "all_reduce") == [4 * GIB, 16 * GIB]
    assert catalogue.nccl_sizes("p6e-gb200.36xlarge", 18, "all_reduce") == [4 * GIB]
    assert catalogue.nccl_sizes("p5.48xlarge", 2, "alltoall") == []
    assert catalogue.nccl_sizes("trn1.32xlarge", 4, "all_reduce") == []


@pytest.mark.parametrize("name", catalogue.names())
def test_sizes_fit_the_type(name):
    have = catalogue.instance_type(name)
    device = {"nvidia": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}[have["accelerator"]]
    pod = catalogue.k8s_resources(name)
    assert pod["limits"].get(device) == have["gpus"]
    assert pod["limits"].get("vpc.amazonaws.com/efa", 0) == have["efa_cards"]
    assert 1 <= int(pod["requests"]["cpu"]) < have["vcpus"]
    # A pod cannot ask for the memory of EFA's huge pages.
    assert pod["requests"]["memory"] == f"{int((have['memory_mib'] - (10256 if have['efa'] else 0)) * 0.9)}Mi"

    half = catalogue.k8s_resources(name, have["gpus"] // 2)["limits"]
    assert (half.get(device, 0), half.get("vpc.amazonaws.com/efa", 0)) == (
        have["gpus"] // 2,
        have["efa_cards"] * (have["gpus"] // 2) // have["gpus"],
    )
    assert catalogue.k8s_resources(name, 0) == {"limits": {}, "requests": {"cpu": "1"}}

    job = catalogue.batch_resources(name)
    devices = [each["hostPath"] for each in job["linuxParameters"]["devices"]]
    assert len([path for path in devices if path.startswith("/dev/infiniband/uverbs")]) == have["efa_cards"]
    assert len([path for path in devices if path.startswith("/dev/neuron")]) == (have["gpus"] if have["accelerator"] == "neuron" else 0)
    needs = {each["type"]: int(each["value"]) for each in job["resourceRequirements"]}
    assert needs.get("GPU", 0) == (have["gpus"] if have["accelerator"] == "nvidia" else 0)
    assert job["linuxParameters"]["sharedMemorySize"] < needs["MEMORY"] < have["memory_mib"]

    hardware = catalogue.slurm_hardware(name)
    cores = int(hardware["SocketsPerBoard"]) * int(hardware["CoresPerSocket"])
    assert (cores, cores * int(hardware["ThreadsPerCore"])) == (have["cores"], have["vcpus"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("p5.48xlage", "The catalogue has no instance type p5.48xlage; the nearest are p5.48xlarge, p5e.48xlarge, p5.4xlarge."),
        ("p5", "The catalogue has no instance type p5; the nearest are p5.4xlarge, p5.48xlarge, p5e.48xlarge."),
        ("t3.micro", "The catalogue has no instance type t3.micro; docs/catalogue.md lists its types."),
        ("", "The catalogue has no instance type ''; docs/catalogue.md lists its types."),
        (None, "The catalogue has no instance type None; docs/catalogue.md lists its types."),
    ],
)
def test_an_unknown_type_names_the_nearest(name, says):
    filters = FilterModule().filters()
    questions = {
        "instance_type": (),
        "ec2_interfaces": ("subnet-1", ["sg-1"]),
    }
    for question, more in questions.items():
        with pytest.raises(AnsibleFilterError) as error:
            filters[question](name, *more)
        assert str(error.value) == says
    assert set(filters) == set(questions)


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (
            lambda filters: filters["ec2_interfaces"]("p5.48xlarge", "subnet-1", [], "all"),
            "'all' is not a layout of interfaces; use efa-only, efa or ena.",
        ),
    ],
)
def test_other_questions_without_an_answer(question, says):
    with pytest.raises(AnsibleFilterError) as error:
        question(FilterModule().filters())
    assert str(error.value) == says


def test_an_answer_belongs_to_the_asker():
    have = catalogue.instance_type("ml.p5.48xlarge")
    assert have["name"] == "p5.48xlarge"
    have["markets"].clear()
    have["nvme"]["count"] = 0
    have["peak_flops"].clear()
    have["busbw"][0]["gbps"] = 0
    again = catalogue.instance_type("p5.48xlarge")
    assert again["markets"] and again["nvme"]["count"] and again["peak_flops"] and again["busbw"][0]["gbps"]
