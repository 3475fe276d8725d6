# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The stacks of a region: made, changed and removed in a thread each, as on AWS, with events, rollback, exports and change sets."""

from __future__ import annotations

import contextlib
import copy
import datetime
import threading
import uuid
from collections.abc import Callable
from typing import Any

import botocore.exceptions

from localcloud.cloudformation.functions import Invalid, Values, in_order, parameters
from localcloud.cloudformation.resources import TYPES, Scope

IAM = "AWS::IAM::"
CAPABILITIES = ("CAPABILITY_IAM", "CAPABILITY_NAMED_IAM")


class Refused(Exception):
    """A request that CloudFormation refuses."""

    def __init__(self, said: str, code: str = "ValidationError") -> None:
        super().__init__(said)
        self.code = code


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Stack:
    """One stack and what it has made."""

    def __init__(self, region: Region, name: str) -> None:
        self.region, self.name = region, name
        self.id = f"arn:aws:cloudformation:{region.name}:{region.account}:stack/{name}/{uuid.uuid4()}"
        self.template: dict[str, Any] = {}
        self.body, self.former = "", ""  # the text of the template, and of the one before an update
        self.parameters: dict[str, str] = {}
        self.tags: list[dict[str, str]] = []
        self.made: dict[str, dict[str, Any]] = {}  # logical name -> {type, ref, attributes, properties, status, reason}
        self.outputs: list[dict[str, Any]] = []
        self.imports: set[str] = set()
        self.events: list[dict[str, Any]] = []
        self.changes: dict[str, dict[str, Any]] = {}
        self.status, self.before, self.reason, self.created, self.updated = "", "", "", now(), None
        self.capabilities: list[str] = []

    # What DescribeStacks and its kin show.

    def shown(self) -> dict[str, Any]:
        return {
            "StackName": self.name,
            "StackId": self.id,
            "StackStatus": self.status,
            "StackStatusReason": self.reason or None,
            "CreationTime": self.created,
            "LastUpdatedTime": self.updated,
            "Description": self.template.get("Description"),
            "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in self.parameters.items()],
            "Tags": self.tags,
            "Outputs": self.outputs,
            "Capabilities": self.capabilities,
            "EnableTerminationProtection": False,
        }

    def resources(self) -> list[dict[str, Any]]:
        return [
            {
                "StackName": self.name,
                "StackId": self.id,
                "LogicalResourceId": name,
                "PhysicalResourceId": each["ref"],
                "ResourceType": each["type"],
                "ResourceStatus": each["status"],
                "ResourceStatusReason": each.get("reason"),
                "Timestamp": each["at"],
                "LastUpdatedTimestamp": each["at"],
                "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
            }
            for name, each in self.made.items()
        ]

    def event(self, logical: str, kind: str, status: str, reason: str = "", ref: str = "") -> None:
        self.events.insert(
            0,
            {
                "StackId": self.id,
                "StackName": self.name,
                "EventId": str(uuid.uuid4()),
                "LogicalResourceId": logical,
                "PhysicalResourceId": ref,
                "ResourceType": kind,
                "ResourceStatus": status,
                "ResourceStatusReason": reason or None,
                "Timestamp": now(),
            },
        )

    def become(self, status: str, reason: str = "") -> None:
        self.status, self.reason = status, reason
        self.event(self.name, "AWS::CloudFormation::Stack", status, reason, self.id)

    # What it does.

    def values(self, template: dict[str, Any], given: dict[str, str], made: dict[str, dict[str, Any]]) -> Values:
        pseudo = {
            "AccountId": self.region.account,
            "Partition": "aws",
            "Region": self.region.name,
            "StackId": self.id,
            "StackName": self.name,
            "URLSuffix": "amazonaws.com",
        }

        def seen(name: str) -> dict[str, Any] | None:
            return {"Ref": made[name]["ref"], **made[name]["attributes"]} if name in made else None

        return Values(template, given, pseudo, self.region.export, seen)

    def wanted(self, values: Values) -> set[str]:
        """The resources whose conditions are true."""
        found = values.template["Resources"].items()
        return {name for name, each in found if "Condition" not in each or values.condition(each["Condition"])}

    def scope(self, logical: str) -> Scope:
        region = self.region
        return Scope(region.call, stack=self.name, logical=logical, tags=self.tags, region=region.name, account=region.account)

    def make(self, name: str, values: Values) -> None:
        kind = values.template["Resources"][name]["Type"]
        self.event(name, kind, "CREATE_IN_PROGRESS")
        properties = values.of(values.template["Resources"][name].get("Properties", {}))
        try:
            ref, attributes = TYPES[kind].create(self.scope(name), properties)
        except (Invalid, KeyError, TypeError) as error:
            self.event(name, kind, "CREATE_FAILED", told(error))
            raise Invalid(f"{name}: {told(error)}") from error
        self.made[name] = {
            "type": kind,
            "ref": ref,
            "attributes": attributes,
            "properties": properties,
            "status": "CREATE_COMPLETE",
            "at": now(),
            "retain": values.template["Resources"][name].get("DeletionPolicy") == "Retain",
        }
        self.event(name, kind, "CREATE_COMPLETE", ref=ref)

    def remove(self, name: str, each: dict[str, Any]) -> None:
        self.event(name, each["type"], "DELETE_IN_PROGRESS", ref=each["ref"])
        if each["retain"]:
            self.event(name, each["type"], "DELETE_SKIPPED", ref=each["ref"])
            return
        try:
            TYPES[each["type"]].delete(self.scope(name), each["ref"], each["properties"], each["attributes"])
        except Invalid as error:
            if "NotFound" not in str(error) and "NoSuch" not in str(error):
                each["status"], each["reason"] = "DELETE_FAILED", str(error)
                self.event(name, each["type"], "DELETE_FAILED", str(error), each["ref"])
                raise
        self.event(name, each["type"], "DELETE_COMPLETE", ref=each["ref"])

    def create(self) -> None:
        values = self.values(self.template, self.parameters, self.made)
        try:
            for name in in_order(self.template, self.wanted(values)):
                self.make(name, values)
            self.finish(values, "CREATE_COMPLETE")
        except Invalid as error:
            self.become("ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to create: [{error}]. Rollback requested by user.")
            self.empty("ROLLBACK", retain=False)

    def finish(self, values: Values, status: str) -> None:
        self.outputs = []
        for name, each in self.template.get("Outputs", {}).items():
            if "Condition" in each and not values.condition(each["Condition"]):
                continue
            shown = {"OutputKey": name, "OutputValue": str(values.of(each["Value"])), "Description": each.get("Description")}
            if "Export" in each:
                shown["ExportName"] = values.of(each["Export"]["Name"])
                other = self.region.exporter(shown["ExportName"])
                if other and other is not self:
                    raise Invalid(f"Export with name {shown['ExportName']} is already exported by stack {other.name}")
            self.outputs.append(shown)
        self.imports = values.imported
        self.become(status)

    def empty(self, verb: str, retain: bool = True) -> bool:
        """Remove all resources, the last made first."""
        failed = []
        for name in [each for each in reversed(self.made)]:
            each = self.made[name] if retain else {**self.made[name], "retain": False}
            try:
                self.remove(name, each)
                del self.made[name]
            except Invalid as error:
                self.made[name].update(status="DELETE_FAILED", reason=str(error))
                failed.append(f"{name}: {error}")
        if failed:
            self.become(f"{verb}_FAILED", f"The following resource(s) failed to delete: [{'; '.join(failed)}].")
        else:
            self.become(f"{verb}_COMPLETE", self.reason if verb == "ROLLBACK" else "")
        return not failed

    def delete(self) -> None:
        users = [(name, other) for name in self.exports() for other in self.region.importers(name)]
        if users:
            self.become(self.before, f"Delete canceled. Cannot delete export {users[0][0]} as it is in use by {users[0][1]}.")
        elif self.empty("DELETE"):
            self.region.forget(self)

    def exports(self) -> list[str]:
        return [each["ExportName"] for each in self.outputs if "ExportName" in each]

    def update(self, template: dict[str, Any], given: dict[str, str], tags: list[dict[str, str]]) -> None:
        old = (self.template, self.parameters, self.tags, copy.deepcopy(self.made))
        self.template, self.parameters, self.tags = template, given, tags
        values = self.values(template, given, self.made)
        replaced: list[tuple[str, dict[str, Any]]] = []
        try:
            names = self.wanted(values)
            for name in in_order(template, names):
                self.bring(name, values, replaced)
            gone = [name for name in reversed(self.made) if name not in names]
            self.finish(values, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
            for name, each in [*replaced, *((name, self.made.pop(name)) for name in gone)]:
                with contextlib.suppress(Invalid):  # as on AWS, cleaning up does not fail an update
                    self.remove(name, each)
            self.become("UPDATE_COMPLETE")
        except Invalid as error:
            self.become("UPDATE_ROLLBACK_IN_PROGRESS", f"The following resource(s) failed to update: [{error}].")
            self.back(old, replaced)
            self.become("UPDATE_ROLLBACK_COMPLETE", self.reason)

    def bring(self, name: str, values: Values, replaced: list[tuple[str, dict[str, Any]]]) -> None:
        """Make a resource, change it, or make another in its place."""
        have = self.made.get(name)
        if have is None:
            self.make(name, values)
            return
        declared = values.template["Resources"][name]
        properties = values.of(declared.get("Properties", {}))
        have["retain"] = declared.get("DeletionPolicy") == "Retain"
        if properties == have["properties"] and have["type"] == declared["Type"]:
            return
        self.event(name, have["type"], "UPDATE_IN_PROGRESS", ref=have["ref"])
        change = TYPES[have["type"]].update if have["type"] == declared["Type"] else None
        if change and change(self.scope(name), have["ref"], have["properties"], properties, have["attributes"]):
            have.update(properties=properties, status="UPDATE_COMPLETE", at=now())
            self.event(name, have["type"], "UPDATE_COMPLETE", ref=have["ref"])
            return
        replaced.append((name, self.made.pop(name)))
        try:
            self.make(name, values)
        except Invalid:
            self.made[name] = replaced.pop()[1]
            raise

    def back(self, old: tuple, replaced: list[tuple[str, dict[str, Any]]]) -> None:
        """Undo a failed update: remove what it made, keep what it had not yet replaced."""
        former = old[3]
        for name in [each for each in reversed(self.made) if each not in former or self.made[each]["ref"] != former[each]["ref"]]:
            with contextlib.suppress(Invalid):
                self.remove(name, {**self.made.pop(name), "retain": False})
        self.template, self.parameters, self.tags = old[:3]
        self.body = self.former
        self.made = {**{name: each for name, each in former.items()}}
        del replaced[:]

    def difference(self, template: dict[str, Any], given: dict[str, str]) -> list[dict[str, Any]]:
        """The changes of a change set."""
        values = self.values(template, given, self.made)
        names = self.wanted(values)
        found = []

        def add(action: str, name: str, kind: str, **more: Any) -> None:
            change = {"Action": action, "LogicalResourceId": name, "ResourceType": kind, **more}
            found.append({"Type": "Resource", "ResourceChange": change})

        for name in in_order(template, names):
            declared = template["Resources"][name]
            have = self.made.get(name)
            properties = values.of(declared.get("Properties", {}))
            if have is None:
                add("Add", name, declared["Type"])
            elif properties != have["properties"]:
                changed = sorted(key for key in {*properties, *have["properties"]} if properties.get(key) != have["properties"].get(key))
                can = TYPES[declared["Type"]].update
                add(
                    "Modify",
                    name,
                    declared["Type"],
                    PhysicalResourceId=have["ref"],
                    Replacement="Conditional" if can else "True",
                    Scope=["Properties"],
                    Details=[{"Target": {"Attribute": "Properties", "Name": key}, "ChangeSource": "DirectModification"} for key in changed],
                )
        for name, each in self.made.items():
            if name not in names:
                add("Remove", name, each["type"], PhysicalResourceId=each["ref"])
        return found


def told(error: Exception) -> str:
    return str(error) if isinstance(error, Invalid) else f"a property is missing or of another type: {error}"


class Region:
    """The stacks of one region. client(service) is boto3 of the same cloud."""

    def __init__(self, name: str, account: str, client: Callable[[str], Any]) -> None:
        self.name, self.account, self.client = name, account, client
        self.stacks: dict[str, Stack] = {}
        self.deleted: list[Stack] = []
        self.lock = threading.RLock()

    def call(self, service: str, action: str, **wanted: Any) -> dict[str, Any]:
        """An API call; an error of AWS becomes the reason of an event."""
        try:
            return getattr(self.client(service), action)(**wanted)
        except botocore.exceptions.ClientError as error:
            found = error.response["Error"]
            raise Invalid(f"{found.get('Message')} (Service: {service}; Error Code: {found.get('Code')})") from error
        except botocore.exceptions.BotoCoreError as error:
            raise Invalid(" ".join(str(error).split())) from error

    def find(self, name: str) -> Stack:
        with self.lock:
            found = self.stacks.get(name) or next((each for each in [*self.stacks.values(), *self.deleted] if each.id == name), None)
        if not found:
            raise Refused(f"Stack with id {name} does not exist")
        return found

    def exporter(self, name: str) -> Stack | None:
        return next((each for each in self.stacks.values() if name in each.exports()), None)

    def export(self, name: str) -> str:
        stack = self.exporter(name)
        if not stack:
            raise Invalid(f"No export named {name} found")
        return next(each["OutputValue"] for each in stack.outputs if each.get("ExportName") == name)

    def importers(self, name: str) -> list[str]:
        return [each.name for each in self.stacks.values() if name in each.imports]

    def forget(self, stack: Stack) -> None:
        with self.lock:
            self.stacks.pop(stack.name, None)
            self.deleted.append(stack)

    def start(self, stack: Stack, work: Callable, *wanted: Any) -> None:
        threading.Thread(target=work, args=wanted, daemon=True, name=stack.name).start()

    def checked(self, stack: Stack, template: dict[str, Any], asked: dict[str, Any]) -> dict[str, str]:
        """The parameters of a request, or its refusal."""
        if not isinstance(template, dict) or not isinstance(template.get("Resources"), dict):
            raise Refused("Template format error: At least one Resources member must be defined.")
        given, same = {}, {}
        for each in asked.get("Parameters", []):
            if each.get("UsePreviousValue"):
                same[each["ParameterKey"]] = stack.parameters.get(each["ParameterKey"], "")
            else:
                given[each["ParameterKey"]] = each.get("ParameterValue", "")
        iam = [name for name, each in template["Resources"].items() if each["Type"].startswith(IAM)]
        if iam and not set(asked.get("Capabilities", [])) & set(CAPABILITIES):
            raise Refused(f"Requires capabilities : [{CAPABILITIES[0]}]", "InsufficientCapabilitiesException")
        try:
            values = parameters(template, given, same)
            checked = stack.values(template, values, stack.made)
            checked.check_rules()
            names = stack.wanted(checked)
            unknown = sorted({template["Resources"][name]["Type"] for name in names} - set(TYPES))
            if unknown:
                raise Invalid(f"The local cloud makes no {unknown[0]}; docs/localcloud.md lists what it can make.")
            for name in in_order(template, names):
                checked.of(template["Resources"][name].get("Properties", {}))
        except Invalid as error:
            raise Refused(str(error)) from error
        return values
