# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The EC2 inventory through Ansible's own loader, over an API of recorded pages: hosts, groups, accounts, cache, faults and bad input."""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible.inventory.data import InventoryData
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import inventory_loader
from ansible.utils.display import Display
from botocore.retries.standard import ExponentialBackoff
from ec2_replay import Api, Instance, fleet

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import launch_of
from ansible_collections.muster.fleet.plugins.plugin_utils.ec2_api import cache_key

ROLE = "arn:aws:iam::%s:role/fleet"
BACK_OFF = ExponentialBackoff.delay_amount


@pytest.fixture(autouse=True)
def lone_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, profile or region of the machine that the tests run on."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    # Back-off without the waiting; test_the_pauses_grow has the real one.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_more: 0.001)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, *_more, **_also: said.append(text))
    return said


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., InventoryData]:
    """Read an inventory file with these options over an API, as Ansible's manager does, without a process for each."""
    # The tests have imported the collection from the search path, so Ansible's finder of collections would come too late.
    inventory_loader.add_directory(str(Path(__file__).parents[2] / "plugins/inventory"))

    def run(api: Api, name: str = "aws_fleet.yml", flush: bool = False, **options: object) -> InventoryData:
        plugin = inventory_loader.get("aws_fleet")
        plugin._redirected_names = None
        path = tmp_path / name
        path.write_text(yaml.safe_dump({"plugin": "muster.fleet.aws_fleet", "regions": ["us-east-1"], "endpoint_url": api.url, **options}))
        found = InventoryData()
        plugin.parse(found, DataLoader(), str(path), cache=not flush)
        if hasattr(plugin, "_cache"):
            plugin.update_cache_if_changed()
        found.reconcile_inventory()
        return found

    return run


def groups_of(found: InventoryData, host: str) -> set[str]:
    return {group.name for group in found.hosts[host].groups} - {"all"}


def actions(api: Api) -> list[str]:
    return [each["Action"] for each in api.requests]


GPU = Instance(
    "0000000000000a",
    tags={
        "Name": "gpu-1",
        "muster:role": "compute, storage",
        "parallelcluster:cluster-name": "train",
        "parallelcluster:node-type": "Compute",
        "parallelcluster:queue-name": "p5",
    },
    lifecycle="capacity-block",
    group="rack 1",
    ip="10.0.0.10",
    cards=3,
    nodes=("nn-1", "nn-2", "nn-3"),
)
HEAD = Instance(
    "0000000000000b", "m7i.8xlarge", {"Name": "head", "muster:role": "controller", "aws:pcs:cluster-id": "pcs_1"}, ip="10.0.0.11"
)
OWN = Instance("0000000000000c", "q9.metal", {"Name": "odd"}, "us-east-1b", ip="10.0.0.12", lifecycle="spot")


def test_groups_of_muster(read) -> None:
    with Api({"us-east-1": [GPU, HEAD, OWN]}) as api:
        found = read(api, hostnames=["tag:Name"], topology=True)
    assert groups_of(found, "gpu-1") == {
        "aws_ec2",
        "muster_type_p5_48xlarge",
        "muster_az_us_east_1a",
        "muster_capacity_capacity_block",
        "muster_placement_rack_1",
        "muster_compute",
        "muster_storage",
        "muster_gpu",
        "muster_efa",
        "muster_pcluster_train",
        "muster_pcluster_node_Compute",
        "muster_queue_p5",
        "muster_layer1_nn_1",
        "muster_layer2_nn_2",
        "muster_layer3_nn_3",
    }
    assert groups_of(found, "head") == {
        "aws_ec2",
        "muster_type_m7i_8xlarge",
        "muster_az_us_east_1a",
        "muster_capacity_on_demand",
        "muster_controller",
        "muster_pcs_pcs_1",
    }
    assert groups_of(found, "odd") == {"aws_ec2", "muster_type_q9_metal", "muster_az_us_east_1b", "muster_capacity_spot"}
    assert found.hosts["gpu-1"].vars["muster_network_nodes"] == ["nn-1", "nn-2", "nn-3"]


def test_nodes_that_share_nvlink_are_a_group(read) -> None:
    node = Instance("000000000000aa", "p6e-gb200.36xlarge", {"Name": "gb"}, ip="10.0.0.20", nodes=("nn-1",), ultraserver="cb-0a1")
    with Api({"us-east-1": [node]}) as api:
        found = read(api, hostnames=["tag:Name"], topology=True)
    assert "muster_ultraserver_cb_0a1" in groups_of(found, "gb")
    assert found.hosts["gb"].vars["muster_ultraserver"] == "cb-0a1"


