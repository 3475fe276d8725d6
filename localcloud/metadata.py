# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""The metadata service of instances (IMDSv2): who an instance is, its tags, its user data, and keys of the role in its instance profile.

An instance asks at 169.254.169.254, as on AWS; its machine passes that on to this cloud (METADATA in machines.py). The cloud knows an
instance by the address that a request comes from. Without a token of the service it answers nothing.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

PATH = "/latest/"
MOST_TTL = 21600


class Metadata:
    """Answers the requests of instances, as a part of a WSGI application."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}  # token -> when it expires
        self._given: dict[str, dict[str, str]] = {}  # instance -> the keys of its role

    def __call__(self, environ: dict, start_response: Callable) -> Iterable[bytes]:
        status, text = self.answer(environ)
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    def answer(self, environ: dict) -> tuple[str, bytes]:
        """The status and text for a request."""
        instance = instance_at(environ.get("REMOTE_ADDR", ""))
        path = environ["PATH_INFO"][len(PATH) :]
        if instance is None:
            return "404 Not Found", b""
        if path == "api/token":
            ttl = environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN_TTL_SECONDS", "")
            if environ["REQUEST_METHOD"] != "PUT" or not ttl.isdigit() or not 0 < int(ttl) <= MOST_TTL:
                return "400 Bad Request", b""
            token = secrets.token_urlsafe(30)
            self._tokens[token] = time.monotonic() + int(ttl)
            return "200 OK", token.encode()
        if self._tokens.get(environ.get("HTTP_X_AWS_EC2_METADATA_TOKEN", ""), 0) < time.monotonic():
            return "401 Unauthorized", b""
        found = self._look(instance, path)
        return ("404 Not Found", b"") if found is None else ("200 OK", found.encode())

    def _look(self, instance: Any, path: str) -> str | None:
        """What a path says, or None for one that does not exist."""
        zone = instance.placement.zone
        plain = {
            "meta-data/ami-id": instance.image_id,
            "meta-data/instance-id": instance.id,
            "meta-data/instance-type": instance.instance_type,
            "meta-data/local-ipv4": instance.nics[0].private_ip_address,
            "meta-data/placement/availability-zone": zone,
            "meta-data/placement/region": instance.region_name,
        }
        if path in plain:
            return plain[path]
        if path == "user-data":
            return base64.b64decode(str(instance.user_data)).decode() if instance.user_data else None
        if path == "dynamic/instance-identity/document":
            return json.dumps({"instanceId": instance.id, "region": instance.region_name, "availabilityZone": zone})
        for start, known in (("meta-data/tags/instance", self._tags), ("meta-data/iam/security-credentials", self._keys)):
            if path.rstrip("/") == start:
                return "\n".join(known(instance)) or None
            if path.startswith(start + "/"):
                return known(instance).get(path[len(start) + 1 :])
        return None

    @staticmethod
    def _tags(instance: Any) -> dict[str, str]:
        """The tags, where the launch asked for them in the metadata."""
        options = instance.metadata_options
        if getattr(options, "instance_metadata_tags", "disabled") != "enabled":
            return {}
        return {each["key"]: each["value"] for each in instance.get_tags()}

    def _keys(self, instance: Any) -> dict[str, str]:
        """{name of the role: JSON with its keys} of the instance profile."""
        from moto.sts.models import sts_backends

        profile = instance.profile
        if not profile or not profile.roles:
            return {}
        role = profile.roles[0]
        if instance.id not in self._given:
            backend = sts_backends[instance.ec2_backend.account_id]["aws"]
            keys = backend.assume_role(instance.region_name, instance.id, role.arn, "", MOST_TTL, "")
            self._given[instance.id] = {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": keys.access_key_id,
                "SecretAccessKey": keys.secret_access_key,
                "Token": keys.session_token,
                "LastUpdated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + MOST_TTL)),
            }
        return {role.name: json.dumps(self._given[instance.id])}


def instance_at(address: str) -> Any:
    """The running instance of any region with this private address, or None."""
    from moto.ec2.models import ec2_backends

    for account in ec2_backends.values():
        for backend in account.values():
            for each in backend.all_running_instances():
                if each.nics and each.nics[0].private_ip_address == address:
                    return each
    return None
