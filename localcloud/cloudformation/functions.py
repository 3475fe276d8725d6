# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What a template computes: its parameters, conditions and functions, and the order of its resources."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Callable
from typing import Any

PSEUDO = ("AccountId", "NotificationARNs", "NoValue", "Partition", "Region", "StackId", "StackName", "URLSuffix")
NOTHING = object()
LITERAL = re.compile(r"\$\{!([^}]+)\}")
VARIABLE = re.compile(r"\$\{([^}!]+)\}")


class Invalid(Exception):
    """A template, or a value of it, that CloudFormation refuses; the text is its message."""


def parameters(template: dict[str, Any], given: dict[str, str], before: dict[str, str]) -> dict[str, str]:
    """The value of each parameter, as text; before: those of the stack, for a value that is used again."""
    declared = template.get("Parameters", {})
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise Invalid(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    values = {}
    missing = []
    for name, each in declared.items():
        value = given.get(name, before.get(name, each.get("Default")))
        if value is None:
            missing.append(name)
            continue
        values[name] = str(value)
        check_parameter(name, each, values[name])
    if missing:
        raise Invalid(f"Parameters: [{', '.join(missing)}] must have values")
    return values


def check_parameter(name: str, declared: dict[str, Any], value: str) -> None:
    allowed = [str(each) for each in declared.get("AllowedValues", [])]
    if allowed and value not in allowed:
        raise Invalid(f"Parameter '{name}' must be one of AllowedValues")
    if "AllowedPattern" in declared and not re.fullmatch(declared["AllowedPattern"], value):
        raise Invalid(f"Parameter '{name}' must match pattern {declared['AllowedPattern']}")
    if declared["Type"] == "Number":
        try:
            number = float(value)
        except ValueError:
            raise Invalid(f"Parameter '{name}' must be a number.") from None
        if number < declared.get("MinValue", number):
            raise Invalid(f"Parameter '{name}' must be a number not less than {declared['MinValue']}")
    if declared["Type"].endswith("Image::Id") and not re.fullmatch(r"ami-[0-9a-f]{8,17}", value):
        raise Invalid(f"Parameter validation failed: parameter value {value} for parameter name {name} does not exist.")


class Values:
    """What names of a template mean.

    seen: the resource of a name as {Ref, attributes}; asked for a resource that does not exist yet, it returns None.
    """

    def __init__(
        self,
        template: dict[str, Any],
        values: dict[str, str],
        pseudo: dict[str, str],
        exports: Callable[[str], str],
        seen: Callable[[str], dict[str, Any] | None],
    ) -> None:
        self.template, self.parameters, self.pseudo, self.exports, self.seen = template, values, pseudo, exports, seen
        self.imported: set[str] = set()

    def condition(self, name: str) -> bool:
        if name not in self.template.get("Conditions", {}):
            raise Invalid(f"Template format error: Unresolved condition {name}")
        return self.truth(self.template["Conditions"][name])

    def truth(self, value: Any) -> bool:
        [(function, given)] = value.items()
        if function == "Condition":
            return self.condition(given)
        if function == "Fn::Equals":
            first, second = (self.of(each) for each in given)
            return str(first) == str(second)
        if function == "Fn::Not":
            return not self.truth(given[0])
        if function in ("Fn::And", "Fn::Or"):
            told = [self.truth(each) for each in given]
            return all(told) if function == "Fn::And" else any(told)
        raise Invalid(f"Template error: the local cloud knows no condition function {function}")

    def check_rules(self) -> None:
        for each in self.template.get("Rules", {}).values():
            for assertion in each["Assertions"]:
                if not self.truth(assertion["Assert"]):
                    raise Invalid(assertion["AssertDescription"])

    def of(self, value: Any) -> Any:
        """A value with all functions computed; NOTHING where the template says AWS::NoValue."""
        if isinstance(value, list):
            return [each for each in (self.of(one) for one in value) if each is not NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(function, given)] = value.items()
            if function == "Ref":
                return self.ref(given)
            if function.startswith("Fn::"):
                method = getattr(self, function[4:].lower(), None)
                if method is None:
                    raise Invalid(f"Template error: the local cloud knows no function {function}")
                return method(given)
        computed = {key: self.of(each) for key, each in value.items()}
        return {key: each for key, each in computed.items() if each is not NOTHING}

    def ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NOTHING
        if name.startswith("AWS::"):
            return self.pseudo[name[5:]]
        if name in self.parameters:
            kind = self.template["Parameters"][name]["Type"]
            text = self.parameters[name]
            if kind.startswith("List<") or kind == "CommaDelimitedList":
                return [each.strip() for each in text.split(",")]
            return (int(text) if text.lstrip("-").isdigit() else float(text)) if kind == "Number" else text
        return self.resource(name)["Ref"]

    def resource(self, name: str) -> dict[str, Any]:
        if name not in self.template["Resources"]:
            raise Invalid(f"Template format error: Unresolved resource dependencies [{name}] in the Resources block of the template")
        found = self.seen(name)
        return found if found is not None else Unknown(name)

    def getatt(self, given: Any) -> Any:
        name, _, attribute = given.partition(".") if isinstance(given, str) else (given[0], "", ".".join(given[1:]))
        found = self.resource(name)
        if attribute not in found:
            raise Invalid(f"Template error: resource {name} does not support attribute type {attribute} in Fn::GetAtt")
        return found[attribute]

    def sub(self, given: Any) -> str:
        text, more = given if isinstance(given, list) else (given, {})

        def value(found: re.Match) -> str:
            name = found[1]
            if name in more:
                return str(self.of(more[name]))
            return str(self.getatt(name) if "." in name and not name.startswith("AWS::") else self.ref(name))

        return LITERAL.sub(r"${\1}", VARIABLE.sub(value, text))

    def importvalue(self, given: Any) -> str:
        name = str(self.of(given))
        self.imported.add(name)
        return self.exports(name)

    def join(self, given: Any) -> str:
        return str(given[0]).join(str(each) for each in self.of(given[1]))

    def split(self, given: Any) -> list[str]:
        return str(self.of(given[1])).split(given[0])

    def select(self, given: Any) -> Any:
        index, found = int(self.of(given[0])), self.of(given[1])
        if not 0 <= index < len(found):
            raise Invalid(f"Template error: Fn::Select cannot select nonexistent value at index {index}")
        return found[index]

    def cidr(self, given: Any) -> list[str]:
        network, count, bits = ipaddress.ip_network(self.of(given[0])), int(self.of(given[1])), int(self.of(given[2]))
        try:
            blocks = network.subnets(new_prefix=32 - bits)
            return [str(each) for _, each in zip(range(count), blocks, strict=False)]
        except ValueError:
            raise Invalid(f"Template error: Fn::Cidr cannot take {count} blocks of {bits} bits from {network}") from None

    def base64(self, given: Any) -> str:
        return base64.b64encode(str(self.of(given)).encode()).decode()

    def getazs(self, given: Any) -> list[str]:
        return [f"{self.of(given) or self.pseudo['Region']}{letter}" for letter in "abcdef"]

    def tojsonstring(self, given: Any) -> str:
        return json.dumps(self.of(given), separators=(",", ":"))

    def findinmap(self, given: Any) -> Any:
        name, first, second = (self.of(each) for each in given)
        return self.template["Mappings"][name][first][second]


setattr(Values, "if", lambda self, given: self.of(given[1] if self.condition(given[0]) else given[2]))


class Unknown(dict):
    """Stands for a resource that a change set would make."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __contains__(self, _key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> str:
        return f"(known after {self.name}.{key})"


def needs(template: dict[str, Any], value: Any) -> set[str]:
    """The resources that a part of a template names."""
    found: set[str] = set()
    if isinstance(value, list):
        return found.union(*(needs(template, each) for each in value))
    if not isinstance(value, dict):
        return found
    for key, each in value.items():
        if key == "Ref" and isinstance(each, str):
            found.add(each)
        elif key == "Fn::GetAtt":
            found.add(each.split(".")[0] if isinstance(each, str) else each[0])
        elif key == "Fn::Sub":
            text = each[0] if isinstance(each, list) else each
            found.update(name.split(".")[0] for name in VARIABLE.findall(text))
            found |= needs(template, each[1]) if isinstance(each, list) else set()
        elif key == "DependsOn":
            found.update([each] if isinstance(each, str) else each)
        else:
            found |= needs(template, each)
    return found & set(template["Resources"])


def in_order(template: dict[str, Any], names: set[str]) -> list[str]:
    """The names, each after what it needs."""
    done: list[str] = []
    waiting = [name for name in template["Resources"] if name in names]
    while waiting:
        ready = [name for name in waiting if not (needs(template, template["Resources"][name]) & set(waiting)) - {name}]
        if not ready:
            raise Invalid(f"Circular dependency between resources: [{', '.join(waiting)}]")
        done += ready
        waiting = [name for name in waiting if name not in ready]
    return done
