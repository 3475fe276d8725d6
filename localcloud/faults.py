# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The way of each request: its signature is checked, then faults on request happen to it, and then moto answers.

Faults are posted as JSON to /localcloud/faults, signed as every request (python -m localcloud --fault JSON does it):

{"action": "DescribeInstances", "error": "RequestLimitExceeded", "times": 2}   the next two calls end in this error
{"action": "RunInstances", "error": "InsufficientInstanceCapacity"}            times is 1 by default
{"action": "RunInstances", "delay": 2.5, "times": 3}                           the API is slow
{"boots": false}                                      the next instance never boots, or the next worker of a Batch job never starts
{"dies": "i-0123"}                                                             the host of an instance fails, now
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import boto3

from ansible_collections.muster.fleet.plugins.module_utils.containers.engine import NodeContainerError
from localcloud.metadata import PATH as METADATA
from localcloud.metadata import Metadata
from localcloud.signature import Keys, Refused

PATH = "/localcloud/faults"
# The data channel of a session of Systems Manager.
CHANNEL = "/localcloud/data-channel/"
NO_CHANNEL = b"The local cloud opens sessions but has no data channel; use ssh to the instance's address, or Run Command.\n"
# Ids of EC2 in a request, and the code of AWS for a text that cannot be one.
IDS = {
    "InstanceId": ("i", "InvalidInstanceID.Malformed"),
    "ImageId": ("ami", "InvalidAMIID.Malformed"),
    "VolumeId": ("vol", "InvalidVolumeID.Malformed"),
    "SnapshotId": ("snap", "InvalidSnapshotID.Malformed"),
    "SubnetId": ("subnet", "InvalidSubnetID.Malformed"),
    "VpcId": ("vpc", "InvalidVpcID.Malformed"),
    "GroupId": ("sg", "InvalidGroupId.Malformed"),
    "SecurityGroupId": ("sg", "InvalidGroupId.Malformed"),
}
# Placement groups have ids of their own under the same name.
OTHER_IDS = re.compile("PlacementGroup")
REGIONS = boto3.session.Session().get_available_regions("ec2")
FORMS = (
    {"action", "error", "times"},
    {"action", "delay", "times"},
    {"boots", "times"},
    {"dies"},
)
STATUS = {
    "RequestLimitExceeded": 503,
    "Unavailable": 503,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "UnauthorizedOperation": 403,
}


class Faults:
    """The ordered faults, as a WSGI application in front of moto's."""

    def __init__(self, app: Callable, keys: Keys, die: Callable[[str], None]) -> None:
        self._app = app
        # Services that this cloud has instead of moto's, by name.
        self.own: dict[str, Callable] = {}
        self._keys = keys
        self._metadata = Metadata()
        self._die = die
        self._waiting: list[dict] = []
        self._lock = threading.Lock()

    def take(self, **wanted: object) -> dict | None:
        """The oldest waiting fault that has these values; its count goes down by one."""
        with self._lock:
            for fault in self._waiting:
                if fault["times"] and all(fault.get(key) == value for key, value in wanted.items()):
                    fault["times"] -= 1
                    return fault
        return None

    def order(self, text: bytes) -> None:
        """Accept an order; ValueError names its fault."""
        fault = json.loads(text)
        if not isinstance(fault, dict) or not any(set(fault) | {"times"} == form | {"times"} for form in FORMS):
            raise ValueError(f"{text.decode()} is no fault; give action and error, action and delay, boots, or dies.")
        if "dies" in fault:
            self._die(fault["dies"])
            return
        with self._lock:
            self._waiting.append({"times": 1, **fault})

    def __call__(self, environ: dict, start_response: Callable) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([\w-]+)", environ.get("HTTP_AUTHORIZATION", ""))
        service = scope[2] if scope else "ec2"
        if environ["PATH_INFO"].startswith(METADATA) and "HTTP_AUTHORIZATION" not in environ:
            return self._metadata(environ, start_response)
        if environ["PATH_INFO"].startswith(CHANNEL):
            start_response("501 Not Implemented", [("Content-Type", "text/plain")])
            return [NO_CHANNEL]
        # moto answers an unknown region with a traceback, which clients retry.
        if scope and scope[1] not in REGIONS:
            said = f"Credential should be scoped to a valid region, {scope[1]} is none."
            return refuse(start_response, service, "SignatureDoesNotMatch", said)
        try:
            self._keys.check(environ, body)
        except Refused as error:
            return refuse(start_response, "json" if target else service, error.code, str(error))
        if environ["PATH_INFO"] == PATH:
            try:
                self.order(body)
            except (ValueError, NodeContainerError) as error:
                start_response("400 Bad Request", [("Content-Type", "text/plain")])
                return [f"{error}\n".encode()]
            start_response("204 No Content", [])
            return []
        environ["wsgi.input"] = BytesIO(body)
        asked = {} if target else parse_qs(body.decode("latin-1"))
        action = target.rpartition(".")[2] or asked.get("Action", [""])[0]
        for fault in list(self._waiting) if action else ():
            if fault.get("action") == action and "delay" in fault and self.take(**{key: fault[key] for key in ("action", "delay")}):
                time.sleep(fault["delay"])
        fault = next((each for each in list(self._waiting) if each.get("action") == action and "error" in each and each["times"]), None)
        if not action or fault is None or not self.take(action=action, error=fault["error"]):
            code, said = malformed(action, asked) if service == "ec2" else ("", "")
            if code:
                return refuse(start_response, service, code, said, "400 Bad Request")
            if service in self.own and scope:
                return self.own[service](scope[1], body, start_response)
            return self._app(environ, start_response)
        status = f"{STATUS.get(fault['error'], 400)} Fault"
        return refuse(start_response, "json" if target else service, fault["error"], f"{fault['error']}, as ordered.", status)


def malformed(action: str, asked: dict[str, list[str]]) -> tuple[str, str]:
    """AWS's error code and sentence for the first parameter that cannot be an id, or two empty texts."""
    for parameter, values in asked.items():
        kind, code = IDS.get(re.sub(r"\.\d+$", "", parameter).rpartition(".")[2], ("", ""))
        if kind and not OTHER_IDS.search(action) and not re.fullmatch(rf"{kind}-([0-9a-f]{{8}}|[0-9a-f]{{17}})", values[0]):
            return code, f'Invalid id: "{values[0]}" (expecting "{kind}-...")'
    return "", ""


def refuse(start_response: Callable, service: str, code: str, said: str, status: str = "403 Forbidden") -> Iterable[bytes]:
    """An error in the form of a service: json, the XML of EC2 or S3, or that of the others."""
    if service == "json":
        start_response(status, [("Content-Type", "application/x-amz-json-1.1")])
        return [json.dumps({"__type": code, "message": said}).encode()]
    start_response(status, [("Content-Type", "text/xml")])
    error = f"<Error><Code>{escape(code)}</Code><Message>{escape(said)}</Message></Error>"
    return [
        {"ec2": f"<Response><Errors>{error}</Errors></Response>", "s3": error}.get(
            service, f"<ErrorResponse>{error}</ErrorResponse>"
        ).encode()
    ]
