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
  - Finds the instances of several regions and accounts side by side, and groups them by what Muster's playbooks ask for.
  - Takes the options of C(amazon.aws.aws_ec2) and gives the same hosts, variables and groups, so that an C(aws_ec2.yml) moves over
    by its line C(plugin).
  - What comes on top begins with C(muster_), see docs/inventory.md.
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
    description: Regions to look in. Without any, all regions that the account has enabled.
    type: list
    elements: str
    default: []
  region:
    description: Where to ask for the regions and for roles.
    type: str
    aliases: [aws_region]
    env:
      - name: AWS_REGION
  assume_role_arn:
    description: A role to look with.
    type: str
    aliases: [iam_role_arn]
  assume_role_arns:
    description: Roles to look with, one for each account. Each is asked in every region.
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
    description: Address of an API to ask instead of AWS's own.
    type: str
    aliases: [aws_endpoint_url]
    env:
      - name: AWS_URL
  filters:
    description: Filters of DescribeInstances. Instances that are terminated, or about to be, are left out.
    type: dict
    default: {}
  include_filters:
    description: Several such filters, an instance that passes any of them is taken.
    type: list
    elements: dict
    default: []
  exclude_filters:
    description: Several such filters, an instance that passes any of them is left out.
    type: list
    elements: dict
    default: []
  hostnames:
    description:
      - What names a host, the first that an instance has. A filter of DescribeInstances, V(tag:NAME), V(tag:NAME=VALUE), or text as it is.
      - An entry may be a dictionary with C(name), C(prefix) and C(separator), and a filter of Jinja may follow after a C(|).
      - A name that several instances have gets their ids behind it.
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
      - The attributes of an instance that become host variables; all when it is not given. Expressions see all of them in any case.
      - A few are enough for most playbooks. Of thousands of hosts C(ansible-inventory --list) spends most of its time on printing the rest.
    type: list
    elements: str
  connection:
    description:
      - V(ssh) reaches a host by its private address, V(ssm) by ssh through Session Manager, which needs the AWS CLI and its plugin here.
      - V(none) leaves that to C(compose).
    type: str
    default: none
    choices: [none, ssh, ssm]
  topology:
    description: Ask DescribeInstanceTopology for the network nodes above each instance, and group by them.
    type: bool
    default: false
  hostvars_prefix:
    description: Text before the name of every variable from EC2.
    type: str
  hostvars_suffix:
    description: Text behind the name of every variable from EC2.
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
    description: Not had here; V(true) is refused.
    type: bool
    default: false
  route53_enabled:
    description: Not had here; V(true) is refused.
    type: bool
    default: false
  route53_hostnames:
    description: Without effect.
    type: list
    elements: str
    default: []
  route53_excluded_zones:
    description: Without effect.
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

import collections
import difflib
import gc
import json
import re
import types

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.tests
from ansible.errors import AnsibleError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible.template import trust_as_template

