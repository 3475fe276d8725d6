# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""AWS through boto3, with one sentence for every error."""

from __future__ import annotations

import json
import os
import re

EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
UNKNOWN = ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidToken")
DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
THROTTLED = ("RequestLimitExceeded", "Throttling", "ThrottlingException")
SERVICES = {
    "ec2": "EC2",
    "kms": "KMS",
    "ssm": "Systems Manager",
    "s3": "S3",
    "autoscaling": "Auto Scaling",
    "batch": "Batch",
    "sagemaker": "SageMaker",
    "logs": "CloudWatch Logs",
    "cloudformation": "CloudFormation",
    "ecr": "ECR",
    "fsx": "FSx",
    "iam": "IAM",
    "secretsmanager": "Secrets Manager",
    "service-quotas": "Service Quotas",
    "sts": "STS",
}
ROOT = re.compile(rb"\s*(?:<\?.*?\?>\s*)?<(?:\w+:)?(\w+)", re.DOTALL)  # the name of an XML document's first element
NO_IMAGE = ("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidAMIID.Malformed")
REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d")
# The options by which a module reaches AWS; plugins/doc_fragments/aws.py documents them.
ARGUMENTS = {
    "region": {"type": "str"},
    "profile": {"type": "str"},
    "access_key": {"type": "str", "no_log": False},
    "secret_key": {"type": "str", "no_log": True},
    "session_token": {"type": "str", "no_log": True},
    "endpoint_url": {"type": "str"},
}


class AwsError(ValueError):
    """AWS or boto3 refused a call; the text is one sentence for the user, `code` is AWS's error code."""

    def __init__(self, text, code=""):
        super().__init__(text)
        self.code = code


def sentence(error, action, where, service="EC2"):
    """An error of boto3 as one sentence with a remedy. where: for example `region us-east-1`, or "" for the whole account."""
    within = " in %s" % where if where else ""
    code = _code(error)
    said = " ".join(str(getattr(error, "response", {}).get("Error", {}).get("Message") or error).split()).rstrip(".")
    kind = type(error).__name__
    if code in EXPIRED or kind in ("UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError"):
        return "The AWS credentials have expired (%s%s); log in again." % (code or kind, within)
    if code in UNKNOWN:
        # EC2 gives the same error in a region that the account has not enabled.
        remedy = "check the profile or the access key, or enable the region"
        return "AWS does not know the credentials (%s%s); %s." % (code, within, remedy)
    if code in DENIED:
        remedy = "allow the action to this identity or leave the region or account out"
        return "%s is denied%s (%s: %s); %s." % (action, within, code, said, remedy)
    if code in THROTTLED:
        return "%s still throttled %s%s after all retries (%s); try again later." % (service, action, within, code)
    if kind in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return "There are no usable AWS credentials (%s); set a profile, log in, or give this machine a role." % said
    if kind == "ProfileNotFound":
        return "%s; see ~/.aws/config or AWS_PROFILE." % said
    if kind in ("EndpointConnectionError", "ConnectTimeoutError", "InvalidRegionError", "ConnectionClosedError", "ReadTimeoutError"):
        return "%s cannot be reached%s (%s); is the region's name right?" % (service, within, said)
    return "%s failed%s (%s%s)." % (action, within, code + ": " if code else "", said)


def _code(error):
    return getattr(error, "response", {}).get("Error", {}).get("Code", "")


def unreadable():
    """What an answer raises that is not AWS's, such as the page of a proxy that asks for a login."""
    import botocore.parsers

    return KeyError, botocore.parsers.ResponseParserError


def not_aws(action, where):
    """The sentence for such an answer."""
    return "%s returned an answer that is not AWS's%s; look at the proxy and at the address of the API." % (
        action,
        where and " in " + where,
    )


def is_aws(protocol, shape, body):
    """Whether the body of a good answer is AWS's. shape: of the output, or None.

    botocore skips what it does not know, so that it reads the page of a proxy as an answer without entries.
    The content type does not tell: moto gives text/html.
    """
    payload = shape is not None and shape.serialization.get("payload")
    if payload and shape.members[payload].type_name in ("string", "blob"):
        return True  # the user's own data
    if protocol in ("ec2", "query", "rest-xml"):
        root = ROOT.match(body)
        name = root[1] if root else b""
        if protocol == "rest-xml":
            return not body.strip() or name.lower() not in (b"", b"html")  # S3 confirms by an empty body
        return name.endswith(b"Response")
    if protocol not in ("json", "rest-json"):
        return True  # botocore raises an error for what is not CBOR
    if not body.strip():
        return not (shape is not None and shape.members)
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def refuse_foreign(operation_model, response_dict, **_more):
    """botocore's event before-parse: refuse an answer that is not AWS's. botocore handles errors and redirects itself."""
    import botocore.parsers

    body, service = response_dict["body"], operation_model.service_model
    if not 200 <= response_dict["status_code"] < 300 or not isinstance(body, bytes):
        return  # a stream is the user's own data
    protocol = getattr(service, "resolved_protocol", service.metadata["protocol"])
    if not is_aws(protocol, operation_model.output_shape, body):
        raise botocore.parsers.ResponseParserError("%s has no answer of AWS" % operation_model.name)


