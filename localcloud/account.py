# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""What an account has that moto's lacks: its quotas of instances, and the simulation of policies."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.iam.responses import IamResponse
from moto.servicequotas.responses import ServiceQuotasResponse

from ansible_collections.muster.fleet.plugins.module_utils.hardware.catalogue import names

STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"
FAMILIES = ("P", "G and VT", "Trn", "Inf", "DL", "HPC", STANDARD)
VCPUS = 2304  # of each family: twelve p5.48xlarge
CLUSTER_NODES = 8  # of each type in HyperPod


def install() -> None:
    """Change moto in place; a second call changes nothing more."""
    ServiceQuotasResponse.list_service_quotas = list_service_quotas
    IamResponse.simulate_principal_policy = simulate_principal_policy


def quotas(service: str) -> list[dict[str, Any]]:
    if service == "ec2":
        told = [(f"Running On-Demand {each} instances", VCPUS) for each in FAMILIES]
        told += [(f"All {each} Spot Instance Requests", VCPUS) for each in FAMILIES]
    else:
        told = [(f"ml.{each} for cluster usage", CLUSTER_NODES) for each in names()]
    return [
        {"ServiceCode": service, "QuotaCode": f"L-{index:08X}", "QuotaName": name, "Value": float(value), "Adjustable": True}
        for index, (name, value) in enumerate(told)
    ]


def list_service_quotas(response: ServiceQuotasResponse) -> ActionResult:
    return ActionResult({"Quotas": quotas(response._get_param("ServiceCode"))})


def simulate_principal_policy(response: IamResponse) -> ActionResult:
    """The local cloud enforces no policies, so everything is allowed."""
    told = [{"EvalActionName": each, "EvalResourceName": "*", "EvalDecision": "allowed"} for each in response._get_param("ActionNames")]
    return ActionResult({"EvaluationResults": told, "IsTruncated": False})
