# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options by which a module reaches AWS; the arguments are in plugins/module_utils/aws/accounts.py."""

    DOCUMENTATION = r"""
options:
  region:
    description: The region. Without it E(AWS_REGION) or the profile's.
    type: str
  profile:
    description: Profile of the AWS configuration. Credentials are found as the AWS CLI finds them.
    type: str
  access_key:
    description: Id of an access key.
    type: str
  secret_key:
    description: The access key's secret.
    type: str
  session_token:
    description: The token of temporary keys.
    type: str
  endpoint_url:
    description: Address of an API to ask instead of AWS's own.
    type: str
requirements:
  - boto3
notes:
  - A throttled call is tried up to ten times, with growing pauses.
"""
