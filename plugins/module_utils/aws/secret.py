# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A text in Secrets Manager. It is in no error and no log."""

from __future__ import annotations

from ansible_collections.muster.fleet.plugins.module_utils.aws.accounts import AwsError

MOST_BYTES = 65536  # of a secret


def store(region, name, text, about="", check=False):
    """Make the secret `name` hold `text`: "made", "changed", or "" when it does. region: an accounts.Region."""
    if len(text.encode()) > MOST_BYTES:
        message = "The text for secret %s has %d bytes, and Secrets Manager takes %d; shorten it."
        raise AwsError(message % (name, len(text.encode()), MOST_BYTES))
    try:
        if region.call("secretsmanager", "GetSecretValue", SecretId=name).get("SecretString") == text:
            return ""
        action, done, wanted = "PutSecretValue", "changed", {"SecretId": name}
    except AwsError as error:
        if error.code != "ResourceNotFoundException":
            raise
        action, done, wanted = "CreateSecret", "made", {"Name": name, "Description": about}
    if not check:
        region.call("secretsmanager", action, SecretString=text, **wanted)
    return done
