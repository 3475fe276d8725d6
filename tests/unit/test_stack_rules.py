# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Every rule has an input that it lets pass and one that it does not; the table of all types and stacks holds their verdicts."""

from __future__ import annotations

import ast
import copy
import functools
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import verdict_table
import yaml

from ansible_collections.muster.fleet.plugins.module_utils.aws import plan
from ansible_collections.muster.fleet.plugins.module_utils.aws.cluster import load
from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import launch_of
from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import RULES, Case
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import PARTS, judge, sentence, verdict
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROOT = Path(__file__).parents[2]
AWS = stack_files.load("aws-2026.11")
BUNDLED = [{"bundled_in": "efa"}]
BUILT = [{"url": "https://example.org/x.tar.gz", "sha256": "0" * 64}]


def case(kind: str = "p5.48xlarge", system: str = "ubuntu24.04", *, launch=None, env=None, nodes=2, kernel="", **changes: Any) -> Case:
    """The stack of AWS with some components changed: case(cuda="12.4"), case(nvidia_driver={…}), case(nvlsm=None)."""
    stack = copy.deepcopy(AWS)
    for name, value in changes.items():
        if value is None:
            stack.pop(name, None)
        elif name in ("architectures", "python", "wheels"):
            stack[name] = value
        else:
            stack.setdefault(name, {"version": "1", "sources": BUILT}).update(value if isinstance(value, dict) else {"version": value})
    about = {"system": system, "kernel": kernel, "launch": launch, "env": env, "nodes": nodes}
    return Case(stack, catalogue.instance_type(kind), **about)


def driver(version: str = "595.112.07", modules: str = "open", **more: Any) -> dict:
    return {"nvidia_driver": {"version": version, "kernel_modules": modules, **more}}


def launch(kind: str = "p5.48xlarge", **parts: Any) -> Case:
    whole = {
        "market": "on-demand",
        "platform": "ec2",
        "managed": True,
        "availability_zones": ["us-east-1a"],
        "subnets": ["subnet-1"],
        "placement_group": "pg",
        "public_ip": False,
        "interfaces": catalogue.instance_type(kind)["interfaces"],
        "security_group": {"from_self": True, "to_self": True},
        "threads_per_core": 2,
        "ami": {"boot_mode": "uefi-preferred", "arch": "x86_64", "system": "ubuntu24.04"},
    }
    return case(kind, launch={**whole, **parts})


def env(kind: str = "p5.48xlarge", nodes: int = 2, changes: dict | None = None, **variables: str) -> Case:
    return case(kind, env=variables, nodes=nodes, **(changes or {}))


ONE_CARD = [{"card": 0, "device": 0, "type": "interface"}]
P5E_HALF = catalogue.instance_type("p5e.48xlarge")["interfaces"][:17]
GIN = {"aws_ofi_nccl": "1.22.0", "nccl": "2.31.2", "gdrcopy": "2.6", "libfabric": "2.7.0amzn2.0"}
DCGM = {"version": "4.7.0", "sources": [{"repository": "https://example.org", "packages": ["datacenter-gpu-manager-4-cuda12"]}]}
OLD_MANAGER = {
    "version": "570.172.08",
    "sources": [{"repository": "x", "systems": ["rhel9"], "packages": ["nvidia-fabricmanager-570.172.08"]}],
}

UBUNTU_MANAGER = [{"repository": "x", "packages": ["nvidia-fabricmanager-570"]}]

