# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The variables of roles of GPU nodes, which follow from stack, system and instance type, as Ansible templates them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from playbook import run_playbook

from ansible_collections.muster.fleet.plugins.filter import catalogue, nvidia_fabric, stack, storage
from ansible_collections.muster.fleet.plugins.plugin_utils import stack_files

ROLES = Path(__file__).parents[2] / "roles"
ON_UBUNTU = {
    "ansible_facts": {"os_family": "Debian", "distribution_release": "noble", "kernel": "6.8.0-1021-aws"},
    "group_names": [],
    "phases_system": "ubuntu24.04",
    "phases_arch": "x86_64",
    "phases_mirror": "",
    "phases_in_container": False,
    "phases_has_devices": True,
    "phases_stack": stack_files.load("aws-2026.11"),
}
IN_CONTAINER = {"phases_in_container": True, "phases_has_devices": False}
NO_GPU = {"gpu": {"on_bus": 0}}
GPU = {"gpu": {"on_bus": 8}}


def trusted(value: Any) -> Any:
    """Render a value from a role's file, which may be a template."""
    if isinstance(value, dict):
        return {key: trusted(each) for key, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


def read(role: str, path: str) -> Any:
    return trusted(yaml.safe_load((ROLES / role / path).read_text()))


def of(role: str, asked: str, **known: Any) -> Any:
    """Render a variable of a role, or a template with some."""
    variables = ON_UBUNTU | read(role, "defaults/main.yml") | read(role, "vars/main.yml") | known
    templar = Templar(DataLoader(), variables=variables)
    # Ansible finds them by the collection's name only where the collection is installed for it.
    for plugins in (catalogue, nvidia_fabric, stack, storage):
        for name, function in plugins.FilterModule().filters().items():
            templar._engine.environment.filters["muster.fleet." + name] = function
    return templar.template(trust_as_template(asked if "{" in asked else "{{ %s }}" % asked))


def check(role: str, phase: str, name: str) -> dict[str, Any]:
    """Read a check from the role's file: from the list of a task, or from a list in the task's vars."""
    tasks = [each for each in read(role, f"tasks/{phase}.yml") if "muster.fleet.check" in each]
    lists = [value for task in tasks for value in (task["muster.fleet.check"]["checks"], *task.get("vars", {}).values())]
    [found] = [each for checks in lists if isinstance(checks, list) for each in checks if each["check"] == name]
    return found


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("Debian", ["docker-ce=5:29.1.4*", "docker-ce-cli=5:29.1.4*", "containerd.io"]),
        ("RedHat", ["docker-ce=29.1.4*", "docker-ce-cli=29.1.4*", "containerd.io"]),
    ],
)
def test_docker_s_own_packages_have_the_stack_s_version(family: str, names: list[str]) -> None:
    assert of("docker", "__docker_names", ansible_facts={"os_family": family}) == names


def test_debian_s_driver_has_a_separate_package_that_keeps_it_loaded() -> None:
    debian = {"phases_stack": stack_files.load("debian-12"), "phases_system": "debian12"}
    assert of("nvidia_driver", "__nvidia_driver_keeper", **debian) == ["nvidia-persistenced"]
    assert of("nvidia_driver", "__nvidia_driver_keeper", **debian, nvidia_driver_persistence=False) == []
    assert of("nvidia_driver", "__nvidia_driver_keeper") == [], "NVIDIA's packages have it, by another list"


def test_docker_of_the_distribution_has_its_own_version() -> None:
    debian = {"phases_stack": stack_files.load("debian-13"), "phases_system": "debian13"}
    assert of("docker", "__docker_names", **debian) == ["docker.io", "docker-cli"]


