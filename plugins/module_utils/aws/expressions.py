# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The expressions of compose, groups and keyed_groups, evaluated without Jinja when they only look something up.

Ansible compiles an expression again for every host, which takes half a millisecond each. A path such as `tags.Role` is looked up here.
Jinja evaluates any other expression once for each combination of the values that it mentions, such as a few types among thousands of hosts.
"""

from __future__ import annotations

import re

PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[(?:'[^'\\]*'|\"[^\"\\]*\"|\d+)\])*\Z")
STEP = re.compile(r"([A-Za-z_]\w*)|\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]")
# Names that have their own meaning in Jinja.
WORDS = frozenset(["true", "false", "none", "True", "False", "None", "not", "loop", "self", "caller", "omit"])
# Filters whose result may change from call to call.
IMPURE = frozenset(["random", "shuffle", "password_hash", "vault", "to_uuid"])
MISSING = object()


class Undefined(Exception):
    """The host has no value at the path."""


class NotPlain(Exception):
    """Only Jinja can evaluate the expression for this host."""


def path_steps(text):
    """`tags['a b'].c[0]` as a list of names and indexes; None for an expression that is more than a path."""
    text = text.strip()
    if not PATH.match(text):
        return None
    steps: list = []
    for match in STEP.finditer(text):
        dotted, single, double, index = match.groups()
        if dotted and steps and (hasattr(dict, dotted) or hasattr(list, dotted) or hasattr(str, dotted)):
            return None  # Jinja would use the method
        steps.append(int(index) if index else next(each for each in (dotted, single, double) if each is not None))
    return None if steps[0] in WORDS else steps


def look_up(steps, scopes, known):
    """The value at a path. scopes: dictionaries, of which the first that has the name counts. known: names that a host may lack."""
    value = MISSING
    for scope in scopes:
        value = scope.get(steps[0], MISSING)
        if value is not MISSING:
            break
    else:
        if steps[0] in known:
            raise Undefined(steps[0])
        raise NotPlain  # a function of Ansible, or a misspelt name, which Ansible reports
    for step in steps[1:]:
        if isinstance(value, dict) and not isinstance(step, int):
            value = value.get(step, MISSING)
            if value is MISSING:
                raise Undefined(step)
        elif isinstance(value, list) and isinstance(step, int):
            if step >= len(value):
                raise Undefined(str(step))
            value = value[step]
        else:
            raise NotPlain
    return value


def mentioned(tree, nodes, filters, tests):
    """The paths in Jinja's syntax tree on which the result depends, or None when it may depend on something else."""
    paths = []

    def visit(node):
        if isinstance(node, (nodes.Getattr, nodes.Getitem, nodes.Name)):
            steps = chain(node)
            if steps:
                paths.append(steps)
                return True
        if isinstance(node, nodes.Filter) and (node.name not in filters or node.name in IMPURE):
            return False
        if isinstance(node, nodes.Test) and node.name not in tests:
            return False
        return all(visit(each) for each in node.iter_child_nodes())

    def chain(node):
        if isinstance(node, nodes.Name):
            return [node.name]
        if isinstance(node, nodes.Getattr):
            key = node.attr
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, (str, int)):
            key = node.arg.value
        else:
            return None
        before = chain(node.node)
        if not before:
            return None
        # A method, such as tags.get, depends on the whole dictionary.
        if before[-1] is Ellipsis or (isinstance(key, str) and (hasattr(dict, key) or hasattr(list, key) or hasattr(str, key))):
            return before if before[-1] is Ellipsis else before + [Ellipsis]
        return before + [key]

    return [steps[:-1] if steps[-1] is Ellipsis else steps for steps in paths] if visit(tree) else None


class Expression:
    """One expression for many hosts.

    evaluate: Ansible's own evaluation, called with the text and all variables. known: names that hosts may have. paths: the result of
    `mentioned`. condition: whether the value must be a boolean.
    """

    def __init__(self, text, evaluate, known, paths=None, condition=False):
        self.text, self.evaluate, self.known, self.condition = text, evaluate, known, condition
        self.steps = path_steps(text) if isinstance(text, str) else None
        self.paths = None if self.steps or not paths or any(path[0] not in known for path in paths) else paths
        self.results = {}

    def value(self, scopes, everything):
        """The value for a host; raises Undefined or an error of Ansible. everything: returns all variables as one dictionary."""
        if self.steps:
            try:
                value = look_up(self.steps, scopes, self.known)
                if not self.condition or isinstance(value, bool):
                    return value
            except NotPlain:
                pass
        elif self.paths:
            return self.remembered(scopes, everything)
        return self.evaluate(self.text, everything())

    def remembered(self, scopes, everything):
        values: list = []
        for path in self.paths or ():
            try:
                value = look_up(path, scopes, self.known)
                values.append((type(value), value if isinstance(value, (str, int, bool)) else repr(value)))
            except Undefined:
                values.append(None)
            except NotPlain:
                return self.evaluate(self.text, everything())
        key = tuple(values)
        found = self.results.get(key)
        if found is None:
            try:
                found = (self.evaluate(self.text, everything()), None)
            except Exception as error:
                found = (None, error)
            self.results[key] = found
        if found[1]:
            raise found[1]
        return found[0]


def keyed_names(keyed, value, leading_separator=True):
    """The group names, not yet made safe, that an entry of keyed_groups gives for a value, as in Ansible's constructed groups."""
    empty = (None, "")
    default = keyed.get("default_value")
    trailing = keyed.get("trailing_separator")
    if trailing is not None and default is not None:
        raise ValueError("keyed_groups %s: default_value and trailing_separator exclude each other; give one of them." % keyed.get("key"))
    prefix = keyed.get("prefix", "")
    separator = keyed.get("separator", "_")
    names = []
    if value in empty:
        if default is None:
            return []
        names = [default]
    elif isinstance(value, str):
        names = [value]
    elif isinstance(value, list):
        names = [default if each in empty and default is not None else each for each in value]
    elif isinstance(value, dict):
        for name, each in value.items():
            if each not in empty:
                names.append("%s%s%s" % (name, separator, each))
            elif default is not None:
                names.append("%s%s%s" % (name, separator, default))
            else:
                names.append(name if trailing is False else "%s%s%s" % (name, separator, each))
    elif not value:
        return []
    else:
        message = "keyed_groups %s gives %s, which is not the name of a group; make it text, a list or a dictionary."
        raise ValueError(message % (keyed.get("key"), value))
    if prefix == "" and leading_separator is False:
        separator = ""
    return ["%s%s%s" % (prefix, separator, name) for name in names]