# Rule: what it lets pass, and what it does not.
EXAMPLES: dict[str, tuple[Case, Case]] = {
    "driver-source": (case(), case(nvidia_driver={"sources": [{"refused": "it does not compile"}]})),
    "blackwell-open": (case("p6-b200.48xlarge"), case("p6-b200.48xlarge", **driver("580.178.04", "proprietary"))),
    "open-turing": (case("g4dn.xlarge"), case("p3dn.24xlarge", **driver("580.178.04"))),
    "proprietary-620": (case(**driver("615.78.08", "proprietary")), case(**driver("620.10.01", "proprietary"))),
    "b200-driver": (case("p6-b200.48xlarge", **driver("570.26")), case("p6-b200.48xlarge", **driver("560.35.05"))),
    "g7e-driver": (case("g7e.8xlarge", **driver("575.57.08")), case("g7e.8xlarge", **driver("570.26"))),
    "b300-driver": (case("p6-b300.48xlarge", **driver("580.65.06")), case("p6-b300.48xlarge", **driver("575.57.08"))),
    "g7-driver": (case("g7.8xlarge"), case("g7.8xlarge", **driver("590.48.01"))),
    "hopper-driver": (case(**driver("525.60.13")), case(**driver("520.61.05"))),
    "h200-driver": (case("p5e.48xlarge", **driver("550.54.15")), case("p5e.48xlarge", **driver("525.125.06"))),
    "volta-last": (case("p3dn.24xlarge", **driver("580.178.04", "by_gpu")), case("p3dn.24xlarge", **driver("590.48.01", "by_gpu"))),
    "driver-595-left": (case("p3dn.24xlarge", **driver("580.178.04")), case("p3dn.24xlarge")),
    "gsp-turing-a10": (
        case("g5.8xlarge", **driver("580.178.04", "proprietary", module_options=["NVreg_EnableGpuFirmware=0"])),
        case("g5.8xlarge", **driver("580.178.04", "proprietary")),
    ),
    "nvswitch-fm": (case(), case(fabricmanager="595.91.07")),
    "nscq": (case(), case(nscq="595.91.07")),
    "nvlsm": (case("p6-b300.48xlarge"), case("p6-b300.48xlarge", nvlsm=None)),
    "imex": (case("p6e-gb200.36xlarge"), case("p6e-gb200.36xlarge", imex="595.91.07")),
    "driver-eol": (case(), case(**driver("575.57.08"))),
    "fm-pkg-name": (case(), case(system="rhel9", **driver("570.172.08"), fabricmanager=OLD_MANAGER)),
    "gb200-cdmm": (case("p6e-gb200.36xlarge"), case("p6e-gb200.36xlarge", **driver("575.57.08"))),
    "stack-arch": (case("g5g.xlarge"), case("g5g.xlarge", architectures=["x86_64"])),
    "cuda13": (case(**driver("580.65.06")), case(**driver("580.65.05"))),
    "cuda12": (case(cuda="12.9"), case(cuda="12.9", **driver("520.61.05"))),
    "cuda-blackwell": (case("p6-b200.48xlarge", cuda="12.8"), case("p6-b200.48xlarge", cuda="12.6.3")),
    "cuda-b300": (case("p6-b300.48xlarge", cuda="12.9"), case("p6-b300.48xlarge", cuda="12.8.1")),
    "cuda-hopper": (case(cuda="11.8"), case(cuda="11.7")),
    "cuda13-volta": (case("p3dn.24xlarge", cuda="12.9.1"), case("p3dn.24xlarge", cuda="13.0")),
    "no-max-rule": (case(cuda="12.9"), case(cuda={"version": "12.9", "driver_max": "580"})),
    "efa-missing": (case(), case(efa=None)),
    "efa-580": (case(efa="1.43.3"), case(efa="1.43.2")),
    "efa-open-kernel": (case(efa="1.29.0"), case(**driver("580.178.04", "proprietary"))),
    "efa-ngc": (case(), case(efa={"container_flags": ["--yes", "--disable-ngc"]})),
    "efa-p5en": (case("p5en.48xlarge", efa="1.35.0"), case("p5en.48xlarge", efa="1.34.0")),
    "efa-b200": (case("p6-b200.48xlarge", efa="1.42.0"), case("p6-b200.48xlarge", efa="1.41.0")),
    "efa-g7e": (case("g7e.8xlarge", efa="1.45.0"), case("g7e.8xlarge", efa="1.44.0")),
    "efa-al2": (case(system="amzn2", efa="1.49.0"), case(system="amzn2", efa="1.50.0")),
    "efa-u2004": (case(system="ubuntu20.04", efa="1.42.0"), case(system="ubuntu20.04", efa="1.43.0")),
    "efa-deb11": (case(system="debian11", efa="1.50.0"), case(system="debian11", efa="1.51.0")),
    "efa-deb10": (case(system="debian10", efa="1.39.0"), case(system="debian10", efa="1.40.0")),
    "efa-u2404": (case(efa="1.33.0"), case(efa="1.32.0")),
    "efa-rhel10": (case(system="rhel10", efa="1.48.0"), case(system="rhel10", efa="1.47.0")),
    "efa-plugin-el9": (case(system="rocky9", efa="1.46.0"), case(system="rocky9", efa="1.45.1")),
    "efa-plugin-el8": (case(system="rhel8", aws_ofi_nccl={"sources": BUILT}), case(system="rhel8")),
    "efa-plugin-arm": (case("p6e-gb200.36xlarge", efa="1.40.0"), case("p6e-gb200.36xlarge", efa="1.39.0")),
    "efa-1.47-hang": (case(efa="1.47.0", aws_ofi_nccl="1.20.0"), case(efa="1.47.0", aws_ofi_nccl="1.18.0")),
    "efa-rdma-core": (case(), case(rdma_core={"sources": [{"distro": ["rdma-core"]}]})),
    "efa-bundle": (case(), case(libfabric="2.4.0amzn5.0")),
    "plugin-missing": (case(), case(aws_ofi_nccl=None)),
    "plugin-old": (case(nccl="2.28.3", aws_ofi_nccl="1.9.0"), case(nccl="2.28.3", aws_ofi_nccl="1.7.4")),
    "nccl-blackwell": (case("p6-b200.48xlarge", nccl="2.25.1"), case("p6-b200.48xlarge", nccl="2.18.5")),
    "nccl-cuda13": (case(nccl="2.27.7"), case(nccl="2.20.5")),
    "plugin-nccl": (case(nccl="2.17.1"), case(nccl="2.16.5")),
    "plugin-libfabric": (case(libfabric="1.22.0amzn4.0"), case(libfabric="1.22.0amzn3.0")),
    "p5-plugin": (case(aws_ofi_nccl="1.7.3", nccl="2.18.5", efa="1.29.0"), case(aws_ofi_nccl="1.7.2")),
    "p5-cuda12": (case(cuda="12.2"), case(cuda="11.8")),
    "p54-plugin": (case("p5.4xlarge", aws_ofi_nccl="1.16.2"), case("p5.4xlarge", aws_ofi_nccl="1.16.1")),
    "b200-plugin": (case("p6-b200.48xlarge", aws_ofi_nccl="1.15.0"), case("p6-b200.48xlarge", aws_ofi_nccl="1.14.2")),
    "b300-plugin": (case("p6-b300.48xlarge", aws_ofi_nccl="1.18.0"), case("p6-b300.48xlarge", aws_ofi_nccl="1.17.3")),
    "g7e-plugin": (case("g7e.8xlarge", aws_ofi_nccl="1.17.2"), case("g7e.8xlarge", aws_ofi_nccl="1.17.1")),
    "gb200-plugin": (case("p6e-gb200.36xlarge", aws_ofi_nccl="1.19.0"), case("p6e-gb200.36xlarge", aws_ofi_nccl="1.18.0")),
    "blackwell-tuner": (case("p6-b200.48xlarge"), case("p6-b200.48xlarge", aws_ofi_nccl="1.17.3")),
    "cuda13-plugin": (case(aws_ofi_nccl="1.17.0"), case(aws_ofi_nccl="1.16.3")),
    "plugin-982": (
        case("p4d.24xlarge", aws_ofi_nccl="1.16.3", nccl="2.20.5"),
        case("p4d.24xlarge", aws_ofi_nccl="1.16.2", nccl="2.20.5"),
    ),
    "nccl219-efa": (case(efa="1.29.0"), case(efa="1.28.0")),
    "gdrcopy-cuda13": (case(gdrcopy="2.5.1"), case(gdrcopy="2.5")),
    "gdrcopy-k63": (case(gdrcopy="2.4"), case(gdrcopy="2.3.1")),
    "gdrcopy-k615": (case(kernel="6.18.2"), case(kernel="6.18.2", gdrcopy="2.5.1")),
    "toolkit-cve": (case(nvidia_container_toolkit="1.17.8"), case(nvidia_container_toolkit="1.17.7")),
    "dcgm-cuda13": (case(dcgm="4.0"), case(dcgm="3.3.9")),
    "dcgm-cuda": (case(), case(dcgm=DCGM)),
    "neuron": (case("trn1.32xlarge"), case("trn1.32xlarge", neuron=None)),
    "neuron-trn2": (case("trn2.48xlarge", neuron="2.21.0"), case("trn2.48xlarge", neuron="2.10.0")),
    "neuron-wheels": (
        case("trn2.48xlarge", wheels={"neuronx-cc": "2.27.5334.0"}),
        case("trn2.48xlarge", wheels={"neuronx-cc": "2.24.5133.0"}),
    ),
    "neuron-python": (
        case("trn2.48xlarge", python="3.12", wheels={"torch-neuronx": "2.14.3.0"}),
        case("trn2.48xlarge", python="3.10", wheels={"torch-neuronx": "2.14.3.0"}),
    ),
    "wheel-cuda": (
        case(wheels={"torch": "2.15.0", "nvidia-nccl-cu13": "2.30.7"}),
        case(wheels={"torch": "2.15.0", "nvidia-nccl-cu12": "2.30.7"}),
    ),
    "efa-sg": (launch(), launch(security_group={"from_self": True, "to_self": False})),
    "efa-az": (launch(), launch(subnets=["subnet-1", "subnet-2"])),
    "efa-placement": (launch(), launch(placement_group=None)),
    "ami-arch": (launch(), launch(ami={"arch": "arm64"})),
    "launch-threads": (launch(threads_per_core=2), launch(threads_per_core=1)),
    "nic-type": (launch(), launch(interfaces=[*ONE_CARD, {"card": 0, "device": 1, "type": "efa_only"}])),
    "nic-count": (launch("p5e.48xlarge"), launch("p5e.48xlarge", interfaces=P5E_HALF)),
    "boot-mode": (launch("p4d.24xlarge"), launch("p4d.24xlarge", ami={"boot_mode": "uefi"})),
    "arm-ami": (
        launch("p6e-gb200.36xlarge", ami={"arch": "arm64", "system": "rocky9"}),
        launch("p6e-gb200.36xlarge", ami={"arch": "arm64", "system": "rhel9"}),
    ),
    "nic-b300": (launch("p6-b300.48xlarge"), launch("p6-b300.48xlarge", interfaces=[{"card": 0, "device": 0, "type": "efa"}])),
    "nic-p6e": (
        launch("p6e-gb200.36xlarge", interfaces=[{"card": 0, "device": 0, "type": "interface"}, {"card": 2, "device": 0, "type": "efa"}]),
        launch("p6e-gb200.36xlarge", interfaces=[{"card": 0, "device": 0, "type": "interface"}, {"card": 1, "device": 0, "type": "efa"}]),
    ),
    "nic-primary": (
        launch(interfaces=[{"card": 0, "device": 0, "type": "efa"}]),
        launch(interfaces=[{"card": 0, "device": 0, "type": "efa-only"}]),
    ),
    "nic-one-efa": (
        launch(interfaces=[{"card": 1, "device": 0, "type": "efa-only"}, {"card": 1, "device": 1, "type": "interface"}]),
        launch(interfaces=[{"card": 1, "device": 0, "type": "efa-only"}, {"card": 1, "device": 1, "type": "efa"}]),
    ),
    "nic-di": (launch(), launch(interfaces=[{"card": 3, "device": 3, "type": "efa-only"}])),
    "nic-publicip": (launch(), launch(public_ip=True)),
    "p6e-market": (launch("p6e-gb200.36xlarge", market="capacity-block"), launch("p6e-gb200.36xlarge")),
    "g-market": (launch("g5.8xlarge"), launch("g5.8xlarge", market="capacity-block")),
    "batch-mnp": (launch(platform="batch-mnp"), launch(platform="batch-mnp", market="spot")),
    "algo-segv": (env(NCCL_ALGO="Ring"), env(NCCL_ALGO="Ring", changes={"aws_ofi_nccl": "1.19.2"})),
    "no-silent-tcp": (env(NCCL_NET="Libfabric"), env(NCCL_NET="Socket")),
    "socket-ifname": (env(NCCL_SOCKET_IFNAME="ens5"), env(NCCL_SOCKET_IFNAME="eth0")),
    "p2p-disabled": (env(NCCL_P2P_DISABLE="0"), env(NCCL_P2P_DISABLE="1")),
    "net-name-old": (
        env(NCCL_NET="AWS Libfabric", changes={"aws_ofi_nccl": "1.11.0"}),
        env(NCCL_NET="Libfabric", changes={"aws_ofi_nccl": "1.11.0"}),
    ),
    "gin": (env(NCCL_GIN_ENABLE="1", changes=GIN), env(NCCL_GIN_ENABLE="1", changes={**GIN, "nccl": "2.30.7"})),
    "gin-efa": (env(NCCL_GIN_TYPE="3"), env(NCCL_GIN_TYPE="3", changes={"efa": "1.49.0"})),
    "env-aborts": (env(FI_EFA_USE_DEVICE_RDMA="1"), env("g5.48xlarge", FI_EFA_USE_DEVICE_RDMA="1")),
    "env-harmful": (env(NCCL_NET="Libfabric"), env(RDMAV_FORK_SAFE="1")),
}