def test_the_configuration_of_docker_fits_its_node() -> None:
    told = of("docker", "__docker_daemon")
    assert told["default-ulimits"]["memlock"] == {"Name": "memlock", "Soft": -1, "Hard": -1}
    assert told["features"] == {"cdi": True} and "runtimes" not in told
    # A container cannot raise its host's limit, and CDI came with Docker 25.
    assert "default-ulimits" not in of("docker", "__docker_daemon", **IN_CONTAINER)
    assert "features" not in of("docker", "__docker_daemon", __docker_version="24.0.9")
    assert list(of("docker", "__docker_daemon", group_names=["muster_gpu"])["runtimes"]) == ["nvidia"]
    # A site's settings are merged with these and do not replace them.
    site = of("docker", "__docker_daemon", docker_config={"features": {"buildkit": True}, "log-driver": "journald"})
    assert (site["features"], site["log-driver"]) == ({"cdi": True, "buildkit": True}, "journald")


@pytest.mark.parametrize(
    ("components", "units"),
    [(["fabricmanager", "nvlsm"], ["nvidia-fabricmanager"]), (["imex"], ["nvidia-imex"]), ([], [])],
)
def test_the_daemons_of_nvswitch(components: list[str], units: list[str]) -> None:
    assert of("nvidia_fabric", "__nvidia_fabric_units", __nvidia_fabric_components=components) == units


def test_only_the_subnet_manager_needs_its_module() -> None:
    for components, tools in ((["fabricmanager", "nvlsm"], ["infiniband-diags"]), (["fabricmanager"], []), (["imex"], [])):
        assert of("nvidia_fabric", "__nvidia_fabric_tools", __nvidia_fabric_components=components) == tools


@pytest.mark.parametrize(("components", "here"), [(["all"], ["nvidia-imex"]), (["fabricmanager"], ["nvidia-fabricmanager"])])
def test_a_machine_of_unknown_type_runs_the_daemons_whose_devices_it_has(components: list[str], here: list[str]) -> None:
    """A machine whose type is known runs the daemon of the type, so that a lost switch is noticed."""
    asked = {"results": [{"item": "nvidia-fabricmanager", "rc": 1}, {"item": "nvidia-imex", "rc": 0}]}
    known = {"__nvidia_fabric_asked": asked, "__nvidia_fabric_units": ["nvidia-fabricmanager"]}
    assert of("nvidia_fabric", "__nvidia_fabric_here", nvidia_fabric_components=components, **known) == here


@pytest.mark.parametrize("role", ["nvidia_fabric", "dcgm"])
def test_daemons_for_gpus_start_only_on_nodes_with_gpus(role: str) -> None:
    for gpus, where, said in (
        (GPU, {}, ""),
        (NO_GPU, {}, "the node has no GPU on its PCI bus"),
        (GPU, IN_CONTAINER, "the GPUs belong to the host of the container"),
    ):
        assert of(role, f"__{role}_not_run", **{f"__{role}_gpus": gpus}, **where) == said


@pytest.mark.parametrize(("family", "pin"), [("Debian", "1:4.7.0*"), ("RedHat", "4.7.0*")])
def test_dcgm_has_the_stack_s_version(family: str, pin: str) -> None:
    [task] = [each for each in read("dcgm", "tasks/install.yml") if "vars" in each]
    assert of("dcgm", task["vars"]["phases_package_pin"], ansible_facts={"os_family": family}) == pin


@pytest.mark.parametrize(
    ("count", "printed", "sees"), [(8, "8 GPUs found.", True), (1, "1 GPU found.", True), (8, "18 GPUs found.", False)]
)
def test_dcgm_sees_all_gpus(count: int, printed: str, sees: bool) -> None:
    matches = of("dcgm", check("dcgm", "verify_node", "sees_gpus")["matches"], __dcgm_gpus={"gpu": {"count": count}})
    assert bool(re.search(matches, printed, re.MULTILINE)) == sees


@pytest.mark.parametrize(("system", "suite"), [("ubuntu22.04", "jammy"), ("ubuntu24.04", "noble"), ("amzn2023", "/")])
def test_neuron_s_repository_fits_the_system(system: str, suite: str) -> None:
    assert of("neuron", "__neuron_suite", phases_system=system) == suite


