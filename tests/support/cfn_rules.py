# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What cfn-lint does not see in a template, and the little of what it sees that every `make test` can afford.

Names that resolve, sizes that CloudFormation takes, and interfaces, types and markets that the catalogue and the rules of launches allow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.hardware import catalogue
from ansible_collections.muster.fleet.plugins.module_utils.stack.rule_case import Case
from ansible_collections.muster.fleet.plugins.module_utils.stack.rules import judge

MOST_BYTES = 51_200  # of a template that is sent with the request
RULES_OF_LAUNCH = ("nic-type", "nic-count", "nic-b300", "nic-p6e", "nic-primary", "nic-one-efa", "nic-di", "nic-publicip")


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a template."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(each)


def template_faults(template: dict[str, Any], kind: str = "") -> list[str]:
    """One sentence for each fault. kind: the instance type of the launch template, where it does not say it itself."""
    names = {*template.get("Parameters", {}), *template["Resources"]}
    conditions = set(template.get("Conditions", {}))
    found = []
    used = set()
    for each in parts({key: value for key, value in template.items() if key != "Parameters"}):
        named = [each["Ref"]] if "Ref" in each else []
        named += [each["Fn::GetAtt"][0]] if "Fn::GetAtt" in each else []
        if "Fn::Sub" in each and isinstance(each["Fn::Sub"], str):
            named += [match.split(".")[0] for match in re.findall(r"\$\{([^!}]+)\}", each["Fn::Sub"])]
        used.update(named)
        found += [f"nothing is called {name}" for name in named if name not in names and not name.startswith("AWS::")]
        of = [each["Fn::If"][0]] if "Fn::If" in each else []
        of += [each["Condition"]] if isinstance(each.get("Condition"), str) else []
        found += [f"there is no condition {name}" for name in of if name not in conditions]
    found += [f"nothing uses the parameter {name}" for name in template.get("Parameters", {}) if name not in used]
    if len(json.dumps(template, separators=(",", ":"))) > MOST_BYTES:
        found.append(f"the template is larger than the {MOST_BYTES} bytes that a request takes")
    for name, each in template["Resources"].items():
        if each["Type"] == "AWS::EC2::LaunchTemplate":
            data = each["Properties"]["LaunchTemplateData"]
            found += [f"{name}: {said}" for said in launch_faults(data.get("InstanceType", kind), data)]
        if each["Type"] == "AWS::Batch::ComputeEnvironment":
            types = each["Properties"]["ComputeResources"]["InstanceTypes"]
            found += [f"{name}: {one} is not an instance type" for one in types if not catalogue.described(one)]
    return found


def launch_faults(kind: str, data: dict[str, Any]) -> list[str]:
    """What the rules of launches say of a launch template's interfaces."""
    if not catalogue.described(kind):
        return []
    interfaces = [
        {"card": each["NetworkCardIndex"], "device": each["DeviceIndex"], "type": each["InterfaceType"]}
        for each in data["NetworkInterfaces"]
    ]
    public = any("AssociatePublicIpAddress" in each for each in data["NetworkInterfaces"])
    case = Case(instance_type=catalogue.instance_type(kind), launch={"interfaces": interfaces, "public_ip": public})
    told = [each for each in judge(case, ("launch",)) if each["rule"] in RULES_OF_LAUNCH]
    return [each["says"] for each in told if each["verdict"] in ("refused", "not_run")]
