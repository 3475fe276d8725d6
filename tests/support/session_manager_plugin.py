# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Stands in for AWS's session-manager-plugin: takes its arguments and forwards TCP, because the local cloud lacks AWS's protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import boto3


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(region: str, order: dict) -> None:
    found = boto3.client("ec2", region_name=region).describe_instances(InstanceIds=[order["Target"]])
    address = found["Reservations"][0]["Instances"][0]["PrivateIpAddress"]
    [remote], [local] = (order["Parameters"][name] for name in ("portNumber", "localPortNumber"))

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(address, int(remote))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", int(local))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[2], json.loads(sys.argv[5])))
