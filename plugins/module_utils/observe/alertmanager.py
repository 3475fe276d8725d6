# Copyright: the Muster developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where alarms go: Alertmanager's configuration from a site's list of receivers."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

from ansible_collections.muster.fleet.plugins.module_utils.observe.alarms import SEVERITIES

KINDS = {
    "webhook": ("url",),
    "slack": ("url", "channel"),
    "sns": ("topic", "region"),
    "email": ("to", "from", "smarthost"),
}
# What a person reads: what it is, what to do, and where more stands.
TEXT = "{{ range .Alerts }}{{ .Annotations.summary }}\n{{ .Annotations.remedy }}\n{{ .Annotations.runbook_url }}\n{{ end }}"
TITLE = "[{{ .Status | toUpper }}] {{ .CommonLabels.alertname }} in fleet {{ .CommonLabels.fleet }}"


class ReceiverError(ValueError):
    """A receiver cannot be used; the text is one sentence for the user."""


def check(receiver):
    """Refuse a receiver that Alertmanager could not use."""
    kind = receiver.get("kind")
    if kind not in KINDS:
        raise ReceiverError("There is no receiver of kind %s (monitoring_receivers); the kinds are %s." % (kind, ", ".join(KINDS)))
    missing = [key for key in KINDS[kind] if not receiver.get(key)]
    if missing:
        raise ReceiverError("A receiver of kind %s has no %s (monitoring_receivers)." % (kind, missing[0]))
    unknown = sorted(set(receiver) - {"kind", "severities", *KINDS[kind]})
    if unknown:
        raise ReceiverError("A receiver of kind %s has no key %s (monitoring_receivers)." % (kind, unknown[0]))
    if "url" in KINDS[kind] and not is_url(receiver["url"]):
        raise ReceiverError(
            "The url of a receiver of kind %s must begin with http:// or https:// and name a host (monitoring_receivers)." % kind
        )
    if kind == "sns" and not receiver["topic"].startswith("arn:"):
        raise ReceiverError("The topic of a receiver of kind sns must be an ARN, not %s (monitoring_receivers)." % receiver["topic"])
    if kind == "email" and not re.fullmatch(r"[^\s:]+:\d+|\[[^\s\]]+\]:\d+", receiver["smarthost"]):
        raise ReceiverError(
            "The smarthost of a receiver of kind email must be HOST:PORT, not %s (monitoring_receivers)." % receiver["smarthost"]
        )
    severities = receiver.get("severities") or []
    for each in [severities] if isinstance(severities, str) else severities:
        if each not in SEVERITIES or isinstance(severities, str):
            raise ReceiverError(
                "A receiver of kind %s cannot take severities %s (monitoring_receivers); give a list of %s."
                % (kind, each, ", ".join(SEVERITIES))
            )


def is_url(text):
    """Whether Alertmanager can send to it."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", text)
    except ValueError:  # a port that is no number
        return False


def integration(receiver):
    """The part of Alertmanager's configuration that is about one receiver."""
    kind = receiver["kind"]
    if kind == "webhook":
        return {"webhook_configs": [{"url": receiver["url"], "send_resolved": True}]}
    if kind == "slack":
        return {
            "slack_configs": [
                {"api_url": receiver["url"], "channel": receiver["channel"], "title": TITLE, "text": TEXT, "send_resolved": True}
            ]
        }
    if kind == "sns":
        sigv4 = {"region": receiver["region"]}
        return {"sns_configs": [{"topic_arn": receiver["topic"], "sigv4": sigv4, "subject": TITLE, "message": TEXT, "send_resolved": True}]}
    mail = {"to": receiver["to"], "from": receiver["from"], "smarthost": receiver["smarthost"], "text": TEXT, "html": ""}
    return {"email_configs": [{**mail, "headers": {"Subject": TITLE}, "send_resolved": True}]}


def configuration(receivers, group_wait="30s", group_interval="5m", repeat_interval="4h"):
    """The text of alertmanager.yml. An alarm goes to all receivers that take its severity; a node that is down is told once."""
    for receiver in receivers:
        check(receiver)
    routes = []
    for number, receiver in enumerate(receivers, 1):
        route = {"receiver": "receiver-%d" % number, "continue": True}
        if receiver.get("severities"):
            route["matchers"] = ['severity=~"%s"' % "|".join(receiver["severities"])]
        routes.append(route)
    document = {
        "route": {
            "receiver": "nobody",
            "group_by": ["fleet", "alertname"],
            "group_wait": group_wait,
            "group_interval": group_interval,
            "repeat_interval": repeat_interval,
            "routes": routes,
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="MusterNodeDown"'],
                "target_matchers": ['alertname="MusterTargetDown"'],
                "equal": ["fleet", "instance"],
            }
        ],
        "receivers": [{"name": "nobody"}]
        + [{"name": "receiver-%d" % number, **integration(receiver)} for number, receiver in enumerate(receivers, 1)],
    }
    return json.dumps(document, indent=1) + "\n"
