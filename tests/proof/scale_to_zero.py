# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Slurm that scales to zero, on the local cloud: cloud.yml makes a cluster with a controller alone, and slurmctld starts and ends the
instances of its nodes. They come from a launch template with Muster's boot script, take their NodeName from their tag, and the munge key
from Secrets Manager by their instance profile. The controller watches the fleet: nodes are targets while Slurm has them.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_cloud import ROOT, LocalCloud

from ansible_collections.muster.fleet.plugins.module_utils.slurm.conf import parse_hardware

pytestmark = pytest.mark.engine

NAME = f"zero{os.getpid()}"
NODES = [f"{NAME}-cpu-1", f"{NAME}-cpu-2"]
DEBIAN = "ami-0deb13000000000d1"
LOCAL = ROOT / "inventory/local/group_vars/all.yml"
# A container has the kernel of this machine, and its boot time; slurmctld waits for a node that booted after it was asked for.
HOOKS = {"slurm": {"after_install": str(ROOT / "tests/e2e/image_fleet/boot_time.yml")}}
CERTIFICATES = "{{ query('ansible.builtin.fileglob', '/usr/local/share/ca-certificates/*.crt') }}"
# No node is up when a fleet that scales to zero is provisioned.
NEEDS_NODES = ("nodes_ready", "every_node_runs", "pmix_ranks", "cores_bite", "memory_bites", "memlock_in_jobs", "accounting_row")
TRIES = 3  # of a launch that EC2 has no room for, playbooks/files/cloud_nodes.py


def until(what: Callable[[], Any], patience: float) -> Any:
    """The first true value of what(), which must come in time."""
    deadline = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(2)
    return found