from ansible_collections.muster.fleet.plugins.module_utils.ec2_expressions import MISSING, Expression, keyed_names, mentioned
from ansible_collections.muster.fleet.plugins.module_utils.ec2_hosts import (
    GONE,
    check_names,
    connection_variables,
    distinct,
    filter_list,
    fleet_groups,
    host_names,
    known_type,
    refuse_name,
    type_variables,
)
from ansible_collections.muster.fleet.plugins.module_utils.ec2_instances import Ec2Error
from ansible_collections.muster.fleet.plugins.plugin_utils.ec2_api import cache_key, query

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
# What gives the same for the same values: Jinja's own, and those of Ansible's that people use in inventories.
FILTERS = {*jinja2.filters.FILTERS, "bool", "json_query", "regex_replace", "regex_search", "regex_findall", "split", "ternary"}
TESTS = {*jinja2.tests.TESTS, "match", "search", "regex", "version", "contains"}


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    """Hosts from EC2."""

    NAME = "muster.fleet.aws_fleet"

    def verify_file(self, path):
        """Accept files that end in aws_fleet.yml, or in aws_ec2.yml as those which move over do."""
        ends = tuple(f"{name}.{end}" for name in ("aws_fleet", "aws_ec2") for end in ("yml", "yaml"))
        return super().verify_file(path) and path.endswith(ends)

    def parse(self, inventory, loader, path, cache=True):
        """Fill the inventory, or end Ansible with one sentence."""
        super().parse(inventory, loader, path, cache)
        self._made = {}
        # Python's collector would visit all values again each time their number has grown by a quarter, and there are no cycles to find.
        collecting = gc.isenabled()
        gc.disable()
        try:
            options = self._settings(self._read_config_data(path))
            instances, known = self._instances(options, cache)
            self._fill(instances, known, options["profile"])
        except (Ec2Error, ValueError, AnsibleError) as error:
            # To an error of a plugin Ansible adds what all other plugins think of the file, and then goes on without hosts.
            raise SystemExit(f"{path}: {error}") from error
        finally:
            if collecting:
                gc.enable()

    def _settings(self, config):
        definitions = self.option_definitions
        allowed = set(definitions) | {alias for each in definitions.values() for alias in each.get("aliases") or []}
        unknown = sorted(set(config) - allowed)
        if unknown:
            near = difflib.get_close_matches(unknown[0], sorted(allowed), n=1, cutoff=0)
            raise Ec2Error(f"unknown option {unknown[0]}, the nearest is {near[0]}.")
        for name in ("use_ssm_inventory", "route53_enabled"):
            if self.get_option(name):
                raise Ec2Error(f"aws_fleet has no {name}; take it out, or keep amazon.aws.aws_ec2 for this file.")
        check_names(self.get_option("hostnames"))
        out = {name: self.templar.template(self.get_option(name)) for name in TEMPLATED}
        if out["profile"] and out["access_key"]:
            # The file comes before the environment, and of the environment the keys come first, as they do for the AWS CLI.
            ours = {name for name in ("profile", "access_key") if not self.get_option_and_origin(name)[1].startswith("env")}
            if len(ours) == 2:
                raise Ec2Error("profile and access_key are two accounts; take one out.")
            out |= {"access_key": "", "secret_key": "", "session_token": ""} if ours == {"profile"} else {"profile": ""}
        out["roles"] = [*out["assume_role_arns"], *([out["assume_role_arn"]] if out["assume_role_arn"] else [])]
        return out | {name: self.get_option(name) for name in ("topology", "strict_permissions", "skip_failed_regions")}

    def _instances(self, options, cache):
        filters = {key: self.templar.template(value) for key, value in self.get_option("filters").items()}
        include = [filter_list(each) for each in ([filters] if filters else []) + self.get_option("include_filters")] or [filter_list({})]
        exclude = [filter_list(each) for each in self.get_option("exclude_filters")]
        key = self.get_option("cache") and cache_key(options, include, exclude)
        if key and cache:
            try:
                # One text: a cache that keeps JSON would visit every value of every instance.
                return json.loads(self._cache[key]["json"])
            except (KeyError, TypeError, ValueError):
                pass  # nothing there, or what another version wrote
        instances, known, complete = query(options, include, exclude, self.display.warning)
        if key and complete:
            self._cache[key] = {"json": json.dumps([instances, sorted(known)], default=lambda time: time.isoformat())}
        return instances, known

    def _engine(self, value, filters):
        """The filters of Jinja in an entry of hostnames. The value is a variable: what a tag says is never a template."""
        self.templar.available_variables = {"__name": value}
        return self.templar.evaluate_expression(trust_as_template(f"__name | {filters}"))

    def _named(self, instances):
        gone = [each["instance_id"] for each in instances if each["state"]["name"] in GONE]
        if gone:
            self.display.warning(f"{len(gone)} terminated instances are left out, such as {gone[0]}; they have no address any more.")
        everyone = self.get_option("allow_duplicated_hosts")
        named = []
        for instance in instances:
            if instance["state"]["name"] not in GONE:
                for name in host_names(instance, self.get_option("hostnames"), self._engine, everyone):
                    safe = self._safe(name) if ":" in name else name
                    refuse_name(safe, instance)
                    named.append((safe, instance))
        named, twice = distinct(named)
        for name in twice:
            self.display.warning(f"Several instances are called {name}; each has its id behind the name.")
        return named

    def _safe(self, name):
        if self.get_option("use_contrib_script_compatible_sanitization"):
            return re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return self._sanitize_group_name(name)

    def _variables(self, instance):
        """The variables that aws_ec2 gives a host."""
        out = instance
        if self.get_option("use_contrib_script_compatible_ec2_tag_keys"):
            out = {**out, **{f"ec2_tag_{key}": value for key, value in instance["tags"].items()}}
        before, behind = self.get_option("hostvars_prefix") or "", self.get_option("hostvars_suffix") or ""
        return {f"{before}{key}{behind}": value for key, value in out.items()} if before or behind else out

    def _fill(self, instances, known, profile):
        named = self._named(instances)
        work = self._work(known)
        everywhere = self._group("aws_ec2")
        self.inventory.add_child("all", everywhere.name)
        # By id, because an instance may be several hosts.
        counts = collections.Counter({instance["instance_id"]: instance["instance_type"] for _name, instance in named}.values())
        accelerators = {kind: (known_type(kind) or {}).get("accelerator") for kind in counts}
        connection, wanted = self.get_option("connection"), self.get_option("variables")
        for name, instance in named:
            self.inventory.add_host(name)
            host = self.inventory.hosts[name]
            everywhere.add_host(host)
            variables = self._variables(instance) if work.renamed else instance
            # All at once: set_variable would visit each value of each host again, and an instance's are plain data, never templates.
            host.vars.update(variables if wanted is None else {key: variables[key] for key in wanted if key in variables})
            host.vars.update(connection_variables(connection, instance, profile))
            if "muster_stop_at" in instance:  # whatever `variables` and `hostvars_prefix` say: run_job.yml reads it
                host.vars["muster_stop_at"] = instance["muster_stop_at"]
            self._construct(host, variables, work)
            for title in fleet_groups(instance, accelerators):
                self._group(title).add_host(host)
        for kind, count in counts.items():
            facts = type_variables(kind, count)
            if facts:
                trusted = {key: trust_as_template(value) if isinstance(value, str) else value for key, value in facts.items()}
                self.inventory.set_variable(self._group(f"muster_type_{kind}").name, "muster_instance", trusted)

    def _work(self, known):
        """What compose, groups and keyed_groups ask of every host."""
        before, behind = self.get_option("hostvars_prefix") or "", self.get_option("hostvars_suffix") or ""
        extra = self._vars if self.get_option("use_extra_vars") else {}
        known = {f"{before}{each}{behind}" for each in known} | set(extra)
        compose = {name: self._expression(text, known) for name, text in self.get_option("compose").items()}
        known = known | set(compose)
        keyed = []
        for entry in self.get_option("keyed_groups"):
            if not entry or not isinstance(entry, dict):
                raise Ec2Error(f"keyed_groups has {entry!r}, which is no dictionary with a key.")
            keyed.append((entry, self._expression(entry.get("key"), known), {}))
        return types.SimpleNamespace(
            renamed=bool(before or behind or self.get_option("use_contrib_script_compatible_ec2_tag_keys")),
            extra=extra,
            compose=compose,
            groups={name: self._expression(text, known, True) for name, text in self.get_option("groups").items()},
            keyed=keyed,
            strict=self.get_option("strict"),
            leading=self.get_option("leading_separator"),
        )

    def _expression(self, text, known, condition=False):
        evaluate = self.templar.evaluate_conditional if condition else self.templar.evaluate_expression

        def run(text, variables):
            self.templar.available_variables = variables
            return evaluate(text)

        return Expression(text, run, known, paths_in(text), condition)

    def _group(self, title):
        """The group of a name that need not be safe yet."""
        group = self._made.get(title)
        if group is None:
            group = self._made[title] = self.inventory.groups[self.inventory.add_group(self._safe(title))]
        return group

    def _construct(self, host, variables, work):
        """As Constructable does it, in its order, with expressions that remember."""
        composed = {}
        for name, expression in work.compose.items():
            value = self._value(expression, (work.extra, variables), lambda: {**variables, **work.extra}, host)
            if value is not MISSING:
                composed[name] = value
        host.vars.update(composed)
        scopes = (work.extra, composed, variables)

        def whole():
            return {**variables, **host.get_vars(), **work.extra}

        for name, expression in work.groups.items():
            value = self._value(expression, scopes, whole, host)
            if value is not MISSING and value:
                self._group(name).add_host(host)
        for entry, expression, found in work.keyed:
            value = self._value(expression, scopes, whole, host)
            if value is MISSING:
                continue
            groups = found.get(value) if isinstance(value, str) else None
            if groups is None:
                groups = self._keyed(entry, value, whole, work, host)
                if isinstance(value, str) and "{" not in str(entry.get("parent_group")):
                    found[value] = groups
            for group in groups:
                group.add_host(host)

    def _value(self, expression, scopes, whole, host):
        try:
            return expression.value(scopes, whole)
        except Exception as error:
            if self.get_option("strict"):
                raise Ec2Error(f"{expression.text!r} gives host {host.name} nothing: {' '.join(str(error).split())}") from error
            return MISSING

    def _keyed(self, entry, value, whole, work, host):
        """The groups of an entry of keyed_groups for a value, below their parent."""
        names = keyed_names(entry, value, work.leading)
        if not names and work.strict and value not in ([], {}):
            raise Ec2Error(f"keyed_groups {entry.get('key')} is empty for host {host.name}.")
        groups = [self._group(name) for name in names]
        parent = entry.get("parent_group")
        if parent and groups:
            if "{" in parent:
                self.templar.available_variables = whole()
                parent = self.templar.template(parent)
            above = self._group(parent)
            for group in groups:
                self.inventory.add_child(above.name, group.name)
        return groups


def paths_in(text):
    """What an expression for Jinja depends on, None when it cannot be told."""
    if not isinstance(text, str):
        return None
    try:
        tree = jinja2.Environment(autoescape=False).parse("{{ (" + text + ") }}")
    except jinja2.TemplateSyntaxError:
        return None
    return mentioned(tree, jinja2.nodes, FILTERS, TESTS)
