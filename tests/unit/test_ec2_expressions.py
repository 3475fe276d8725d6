# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Expressions of an inventory without a template engine: which are paths, what they give, and when Jinja evaluates them after all."""

from __future__ import annotations

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.tests
import pytest

from ansible_collections.muster.fleet.plugins.module_utils.aws.expressions import Expression, Undefined, keyed_names, mentioned, path_steps

HOST = {
    "instance_type": "p5.48xlarge",
    "tags": {"Role": "web", "a b": "c"},
    "security_groups": [{"group_id": "sg-1"}],
    "ebs_optimized": True,
}
KNOWN = {*HOST, "public_ip_address", "placement"}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("instance_type", ["instance_type"]),
        (" tags.Role ", ["tags", "Role"]),
        ("tags['a b']", ["tags", "a b"]),
        ('security_groups[0]["group_id"]', ["security_groups", 0, "group_id"]),
        ("tags.items", None),  # Jinja takes the method
        ("tags.Name | lower", None),
        ("'literal'", None),
        ("true", None),
        ("tags[name]", None),
    ],
)
def test_what_is_a_path(text: str, steps: list | None) -> None:
    assert path_steps(text) == steps


class Engine:
    """Stands for Ansible's evaluation and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str, variables: dict) -> object:
        self.asked.append(text)
        return jinja2.Environment(undefined=jinja2.StrictUndefined).compile_expression(text, undefined_to_none=False)(**variables)


def expression(text: str, engine: Engine, condition: bool = False) -> Expression:
    tree = jinja2.Environment().parse("{{ (" + text + ") }}")
    paths = mentioned(tree, jinja2.nodes, set(jinja2.filters.FILTERS), set(jinja2.tests.TESTS))
    return Expression(text, engine, KNOWN, paths, condition)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("instance_type", "p5.48xlarge"),
        ("tags.Role", "web"),
        ("tags['a b']", "c"),
        ("security_groups[0].group_id", "sg-1"),
        ("tags", HOST["tags"]),
    ],
)
def test_a_path_is_looked_up(text: str, value: object) -> None:
    engine = Engine()
    assert expression(text, engine).value((HOST,), lambda: HOST) == value == Engine()(text, HOST)
    assert engine.asked == []


@pytest.mark.parametrize("text", ["public_ip_address", "tags.Missing", "security_groups[3]"])
def test_what_a_host_lacks_needs_no_engine(text: str) -> None:
    engine = Engine()
    with pytest.raises(Undefined):
        expression(text, engine).value((HOST,), lambda: HOST)
    assert engine.asked == []


def test_the_first_scope_that_has_the_name_counts() -> None:
    assert expression("instance_type", Engine()).value(({"instance_type": "mine"}, HOST), lambda: HOST) == "mine"


def test_a_name_that_is_no_attribute_is_left_to_ansible() -> None:
    engine = Engine()
    assert expression("inventory_hostname", engine).value((HOST,), lambda: {"inventory_hostname": "x"}) == "x"
    assert engine.asked == ["inventory_hostname"]


def test_an_expression_runs_once_for_each_combination_of_what_it_mentions() -> None:
    engine = Engine()
    gpus = expression("{'p5.48xlarge': 8}.get(instance_type, 0)", engine)
    hosts = [{**HOST, "instance_type": ("p5.48xlarge", "m7i.large")[n % 2], "tags": {"Name": str(n)}} for n in range(20)]
    assert [gpus.value((each,), lambda each=each: each) for each in hosts] == [8, 0] * 10
    assert len(engine.asked) == 2


def test_a_failure_is_remembered_too() -> None:
    engine = Engine()
    lower = expression("tags.Missing | lower", engine)
    for _ in range(3):
        with pytest.raises(jinja2.UndefinedError):
            lower.value((HOST,), lambda: HOST)
    assert len(engine.asked) == 1


@pytest.mark.parametrize("text", ["[instance_type] | random", "lookup_something(instance_type)", "instance_type ~ inventory_hostname"])
def test_what_may_differ_between_hosts_is_not_remembered(text: str) -> None:
    variables = {**HOST, "lookup_something": str, "inventory_hostname": "x"}
    engine = Engine()
    again = expression(text, engine)
    for _ in range(2):
        again.value((HOST,), lambda: variables)
    assert len(engine.asked) == 2


def test_true_and_one_are_two_values() -> None:
    engine = Engine()
    shown = expression("ebs_optimized | string", engine)
    assert [shown.value(({"ebs_optimized": value},), lambda value=value: {"ebs_optimized": value}) for value in (True, 1)] == ["True", "1"]


def test_a_condition_that_is_no_boolean_is_left_to_ansible() -> None:
    engine = Engine()
    assert expression("ebs_optimized", engine, condition=True).value((HOST,), lambda: HOST) is True
    assert engine.asked == []
    expression("instance_type", engine, condition=True).value((HOST,), lambda: HOST)
    assert engine.asked == ["instance_type"]


@pytest.mark.parametrize(
    ("keyed", "value", "leading", "names"),
    [
        ({"prefix": "role"}, "web", True, ["role_web"]),
        ({}, "web", True, ["_web"]),
        ({}, "web", False, ["web"]),
        ({"separator": ""}, "web", True, ["web"]),
        ({"prefix": "t", "separator": "-"}, {"a": "1", "b": ""}, True, ["t-a-1", "t-b-"]),
        ({"prefix": "t", "trailing_separator": False}, {"b": ""}, True, ["t_b"]),
        ({"prefix": "t", "default_value": "none"}, {"b": ""}, True, ["t_b_none"]),
        ({"prefix": "t", "default_value": "none"}, "", True, ["t_none"]),
        ({"prefix": "t", "default_value": "none"}, ["a", ""], True, ["t_a", "t_none"]),
        ({"prefix": "t"}, "", True, []),
        ({"prefix": "t"}, None, True, []),
        ({"prefix": "t"}, 0, True, []),
    ],
)
def test_names_of_keyed_groups(keyed: dict, value: object, leading: bool, names: list[str]) -> None:
    assert keyed_names(keyed, value, leading) == names


def test_keyed_groups_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="gives 3, which is not the name of a group"):
        keyed_names({"key": "ami_launch_index"}, 3)
    with pytest.raises(ValueError, match="exclude each other"):
        keyed_names({"key": "x", "default_value": "a", "trailing_separator": False}, "b")