class Fleet:
    """The cluster and its controller."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud, self.ec2, self.ssm = cloud, cloud.client("ec2"), cloud.client("ssm")
        self.inventory = cloud.folder / "inventory"

    def instances(self, **tags: str) -> list[dict[str, Any]]:
        """The running instances with these tags, `__` for a colon, each with its tags as a mapping."""
        filters = [{"Name": f"tag:{name.replace('__', ':')}", "Values": [value]} for name, value in tags.items()]
        wanted = [{"Name": "instance-state-name", "Values": ["pending", "running"]}, *filters]
        found = [each for one in self.ec2.describe_instances(Filters=wanted)["Reservations"] for each in one["Instances"]]
        return [{**each, "tags": {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}} for each in found]

    def nodes(self) -> dict[str, dict[str, Any]]:
        """{NodeName: its instance} of those that Slurm started."""
        return {each["tags"]["Name"]: each for each in self.instances(muster__cluster=NAME) if "muster:slurm_node" in each["tags"]}

    def run(self, instance: str, command: str) -> str:
        sent = self.ssm.send_command(InstanceIds=[instance], DocumentName="AWS-RunShellScript", Parameters={"commands": [command]})
        done = self.ssm.get_command_invocation(CommandId=sent["Command"]["CommandId"], InstanceId=instance)
        assert done["Status"] == "Success", done
        return done["StandardOutputContent"]

    def slurm(self, command: str) -> str:
        """What a command on the controller says."""
        [head] = self.instances(muster__cluster=NAME, muster__role="controller")
        return self.run(head["InstanceId"], command)

    def submit(self, nodes: int, command: str) -> str:
        options = f"--parsable --nodes={nodes} --mem=64 --chdir=/ --output=/fsx/%j.out"
        return self.slurm(f"sbatch {options} --wrap='{command}'").strip()

    def state(self, job: str) -> str:
        """The state of a job that has not ended. Accounting would say RUNNING while its nodes still start."""
        return self.slurm(f"squeue --noheader --format=%T --jobs={job}").strip()

    def job(self, job: str) -> str:
        """Its state in accounting, and how often it was queued again."""
        return self.slurm(f"sacct --noheader --parsable2 --allocations --format=State,Restarts --jobs={job}").strip()

    def node(self, name: str) -> dict[str, str]:
        """What scontrol says of a node: its State, Reason, ..."""
        shown = self.slurm(f"scontrol --oneliner show node {name}")
        return dict(re.findall(r"(\w+)=(.*?)(?= \w+=|$)", shown, re.MULTILINE))

    def watch(self, query: str) -> list[dict[str, Any]]:
        """What the Prometheus of the controller answers."""
        return json.loads(self.slurm(f"python3 /usr/lib/muster/muster-watch query '{query}'"))

    def watched(self) -> dict[str, str]:
        """{NodeName: whether its last scrape succeeded} of the nodes that Slurm started."""
        found = {each["metric"]["instance"]: each["value"][1] for each in self.watch('up{job="node"}')}
        return {name: found[name] for name in NODES if name in found}

    def play(self, playbook: str, *argv: str, log: str, **variables: Any) -> str:
        known = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no"
        reached = {"ansible_ssh_private_key_file": str(self.cloud.folder / "key"), "ansible_ssh_extra_args": known}
        said, code = self.cloud.play(playbook, *argv, log=log, **reached, **variables)
        assert code == 0, said[-6000:]
        return said

    def fault(self, **fault: Any) -> None:
        said, code = self.cloud.run(str(ROOT / ".venv/bin/python"), "-m", "localcloud", "--fault", json.dumps(fault))
        assert code == 0, said


@pytest.fixture(scope="module")
def cloud(artifacts) -> Iterator[LocalCloud]:
    made = LocalCloud(NAME, artifacts.folder(NAME))
    artifacts.leave(f"local cloud {NAME}", made.clean)
    yield made.start()
    made.end()
    assert made.left() == []


@pytest.fixture(scope="module")
def image(cloud: LocalCloud) -> tuple[str, dict[str, str]]:
    """An AMI for the controller and the nodes, and their hardware."""
    fleet, key = Fleet(cloud), cloud.folder / "key"
    key.touch(0o600)
    key.write_text(fleet.ec2.create_key_pair(KeyName=NAME, KeyType="ed25519")["KeyMaterial"])
    wanted = {"InstanceType": "c6i.large", "MinCount": 1, "MaxCount": 1, "KeyName": NAME}
    builder = fleet.ec2.run_instances(ImageId=DEBIAN, **wanted)["Instances"][0]["InstanceId"]
    [made] = fleet.instances()
    groups = "".join(f"[muster_{role}]\n{made['PrivateIpAddress']}\n" for role in ("controller", "compute"))
    (cloud.folder / "builder.ini").write_text(groups)
    variables = {
        "ansible_user": "admin",
        "ansible_become": True,
        "muster_components": ["common", "slurm", "node_health", "monitoring"],
        "muster_image_boot": True,
        "muster_hooks": HOOKS,
        # The boot script needs the AWS CLI, the ResumeProgram needs boto3.
        "common_packages": ["ca-certificates", "curl", "jq", "tzdata", "awscli", "python3-boto3"],
        "common_ca_certificates": CERTIFICATES,
    }
    fleet.play("playbooks/image.yml", "-i", str(cloud.folder / "builder.ini"), log="image.txt", **variables)
    hardware = parse_hardware(fleet.run(builder, "slurmd -C"))
    ami = fleet.ec2.create_image(InstanceId=builder, Name="slurm")["ImageId"]
    fleet.ec2.terminate_instances(InstanceIds=[builder])
    return ami, {**hardware, "RealMemory": "1600"}


def write_inventory(folder: Path, hardware: dict[str, str], environment: dict[str, str], other_subnet: str) -> None:
    """The fleet has a controller alone; its nodes are Slurm's."""
    local = yaml.safe_load(LOCAL.read_text())
    group = {"name": "cpu", "hosts": NODES, "hardware": hardware, "params": {"State": "CLOUD"}}
    settings = {
        "ResumeProgram": "/usr/local/sbin/muster-cloud-resume",
        "SuspendProgram": "/usr/local/sbin/muster-cloud-suspend",
        "SuspendTime": 30,
        "SuspendTimeout": 20,
        "ResumeTimeout": 900,
        "TreeWidth": 65533,
        "DefMemPerCPU": 200,
        "SlurmctldParameters": "enable_configless,idle_on_node_suspend,power_save_interval=2,power_save_min_interval=2",
    }
    attempts = [
        {"template": f"{NAME}-cpu", "about": "c6i.large spot in us-east-1a"},
        {"template": f"{NAME}-cpu", "subnet": other_subnet, "about": "c6i.large spot in us-east-1b"},
    ]
    variables = {
        "ansible_user": "admin",
        "ansible_become": True,
        "ansible_python_interpreter": "/usr/bin/python3",
        "muster_fleet": NAME,
        "muster_memory_mib": 2048,
        "muster_components": ["common", "slurm", "monitoring"],
        "monitoring_interval": "5s",
        "monitoring_discovery_seconds": 10,
        # A user waits for minutes, so that nodes which end are no alarm; this test waits until none is left.
        "monitoring_alarms": {"MusterNodeDown": {"hold": "2s"}},
        "muster_allow_not_run": [*local["__local_not_run"], *(f"slurm_cluster.{each}" for each in NEEDS_NODES)],
        "slurm_nodegroups": [group],
        "slurm_config": {**local["slurm_config"], **settings},
        "muster_cloud_nodes": {
            "region": "us-east-1",
            "cluster": NAME,
            "groups": {"cpu": {"nodes": NODES, "attempts": attempts}},
            "environment": environment,
        },
    }
    plugin = {
        "plugin": "muster.fleet.aws_fleet",
        "regions": ["us-east-1"],
        "filters": {"tag:muster:cluster": NAME, "tag:muster:role": "controller"},
        "connection": "ssh",
        # Instances find each other by their ids, as in a subnet whose host names are resource names.
        "hostnames": ["instance-id"],
    }
    (folder / "group_vars/all").mkdir(parents=True)
    (folder / "aws_fleet.yml").write_text(yaml.safe_dump(plugin))
    groups = {"muster_monitoring": "'muster_controller' in group_names"}
    (folder / "monitoring.yml").write_text(yaml.safe_dump({"plugin": "ansible.builtin.constructed", "strict": True, "groups": groups}))
    (folder / "group_vars/all/1_containers.yml").write_text(LOCAL.read_text())
    (folder / "group_vars/all/2_instances.yml").write_text(yaml.safe_dump(variables))