class Accounts:
    """One boto3 session, and a client for each account and region, for the main thread alone: boto3's sessions are not thread-safe."""

    def __init__(self, options, environ=None, who="aws_fleet"):
        environ = os.environ if environ is None else environ
        try:
            import boto3
            import botocore.config
        except ImportError as error:
            raise AwsError("Python has no boto3, which %s needs; install boto3 in Ansible's Python." % who) from error
        self.options = options
        self.who = who
        self.config = botocore.config.Config(
            # Back-off with jitter, up to 20 s between two tries.
            retries={"mode": "standard", "total_max_attempts": 10},
            connect_timeout=10,
            read_timeout=60,
        )
        self.named = options["region"] or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
        self.home = self.named or "us-east-1"
        self.keys = {}
        if options["access_key"]:
            self.keys = {
                "aws_access_key_id": options["access_key"],
                "aws_secret_access_key": options["secret_key"],
                "aws_session_token": options["session_token"] or None,
            }
        profile = None if self.keys else options["profile"] or None
        self.session = self.ask("The profile", "", lambda: boto3.session.Session(profile_name=profile))
        self.roles = {}

    def ask(self, action, where, call, service="EC2"):
        """Return what a call returns, or raise AwsError with its sentence."""
        import botocore.exceptions

        try:
            return call()
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, ValueError) as error:
            raise AwsError(sentence(error, action, where, service), _code(error)) from error
        except unreadable() as error:
            raise AwsError(not_aws(action, where)) from error

    def client(self, service, region, role=""):
        """A client with the keys of a role, or with those of the options."""
        keys = self.keys
        if role:
            if role not in self.roles:
                self.roles[role] = self._assume(role)
            keys = self.roles[role]
        made = self.ask(
            "The connection",
            "region %s" % region,
            lambda: self.session.client(
                service, region_name=region, endpoint_url=self.options["endpoint_url"] or None, config=self.config, **keys
            ),
        )
        made.meta.events.register("before-parse", refuse_foreign, unique_id="muster")
        return made

    def _assume(self, role):
        sts = self.client("sts", self.home)
        answer = self.ask(
            "AssumeRole of %s" % role,
            "",
            lambda: sts.assume_role(RoleArn=role, RoleSessionName="ansible_muster_%s" % self.who)["Credentials"],
        )
        return {
            "aws_access_key_id": answer["AccessKeyId"],
            "aws_secret_access_key": answer["SecretAccessKey"],
            "aws_session_token": answer["SessionToken"],
        }


class Region:
    """The services of one region, called by the names of AWS's actions."""

    def __init__(self, accounts, name=""):
        name = name or accounts.named or accounts.session.region_name
        if not name:
            raise AwsError("No region is given; set the option region, or AWS_REGION.")
        if not REGION.fullmatch(name):
            raise AwsError("%r is not a region; give one such as us-east-1." % name)
        self.accounts = accounts
        self.name = name
        self._clients = {}

    def client(self, service):
        """The client of a service, made once."""
        if service not in self._clients:
            self._clients[service] = self.accounts.client(service, self.name)
        return self._clients[service]

    def call(self, service, action, **wanted):
        """The answer of one action."""
        from botocore import xform_name

        method = getattr(self.client(service), xform_name(action))
        return self.accounts.ask(action, "region %s" % self.name, lambda: method(**wanted), SERVICES[service])

    def every(self, service, action, what, **wanted):
        """The entries under the key `what` on all pages of an action. A page without the key is not AWS's."""
        from botocore import xform_name

        pages = self.client(service).get_paginator(xform_name(action)).paginate(**wanted)
        return self.accounts.ask(
            action, "region %s" % self.name, lambda: [each for page in pages for each in page[what]], SERVICES[service]
        )

    def image(self, image_id, needed=True):
        """An AMI by its id. A missing one is an error, or None unless `needed`."""
        try:
            found = self.call("ec2", "DescribeImages", ImageIds=[image_id])["Images"]
        except AwsError as error:
            if error.code not in NO_IMAGE:
                raise
            found = []
        if needed and not found:
            raise AwsError("Region %s has no AMI %s; is it the right region and account?" % (self.name, image_id))
        return found[0] if found else None