@pytest.mark.parametrize(("instance_type", "devices"), [("trn2.48xlarge", 16), ("trn1.2xlarge", 1), ("", 0)])
def test_the_number_of_neuron_devices_follows_from_the_type(instance_type: str, devices: int, tmp_path: Path) -> None:
    assert of("neuron", "neuron_devices", instance_type=instance_type) == devices
    for number in range(devices):
        (tmp_path / f"neuron{number}").touch()
    script = check("neuron", "verify_node", "devices")["argv"][2].replace("/dev/", f"{tmp_path}/")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(devices)


def test_lustre_s_client_fits_one_kernel() -> None:
    # The stack refuses its own source on Ubuntu, because AWS publishes no fingerprint of the key.
    source = {"__lustre_client_source": {"kind": "repository"}}
    for container, kernel in ((True, "6.8.0-1021-aws"), (False, "6.8.0-1030-aws")):
        # An image build runs another kernel than the image boots.
        boots = {"phases_in_container": container, "__lustre_client_target": {"target": "6.8.0-1030-aws"}}
        found = of("lustre_client", "__lustre_client_packages", **source, **boots)
        assert found == [f"lustre-client-modules-{kernel}", "lustre-client-utils"]
    held = of("lustre_client", "__lustre_client_packages", lustre_client_kernel="6.8.0-1019-aws", **source)
    assert held[0] == "lustre-client-modules-6.8.0-1019-aws"
    assert of("lustre_client", "__lustre_client_packages", phases_system="amzn2023", **boots) == ["lustre-client"]


def test_the_first_use_mounts_lustre_if_the_kernel_can() -> None:
    assert of("lustre_client", "__lustre_client_units", lustre_client_mounts=[{"path": "/fsx"}, {"path": "/fsx/mount"}]) == [
        "fsx.automount",
        "fsx-mount.automount",
    ]
    for filesystems, where, runs in (
        ("nodev\text4", {}, True),
        ("nodev\text4", IN_CONTAINER, False),
        ("nodev\tlustre", IN_CONTAINER, True),
    ):
        found = {"__lustre_client_filesystems": {"stdout": filesystems}}
        assert (of("lustre_client", "__lustre_client_not_run", **found, **where) == "") is runs


def test_lustre_s_units_have_the_common_options_and_their_own() -> None:
    mounts = [{"source": "fs-1@tcp:/a", "path": "/fsx", "options": ["ro"]}, {"source": "fs-2@tcp:/b", "path": "/b"}]
    text = of("lustre_client", (ROLES / "lustre_client/templates/units.yml.j2").read_text(), lustre_client_mounts=mounts)
    files = {Path(each["dest"]).name: each["content"].splitlines() for each in yaml.safe_load(text)}
    assert sorted(files) == ["b.automount", "b.mount", "fsx.automount", "fsx.mount"]
    assert "Options=noatime,flock,_netdev,ro" in files["fsx.mount"] and "Options=noatime,flock,_netdev" in files["b.mount"]
    # slurmd may start jobs at once.
    assert all("Before=slurmd.service slurmctld.service" in lines for lines in files.values())


@pytest.mark.parametrize(("filesystem", "package"), [("xfs", "xfsprogs"), ("ext4", "e2fsprogs")])
def test_scratch_space_has_the_tools_of_its_file_system(filesystem: str, package: str) -> None:
    assert package in of("local_nvme", "__local_nvme_packages", local_nvme_filesystem=filesystem)


def test_the_unit_of_scratch_space_gives_the_model_as_one_word() -> None:
    unit = of("local_nvme", (ROLES / "local_nvme/templates/muster-scratch.service.j2").read_text(), local_nvme_mount_options=[])
    [start] = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert shlex.split(start) == [
        "/usr/local/sbin/muster-scratch",
        "--path=/scratch",
        "--model=Amazon EC2 NVMe Instance Storage",
        "--filesystem=xfs",
        "--options=defaults",
    ]
    assert "ConditionVirtualization=!container" in unit.splitlines(), "the disks belong to the host"


