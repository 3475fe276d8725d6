# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventories of Muster share: a cache, safe group names, one sentence for an error, and constructed groups for many hosts."""

from __future__ import annotations

import gc
import json
import types

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.tests
from ansible.errors import AnsibleError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ansible_collections.muster.fleet.plugins.module_utils.aws.expressions import MISSING, Expression, keyed_names, mentioned
from ansible_collections.muster.fleet.plugins.module_utils.basics import closest
from ansible_collections.muster.fleet.plugins.module_utils.node.names import usable_name

# Filters that always give the same result for the same values: those of Jinja, and those of Ansible that inventories use.
FILTERS = {*jinja2.filters.FILTERS, "bool", "json_query", "regex_replace", "regex_search", "regex_findall", "split", "ternary"}
TESTS = {*jinja2.tests.TESTS, "match", "search", "regex", "version", "contains"}


class FleetInventory(BaseInventoryPlugin, Constructable, Cacheable):
    """A subclass finds the hosts and adds them in `_find(cache)`. cache: whether it may use the cache."""

    def parse(self, inventory, loader, path, cache=True):
        """Fill the inventory, or end Ansible with one sentence."""
        super().parse(inventory, loader, path, cache)
        self._made = {}
        # Python's garbage collector would visit all values each time their number has grown by a quarter, and would find no cycles.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._refuse_unknown(self._read_config_data(path))
            self._find(cache)
        except (ValueError, AnsibleError) as error:
            # After an error of a plugin Ansible would try all other plugins, print their errors too, and continue without hosts.
            raise SystemExit(f"{path}: {error}") from error
        finally:
            if collecting:
                gc.enable()

    def _refuse_unknown(self, config):
        definitions = self.option_definitions
        allowed = set(definitions) | {alias for each in definitions.values() for alias in each.get("aliases") or []}
        unknown = sorted(set(config) - allowed)
        if unknown:
            near = closest(unknown[0], sorted(allowed), cutoff=0)
            raise ValueError(f"unknown option {unknown[0]}; the nearest is {near[0]}.")

    def _cached(self, key, cache, find):
        """The value from the cache or from find(), which returns a value and whether to store it. key: false without a cache."""
        if key and cache:
            try:
                # Store one text, because a cache that stores JSON would visit every value of every host.
                return json.loads(self._cache[key]["json"])
            except (KeyError, TypeError, ValueError):
                pass  # the cache is empty, or another version wrote it
        found, complete = find()
        if key and complete:
            self._cache[key] = {"json": json.dumps(found, default=lambda time: time.isoformat())}
        return found

    def _place(self, hosts, everywhere):
        """Add hosts [{name, variables, groups}], all of them to the group `everywhere`. Values are plain data, never templates."""
        seen = set()
        work = self._work({name for host in hosts for name in host["variables"]})
        for each in hosts:
            if not usable_name(each["name"]):
                self.display.warning(f"{each['name']!r} cannot be a host's name, so that node is left out.")
                continue
            if each["name"] in seen:
                raise ValueError(f"two nodes are called {each['name']}; the inventory needs a name of its own for each.")
            seen.add(each["name"])
            self.inventory.add_host(each["name"])
            host = self.inventory.hosts[each["name"]]
            host.vars.update(each["variables"])
            self._group(everywhere).add_host(host)
            self._construct(host, each["variables"], work)
            for title in each["groups"]:
                self._group(title).add_host(host)

    def _work(self, known):
        """The expressions of compose, groups and keyed_groups, which are evaluated for every host."""
        extra = self._vars if self.get_option("use_extra_vars") else {}
        known = set(known) | set(extra)
        compose = {name: self._expression(text, known) for name, text in self.get_option("compose").items()}
        known = known | set(compose)
        keyed = []
        for entry in self.get_option("keyed_groups"):
            if not entry or not isinstance(entry, dict):
                raise ValueError(f"keyed_groups has {entry!r}, which is not a dictionary with a key.")
            keyed.append((entry, self._expression(entry.get("key"), known), {}))
        return types.SimpleNamespace(
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
        """The group of a name, which is made safe first."""
        group = self._made.get(title)
        if group is None:
            group = self._made[title] = self.inventory.groups[self.inventory.add_group(self._sanitize_group_name(title))]
        return group

    def _construct(self, host, variables, work):
        """The same as Constructable does, in the same order, with expressions that remember results."""
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
                raise ValueError(f"{expression.text!r} has no value for host {host.name}: {' '.join(str(error).split())}") from error
            return MISSING

    def _keyed(self, entry, value, whole, work, host):
        """The groups that an entry of keyed_groups gives for a value, below their parent group."""
        names = keyed_names(entry, value, work.leading)
        if not names and work.strict and value not in ([], {}):
            raise ValueError(f"keyed_groups {entry.get('key')} is empty for host {host.name}.")
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
    """The paths on which a Jinja expression depends, or None when that is unknown."""
    if not isinstance(text, str):
        return None
    try:
        tree = jinja2.Environment(autoescape=False).parse("{{ (" + text + ") }}")
    except jinja2.TemplateSyntaxError:
        return None
    return mentioned(tree, jinja2.nodes, FILTERS, TESTS)
