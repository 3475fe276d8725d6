# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The requests of CloudFormation, in front of moto's: the Query protocol by botocore's own model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

import boto3
import botocore.config
import botocore.loaders
import botocore.model
import yaml
from moto.core.model import ServiceModel
from moto.core.serialize import QuerySerializer

from localcloud.cloudformation.engine import Refused, Region, Stack, now

BUSY = "IN_PROGRESS"
ACCOUNT = "123456789012"
SHORT = ("Ref", "Condition")


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with CloudFormation's short tags: !Ref, !Sub, !GetAtt."""


def short(loader: Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in SHORT else f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", short)


@functools.cache
def model() -> ServiceModel:
    found = botocore.loaders.Loader().load_service_model("cloudformation", "service-2")
    return ServiceModel(found)


def parsed(asked: dict[str, list[str]], shape: Any, prefix: str = "") -> Any:
    """The members of a request by its shape; None for what it does not have."""
    if shape.type_name == "structure":
        found = {}
        for name, member in shape.members.items():
            value = parsed(asked, member, f"{prefix}{name}" if not prefix or prefix.endswith(".") else f"{prefix}.{name}")
            if value is not None:
                found[name] = value
        return found or None
    if shape.type_name == "list":
        found_list = []
        while True:
            value = parsed(asked, shape.member, f"{prefix}.member.{len(found_list) + 1}")
            if value is None:
                return found_list or ([] if prefix in asked else None)
            found_list.append(value)
    text = asked.get(prefix, [None])[0]
    return text == "true" if text is not None and shape.type_name == "boolean" else text


class CloudFormation:
    """The service: regions by name. env: what a client of this cloud needs, as Cloud gives it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.regions: dict[str, Region] = {}

    def region(self, name: str) -> Region:
        if name not in self.regions:
            self.regions[name] = Region(name, ACCOUNT, functools.cache(lambda service: self.client(service, name)))
        return self.regions[name]

    def client(self, service: str, region: str) -> Any:
        return boto3.session.Session().client(
            service,
            region_name=region,
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            config=botocore.config.Config(retries={"total_max_attempts": 1}),
        )

    def __call__(self, region: str, body: bytes, start_response: Callable) -> Iterable[bytes]:
        asked = parse_qs(body.decode(), keep_blank_values=True)
        action = asked.get("Action", [""])[0]
        try:
            operation = model().operation_model(action)
            method = getattr(self, snake(action), None)
        except botocore.model.OperationNotFoundError:
            method = None
        if method is None:
            return self.error(start_response, Refused(f"The local cloud has no {action} of CloudFormation.", "InvalidAction"))
        wanted = parsed(asked, operation.input_shape) or {}
        try:
            answer = method(self.region(region), wanted) or {}
        except Refused as error:
            return self.error(start_response, error)
        done = QuerySerializer(operation_model=operation).serialize(answer)
        start_response("200 OK", list(done["headers"].items()))
        text = done["body"]
        return [text.encode() if isinstance(text, str) else text]

    def error(self, start_response: Callable, error: Refused) -> Iterable[bytes]:
        from localcloud.faults import refuse

        return refuse(start_response, "cloudformation", error.code, str(error), "400 Bad Request")

    # Actions.

    def template_of(self, asked: dict[str, Any], stack: Stack | None = None) -> tuple[str, dict[str, Any]]:
        if asked.get("UsePreviousTemplate") and stack:
            return stack.body, stack.template
        if "TemplateBody" not in asked:
            raise Refused("The local cloud takes templates in the request, by TemplateBody.")
        if len(asked["TemplateBody"].encode()) > 51_200:
            raise Refused(
                "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: length less than or equal to 51200"
            )
        try:
            return asked["TemplateBody"], yaml.load(asked["TemplateBody"], Loader)
        except yaml.YAMLError as error:
            raise Refused(f"Template format error: {' '.join(str(error).split())}") from error

    def create_stack(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        with region.lock:
            if asked["StackName"] in region.stacks:
                raise Refused(f"Stack [{asked['StackName']}] already exists", "AlreadyExistsException")
            stack = Stack(region, asked["StackName"])
            stack.body, stack.template = self.template_of(asked)
            stack.tags, stack.capabilities = asked.get("Tags", []), asked.get("Capabilities", [])
            stack.parameters = region.checked(stack, stack.template, asked)
            region.stacks[stack.name] = stack
            stack.become("CREATE_IN_PROGRESS", "User Initiated")
        region.start(stack, stack.create)
        return {"StackId": stack.id}

    def ready(self, stack: Stack) -> None:
        if BUSY in stack.status or stack.status in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "DELETE_COMPLETE"):
            raise Refused(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")

    def update_stack(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        with region.lock:
            stack = region.find(asked["StackName"])
            self.ready(stack)
            body, template = self.template_of(asked, stack)
            given = region.checked(stack, template, asked)
            tags = asked.get("Tags", stack.tags)
            if template == stack.template and given == stack.parameters and tags == stack.tags:
                raise Refused("No updates are to be performed.")
            self.begin_update(stack, body, template, (given, tags))
        return {"StackId": stack.id}

    def begin_update(self, stack: Stack, body: str, template: dict, given_and_tags: tuple) -> None:
        stack.former, stack.body, stack.updated = stack.body, body, now()
        stack.become("UPDATE_IN_PROGRESS", "User Initiated")
        stack.region.start(stack, stack.update, template, *given_and_tags)

    def delete_stack(self, region: Region, asked: dict[str, Any]) -> None:
        with region.lock:
            try:
                stack = region.find(asked["StackName"])
            except Refused:
                return
            if stack.status in ("DELETE_IN_PROGRESS", "DELETE_COMPLETE"):
                return
            if stack.status == "REVIEW_IN_PROGRESS":
                region.forget(stack)
                return
            stack.before = stack.status
            stack.become("DELETE_IN_PROGRESS", "User Initiated")
        region.start(stack, stack.delete)

    def describe_stacks(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        found = [region.find(asked["StackName"])] if asked.get("StackName") else list(region.stacks.values())
        return {"Stacks": [each.shown() for each in found]}

    def describe_stack_events(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        return {"StackEvents": list(region.find(asked["StackName"]).events)}

    def describe_stack_resources(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        return {"StackResources": region.find(asked["StackName"]).resources()}

    def list_stack_resources(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        return {"StackResourceSummaries": region.find(asked["StackName"]).resources()}

    def get_template(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        return {"TemplateBody": region.find(asked["StackName"]).body, "StagesAvailable": ["Original"]}

    def list_exports(self, region: Region, _asked: dict[str, Any]) -> dict[str, Any]:
        return {
            "Exports": [
                {"ExportingStackId": stack.id, "Name": each["ExportName"], "Value": each["OutputValue"]}
                for stack in region.stacks.values()
                for each in stack.outputs
                if "ExportName" in each
            ]
        }

    def list_imports(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        found = region.importers(asked["ExportName"])
        if not found:
            raise Refused(f"Export '{asked['ExportName']}' is not imported by any stack.")
        return {"Imports": found}

    def create_change_set(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        with region.lock:
            kind = asked.get("ChangeSetType", "UPDATE")
            if kind == "CREATE" and asked["StackName"] not in region.stacks:
                stack = Stack(region, asked["StackName"])
                body, template = self.template_of(asked)
                given = region.checked(stack, template, asked)
                region.stacks[stack.name] = stack
                stack.become("REVIEW_IN_PROGRESS", "User Initiated")
            else:
                stack = region.find(asked["StackName"])
                self.ready(stack) if stack.status != "REVIEW_IN_PROGRESS" else None
                body, template = self.template_of(asked, stack)
                given = region.checked(stack, template, asked)
            tags = asked.get("Tags", stack.tags)
            changes = stack.difference(template, given)
            nothing = not changes and template.get("Outputs") == stack.template.get("Outputs") and tags == stack.tags
            made = f"arn:aws:cloudformation:{region.name}:{ACCOUNT}:changeSet/{asked['ChangeSetName']}"
            stack.changes[asked["ChangeSetName"]] = {
                "ChangeSetName": asked["ChangeSetName"],
                "ChangeSetId": made,
                "StackId": stack.id,
                "StackName": stack.name,
                "Status": "FAILED" if nothing else "CREATE_COMPLETE",
                "StatusReason": "The submitted information didn't contain changes." if nothing else None,
                "ExecutionStatus": "UNAVAILABLE" if nothing else "AVAILABLE",
                "CreationTime": now(),
                "Changes": changes,
                "Parameters": [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
                "_apply": (body, template, given, tags, asked.get("Capabilities", [])),
            }
        return {"Id": made, "StackId": stack.id}

    def change_set(self, region: Region, asked: dict[str, Any]) -> tuple[Stack, dict[str, Any]]:
        name = asked["ChangeSetName"].rpartition("/")[2]
        stacks = [region.find(asked["StackName"])] if asked.get("StackName") else list(region.stacks.values())
        for stack in stacks:
            if name in stack.changes:
                return stack, stack.changes[name]
        raise Refused(f"ChangeSet [{asked['ChangeSetName']}] does not exist", "ChangeSetNotFound")

    def describe_change_set(self, region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in self.change_set(region, asked)[1].items() if not key.startswith("_")}

    def delete_change_set(self, region: Region, asked: dict[str, Any]) -> None:
        stack, found = self.change_set(region, asked)
        del stack.changes[found["ChangeSetName"]]

    def execute_change_set(self, region: Region, asked: dict[str, Any]) -> None:
        with region.lock:
            stack, found = self.change_set(region, asked)
            if found["ExecutionStatus"] != "AVAILABLE":
                raise Refused(f"ChangeSet [{found['ChangeSetId']}] cannot be executed in its current status of [{found['Status']}]")
            body, template, given, tags, capabilities = found["_apply"]
            stack.changes.clear()
            if stack.status == "REVIEW_IN_PROGRESS":
                stack.body, stack.template, stack.parameters, stack.tags, stack.capabilities = body, template, given, tags, capabilities
                stack.become("CREATE_IN_PROGRESS", "User Initiated")
                region.start(stack, stack.create)
            else:
                self.begin_update(stack, body, template, (given, tags))

    def validate_template(self, _region: Region, asked: dict[str, Any]) -> dict[str, Any]:
        _body, template = self.template_of(asked)
        return {
            "Parameters": [
                {"ParameterKey": name, "DefaultValue": each.get("Default")} for name, each in template.get("Parameters", {}).items()
            ],
            "Description": template.get("Description"),
        }


def snake(action: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in action).lstrip("_")