@pytest.fixture(scope="module")
def fleet(cloud: LocalCloud, image: tuple[str, dict[str, str]]) -> Fleet:
    """A controller that is provisioned and may start nodes; none is up."""
    made, (ami, hardware) = Fleet(cloud), image
    local = yaml.safe_load(LOCAL.read_text())
    document = {
        "kind": "ec2",
        "name": NAME,
        "region": "us-east-1",
        "zones": ["us-east-1a", "us-east-1b"],
        "image": ami,
        "key_pair": NAME,
        "nodes": [
            {"name": "head", "type": "c6i.large", "role": "controller", "count": 1},
            {"name": "cpu", "type": "c6i.large", "market": "spot", "max": len(NODES)},
        ],
        "setup": {"variables": {"muster_allow_not_run": local["__local_not_run"]}},
    }
    (cloud.folder / "mine.yml").write_text(json.dumps(document))
    made.play("playbooks/cloud.yml", "-e", "cluster=@mine.yml", "-e", "verb=up", log="up.txt")
    [head] = made.instances(muster__cluster=NAME)
    # The controller configures itself, too; two runs of one role at a time would disturb each other.
    until(lambda: made.instances(muster__state="ready"), 400)
    network = head["PrivateIpAddress"].rpartition(".")[0]
    # As a proxy would stand there; slurmctld gives its programs nothing of its own environment.
    environment = {"AWS_ENDPOINT_URL": cloud.env["AWS_ENDPOINT_URL"].replace("127.0.0", network)}
    [stack] = cloud.client("cloudformation").describe_stacks(StackName=f"{NAME}-vpc")["Stacks"]
    subnets = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}["PrivateSubnets"].split(",")
    zones = {each["SubnetId"]: each["AvailabilityZone"] for each in made.ec2.describe_subnets(SubnetIds=subnets)["Subnets"]}
    [subnet] = [each for each, zone in zones.items() if zone == "us-east-1b"]
    write_inventory(made.inventory, hardware, environment, subnet)
    made.play("playbooks/provision.yml", "-i", str(made.inventory), log="provision.txt")
    made.play("playbooks/cloud_nodes.yml", "-i", str(made.inventory), log="cloud_nodes.txt")
    return made


def test_a_second_run_changes_nothing(fleet: Fleet) -> None:
    said = fleet.play("playbooks/cloud_nodes.yml", "-i", str(fleet.inventory), log="again.txt")
    assert re.findall(r"changed=(\d+)", said) == ["0", "0"]
    key = (fleet.cloud.folder / "state/muster" / NAME / "secrets/munge.key").read_text().strip()
    template = fleet.ec2.describe_launch_template_versions(LaunchTemplateName=f"{NAME}-cpu")["LaunchTemplateVersions"]
    assert key and key not in json.dumps(template, default=str) + said


def test_a_job_makes_its_nodes_appear(fleet: Fleet) -> None:
    assert fleet.nodes() == {}
    job = fleet.submit(2, "srun hostname")
    fleet.submit(2, "sleep 900")  # the nodes stay until a test cancels it
    until(lambda: fleet.job(job) == "COMPLETED|0", 900)
    assert fleet.slurm(f"sort /fsx/{job}.out").split() == NODES
    nodes = fleet.nodes()
    assert sorted(nodes) == NODES
    until(lambda: {each["tags"].get("muster:state") for each in fleet.nodes().values()} == {"ready"}, 180)
    assert {each["InstanceLifecycle"] for each in nodes.values()} == {"spot"}
    assert {each["Placement"]["AvailabilityZone"] for each in nodes.values()} == {"us-east-1a"}
    for name, each in nodes.items():
        assert fleet.node(name)["NodeAddr"] == each["PrivateIpAddress"]
        assert fleet.run(each["InstanceId"], "hostname").strip() == name


