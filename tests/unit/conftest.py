# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
from __future__ import annotations

import functools

import botocore.loaders
from download_server import server, signed, stale
from local_cloud_api import client, ec2, fault, machines, served
from module_call import call

# Each session of boto3 reads and parses the models of its services again, half a second of CPU for EC2's; all tests read the same files.
botocore.loaders.JSONFileLoader.load_file = functools.cache(botocore.loaders.JSONFileLoader.load_file)  # type: ignore[method-assign]

__all__ = ["call", "client", "ec2", "fault", "machines", "served", "server", "signed", "stale"]
