# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""CloudFormation of the local cloud. moto's own skips every type that it does not know; this one refuses it.

Each resource is made by the API of the same cloud, so that signatures, ordered faults and quotas of this machine apply to stacks too.
api: requests and answers; engine: stacks; functions: what a template computes; resources: what each type calls.
"""
