# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Managed Prometheus: moto has workspaces and rules; this adds the definition of a workspace's Alertmanager. Nothing evaluates them."""

from __future__ import annotations

import base64
import json
from typing import Any

import yaml
from moto.amp.responses import PrometheusServiceResponse
from moto.amp.urls import url_paths
from moto.core.exceptions import JsonRESTError
from moto.core.utils import unix_time

from localcloud.wrapping import kept

PATH = "{0}/workspaces/(?P<workspace_id>[^/]+)/alertmanager/definition$"


def install() -> None:
    """Change moto in place; a second call changes nothing more."""
    url_paths[PATH] = PrometheusServiceResponse.dispatch
    for action in (create, put, describe, delete):
        setattr(PrometheusServiceResponse, f"{action.__name__}_alert_manager_definition", action)


def definitions(response: PrometheusServiceResponse) -> tuple[str, dict[str, dict[str, Any]]]:
    """The workspace of a request, which must be there, and the definitions by workspace."""
    workspace = response.path.split("/")[-3]
    response.amp_backend.describe_workspace(workspace)
    return workspace, kept(response.amp_backend, "definitions")


def create(response: PrometheusServiceResponse) -> str:
    workspace, have = definitions(response)
    if workspace in have:
        raise JsonRESTError("ConflictException", f"Workspace {workspace} has an alert manager definition.")
    return stored(response, workspace, have)


def put(response: PrometheusServiceResponse) -> str:
    workspace, have = definitions(response)
    found(workspace, have)
    return stored(response, workspace, have)


def describe(response: PrometheusServiceResponse) -> str:
    return json.dumps({"alertManagerDefinition": found(*definitions(response))})


def delete(response: PrometheusServiceResponse) -> str:
    workspace, have = definitions(response)
    found(workspace, have)
    del have[workspace]
    return "{}"


def found(workspace: str, have: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if workspace not in have:
        raise JsonRESTError("ResourceNotFoundException", f"Workspace {workspace} has no alert manager definition.")
    return have[workspace]


def stored(response: PrometheusServiceResponse, workspace: str, have: dict[str, dict[str, Any]]) -> str:
    data = json.loads(response.body)["data"]
    try:
        document = yaml.safe_load(yaml.safe_load(base64.b64decode(data))["alertmanager_config"])
        names = {each["name"] for each in document["receivers"]}
        told = document["route"]["receiver"]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise JsonRESTError(
            "ValidationException", f"The alert manager definition cannot be read: {' '.join(str(error).split())}"
        ) from error
    if told not in names:
        raise JsonRESTError("ValidationException", f"The alert manager definition has no receiver {told}.")
    now = unix_time()
    have[workspace] = {
        "status": {"statusCode": "ACTIVE"},
        "data": data,
        "createdAt": have.get(workspace, {}).get("createdAt", now),
        "modifiedAt": now,
    }
    return json.dumps({"status": have[workspace]["status"]})
