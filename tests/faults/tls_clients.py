"""All clients of this project that use TLS, called in the same way: each works, or raises what a user would see."""

from __future__ import annotations

import asyncio
import io
import logging
import ssl
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import types as t

from rabbit_chx.broker import Management, apply, apply_async
from rabbit_chx.cli import _exit_code
from rabbit_chx.publishing import Publisher
from rabbit_chx.topology import Plan
from rabbit_chx.topology.model import Queue
from rabbit_chx.topology.planning.steps import DeclareQueue
from spark_connector import RabbitMQDataSource

SCHEMA = t.StructType([t.StructField("value", t.StringType())])
BATCH = pa.record_batch([pa.array(["x"])], names=["value"])
TOPOLOGY = ("topology.yaml", "schema: 1\nqueues: {never: {}}\n")
NOTHING_TO_DO = Plan("/", (DeclareQueue(Queue("never")),))


class CommandFailed(Exception):
    """What a command wrote before it ended with another exit code than 0 or 2."""


@dataclass(frozen=True)
class Access:
    """Where a client connects, what it trusts, and its certificate."""

    amqp: str
    http: str
    exchange: str
    """Routes to a queue."""
    folder: Path
    ca: str | None = "ca"
    client: str | None = None
    key: str | None = None
    """Of another certificate than the client's."""
    verify: bool = True

    def path(self, name):
        return str(self.folder / name)

    @property
    def context(self):
        if self.verify:
            context = ssl.create_default_context(cafile=self.ca and self.path(f"{self.ca}.pem"))
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.client:
            context.load_cert_chain(self.path(f"{self.client}.pem"), self.path(f"{self.client}.key"))
        return context

    def options(self, ca, certificate, key):
        """The options of clients that read files."""
        found = {ca: self.path(f"{self.ca}.pem")} if self.ca and self.verify else {}
        if self.client:
            found |= {
                certificate: self.path(f"{self.client}.pem"),
                key: self.path(f"{self.key or self.client}.key"),
            }
        return found


def publisher(access):
    with Publisher(access.amqp, access.exchange, tls=access.context) as publisher:
        publisher.publish(b"x")


def with_pika(access):
    apply(access.amqp, NOTHING_TO_DO, tls=access.context, dry_run=True)


def with_aio_pika(access):
    asyncio.run(apply_async(access.amqp, NOTHING_TO_DO, tls=access.context, dry_run=True))


def management(access):
    Management(access.http, tls=access.context).overview()


def spark(access):
    options = access.options("tlsCaFile", "tlsCertFile", "tlsKeyFile")
    options |= {} if access.verify else {"tlsVerify": "false"}
    target = {"exchange": access.exchange, "routingKey": "", "checkExchange": "false"}
    source = RabbitMQDataSource({"url": access.amqp, **target, **options})
    writer = source.writer(SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([BATCH]))])


def publish_command(access):
    _command(access, "publish", _file(access, "rows.csv", "k\nx\n"), "-x", access.exchange)


def plan_command(access):
    _command(access, "plan", _file(access, *TOPOLOGY), "--management-url", access.http)


def check_command(access):
    _command(access, "check", _file(access, *TOPOLOGY), "--amqp-only")


def _file(access, name, content):
    (access.folder / name).write_text(content)
    return access.folder / name


def _command(access, *arguments):
    options = access.options("--tls-ca-cert-file", "--tls-cert-file", "--tls-key-file")
    words = [word for pair in options.items() for word in pair] + ["--insecure"] * (not access.verify)
    said = io.StringIO()
    handlers = logging.getLogger("rabbit_chx").handlers
    before = list(handlers)
    with redirect_stderr(said), redirect_stdout(said):
        code = _exit_code([*map(str, arguments), "--url", access.amqp, *words])
    handlers[:] = before
    if code not in {0, 2}:
        raise CommandFailed(said.getvalue())


FROM_FILES = {
    "Spark": spark,
    "rabbit-chx publish": publish_command,
    "rabbit-chx plan": plan_command,
    "rabbit-chx check --amqp-only": check_command,
}
CLIENTS = {
    "Publisher": publisher,
    "apply": with_pika,
    "apply_async": with_aio_pika,
    "Management": management,
    **FROM_FILES,
}