def told(name: str, of: Case) -> dict:
    [answer] = [each for each in judge(of) if each["rule"] == name]
    return answer


def test_every_rule_has_its_two_inputs() -> None:
    assert set(EXAMPLES) == set(RULES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_lets_one_pass_and_one_not(name: str) -> None:
    good, bad = EXAMPLES[name]
    assert told(name, good)["verdict"] == "passed"
    answer = told(name, bad)
    assert answer["verdict"] == ("warned" if RULES[name].warn else "refused")
    assert re.fullmatch(r"[^\n]+, because [^\n]+ \(rule %s\)\." % re.escape(name), sentence(answer))
    assert answer["reason"] and answer["source"]


@pytest.mark.parametrize("name", [name for name, (_good, bad) in EXAMPLES.items() if told(name, bad)["works"]])
def test_a_version_that_is_said_to_work_does(name: str) -> None:
    bad = copy.deepcopy(EXAMPLES[name][1])
    for _each in range(5):
        for component, works in told(name, bad)["works"].items():
            bad.stack[component]["version"] = works.split()[1]
    assert told(name, bad)["verdict"] in ("passed", "not_applicable")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_without_its_input_has_not_run(name: str) -> None:
    answer = told(name, Case())
    assert answer["verdict"] in ("not_run", "not_applicable")
    assert bool(answer["says"]) == (answer["verdict"] == "not_run")


class Reader(Case):
    """A case that notes what the rules ask of its launch."""

    asked: set[tuple[str, ...]]

    def launched(self, *path):
        self.asked.add(path)
        return super().launched(*path)


def asked(rule: str) -> set[tuple[str, ...]]:
    """What a rule asks of a launch, as paths."""
    found: set[tuple[str, ...]] = set()
    for of in EXAMPLES[rule]:
        reader = copy.copy(of)
        reader.__class__ = Reader
        reader.asked = found
        judge(reader, (RULES[rule].scope,), [name for name in RULES if name != rule])
    return found


def paths(launch: dict) -> set[tuple[str, ...]]:
    """A launch as the paths that `asked` has."""
    out = set()
    for key, value in launch.items():
        out |= {(key, *rest) for rest in paths(value)} if isinstance(value, dict) else {(key,)}
    return out


@functools.cache
def callers() -> list[tuple[str, list[str], set[tuple[str, ...]]]]:
    """(playbook, scopes, what it says of a launch) of each task that asks the rules. The inventory of EC2 says what begin.yml has."""
    attached = {"attachment": {"network_card_index": 0, "device_index": 0}, "interface_type": "interface"}
    instance = {"placement": {"availability_zone": "a"}, "subnet_id": "s", "network_interfaces": [attached]}
    live = paths(launch_of({**instance, "cpu_options": {"threads_per_core": 2}}))
    found = []
    for path in sorted((ROOT / "playbooks").rglob("*.yml")):
        for task in tasks_in(yaml.safe_load(path.read_text())):
            module = task.get("muster.fleet.stack_rules", None)
            if "muster.fleet.stack_rules" in task:
                scopes, launch = (module or {}).get("scopes", ["stack"]), (module or {}).get("launch", {})
                if path.name == "begin.yml":
                    scopes = jinja2.Environment().compile_expression(scopes.strip("{} "))(begin_changes=True)
                if isinstance(scopes, str):  # cloud.yml: what it says of the node groups of a cluster document
                    found.append((path.name, ["launch"], paths(cluster_launch())))
                else:
                    found.append((path.name, scopes, paths(launch) or live))
    return found


def cluster_launch() -> dict:
    """What plan.launches says of the node group of a cluster document."""
    group = {"name": "gpu", "type": "p5.48xlarge", "count": 2}
    cluster = {"kind": "batch", "name": "mine", "region": "us-east-1", "zones": ["us-east-1a"], "nodes": [group]}
    return plan.launches(load({**cluster, "image": "ami-0123456789abcdef0"}))[0]["launch"]


def tasks_in(node: Any) -> list[dict]:
    """All mappings below a playbook or a list of tasks."""
    if isinstance(node, list):
        return [task for each in node for task in tasks_in(each)]
    if not isinstance(node, dict):
        return []
    return [node, *(task for key in ("tasks", "pre_tasks", "block", "rescue", "always") for task in tasks_in(node.get(key)))]


@pytest.mark.parametrize("name", RULES)
def test_a_playbook_asks_the_rule_and_knows_its_inputs(name: str) -> None:
    having = [path for path, scopes, said in callers() if RULES[name].scope in scopes and asked(name) <= said]
    assert having, f"no playbook asks rule {name} with {sorted(asked(name))}: connect it, or delete it"


@pytest.mark.parametrize(
    ("rule", "kind", "interfaces", "says"),
    [
        ("nic-p6e", "p6e-gb200.36xlarge", [(0, 0, "efa")], "no EFA may be on network card 0"),
        ("nic-p6e", "p6e-gb200.36xlarge", [(0, 0, "interface"), (3, 0, "interface")], "on network card 3 must be efa-only"),
        ("nic-primary", "p5.48xlarge", [(0, 1, "interface")], "network card 0 must have one interface"),
        ("nic-primary", "p5.48xlarge", [(0, 0, "interface"), (0, 0, "interface")], "network card 0 must have one interface"),
        ("nic-one-efa", "p5.48xlarge", [(0, 0, "efa"), (1, 0, "efa-only"), (1, 1, "efa-only")], "network card 1 may have one EFA at most"),
    ],
)
def test_where_interfaces_may_not_be(rule: str, kind: str, interfaces: list[tuple[int, int, str]], says: str) -> None:
    of = launch(kind, interfaces=[{"card": card, "device": device, "type": name} for card, device, name in interfaces])
    assert says in told(rule, of)["says"]


@pytest.mark.parametrize("kind", [each for each in catalogue.names() if catalogue.instance_type(each)["efa"]])
def test_the_catalogue_s_own_interfaces_are_let_pass(kind: str) -> None:
    answers = [each for each in judge(launch(kind), ("launch",)) if each["rule"].startswith("nic-") and each["rule"] != "nic-publicip"]
    assert [each["rule"] for each in answers if each["verdict"] == "refused"] == []


# The broken stacks of which nobody should find out on a capacity block.
@pytest.mark.parametrize(
    ("rule", "of", "says"),
    [
        ("nic-count", launch(interfaces=ONE_CARD), "the launch must have 32 EFA interfaces and has 0"),
        ("nic-count", launch("p5e.48xlarge", interfaces=P5E_HALF), "must have 32 EFA interfaces and has 16"),
        ("nic-type", launch(interfaces=[{"card": 0, "device": 1, "type": "efa_only"}]), "unknown type efa_only; did you mean efa-only"),
        ("nccl-blackwell", case("p6-b300.48xlarge", nccl="2.24.3"), "nccl must be 2.25.1 or later and is 2.24.3"),
        ("ami-arch", launch("g5g.xlarge", ami={"arch": "x86_64"}), "the image must be for arm64"),
        ("efa-bundle", case(efa="1.49.0"), "driver of efa must be 3.1.0 with EFA installer 1.49.0, and is 3.3.1"),
        ("efa-bundle", case(rdma_core="57.0"), "rdma_core must be 65.0 with EFA installer 1.51.0, and is 57.0"),
        ("fm-pkg-name", case(**driver("580.178.04")), "the package of fabricmanager must be nvidia-fabricmanager-580 on ubuntu24.04"),
        ("efa-open-kernel", case(efa="1.28.0"), "efa must be 1.29.0 or later and is 1.28.0"),
        ("socket-ifname", env(NCCL_SOCKET_IFNAME="=ens5,eth1"), "and names eth1"),
        ("gdrcopy-k63", case(system="debian12", gdrcopy="2.3.1", kernel="6.8.0-1021-aws"), "gdrcopy must be 2.4 or later"),
    ],
)
def test_what_a_broken_case_is_told(rule: str, of: Case, says: str) -> None:
    answer = told(rule, of)
    assert answer["verdict"] == "refused"
    assert says in answer["says"]


@pytest.mark.parametrize(
    ("rule", "of"),
    [
        ("fm-pkg-name", case(system="ubuntu24.04", **driver("570.172.08"), fabricmanager={**OLD_MANAGER, "sources": UBUNTU_MANAGER})),
        ("fm-pkg-name", case(system="debian13", **driver("580.178.04"))),
        ("nic-count", launch("p6e-gb200.36xlarge", interfaces=catalogue.instance_type("p6e-gb200.36xlarge")["interfaces"][:9])),
        ("efa-az", launch("g5.48xlarge", interfaces=ONE_CARD, subnets=["subnet-1", "subnet-2"])),
        ("efa-placement", launch("g5.48xlarge", interfaces=ONE_CARD, placement_group="")),
        ("nic-count", launch("g5.48xlarge", interfaces=ONE_CARD)),
        ("no-silent-tcp", env(NCCL_DEBUG="INFO")),
        ("efa-az", launch(placement_group=None)),
        ("socket-ifname", env(NCCL_SOCKET_IFNAME="^lo,docker,eth")),
        ("gdrcopy-k63", case(system="debian12", gdrcopy="2.3.1")),
        ("nccl-cuda13", case(cuda="12.9.1", nccl="2.20.5")),
        ("plugin-missing", case("g5.48xlarge", aws_ofi_nccl=None)),
    ],
)
def test_what_works_is_not_refused(rule: str, of: Case) -> None:
    assert told(rule, of)["verdict"] in ("passed", "not_applicable")


def test_a_missing_placement_group_is_a_warning() -> None:
    assert told("efa-placement", launch(placement_group=None))["verdict"] == "warned"


# What a rule rightly says of a stack that Muster ships: Debian's own packages have no EFA and a driver that NVIDIA has ended.
RIGHTLY = {"debian-12": {"driver-eol", "efa-missing"}, "debian-13": {"driver-eol", "efa-missing"}}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "stacks").glob("*.yml")))
def test_a_stack_that_muster_ships_is_refused_or_works_without_a_warning(name: str) -> None:
    stack, warned, works = stack_files.load(name), set(), set()
    for kind in catalogue.names():
        for system in stack["systems"]:
            answers = judge(Case(stack, catalogue.instance_type(kind), system=system), ("stack",))
            if verdict(answers) != "refused":
                works.add(kind)
                warned |= {each["rule"] for each in answers if each["verdict"] == "warned"}
    assert warned <= RIGHTLY.get(name, set())
    assert name != "aws-2026.11" or {"p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6e-gb200.36xlarge", "trn2.48xlarge"} <= works