def test_other_roles_accelerators_and_pcs(read) -> None:
    neuron = Instance("0000000000000f", "trn1.32xlarge", {"Name": "trn", "muster:role": "login,monitoring"})
    pcs = Instance("00000000000010", "m7i.8xlarge", {"Name": "pcs", "aws:pcs:compute-node-group-id": "pcs_2"}, cards=2, efa="interface")
    cpu = Instance("00000000000011", "m7i.8xlarge", {"Name": "cpu", "parallelcluster:compute-resource-name": "cr-1"})
    with Api({"us-east-1": [neuron, pcs, cpu]}) as api:
        found = read(api, hostnames=["tag:Name"])
    common = {"aws_ec2", "muster_az_us_east_1a", "muster_capacity_on_demand"}
    assert groups_of(found, "trn") == common | {"muster_type_trn1_32xlarge", "muster_login", "muster_monitoring", "muster_neuron"}
    assert groups_of(found, "pcs") == common | {"muster_type_m7i_8xlarge", "muster_pcs_group_pcs_2"}
    assert groups_of(found, "cpu") == common | {"muster_type_m7i_8xlarge", "muster_resource_cr_1"}


BLOCK, ULTRA = "cr-0000000000000b10c", "cr-000000000000u1tra"


def blocks() -> list[Instance]:
    of_block = [
        Instance(f"0000000000002{n}", tags={"Name": f"cb-{n}"}, lifecycle="capacity-block", block=BLOCK, ip=f"10.0.2.{n}") for n in (1, 2)
    ]
    ultra = Instance("00000000000030", "p6e-gb200.36xlarge", {"Name": "gb"}, lifecycle="capacity-block", block=ULTRA, ip="10.0.2.9")
    odcr = Instance("00000000000031", tags={"Name": "odcr"}, block="cr-00000000000000001", ip="10.0.2.8")
    return [*of_block, ultra, odcr]


@pytest.mark.parametrize("options", [{}, {"variables": ["instance_id"]}, {"hostvars_prefix": "ec2_"}])
def test_hosts_of_a_capacity_block_know_when_they_go(read, tmp_path: Path, options: dict[str, object]) -> None:
    cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    with Api({"us-east-1": blocks()}) as api:
        api.ends = {BLOCK: "2026-12-01T11:30:00.000Z", ULTRA: "2026-12-02T11:30:00.000Z"}
        cold = read(api, hostnames=["tag:Name"], **options, **cache)
        asked = [each for each in api.requests if each["Action"] == "DescribeCapacityReservations"]
        warm = read(api, hostnames=["tag:Name"], **options, **cache)
        assert actions(api) == ["DescribeInstances", "DescribeCapacityReservations"]
    for found in (cold, warm):
        ends = {name: host.vars.get("muster_stop_at") for name, host in found.hosts.items()}
        # EC2 begins half an hour before the end, and an hour with UltraServers.
        assert ends == {"cb-1": "2026-12-01T11:00:00Z", "cb-2": "2026-12-01T11:00:00Z", "gb": "2026-12-02T10:30:00Z", "odcr": None}
    assert [value for key, value in asked[0].items() if key.startswith("CapacityReservationId.")] == [BLOCK, ULTRA]


def test_without_a_capacity_block_nobody_asks_for_one(read) -> None:
    with Api({"us-east-1": [GPU, OWN, blocks()[-1]]}) as api:
        read(api)
        assert actions(api) == ["DescribeInstances"]


def test_an_end_that_may_not_be_asked_for_is_a_warning(read, warnings, tmp_path: Path) -> None:
    cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    with Api({"us-east-1": blocks()[:2]}) as api:
        api.ends = {BLOCK: "2026-12-01T11:30:00.000Z"}
        api.faults["DescribeCapacityReservations", "us-east-1"] = [(403, "UnauthorizedOperation", "You are not authorized.")]
        found = read(api, hostnames=["tag:Name"], **cache)
        assert set(found.hosts) == {"cb-1", "cb-2"} and "muster_stop_at" not in found.hosts["cb-1"].vars
        assert len(warnings) == 1 and "DescribeCapacityReservations" in warnings[0] and "us-east-1" in warnings[0]
        # The cache does not keep an answer without the ends.
        assert read(api, hostnames=["tag:Name"], **cache).hosts["cb-1"].vars["muster_stop_at"] == "2026-12-01T11:00:00Z"


