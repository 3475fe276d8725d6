# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Who may call: only requests that are signed with a key of this cloud (AWS Signature Version 4, in headers).

Without it every local user, every web page that a browser here shows and every program in an instance could start privileged containers.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import secrets
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ALGORITHM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>\w+)/(?P<day>\d{8})/(?P<region>[\w-]+)/(?P<service>[\w-]+)/aws4_request, ?"
    r"SignedHeaders=(?P<headers>[\w;-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
SKEW_S = 900


class Refused(Exception):
    """A request that nobody with a key has signed: AWS's error code, and a sentence."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Keys:
    """The key of one cloud, and those that moto gives out for roles and users."""

    def __init__(self) -> None:
        self.key, self.secret = "LOCAL" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30)

    def secret_of(self, key: str) -> str | None:
        """The secret of an access key, or None for an unknown one."""
        if key == self.key:
            return self.secret
        from moto.iam.models import iam_backends
        from moto.sts.models import sts_backends

        for account in sts_backends.values():
            for roles in account.values():
                if role := roles.get_assumed_role_from_access_key(key):
                    return role.secret_access_key
        made = [
            each for account in iam_backends.values() for users in account.values() for each in users.get_all_access_keys_for_all_users()
        ]
        return next((each.secret_access_key for each in made if each.access_key_id == key), None)

    def check(self, environ: dict, body: bytes) -> None:
        """Raise Refused unless a request of WSGI was signed with one of the keys within the last quarter of an hour."""
        signed = ALGORITHM.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
        if not signed:
            raise Refused("MissingAuthenticationToken", "The request has no signature; use the keys that the local cloud printed.")
        secret = self.secret_of(signed["key"])
        if secret is None:
            raise Refused("AuthFailure", f"The local cloud has no access key {signed['key']}; use the keys that it printed.")
        stamp = environ.get("HTTP_X_AMZ_DATE", "")
        try:
            sent = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
        except ValueError:
            raise Refused("IncompleteSignature", "The request has no X-Amz-Date.") from None
        if abs((datetime.datetime.now(datetime.UTC) - sent).total_seconds()) > SKEW_S or stamp[:8] != signed["day"]:
            raise Refused("RequestExpired", f"The request was signed at {stamp}, more than {SKEW_S // 60} minutes from now.")
        names = signed["headers"].split(";")
        if not {"host", "x-amz-date"} <= set(names):
            raise Refused("IncompleteSignature", "The signature must include host and x-amz-date.")
        digest = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
        if len(digest) == 64 and digest != hashlib.sha256(body).hexdigest():
            raise Refused("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
        if not hmac.compare_digest(self.sign(environ, body, signed, secret), signed["signature"]):
            raise Refused("SignatureDoesNotMatch", "The signature does not match; use the secret key that the local cloud printed.")

    @staticmethod
    def sign(environ: dict, body: bytes, signed: re.Match[str], secret: str) -> str:
        """The signature that the request must have."""
        named = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
        headers = {
            each: environ.get(named.get(each) or f"HTTP_{each.upper().replace('-', '_')}", "") for each in signed["headers"].split(";")
        }
        digest = environ.get("HTTP_X_AMZ_CONTENT_SHA256") or hashlib.sha256(body).hexdigest()
        of_s3 = signed["service"] == "s3"
        signer = (S3SigV4Auth if of_s3 else SigV4Auth)(Credentials(signed["key"], secret), signed["service"], signed["region"])
        request = AWSRequest(environ["REQUEST_METHOD"], f"http://{environ.get('HTTP_HOST', '')}{environ['REQUEST_URI']}", data=body)
        request.context["timestamp"] = environ["HTTP_X_AMZ_DATE"]
        canonical = [
            request.method.upper(),
            signer._normalize_url_path(urlsplit(request.url).path),
            signer.canonical_query_string(request),
            "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers)),
            signed["headers"],
            digest,
        ]
        return signer.signature(signer.string_to_sign(request, "\n".join(canonical)), request)