def test_a_table_of_installers_is_not_the_limit_of_what_may_be_used() -> None:
    assert told("efa-bundle", case(efa="1.52.0"))["says"] == "what EFA installer 1.52.0 brings is not known"


@pytest.mark.parametrize("kind", ["p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"])
def test_every_p5_needs_what_knows_it(kind: str) -> None:
    for older in ({"aws_ofi_nccl": "1.7.2"}, {"nccl": "2.18.3"}, {"efa": "1.28.0"}):
        assert told("p5-plugin", case(kind, **older))["verdict"] == "refused"


def test_a_missing_component_is_named() -> None:
    assert told("efa-580", case(efa=None)) | {"reason": "", "source": ""} == {
        **{"rule": "efa-580", "scope": "stack", "verdict": "not_run", "says": "the stack has no efa", "works": {}},
        **{"reason": "", "source": ""},
    }
    assert told("efa-580", case(efa={"version": "*"}))["says"] == "the stack leaves the version of efa open"


def test_an_older_version_counts_before_a_missing_one() -> None:
    assert told("p5-plugin", case(aws_ofi_nccl="1.6.0", efa=None))["says"] == "aws_ofi_nccl must be 1.7.3 or later and is 1.6.0"


def test_every_type_that_a_rule_names_is_one_of_the_catalogue() -> None:
    kinds = [catalogue.instance_type(name) for name in catalogue.names()]
    words = set()
    for part in PARTS:
        tree = ast.parse(Path(part.__file__).read_text())
        words |= {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)} - set(RULES)
    named = {word for word in words if re.fullmatch(r"(p\d|g\d|gr\d|trn\d|inf\d|dl\d)[a-z0-9.-]*", word)}
    assert {"p5en", "p6-b200", "p5.4xlarge", "trn2"} <= named
    assert [word for word in named if not any(kind["name"].startswith(word) for kind in kinds)] == []
    gpus = {word for word in words if re.fullmatch(r"G?B\d00|[AHV]\d00|[LT]\d+[GS]?|A10G|RTX .*", word)}
    assert {"H200", "B300"} <= gpus <= {kind["gpu_model"] for kind in kinds}


def test_the_worst_of_all_is_the_verdict() -> None:
    assert [
        verdict([{"verdict": each} for each in some]) for some in (["passed", "not_run"], ["warned", "passed"], ["warned", "refused"])
    ] == [
        *("passed", "warned", "refused"),
    ]


def test_the_table_of_verdicts_is_current() -> None:
    table = (ROOT / "tests/fixtures/stack_verdicts.txt").read_text()
    assert verdict_table.table() == table, "run `python tests/support/verdict_table.py` and look at what changed"


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.scope == "stack"])
def test_without_a_rule_the_table_is_another(name: str) -> None:
    assert verdict_table.table(without=(name,)) != (ROOT / "tests/fixtures/stack_verdicts.txt").read_text()