def test_the_topology_of_many(read) -> None:
    many = fleet(250)
    for each in many:
        each.nodes = ("nn-1", f"nn-{each.id[-2:]}")
    with Api({"us-east-1": many}) as api:
        found = read(api, hostnames=["tag:Name"], topology=True)
        asked = [each for each in api.requests if each["Action"] == "DescribeInstanceTopology"]
    # EC2 returns 20 at a time unless a request asks for more.
    assert [each["MaxResults"] for each in asked] == ["100"] * 3
    assert "p5.48xlarge" in [value for key, value in asked[0].items() if key.startswith("Filter.1.Value")]
    assert len(found.groups["muster_layer1_nn_1"].hosts) == 250
    assert "muster_layer2_nn_f9" in groups_of(found, "node-00249")


def test_how_an_instance_was_launched(read) -> None:
    with Api({"us-east-1": [GPU, HEAD, OWN]}) as api:
        found = read(api, hostnames=["tag:Name"], variables=["instance_id"], hostvars_prefix="aws_")
    assert found.hosts["gpu-1"].vars["muster_launch"] == {
        "market": "capacity-block",
        "availability_zones": ["us-east-1a"],
        "subnets": ["subnet-0aa1"],
        "placement_group": "rack 1",
        "interfaces": "0.0 interface, 0.1 efa-only, 1.1 efa-only",
        "threads_per_core": 2,
    }
    # No rule is about types without accelerators.
    assert not any("muster_launch" in found.hosts[name].vars for name in ("head", "odd"))


def test_what_ec2_does_not_say_of_a_launch_is_left_out() -> None:
    assert launch_of({"placement": {"availability_zone": "us-east-1a"}, "network_interfaces": [{}]}) == {
        "market": "on-demand",
        "availability_zones": ["us-east-1a"],
        "placement_group": "",
        "interfaces": "0.0 interface",
    }


def test_pages_and_their_variables(read) -> None:
    with Api({"us-east-1": fleet(25)}, page=10) as api:
        found = read(api, hostnames=["tag:Name"], variables=["tags", "no_such"], compose={"ansible_host": "private_ip_address"})
    assert [each["MaxResults"] for each in api.requests] == ["1000"] * 3
    assert len(found.hosts) == 25
    own = {key: value for key, value in found.hosts["node-00024"].vars.items() if not key.startswith("inventory_")}
    assert own.keys() == {"tags", "ansible_host", "muster_launch"}
    assert own["ansible_host"] == "10.0.0.24"


def test_a_tag_is_never_a_template(read, warnings) -> None:
    evil = Instance("0000000000000d", tags={"Name": "evil", "Role": "{{ lookup('pipe', 'id') }}"})
    with Api({"us-east-1": [evil]}) as api:
        found = read(
            api,
            hostnames=["tag:Name | upper"],
            compose={"role": "tags.Role", "again": "tags.Role ~ ''"},
            keyed_groups=[{"key": "tags.Role"}],
        )
    assert found.hosts["EVIL"].vars["role"] == found.hosts["EVIL"].vars["again"] == "{{ lookup('pipe', 'id') }}"
    assert "____lookup__pipe____id_____" in found.groups
    with Api({"us-east-1": [Instance("0000000000000d", tags={"Name": "{{'in'~'side'}}"})]}) as api:
        assert set(read(api, hostnames=["tag:Name | upper"]).hosts) == {"i-0000000000000d"}
    assert any("would be called \"{{'IN'~'SIDE'}}\"" in each for each in warnings)