def test_nodes_that_configured_themselves_are_watched(fleet: Fleet) -> None:
    """Prometheus trusts the fleet's certificate only, and the exporters ask for its password."""
    until(lambda: fleet.watched() == dict.fromkeys(NODES, "1"), 120)
    for each in fleet.nodes().values():
        asked = fleet.run(each["InstanceId"], "curl -sk -o /dev/null -w '%{http_code}' https://127.0.0.1:9100/metrics")
        assert asked == "401"
    fleet.slurm("scancel --user=root")


def test_idle_nodes_end_with_their_instances(fleet: Fleet) -> None:
    gone = [each["InstanceId"] for each in fleet.nodes().values()]
    assert len(gone) == len(NODES)
    until(lambda: fleet.nodes() == {}, 120)
    ended = fleet.ec2.describe_instances(InstanceIds=gone)["Reservations"]
    assert {each["State"]["Name"] for one in ended for each in one["Instances"]} == {"terminated"}
    until(lambda: fleet.node(NODES[0])["State"] == "IDLE+CLOUD+POWERED_DOWN", 60)


def test_nodes_that_slurm_ended_are_no_target(fleet: Fleet) -> None:
    """While an instance ends it may be down for a scrape or two; no alarm lasts."""
    until(lambda: fleet.watched() == {}, 60)
    until(lambda: fleet.watch('ALERTS{alertstate="firing", alertname="MusterNodeDown"}') == [], 60)


@pytest.fixture(scope="module")
def refused(fleet: Fleet) -> tuple[str, str]:
    """A job when no zone has room, and the node that it was to run on."""
    fleet.fault(action="RunInstances", error="InsufficientInstanceCapacity", times=2 * TRIES)
    job = fleet.submit(1, "hostname; sleep 60")
    return job, until(lambda: fleet.slurm(f"squeue --noheader --format=%N --jobs={job}").strip(), 60)


def test_without_room_anywhere_the_job_waits_and_the_node_says_why(fleet: Fleet, refused: tuple[str, str]) -> None:
    job, node = refused
    reason = until(lambda: fleet.node(node).get("Reason", ""), 90)
    full = "c6i.large spot in us-east-1%s (InsufficientInstanceCapacity)"
    assert reason.startswith(f"muster:cloud: no room for 1 nodes: {full % 'a'}, {full % 'b'}")
    # Slurm powers it down first, although it never came up.
    until(lambda: fleet.node(node)["State"].startswith("IDLE+CLOUD"), 120)
    until(lambda: fleet.state(job) == "PENDING", 30)
    assert fleet.nodes() == {}


def test_without_room_in_one_zone_the_job_runs_in_the_other(fleet: Fleet, refused: tuple[str, str]) -> None:
    """Slurm starts the waiting job by itself."""
    job, _node = refused
    fleet.fault(action="RunInstances", error="InsufficientInstanceCapacity", times=TRIES)
    until(lambda: fleet.state(job) == "RUNNING", 900)
    [made] = fleet.nodes().values()
    assert made["Placement"]["AvailabilityZone"] == "us-east-1b"


def test_a_job_whose_spot_instance_is_taken_away_runs_again(fleet: Fleet, refused: tuple[str, str]) -> None:
    job, _node = refused
    [taken] = fleet.nodes().values()
    before = int(fleet.job(job).partition("|")[2])
    fleet.fault(dies=taken["InstanceId"])
    until(lambda: fleet.job(job).startswith("COMPLETED|"), 1200)
    assert int(fleet.job(job).partition("|")[2]) > before
    assert taken["InstanceId"] not in [each["InstanceId"] for each in fleet.nodes().values()]


def test_nothing_is_left_of_the_cluster(fleet: Fleet) -> None:
    until(lambda: fleet.nodes() == {}, 180)
    said = fleet.play("playbooks/cloud.yml", "-e", "cluster=@mine.yml", "-e", "verb=down", log="down.txt")
    assert "nothing is left" in said and fleet.cloud.running() == []
    assert fleet.cloud.client("secretsmanager").list_secrets()["SecretList"] == []
