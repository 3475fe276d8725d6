# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: aws_fleet
short_description: EC2 instances as the nodes of a fleet
version_added: 0.1.0
author:
  - The Muster developers (@muster-fleet)
description:
  - Finds the instances of several regions and accounts in parallel, and makes the groups that Muster's playbooks use.
  - Accepts the options of C(amazon.aws.aws_ec2) and gives the same hosts, variables and groups, so that an C(aws_ec2.yml) works
    after a change of its line C(plugin).
  - Additional groups and variables begin with C(muster_), see docs/inventory.md.
extends_documentation_fragment:
  - constructed
  - inventory_cache
requirements:
  - boto3
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [muster.fleet.aws_fleet]
  regions:
    description: Regions to search. By default all regions that the account has enabled.
    type: list
    elements: str
    default: []
  region:
    description: The region in which to list regions and assume roles.
    type: str
    aliases: [aws_region]
    env:
      - name: AWS_REGION
  assume_role_arn:
    description: A role to assume.
    type: str
    aliases: [iam_role_arn]
  assume_role_arns:
    description: Roles to assume, one for each account. Each is used in every region.
    type: list
    elements: str
    default: []
  profile:
    description: Profile of the AWS configuration.
    type: str
    aliases: [aws_profile]
    env:
      - name: AWS_PROFILE
      - name: AWS_DEFAULT_PROFILE
  access_key:
    description: Id of an access key.
    type: str
    aliases: [aws_access_key_id, aws_access_key]
    env:
      - name: AWS_ACCESS_KEY_ID
      - name: AWS_ACCESS_KEY
  secret_key:
    description: The access key's secret.
    type: str
    aliases: [aws_secret_access_key, aws_secret_key]
    env:
      - name: AWS_SECRET_ACCESS_KEY
      - name: AWS_SECRET_KEY
  session_token:
    description: The token of temporary keys.
    type: str
    aliases: [aws_session_token]
    env:
      - name: AWS_SESSION_TOKEN
  endpoint_url:
    description: Address of an API to use instead of AWS's own.
    type: str
    aliases: [aws_endpoint_url]
    env:
      - name: AWS_URL
  filters:
    description: Filters of DescribeInstances. Instances that are terminated or shutting down are left out.
    type: dict
    default: {}
  include_filters:
    description: Several such filters; an instance that passes any of them is included.
    type: list
    elements: dict
    default: []
  exclude_filters:
    description: Several such filters; an instance that passes any of them is left out.
    type: list
    elements: dict
    default: []
  hostnames:
    description:
      - Sources of a host's name, of which the first that an instance has counts. Each is a filter of DescribeInstances, V(tag:NAME),
        V(tag:NAME=VALUE) or plain text.
      - An entry may be a dictionary with C(name), C(prefix) and C(separator), and a filter of Jinja may follow after a C(|).
      - A name has letters, digits, C(.), C(_) and C(-), and begins with a letter or digit. It is not C(all), C(ungrouped) or
        C(localhost), and does not begin with C(muster_). The next entry replaces any other name, and the instance's id the last, with a
        warning.
      - The instance's id is appended to a name that several instances have.
    type: list
    elements: raw
    default: []
  allow_duplicated_hosts:
    description: A host for every name that an instance has.
    type: bool
    default: false
  strict_permissions:
    description: With V(false) a region that denies DescribeInstances is left out with a warning.
    type: bool
    default: true
  skip_failed_regions:
    description: With V(true) a region that fails in any way is left out with a warning, and nothing is cached.
    type: bool
    default: false
  variables:
    description:
      - The attributes of an instance that become host variables; all by default. Expressions can always use all of them.
      - A few are enough for most playbooks. With thousands of hosts C(ansible-inventory --list) spends most of its time on the rest.
    type: list
    elements: str
  connection:
    description:
      - V(ssh) reaches a host by its private address, V(ssm) by ssh through Session Manager, which needs the AWS CLI and its plugin here.
      - With V(none), C(compose) must set the connection.
    type: str
    default: none
    choices: [none, ssh, ssm]
  topology:
    description:
      - Ask DescribeInstanceTopology for the network nodes above each instance, and group by them. Role slurm makes the tree of its switches
        from these groups.
      - Where the call is denied or not supported, hosts have no network nodes, and a warning says so.
    type: bool
    default: false
  hostvars_prefix:
    description: Text before the name of every variable from EC2.
    type: str
  hostvars_suffix:
    description: Text after the name of every variable from EC2.
    type: str
  use_contrib_script_compatible_sanitization:
    description: Leave hyphens in the names of groups.
    type: bool
    default: false
  use_contrib_script_compatible_ec2_tag_keys:
    description: A variable C(ec2_tag_NAME) for every tag.
    type: bool
    default: false
  use_ssm_inventory:
    description: Not supported; V(true) is refused.
    type: bool
    default: false
  route53_enabled:
    description: Not supported; V(true) is refused.
    type: bool
    default: false
  route53_hostnames:
    description: Has no effect.
    type: list
    elements: str
    default: []
  route53_excluded_zones:
    description: Has no effect.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