def test_groups_below_a_parent_of_each_host(read) -> None:
    teams = [Instance(f"0000000000000{n}", tags={"Name": f"n{n}", "Role": "web", "Team": f"team{n}"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with Api({"us-east-1": teams}) as api:
        found = read(api, keyed_groups=[{"key": "tags.Role", "prefix": "role", "parent_group": "{{ tags.Team }}"}])
    assert {each.name for each in found.groups["role_web"].parent_groups} == {"team1", "team2"}


def test_extra_variables_come_first(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible.plugins.inventory.load_extra_vars", lambda _loader: {"instance_type": "mine", "site": "here"})
    options = {"hostnames": ["tag:Name"], "compose": {"seen": "instance_type", "at": "site | upper"}}
    with Api({"us-east-1": [HEAD]}) as api:
        with_them = read(api, **options, use_extra_vars=True).hosts["head"].vars
        without = read(api, **options).hosts["head"].vars
    assert (with_them["seen"], with_them["at"]) == ("mine", "HERE")
    assert (without["seen"], "at" in without) == ("m7i.8xlarge", False)


def test_two_hosts_of_one_name_stay_two(read, warnings) -> None:
    twins = [Instance(f"0000000000000{n}", tags={"Name": "web"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with Api({"us-east-1": twins}) as api:
        found = read(api, hostnames=["tag:Name"])
    assert set(found.hosts) == {"web_i-00000000000001", "web_i-00000000000002"}
    assert "Several instances are called web; their ids were appended to the name." in warnings


def test_names_with_prefix_literal_and_address(read) -> None:
    with Api({"us-east-1": [HEAD]}) as api:
        names = [{"name": "private-ip-address", "prefix": "tag:Name", "separator": "-"}, "instance-id"]
        assert set(read(api, hostnames=names).hosts) == {"head-10.0.0.11"}
        assert set(read(api, hostnames=names, allow_duplicated_hosts=True).hosts) == {"head-10.0.0.11", "i-0000000000000b"}
        assert set(read(api, hostnames=["tag:None", "tag:Name=head", "x"]).hosts) == {"Name_head"}
        assert set(read(api).hosts) == {"ip-10-0-0-11.ec2.internal"}


def test_connection(read) -> None:
    with Api({"us-east-1": [HEAD]}) as api:
        ssh = read(api, hostnames=["tag:Name"], connection="ssh").hosts["head"].vars
        ssm = read(api, hostnames=["tag:Name"], connection="ssm").hosts["head"].vars
        mine = read(api, hostnames=["tag:Name"], connection="ssh", compose={"ansible_host": "'bastion'"}).hosts["head"].vars
    assert (ssh["ansible_host"], "ansible_ssh_common_args" in ssh) == ("10.0.0.11", False)
    assert ssm["ansible_host"] == "i-0000000000000b"
    assert ssm["ansible_ssh_common_args"] == (
        '-o ProxyCommand="aws ssm start-session --target %h --document-name AWS-StartSSHSession'
        ' --parameters portNumber=%p --region us-east-1"'
    )
    assert mine["ansible_host"] == "bastion"


def test_a_local_zone_is_in_its_region(read) -> None:
    with Api({"us-east-1": [Instance("00000000000012", az="us-east-1-dfw-2a")]}) as api:
        host = next(iter(read(api, connection="ssm").hosts.values()))
    assert host.vars["placement"]["region"] == "us-east-1"
    assert '--region us-east-1"' in host.vars["ansible_ssh_common_args"]


def test_they_are_asked_at_once(read, monkeypatch: pytest.MonkeyPatch) -> None:
    regions = ["us-east-1", "us-east-2", "us-west-2"]
    with Api({each: [GPU] for each in regions}) as api:
        # The API answers when all six requests have arrived.
        all_there, answer = threading.Barrier(6), api._DescribeInstances

        def wait(form: dict[str, str], region: str) -> bytes:
            all_there.wait(20)
            return answer(form, region)

        monkeypatch.setattr(api, "_DescribeInstances", wait)
        assert len(read(api, regions=regions, assume_role_arns=[ROLE % 1, ROLE % 2]).hosts) == 1


def test_whose_account_it_is(read, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile mine]\naws_access_key_id = of-profile\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with Api({"us-east-1": [HEAD]}) as api:

        def asked(**options: object) -> tuple[str, bool]:
            host = read(api, hostnames=["tag:Name"], connection="ssm", **options).hosts["head"]
            return api.requests[-1]["key"], "--profile mine" in host.vars["ansible_ssh_common_args"]

        assert asked() == ("testing", False)
        # The file overrides the environment, and the environment's keys override its profile.
        assert asked(profile="mine") == ("of-profile", True)
        monkeypatch.setenv("AWS_PROFILE", "mine")
        assert asked() == ("testing", False)
        assert asked(access_key="of-file", secret_key="s") == ("of-file", False)
        with pytest.raises(SystemExit, match="profile and access_key are two accounts; remove one of them"):
            asked(access_key="of-file", secret_key="s", profile="mine")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        assert asked() == ("of-profile", True)


def test_accounts_and_regions_side_by_side(read) -> None:
    with Api({"us-east-1": [GPU], "us-west-2": [HEAD]}) as api:
        roles = [ROLE % "111122223333", ROLE % "444455556666"]
        found = read(api, hostnames=["tag:Name"], regions=["us-east-1", "us-west-2"], assume_role_arns=roles)
        asked = {(each["key"], each["region"]) for each in api.requests if each["Action"] == "DescribeInstances"}
    # The API gives both accounts the same instances, which become hosts once.
    assert set(found.hosts) == {"gpu-1", "head"}
    assert asked == {(f"ASIA{account}", region) for account in ("111122223333", "444455556666") for region in ("us-east-1", "us-west-2")}


def test_all_regions_of_the_account(read) -> None:
    with Api({"us-east-1": [GPU], "eu-west-1": [HEAD]}) as api:
        assert set(read(api, regions=[], hostnames=["tag:Name"]).hosts) == {"gpu-1", "head"}


def test_filters_reach_the_api(read) -> None:
    with Api({"us-east-1": [GPU, HEAD]}) as api:
        read(api, filters={"tag:Role": ["a", "b"], "ebs-optimized": True})
        sent = api.requests[-1]
        both = read(api, include_filters=[{"tag:x": "1"}, {"tag:y": "2"}], exclude_filters=[{"instance-state-name": "stopped"}])
    assert (sent["Filter.1.Name"], sent["Filter.1.Value.1"], sent["Filter.2.Value.2"]) == ("ebs-optimized", "true", "b")
    assert [sent[f"Filter.3.Value.{n}"] for n in (1, 2, 3, 4)] == ["running", "pending", "stopping", "stopped"]
    # The API ignores filters, so it returns everything to the request for the excluded instances.
    assert not both.hosts and actions(api)[1:] == ["DescribeInstances"] * 3


def test_a_warm_cache_asks_nothing(read, tmp_path: Path) -> None:
    cache = {
        "cache": True,
        "cache_plugin": "jsonfile",
        "cache_connection": str(tmp_path / "cache"),
        "hostnames": ["tag:Name"],
    }
    with Api({"us-east-1": [GPU], "us-west-2": [HEAD]}) as api:
        cold = read(api, **cache, assume_role_arn=ROLE % "111122223333", topology=True)
        asked = len(api.requests)
        warm = read(api, **cache, assume_role_arn=ROLE % "111122223333", topology=True)
        assert len(api.requests) == asked
        assert groups_of(warm, "gpu-1") == groups_of(cold, "gpu-1")
        plain = [json.loads(json.dumps(each.hosts["gpu-1"].vars, default=lambda time: time.isoformat())) for each in (cold, warm)]
        assert plain[0] == plain[1]
        # Another account, role, region or filter has its own cache entry.
        for other in (
            {"assume_role_arn": ROLE % "444455556666"},
            {"regions": ["us-west-2"]},
            {"filters": {"tag:x": "1"}},
            {"access_key": "other"},
        ):
            keys = {"secret_key": "s"} if "access_key" in other else {}
            before = actions(api).count("DescribeInstances")
            read(api, **{**cache, "assume_role_arn": ROLE % "111122223333", "topology": True, **other, **keys})
            assert actions(api).count("DescribeInstances") == before + 1, other


def test_a_cache_that_is_flushed_or_damaged_is_asked_anew(read, tmp_path: Path) -> None:
    cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    with Api({"us-east-1": [GPU]}) as api:
        read(api, **cache)
        read(api, **cache, flush=True)
        assert len(api.requests) == 2
        for file in (tmp_path / "cache").iterdir():
            file.write_text(json.dumps({"json": "[1, 2"}))
        assert len(read(api, **cache).hosts) == 1
        assert len(read(api, **cache).hosts) == 1
        assert len(api.requests) == 3


def test_everything_that_is_asked_is_in_the_key_of_the_cache() -> None:
    options = {"access_key": "", "profile": "", "region": "", "endpoint_url": "", "roles": [], "regions": ["us-east-1"], "topology": False}
    others = [
        {"access_key": "a"},
        {"profile": "a"},
        {"region": "us-west-2"},
        {"endpoint_url": "http://a"},
        {"roles": ["a"]},
        {"regions": ["us-west-2"]},
        {"topology": True},
    ]
    keys = [cache_key({**options, **each}, [["x"]], [], {}) for each in ({}, *others)]
    keys += [cache_key(options, [["y"]], [], {}), cache_key(options, [["x"]], [["y"]], {}), cache_key(options, [["x"], ["y"]], [], {})]
    keys += [cache_key(options, [["x"]], [], {name: "a"}) for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ROLE_ARN")]
    assert len(set(keys)) == len(keys)
    assert keys[0] == cache_key({**options, "strict_permissions": True}, [["x"]], [], {})


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_left_as_it_was(read, before: bool) -> None:
    (gc.enable if before else gc.disable)()
    try:
        with Api({"us-east-1": [GPU]}) as api:
            read(api)
            after = gc.isenabled()
            with pytest.raises(SystemExit):
                read(api, regions=[""])
        assert (after, gc.isenabled()) == (before, before)
    finally:
        gc.enable()


def test_the_pauses_grow(read, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    def most(self: ExponentialBackoff, context: object) -> float:
        self._random = lambda: 1.0
        return BACK_OFF(self, context)

    monkeypatch.setattr(ExponentialBackoff, "delay_amount", most)
    monkeypatch.setattr("time.sleep", paused.append)
    with Api({"us-east-1": [GPU]}) as api:
        api.faults["DescribeInstances", "us-east-1"] = [(503, "RequestLimitExceeded", "Request limit exceeded.")] * 20
        with pytest.raises(SystemExit, match="EC2 still throttled DescribeInstances in region us-east-1 after all retries"):
            read(api)
        assert actions(api) == ["DescribeInstances"] * 10
    assert len(paused) == 9
    assert all(later > earlier or later == 20 for earlier, later in itertools.pairwise(paused))


def test_a_throttled_api_is_asked_again(read) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        api.faults["DescribeInstances", "us-east-1"] = [(503, "RequestLimitExceeded", "Request limit exceeded.")] * 3
        assert len(read(api).hosts) == 1
        assert actions(api) == ["DescribeInstances"] * 4


def test_a_region_that_fails_fails_the_inventory_unless_told_otherwise(read, warnings, tmp_path: Path) -> None:
    options = {"regions": ["us-east-1", "us-west-2"], "hostnames": ["tag:Name"]}
    with Api({"us-east-1": [GPU], "us-west-2": [HEAD]}) as api:
        denied = (403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
        api.faults["DescribeInstances", "us-west-2"] = [denied] * 4
        with pytest.raises(SystemExit, match=r"DescribeInstances is denied in region us-west-2 \(UnauthorizedOperation: You are not"):
            read(api, **options)
        cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
        assert set(read(api, **options, **cache, skip_failed_regions=True).hosts) == {"gpu-1"}
        assert any(each.startswith("Left out: DescribeInstances is denied in region us-west-2") for each in warnings)
        assert set(read(api, **options, strict_permissions=False).hosts) == {"gpu-1"}
        api.faults.clear()
        # The cache does not keep an incomplete answer.
        assert set(read(api, **options, **cache, skip_failed_regions=True).hosts) == {"gpu-1", "head"}


def test_what_strict_permissions_does_not_forgive(read, warnings) -> None:
    options = {"regions": ["us-east-1", "us-west-2"], "hostnames": ["tag:Name"]}
    with Api({"us-east-1": [GPU], "us-west-2": [HEAD]}) as api:
        api.faults["DescribeInstances", "us-west-2"] = [(400, "InvalidParameterValue", "No.")] * 2
        with pytest.raises(SystemExit, match="DescribeInstances failed in region us-west-2"):
            read(api, **options, strict_permissions=False)
        assert set(read(api, **options, skip_failed_regions=True).hosts) == {"gpu-1"}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            (403, "UnauthorizedOperation", "No."),
            "DescribeInstanceTopology is denied in region us-east-1 (UnauthorizedOperation: No); ",
        ),
        ((400, "UnsupportedOperation", "No."), "DescribeInstanceTopology failed in region us-east-1 (UnsupportedOperation: No)."),
        ((400, "InvalidAction", "No."), "DescribeInstanceTopology failed in region us-east-1 (InvalidAction: No)."),
    ],
)
def test_without_network_nodes_there_are_hosts_and_a_warning(read, warnings, tmp_path: Path, fault: tuple, said: str) -> None:
    cache = {"cache": True, "cache_plugin": "jsonfile", "cache_connection": str(tmp_path / "cache")}
    with Api({"us-east-1": [GPU, HEAD]}) as api:
        api.faults["DescribeInstanceTopology", "us-east-1"] = [fault]
        found = read(api, hostnames=["tag:Name"], topology=True, **cache)
        assert set(found.hosts) == {"gpu-1", "head"} and "muster_network_nodes" not in found.hosts["gpu-1"].vars
        [told] = warnings
        assert told.startswith(f"No muster_network_nodes, so Slurm will see a flat network: {said}")
        assert told.endswith(" Or set topology: false.")
        # The cache does not keep an answer without them.
        found = read(api, hostnames=["tag:Name"], topology=True, **cache)
        assert found.hosts["gpu-1"].vars["muster_network_nodes"] == ["nn-1", "nn-2", "nn-3"]


def test_a_topology_that_may_be_answered_the_next_time_fails_the_inventory(read) -> None:
    """A warning would make Slurm's network flat until the next run."""
    with Api({"us-east-1": [GPU]}) as api:
        api.faults["DescribeInstanceTopology", "us-east-1"] = [(400, "InternalFailure", "No.")]
        with pytest.raises(SystemExit, match="DescribeInstanceTopology failed in region us-east-1"):
            read(api, topology=True)


@pytest.mark.parametrize("options", [{"variables": ["instance_id"]}, {"hostvars_prefix": "ec2_"}])
def test_network_nodes_keep_their_names_whatever_variables_are_asked_for(read, options: dict[str, object]) -> None:
    node = Instance("000000000000aa", "p6e-gb200.36xlarge", {"Name": "gb"}, ip="10.0.0.20", nodes=("nn-1", "nn-2"), ultraserver="cb-0a1")
    with Api({"us-east-1": [node]}) as api:
        variables = read(api, hostnames=["tag:Name"], topology=True, **options).hosts["gb"].vars
    ours = {name: value for name, value in variables.items() if "network_nodes" in name or "ultraserver" in name}
    assert ours == {"muster_network_nodes": ["nn-1", "nn-2"], "muster_ultraserver": "cb-0a1"}


def test_terminated_instances_are_left_out(read, warnings) -> None:
    gone = [
        Instance(f"0000000000000{n}", tags={"Name": "gone"}, state=state, ip="") for n, state in enumerate(("terminated", "shutting-down"))
    ]
    with Api({"us-east-1": [GPU, *gone]}) as api:
        assert set(read(api, hostnames=["tag:Name"]).hosts) == {"gpu-1"}
    assert "2 terminated instances are left out, such as i-00000000000000; they have no address." in warnings


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            (400, "RequestExpired", "Request has expired."),
            "The AWS credentials have expired (RequestExpired in region us-east-1); log in again.",
        ),
        (
            (401, "AuthFailure", "AWS was not able to validate"),
            "(AuthFailure in region us-east-1); check the profile or the access key, or enable the region.",
        ),
        (
            (400, "ExpiredToken", "The security token included in the request is expired"),
            "The AWS credentials have expired (ExpiredToken in region us-east-1); log in again.",
        ),
        (
            (400, "InvalidParameterValue", "The filter 'x' is invalid"),
            "DescribeInstances failed in region us-east-1 (InvalidParameterValue: The filter",
        ),
        (
            (503, "RequestLimitExceeded", "Request limit exceeded."),
            "EC2 still throttled DescribeInstances in region us-east-1 after all retries",
        ),
    ],
)
def test_what_the_api_refuses(read, fault: tuple[int, str, str], sentence: str) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        api.faults["DescribeInstances", "us-east-1"] = [fault] * 20
        with pytest.raises(SystemExit) as ended:
            read(api)
    assert sentence in str(ended.value)
    assert "\n" not in str(ended.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"hostname": ["x"]}, "unknown option hostname; the nearest is hostnames."),
        ({"regions": [""]}, "No region: option regions has an empty entry; name a region such as us-east-1."),
        ({"profile": "none", "access_key": ""}, "The config profile (none) could not be found"),
        ({"hostnames": ["tag:Name=a=b"]}, "hostnames has tag:Name=a=b, which is not a tag; write tag:NAME or tag:NAME=VALUE."),
        ({"hostnames": [{"prefix": "x"}]}, "an entry of hostnames has no name, only prefix."),
        ({"filters": {"tag:Role": {"a": "b"}}}, "filter tag:Role must have text or a list of texts, not {'a': 'b'}."),
        ({"route53_enabled": True}, "aws_fleet has no route53_enabled; remove it, or use amazon.aws.aws_ec2 for this file."),
        ({"connection": "telnet"}, "telnet"),
        (
            {"keyed_groups": [{"key": "ami_launch_index + 1"}]},
            "keyed_groups ami_launch_index + 1 gives 1, which is not the name of a group",
        ),
        ({"keyed_groups": ["x"]}, "keyed_groups has 'x', which is not a dictionary"),
        ({"strict": True, "compose": {"a": "tags.None.b"}}, "'tags.None.b' has no value for host ip-10-0-0-10.ec2.internal"),
    ],
)
def test_options_that_cannot_be(read, monkeypatch: pytest.MonkeyPatch, options: dict, sentence: str) -> None:
    if "profile" in options:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with Api({"us-east-1": [GPU]}) as api, pytest.raises(SystemExit) as ended:
        read(api, **options)
    assert sentence in str(ended.value)


@pytest.mark.parametrize(
    ("tags", "sentence"),
    [
        ({"Name": "x", "muster:role": "contoller"}, "has the tag muster:role=contoller; contoller is none of controller, login, compute"),
    ],
)
def test_tags_that_cannot_be(read, tags: dict[str, str], sentence: str) -> None:
    with Api({"us-east-1": [Instance("0000000000000f", tags=tags)]}) as api, pytest.raises(SystemExit) as ended:
        read(api, hostnames=["tag:Name"])
    assert f"instance i-0000000000000f {sentence}" in str(ended.value)


BAD_NAMES = ["-oProxyCommand=id", "two words", "web[1]", "a,b", "n1;touch${IFS}x;#", "../../x", "$(id)", ".x"]
BAD_NAMES += ["all", "LocalHost", "muster_controller"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("hostnames", [["tag:Name", "private-dns-name"], ["tag:Name"]])
def test_a_name_that_no_host_can_have_takes_the_next_entry(read, warnings, hostnames: list[str], name: str) -> None:
    """The id is the name where no entry is left; the other instances stay in the inventory."""
    instances = [Instance("0000000000000f", tags={"Name": name}), Instance("0000000000000a", tags={"Name": "good"})]
    with Api({"us-east-1": instances}) as api:
        hosts = read(api, hostnames=hostnames).hosts
    other = "i-0000000000000f" if len(hostnames) == 1 else next(each for each in hosts if each != "good")
    assert set(hosts) == {"good", other} and name not in hosts
    assert (
        f"Instance i-0000000000000f would be called {name!r}, which cannot be a host's name, and is called {other}; mend its tag or choose "
        "other hostnames." in warnings
    )


def test_no_credentials_and_no_regions(read, monkeypatch: pytest.MonkeyPatch) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        api.faults["DescribeRegions", "us-east-1"] = [(403, "UnauthorizedOperation", "No.")]
        with pytest.raises(
            SystemExit, match=r"No region: option regions is empty, and the account was asked in vain\. DescribeRegions is denied"
        ):
            read(api, regions=[])
        api.faults["AssumeRole", "us-east-1"] = [(403, "AccessDenied", "User is not authorized to perform: sts:AssumeRole")]
        with pytest.raises(SystemExit, match=r"AssumeRole of arn:aws:iam::1:role/fleet is denied \(AccessDenied"):
            read(api, assume_role_arn=ROLE % "1")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(SystemExit, match="There are no usable AWS credentials"):
            read(api)
    assert "DescribeInstances" not in actions(api)


def test_a_region_that_is_none(read) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        api.url = "http://127.0.0.1:9"
        with pytest.raises(SystemExit, match=r"EC2 cannot be reached in region us-esat-1 .*is the region's name right"):
            read(api, regions=["us-esat-1"])


def test_an_answer_that_is_no_answer(read, monkeypatch: pytest.MonkeyPatch) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        monkeypatch.setattr(api, "_DescribeInstances", lambda *_more: b"<html>proxy</ht")
        with pytest.raises(SystemExit, match="DescribeInstances returned an answer that cannot be read"):
            read(api)
        monkeypatch.setattr(api, "_DescribeInstances", lambda *_more: b"<html><body>Log in</body></html>")
        with pytest.raises(SystemExit, match=r"answer that cannot be read .it has no reservationSet"):
            read(api)


@pytest.mark.parametrize("page", [b"<html>proxy</ht", b"<html><body>Log in</body></html>"])
@pytest.mark.parametrize("action", ["DescribeRegions", "DescribeInstanceTopology", "DescribeInstances"])
def test_the_page_of_a_proxy_is_no_empty_fleet(read, monkeypatch: pytest.MonkeyPatch, action: str, page: bytes) -> None:
    with Api({"us-east-1": [GPU]}) as api:
        monkeypatch.setattr(api, f"_{action}", lambda *_more: page)
        with pytest.raises(SystemExit, match=f"{action} returned an answer that"):
            read(api, regions=[], topology=True)


def test_without_stop_times_there_are_hosts_and_a_warning(read, warnings, monkeypatch: pytest.MonkeyPatch) -> None:
    with Api({"us-east-1": blocks()[:2]}) as api:
        monkeypatch.setattr(api, "_DescribeCapacityReservations", lambda *_more: b"<html><body>Log in</body></html>")
        assert len(read(api).hosts) == 2
    assert any("DescribeCapacityReservations returned an answer that is not AWS's" in said for said in warnings)


def test_stop_times_keep_their_name_beside_prefixed_variables(read) -> None:
    with Api({"us-east-1": blocks()[:2]}) as api:
        api.ends = {BLOCK: "2026-12-01T11:30:00.000Z"}
        variables = read(api, hostnames=["tag:Name"], hostvars_prefix="ec2_").hosts["cb-1"].vars
    assert "ec2_instance_id" in variables
    assert [name for name in variables if "stop_at" in name] == ["muster_stop_at"]


def test_the_command_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "aws_fleet.yml").write_text("plugin: muster.fleet.aws_fleet\nregions: ['']\n")
    for command in ("inventory import main; main()", "playbook import main; main()"):
        more = ["--list"] if command.startswith("inventory") else [str(Path(__file__).parents[2] / "site.yml")]
        done = subprocess.run(
            [sys.executable, "-c", f"from ansible.cli.{command}", "-i", str(tmp_path / "aws_fleet.yml"), *more],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "ANSIBLE_LOCALHOST_WARNING": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        sentence = "No region: option regions has an empty entry; name a region such as us-east-1."
        assert done.stderr.splitlines()[-1] == f"{tmp_path}/aws_fleet.yml: {sentence}"
        assert "Traceback" not in done.stderr