@pytest.mark.parametrize(("model", "store"), [("Amazon EC2 NVMe Instance Storage", True), ("Amazon Elastic Block Store", False)])
def test_a_machine_without_instance_store_needs_no_scratch_space(model: str, store: bool, tmp_path: Path) -> None:
    asked = check("local_nvme", "verify_node", "mounted")
    for name, prints in (("lsblk", model), ("findmnt", "xfs" if store else "")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{prints}'\n")
        (tmp_path / name).chmod(0o755)
    script = of("local_nvme", asked["argv"][2])
    done = subprocess.run(["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert (done.stdout.strip() == "xfs") is store
    assert any(re.search(pattern, done.stderr, re.MULTILINE) for pattern in asked["not_run_when"]) is not store


@pytest.mark.parametrize(
    ("tool", "good", "bad"),
    [
        ("aws_cli", "aws-cli/2.36.11 Python/3.13", "aws-cli/2.36.110 Python/3.13"),
        ("kubectl", "Client Version: v1.36.4", "Client Version: v1.36.40"),
        ("eksctl", "0.230.0-dev+1", "0.230.01"),
        ("helm", "v3.18.4+gd80839c", "v3.18.40+g1"),
    ],
)
def test_the_tools_must_have_the_stack_s_version(tool: str, good: str, bad: str) -> None:
    matches = of("cloud_tools", "{{ __cloud_tools_probes.%s.matches }}" % tool)
    assert re.search(matches, good, re.MULTILINE) and not re.search(matches, bad, re.MULTILINE)


KERNEL = {"target": "6.8.0-1021-aws", "running": "6.8.0-1019-aws", "busy": False, "headers": True}


@pytest.mark.parametrize(
    ("kernel", "known", "restarts"),
    [
        ({}, {"kernel_reboot": True}, True),
        ({}, {}, False),
        ({"busy": True}, {"kernel_reboot": True}, False),
        ({"target": "6.8.0-1019-aws"}, {"kernel_reboot": True}, False),
        ({"target": ""}, {"kernel_reboot": True}, False),
        ({}, {"kernel_reboot": True, **IN_CONTAINER}, False),
    ],
)
def test_a_node_without_jobs_restarts_into_its_kernel_when_that_is_allowed(kernel: dict, known: dict, restarts: bool) -> None:
    [task] = [each for each in read("kernel", "tasks/configure.yml") if "ansible.builtin.reboot" in each]
    assert all(of("kernel", "{{ %s }}" % condition, __kernel=KERNEL | kernel, **known) for condition in task["when"]) is restarts


def test_the_check_names_a_package_that_is_not_held() -> None:
    asked = check("kernel", "verify_image", "held")
    packages = {"packages": ["linux-aws", "linux-image-aws"], "held": ["linux-aws"]}
    assert of("kernel", asked["value"], __kernel=KERNEL | packages) == "linux-image-aws"
    assert of("kernel", asked["value"], __kernel=KERNEL | {"packages": ["linux-aws"], "held": ["linux-aws"]}) == "all"


def test_wanted_headers_are_an_artefact_of_role_kernel() -> None:
    [task] = read("kernel", "tasks/main.yml")
    artefacts = task["vars"]["phases_artefacts"]
    assert of("kernel", artefacts, __kernel=KERNEL) == ["/lib/modules/6.8.0-1021-aws/build"]
    assert of("kernel", artefacts, __kernel=KERNEL, kernel_headers=False) == of("kernel", artefacts, __kernel={"target": ""}) == []


def test_a_site_s_variables_of_nccl_win_and_an_empty_one_removes_one() -> None:
    of_type = of("nccl", "__nccl_environment", instance_type="p5.48xlarge")
    assert of_type["NCCL_NET"] == "Libfabric"
    told = of(
        "nccl", "__nccl_environment", instance_type="p5.48xlarge", nccl_environment={"NCCL_NET": "Socket", "NCCL_DEBUG": "", "A": "1"}
    )
    assert told == {**{name: value for name, value in of_type.items() if name != "NCCL_DEBUG"}, "NCCL_NET": "Socket", "A": "1"}
    assert of("nccl", "__nccl_lines", __nccl_environment={"A": "1", "B": "x y"}) == "A=1\nB=x y\n"


def test_an_image_with_the_toolkit_has_no_cdi_specification_of_another_machine(tmp_path: Path) -> None:
    script = check("nvidia_container_toolkit", "verify_image", "cdi_not_baked")["argv"][2].replace("/etc/cdi", str(tmp_path))
    for name, said in (("other.yaml", "none"), ("nvidia.yaml", f"{tmp_path}/nvidia.yaml")):
        (tmp_path / name).touch()
        assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False).stdout.strip() == said


def test_the_toolkit_s_packages_have_the_stack_s_version_and_release() -> None:
    task = read("nvidia_container_toolkit", "tasks/install.yml")[0]
    assert of("nvidia_container_toolkit", task["vars"]["phases_package_pin"]) == "1.20.1-1"


@pytest.mark.parametrize(
    ("kind", "groups", "disks"), [("p5.48xlarge", ["muster_gpu"], 8), ("c7i.large", ["muster_compute"], 0), ("", [], 0)]
)
def test_the_disks_of_a_node_follow_its_type(kind: str, groups: list[str], disks: int) -> None:
    assert int(of("local_nvme", "local_nvme_disks", instance_type=kind, group_names=groups)) == disks


@pytest.mark.parametrize(
    ("kind", "groups", "found"), [("p5.48xlarge", ["muster_gpu"], "p5.48xlarge"), ("c7i.large", ["muster_compute"], "")]
)
def test_the_type_whose_efa_is_compared_follows_the_node_s(kind: str, groups: list[str], found: str) -> None:
    assert of("efa", "efa_instance_type", instance_type=kind, group_names=groups) == found


def test_prometheus_configuration_is_a_secret() -> None:
    rendered = [
        {"dest": f"/etc/prometheus/{name}", "content": name} for name in ("prometheus.yml", "alertmanager.yml", "muster/muster.rules.yml")
    ]
    known = {"__monitoring_rendered": rendered, "monitoring_grafana": False, "__monitoring_server_options": []}
    private = of("monitoring", "__monitoring_server_secrets", **known)
    assert {each["dest"]: (each["group"], each["mode"]) for each in private} == {
        "/etc/prometheus/prometheus.yml": ("prometheus", "0640"),  # remote_write may have credentials
        "/etc/prometheus/alertmanager.yml": ("prometheus", "0640"),
    }
    [shown, *_others] = of("monitoring", "__monitoring_server_files", **known)
    assert [each["dest"] for each in shown] == ["/etc/prometheus/muster/muster.rules.yml"]


def test_the_playbooks_of_day_2_repeat_the_defaults_of_role_slurm(tmp_path: Path) -> None:
    again = yaml.safe_load((ROLES.parent / "playbooks/vars/day2.yml").read_text())
    defaults = yaml.safe_load((ROLES / "slurm/defaults/main.yml").read_text())

    given = {"again": again["__day2_munge_key"], "first": defaults["slurm_secrets_dir"] + "/munge.key"}
    given |= {"cluster_again": again["__day2_cluster"], "cluster": defaults["slurm_cluster_name"]}
    task = {"ansible.builtin.assert": {"that": ["again == first", "cluster_again == cluster", "cluster | length > 0"]}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": given, "tasks": [task]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    done = run_playbook(tmp_path, tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout
