# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""AWS on this machine: moto's API, whose EC2 instances are systemd containers. See `python -m localcloud --help` and docs/localcloud.md."""
