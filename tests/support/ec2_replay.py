# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""An EC2 API that answers DescribeInstances from pages that it wrote beforehand, as fast as a client can read them.

With moto, which needs 2 ms for an instance, a test would measure moto. The pages have EC2's elements for a running instance, in EC2's order
and number (API version 2016-11-15; about 4 kB, and 1 kB for each further network card). DescribeRegions, DescribeInstanceTopology,
DescribeCapacityReservations and AssumeRole answer too, and each answer can be an error. Filters are only recorded, so a test asks
`api.requests` for them.

    with Api({"us-east-1": [Instance("i-0001", "p5.48xlarge")]}) as api: ... api.url, api.requests
    python ec2_replay.py 5000 [CARDS]      serves that many until its standard input ends, and prints its address first
"""

from __future__ import annotations

import sys
import tempfile
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

XMLNS = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
OWNER = "111122223333"

CARD = """\
<item><networkInterfaceId>eni-{id}{device:03x}</networkInterfaceId><subnetId>subnet-0aa1</subnetId><vpcId>vpc-0bb1</vpcId><description/>\
<ownerId>{owner}</ownerId><status>in-use</status><macAddress>0a:ff:{mac}</macAddress><privateIpAddress>{ip}</privateIpAddress>\
<privateDnsName>{dns}</privateDnsName><sourceDestCheck>true</sourceDestCheck><groupSet><item><groupId>sg-0cc1</groupId><groupName>efa\
</groupName></item></groupSet><attachment><attachmentId>eni-attach-{id}{device:03x}</attachmentId><deviceIndex>{index}</deviceIndex>\
<status>attached</status><attachTime>2026-11-20T08:00:00.000Z</attachTime><deleteOnTermination>true</deleteOnTermination>\
<networkCardIndex>{card}</networkCardIndex></attachment><privateIpAddressesSet><item><privateIpAddress>{ip}</privateIpAddress>\
<privateDnsName>{dns}</privateDnsName><primary>true</primary></item></privateIpAddressesSet><ipv6AddressesSet/><interfaceType>{kind}\
</interfaceType><operator><managed>false</managed></operator></item>"""

INSTANCE = """\
<item><reservationId>r-{id}</reservationId><ownerId>{owner}</ownerId><groupSet/><instancesSet><item><instanceId>i-{id}</instanceId>\
<imageId>ami-0dd1</imageId><instanceState><code>{code}</code><name>{state}</name></instanceState><privateDnsName>{dns}</privateDnsName>\
<dnsName>{public}</dnsName><reason/><keyName>fleet</keyName><amiLaunchIndex>0</amiLaunchIndex><productCodes/><instanceType>{type}\
</instanceType><launchTime>2026-11-20T08:00:00.000Z</launchTime><placement><availabilityZoneId>use1-az4</availabilityZoneId>\
<availabilityZone>{az}</availabilityZone><groupName>{group}</groupName><tenancy>default</tenancy></placement><monitoring><state>disabled\
</state></monitoring><subnetId>subnet-0aa1</subnetId><vpcId>vpc-0bb1</vpcId>{addresses}<sourceDestCheck>true</sourceDestCheck><groupSet>\
<item><groupId>sg-0cc1</groupId><groupName>efa</groupName></item></groupSet><architecture>x86_64</architecture><rootDeviceType>ebs\
</rootDeviceType><rootDeviceName>/dev/xvda</rootDeviceName><blockDeviceMapping><item><deviceName>/dev/xvda</deviceName><ebs><volumeId>\
vol-{id}</volumeId><status>attached</status><attachTime>2026-11-20T08:00:01.000Z</attachTime><deleteOnTermination>true\
</deleteOnTermination><operator><managed>false</managed></operator></ebs></item></blockDeviceMapping><virtualizationType>hvm\
</virtualizationType>{lifecycle}<clientToken>token-{id}</clientToken><tagSet>{tags}</tagSet><hypervisor>xen</hypervisor>\
<networkInterfaceSet>{cards}</networkInterfaceSet>{extra}<ebsOptimized>true</ebsOptimized><enaSupport>true</enaSupport><cpuOptions>\
<coreCount>96</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>{block}<capacityReservationSpecification>\
<capacityReservationPreference>open</capacityReservationPreference></capacityReservationSpecification><hibernationOptions><configured>\
false</configured></hibernationOptions><enclaveOptions><enabled>false</enabled></enclaveOptions><metadataOptions><state>applied</state>\
<httpTokens>required</httpTokens><httpPutResponseHopLimit>2</httpPutResponseHopLimit><httpEndpoint>enabled</httpEndpoint>\
<httpProtocolIpv6>disabled</httpProtocolIpv6><instanceMetadataTags>enabled</instanceMetadataTags></metadataOptions><platformDetails>\
Linux/UNIX</platformDetails><usageOperation>RunInstances</usageOperation><usageOperationUpdateTime>2026-11-20T08:00:00.000Z\
</usageOperationUpdateTime><privateDnsNameOptions><hostnameType>ip-name</hostnameType><enableResourceNameDnsARecord>false\
</enableResourceNameDnsARecord><enableResourceNameDnsAAAARecord>false</enableResourceNameDnsAAAARecord></privateDnsNameOptions>\
<maintenanceOptions><autoRecovery>default</autoRecovery><rebootMigration>default</rebootMigration></maintenanceOptions>\
<currentInstanceBootMode>uefi</currentInstanceBootMode><networkPerformanceOptions><bandwidthWeighting>default</bandwidthWeighting>\
</networkPerformanceOptions><operator><managed>false</managed></operator></item></instancesSet></item>"""

STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass
class Instance:
    """What differs between instances; `id` without its i-."""

    id: str
    type: str = "p5.48xlarge"
    tags: dict[str, str] = field(default_factory=dict)
    az: str = "us-east-1a"
    state: str = "running"
    lifecycle: str = ""
    group: str = ""
    ip: str = "10.0.0.1"
    public: str = ""
    cards: int = 1
    efa: str = "efa-only"
    owner: str = OWNER
    extra: str = ""
    nodes: tuple[str, ...] = ()
    ultraserver: str = ""
    block: str = ""  # id of its capacity block's reservation

    def xml(self) -> str:
        """The instance as an item of reservationSet."""
        dns = "ip-%s.ec2.internal" % self.ip.replace(".", "-") if self.ip else ""
        cards = "".join(
            CARD.format(
                id=self.id,
                device=card,
                owner=self.owner,
                mac="%02x:%02x:00:%02x" % (int(self.id[-4:-2], 16), int(self.id[-2:], 16), card),
                ip=self.ip,
                dns=dns,
                index=1 if card else 0,
                card=max(card - 1, 0) if self.cards > 1 else 0,
                kind=self.efa if card else "interface",
            )
            for card in range(self.cards if self.ip else 0)
        )
        return INSTANCE.format(
            id=self.id,
            owner=self.owner,
            code=STATES[self.state],
            state=self.state,
            dns=dns,
            public=self.public,
            type=self.type,
            az=self.az,
            group=self.group,
            addresses=f"<privateIpAddress>{self.ip}</privateIpAddress>" + ("<ipAddress>203.0.113.7</ipAddress>" if self.public else ""),
            lifecycle=f"<instanceLifecycle>{self.lifecycle}</instanceLifecycle>" if self.lifecycle else "",
            block=f"<capacityReservationId>{self.block}</capacityReservationId>" if self.block else "",
            tags="".join(f"<item><key>{escape(key)}</key><value>{escape(value)}</value></item>" for key, value in self.tags.items()),
            cards=cards,
            extra=self.extra,
        )


def fleet(count: int, cards: int = 1) -> list[Instance]:
    """`count` instances as a large fleet has them: 6 tags, four types, three zones."""
    types = ("p5.48xlarge", "p5en.48xlarge", "g6e.48xlarge", "m7i.8xlarge")
    roles = ("compute", "compute", "compute", "login")
    return [
        Instance(
            id=f"{n:017x}",
            type=types[n % 4],
            az="us-east-1" + "abc"[n % 3],
            ip=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}",
            group=f"rack-{n // 256}",
            cards=cards,
            tags={
                "Name": f"node-{n:05d}",
                "Role": roles[n % 4],
                "Cluster": f"cluster-{n // 1000}",
                "Owner": "research",
                "Project": f"project-{n % 7}",
                "muster:role": roles[n % 4],
            },
        )
        for n in range(count)
    ]


class Api:
    """The server, on loopback. `faults[(action, region)]` is a list of (status, code, message), the answers to the next requests."""

    def __init__(self, fleets: dict[str, list[Instance]], page: int = 1000, regions: tuple[str, ...] = ()) -> None:
        self.requests: list[dict[str, str]] = []
        self.faults: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
        self.ends: dict[str, str] = {}  # of capacity blocks
        self.regions = regions or tuple(fleets)
        self.fleets = fleets
        self._folder = tempfile.TemporaryDirectory(prefix="ec2-replay-")
        self._pages: dict[str, list[Path]] = {}
        for region, instances in fleets.items():
            starts = range(0, len(instances), page) or [0]
            self._pages[region] = [Path(self._folder.name) / f"{region}-{start}.xml" for start in starts]
            for n, (start, path) in enumerate(zip(starts, self._pages[region], strict=True)):
                token = f"<nextToken>page-{n + 1}</nextToken>" if n + 1 < len(starts) else ""
                items = "".join(each.xml() for each in instances[start : start + page])
                answer = f'<?xml version="1.0" encoding="UTF-8"?>\n<DescribeInstancesResponse {XMLNS}><requestId>0</requestId>'
                path.write_text(f"{answer}<reservationSet>{items}</reservationSet>{token}</DescribeInstancesResponse>", encoding="utf-8")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Api:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    def answer(self, form: dict[str, str]) -> tuple[int, bytes]:
        """Status and body for a request."""
        self.requests.append(form)
        action, region = form["Action"], form["region"]
        waiting = self.faults.get((action, region))
        if waiting:
            status, code, message = waiting.pop(0)
            if action == "AssumeRole":
                return status, f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>".encode()
            errors = f"<Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
            return status, f"<Response>{errors}<RequestID>0</RequestID></Response>".encode()
        return 200, getattr(self, f"_{action}")(form, region)

    def _DescribeInstances(self, form: dict[str, str], region: str) -> bytes:
        return self._pages[region][int(form.get("NextToken", "page-0")[5:])].read_bytes()

    def _DescribeRegions(self, form: dict[str, str], region: str) -> bytes:
        items = "".join(f"<item><regionName>{each}</regionName></item>" for each in self.regions)
        return f"<DescribeRegionsResponse {XMLNS}><regionInfo>{items}</regionInfo></DescribeRegionsResponse>".encode()

    def _DescribeInstanceTopology(self, form: dict[str, str], region: str) -> bytes:
        known = [each for each in self.fleets[region] if each.nodes]
        start, most = int(form.get("NextToken", "0")), int(form.get("MaxResults", "20"))
        items = ""
        for each in known[start : start + most]:
            nodes = "".join(map("<item>{}</item>".format, each.nodes))
            block = f"<capacityBlockId>{each.ultraserver}</capacityBlockId>" if each.ultraserver else ""
            items += f"<item><instanceId>i-{each.id}</instanceId>{block}<networkNodeSet>{nodes}</networkNodeSet></item>"
        token = f"<nextToken>{start + most}</nextToken>" if start + most < len(known) else ""
        body = f"<instanceSet>{items}</instanceSet>{token}"
        return f"<DescribeInstanceTopologyResponse {XMLNS}>{body}</DescribeInstanceTopologyResponse>".encode()

    def _DescribeCapacityReservations(self, form: dict[str, str], region: str) -> bytes:
        asked = [value for key, value in form.items() if key.startswith("CapacityReservationId.")]
        known = {each.block for each in self.fleets[region]}
        items = ""
        for each in sorted(known.intersection(asked)):
            end = f"<endDateType>limited</endDateType><endDate>{self.ends[each]}</endDate>" if each in self.ends else ""
            items += (
                f"<item><capacityReservationId>{each}</capacityReservationId><reservationType>capacity-block</reservationType>{end}</item>"
            )
        body = f"<capacityReservationSet>{items}</capacityReservationSet>"
        return f"<DescribeCapacityReservationsResponse {XMLNS}>{body}</DescribeCapacityReservationsResponse>".encode()

    def _AssumeRole(self, form: dict[str, str], region: str) -> bytes:
        key = "ASIA" + form["RoleArn"].split(":")[4]
        secret = f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        made = f"<Credentials>{secret}<Expiration>2036-01-01T00:00:00Z</Expiration></Credentials>"
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
            + made
            + "</AssumeRoleResult></AssumeRoleResponse>"
        ).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        # Credential=KEY/DATE/REGION/SERVICE/aws4_request
        key, _date, region = self.headers["Authorization"].split("Credential=")[1].split("/")[:3]
        status, answer = self.api.answer({**dict(urllib.parse.parse_qsl(body)), "region": region, "key": key})
        self.send_response(status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_line: object) -> None:
        pass


if __name__ == "__main__":
    with Api({"us-east-1": fleet(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)}) as api:
        print(api.url, flush=True)
        sys.stdin.read()
