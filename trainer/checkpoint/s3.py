# SPDX-License-Identifier: Apache-2.0
# Copyright: the Muster developers
"""Checkpoints on S3. S3 cannot rename, so the manifest is written last and completes the checkpoint."""

import io
import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemBase

from trainer.checkpoint.folder import damage, numbered
from trainer.cli import UsageError


class Ranged(io.RawIOBase):
    """An S3 object as a file that is read in ranges: DCP reads a few tensors out of a large file."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self.client, self.bucket, self.key, self.at = client, bucket, key, 0
        self.size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        end = min(self.at + len(buffer), self.size)
        if end <= self.at:
            return 0
        part = self.client.get_object(Bucket=self.bucket, Key=self.key, Range=f"bytes={self.at}-{end - 1}")["Body"].read()
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


class Objects(FileSystemBase):
    """The file system that DCP's writer and reader need, over the keys of a bucket."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.client, self.bucket = client, bucket

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        if mode == "rb":
            yield io.BufferedReader(Ranged(self.client, self.bucket, str(path)), 8 << 20)
            return
        with tempfile.SpooledTemporaryFile(64 << 20) as file:
            file.close = lambda: None  # type: ignore[method-assign]  # newer torch closes the file that it wrote, and it is read below
            yield file
            file.seek(0)
            # boto3 uploads a large file in parts; the object appears when all of them have arrived.
            self.client.upload_fileobj(file, self.bucket, str(path))

    def concat_path(self, path: Any, suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: Any) -> str:
        return str(path)

    def mkdir(self, path: Any) -> None: ...

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def exists(self, path: Any) -> bool:
        return bool(self.client.list_objects_v2(Bucket=self.bucket, Prefix=str(path), MaxKeys=1).get("KeyCount"))

    def rm_file(self, path: Any) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=str(path))

    def rename(self, path: Any, new_path: Any) -> None:
        self.client.copy_object(Bucket=self.bucket, Key=str(new_path), CopySource={"Bucket": self.bucket, "Key": str(path)})
        self.rm_file(path)


class Bucket:
    """Checkpoints below s3://BUCKET/PREFIX. boto3 finds credentials, region and endpoint in the environment or on the instance."""

    def __init__(self, url: str) -> None:
        try:
            import boto3
        except ModuleNotFoundError:
            raise UsageError(f"boto3 is not installed: `pip install muster-trainer[s3]` installs it, {url} needs it") from None
        self.root = url.rstrip("/")
        self.bucket, _, folder = self.root.removeprefix("s3://").partition("/")
        self.prefix = folder and folder + "/"
        self.client = boto3.client("s3")
        try:
            self.client.head_bucket(Bucket=self.bucket)
        except Exception as error:
            raise UsageError(f"{url} cannot be used: {error}: check the bucket's name, the region and the credentials") from None

    def __str__(self) -> str:
        return self.root

    def path(self, step: int) -> str:
        return f"{self.root}/step-{step}"

    def key(self, name: str) -> str:
        return self.prefix + name

    def sizes(self, name: str) -> dict[str, int]:
        """The objects below `name`/ with their sizes."""
        prefix = self.key(name) + "/"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return {entry["Key"].removeprefix(prefix): entry["Size"] for page in pages for entry in page.get("Contents", [])}

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix, Delimiter="/")
        return sorted(entry["Prefix"].removeprefix(self.prefix).rstrip("/") for page in pages for entry in page.get("CommonPrefixes", []))

    def writer(self, step: int) -> Any:
        return self._there(dcp.FileSystemWriter(self.key(f"step-{step}"), sync_files=False), step)

    def reader(self, step: int) -> Any:
        return self._there(dcp.FileSystemReader(self.key(f"step-{step}")), step)

    def _there(self, files: Any, step: int) -> Any:
        """DCP's reader or writer, over the objects of `step`."""
        files.fs, files.path = Objects(self.client, self.bucket), self.key(f"step-{step}")
        return files

    def clean(self) -> None:
        for step in numbered(self.names()):
            if self.read(f"step-{step}/manifest.json") is None:
                self.drop(step)

    def finish(self, step: int, manifest: dict[str, Any]) -> None:
        if reason := damage(manifest["files"], self.sizes(f"step-{step}")):
            raise OSError(reason)
        self.write(f"step-{step}/manifest.json", json.dumps(manifest, indent=1))

    def remove(self, step: int) -> None:
        # Delete the manifest first: if this run is killed here, the rest is no complete checkpoint.
        self.client.delete_object(Bucket=self.bucket, Key=self.key(f"step-{step}/manifest.json"))
        self.drop(step)

    def drop(self, step: int) -> None:
        for name in self.sizes(f"step-{step}"):
            self.client.delete_object(Bucket=self.bucket, Key=self.key(f"step-{step}/{name}"))

    def read(self, name: str) -> str | None:
        try:
            return self.client.get_object(Bucket=self.bucket, Key=self.key(name))["Body"].read().decode()
        except self.client.exceptions.NoSuchKey:
            return None

    def write(self, name: str, text: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=self.key(name), Body=text.encode())