# aws_fleet.yml: the nodes of one fleet in two regions, reached through Session Manager
plugin: muster.fleet.aws_fleet
regions: [us-east-1, us-west-2]
filters:
  tag:muster:fleet: training
hostnames: [tag:Name, instance-id]
connection: ssm
topology: true
variables: [instance_id, instance_type, private_ip_address, placement, tags]
keyed_groups:
  - {key: tags.Team, prefix: team}

# three accounts by a role in each
# plugin: muster.fleet.aws_fleet
# regions: [us-east-1]
# assume_role_arns:
#   - arn:aws:iam::111122223333:role/fleet-inventory
#   - arn:aws:iam::444455556666:role/fleet-inventory
"""

import re

from ansible.template import trust_as_template

from ansible_collections.muster.fleet.plugins.module_utils.aws.hosts import (
    DEFAULT_NAMES,
    GONE,
    check_names,
    connection_variables,
    distinct,
    filter_list,
    fleet_groups,
    host_names,
    known_type,
    launch_of,
)
from ansible_collections.muster.fleet.plugins.module_utils.aws.instances import Ec2Error
from ansible_collections.muster.fleet.plugins.module_utils.node.names import usable_name
from ansible_collections.muster.fleet.plugins.plugin_utils.ec2_api import cache_key, query
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory import FleetInventory

TEMPLATED = (
    "access_key",
    "secret_key",
    "session_token",
    "profile",
    "endpoint_url",
    "assume_role_arn",
    "assume_role_arns",
    "region",
    "regions",
)
# Playbooks read these, so hosts have them by these names regardless of `variables` and `hostvars_prefix`.
OURS = ("muster_stop_at", "muster_network_nodes", "muster_ultraserver")


class InventoryModule(FleetInventory):
    """Hosts from EC2."""

    NAME = "muster.fleet.aws_fleet"

    def verify_file(self, path):
        """Accept files that end in aws_fleet.yml, or in aws_ec2.yml, the name for amazon.aws."""
        ends = tuple(f"{name}.{end}" for name in ("aws_fleet", "aws_ec2") for end in ("yml", "yaml"))
        return super().verify_file(path) and path.endswith(ends)

    def _find(self, cache):
        options = self._settings()
        instances, known = self._instances(options, cache)
        self._fill(instances, known, options["profile"])

    def _settings(self):
        for name in ("use_ssm_inventory", "route53_enabled"):
            if self.get_option(name):
                raise Ec2Error(f"aws_fleet has no {name}; remove it, or use amazon.aws.aws_ec2 for this file.")
        check_names(self.get_option("hostnames"))
        out = {name: self.templar.template(self.get_option(name)) for name in TEMPLATED}
        if out["profile"] and out["access_key"]:
            # The file overrides the environment, and in the environment keys override the profile, as in the AWS CLI.
            ours = {name for name in ("profile", "access_key") if not self.get_option_and_origin(name)[1].startswith("env")}
            if len(ours) == 2:
                raise Ec2Error("profile and access_key are two accounts; remove one of them.")
            out |= {"access_key": "", "secret_key": "", "session_token": ""} if ours == {"profile"} else {"profile": ""}
        out["roles"] = [*out["assume_role_arns"], *([out["assume_role_arn"]] if out["assume_role_arn"] else [])]
        return out | {name: self.get_option(name) for name in ("topology", "strict_permissions", "skip_failed_regions")}

    def _instances(self, options, cache):
        filters = {key: self.templar.template(value) for key, value in self.get_option("filters").items()}
        include = [filter_list(each) for each in ([filters] if filters else []) + self.get_option("include_filters")] or [filter_list({})]
        exclude = [filter_list(each) for each in self.get_option("exclude_filters")]
        key = self.get_option("cache") and cache_key(options, include, exclude)
        return self._cached(key, cache, lambda: query(options, include, exclude, self.display.warning))

    def _engine(self, value, filters):
        """Apply the Jinja filters of an entry of hostnames. The value is a variable, because a tag's text must never be a template."""
        self.templar.available_variables = {"__name": value}
        return self.templar.evaluate_expression(trust_as_template(f"__name | {filters}"))

    def _named(self, instances):
        gone = [each["instance_id"] for each in instances if each["state"]["name"] in GONE]
        if gone:
            self.display.warning(f"{len(gone)} terminated instances are left out, such as {gone[0]}; they have no address.")
        alive = [each for each in instances if each["state"]["name"] not in GONE]
        named, twice = distinct([(name, each) for each in alive for name in self._names(each)])
        for name in twice:
            self.display.warning(f"Several instances are called {name}; their ids were appended to the name.")
        return named

    def _names(self, instance):
        """The names of an instance. An entry of hostnames that gives an unusable one is left out with a warning."""
        everyone = self.get_option("allow_duplicated_hosts")
        names, unusable = [], []
        for preference in self.get_option("hostnames") or DEFAULT_NAMES:
            for name in host_names(instance, [preference], self._engine, everyone):
                safe = self._sanitize_group_name(name) if ":" in name else name
                (names if usable_name(safe) else unusable).append(safe)
            if names and not everyone:
                break
        if unusable:
            names = names or [instance["instance_id"]]
            self.display.warning(
                f"Instance {instance['instance_id']} would be called {unusable[0]!r}, which cannot be a host's name, and is called "
                f"{names[0]}; mend its tag or choose other hostnames."
            )
        return names

    def _sanitize_group_name(self, name):
        if self.get_option("use_contrib_script_compatible_sanitization"):
            return re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return super()._sanitize_group_name(name)

    def _variables(self, instance):
        """The host variables, as aws_ec2 names them."""
        out = instance
        if self.get_option("use_contrib_script_compatible_ec2_tag_keys"):
            out = {**out, **{f"ec2_tag_{key}": value for key, value in instance["tags"].items()}}
        before, behind = self._around()
        if not before and not behind:
            return out
        return {f"{before}{key}{behind}": value for key, value in out.items() if key not in OURS}

    def _around(self):
        """The text before and after the name of every variable."""
        return self.get_option("hostvars_prefix") or "", self.get_option("hostvars_suffix") or ""

    def _fill(self, instances, known, profile):
        named = self._named(instances)
        before, behind = self._around()
        renamed = before or behind or self.get_option("use_contrib_script_compatible_ec2_tag_keys")
        work = self._work(f"{before}{each}{behind}" for each in known)
        everywhere = self._group("aws_ec2")
        self.inventory.add_child("all", everywhere.name)
        kinds = {instance["instance_type"] for _name, instance in named}
        accelerators = {kind: (known_type(kind) or {}).get("accelerator") for kind in kinds}
        connection, wanted = self.get_option("connection"), self.get_option("variables")
        for name, instance in named:
            self.inventory.add_host(name)
            host = self.inventory.hosts[name]
            everywhere.add_host(host)
            variables = self._variables(instance) if renamed else instance
            # Not by set_variable, which would visit each value of each host again; an instance's values are plain data, never templates.
            host.vars.update(variables if wanted is None else {key: variables[key] for key in wanted if key in variables})
            host.vars.update(connection_variables(connection, instance, profile))
            host.vars.update({key: instance[key] for key in OURS if key in instance})
            if accelerators[instance["instance_type"]]:  # as those of OURS, because begin.yml reads it
                host.vars["muster_launch"] = launch_of(instance)
            self._construct(host, variables, work)
            for title in fleet_groups(instance, accelerators):
                self._group(title).add_host(host)
