"""Policy keys and arguments that a RabbitMQ release refuses or ignores, and their replacements.

The behaviour was tested over HTTP on 3.10.8, 4.0.5 and 4.3.6; RabbitMQ's release notes name the releases in between.
The broker validates in ``rabbit_policy:validation/5`` and in the ``check_arguments`` callbacks of the queue types.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rabbit_chx.mirror.releases import Release
from rabbit_chx.topology.checks.lint_rules import Finding
from rabbit_chx.topology.model import POLICIES_OF, Policy, Queue, Topology


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of queues that some releases refuse or ignore."""

    name: str
    """The key in a policy; the argument has the prefix ``x-``."""
    hint: str
    """The replacement, as a hint."""
    refused_from: tuple[int, int] | None = None
    ignored_from: tuple[int, int] | None = None
    in_policies: bool = True
    in_arguments: bool = True
    queue_type: str | None = None
    """The only affected queue type; None for all."""
    value: object = None
    """The only affected value; None for all."""


_MIRRORING: Final = (
    "Classic queue mirroring is gone: use quorum queues, which are replicated without a policy"
)
_LOCATOR: Final = "Use queue-leader-locator, which is client-local or balanced"

SETTINGS: Final = (
    *(
        Setting(f"ha-{name}", _MIRRORING, refused_from=(4, 0), in_arguments=False)
        for name in (
            *("mode", "params", "sync-mode", "sync-batch-size"),
            *("promote-on-shutdown", "promote-on-failure"),
        )
    ),
    Setting("queue-master-locator", _LOCATOR, refused_from=(4, 3)),
    Setting(
        "queue-version",
        "Leave it out: version 2 is the only one",
        refused_from=(4, 3),
        in_policies=False,
        value=1,
    ),
    Setting(
        "consumer-timeout",
        "Leave it out, or use a quorum queue",
        refused_from=(4, 3),
        in_policies=False,
        queue_type="classic",
    ),
    Setting("queue-mode", "Leave it out: classic queues keep few messages in memory", ignored_from=(3, 12)),
    Setting(
        "ha-policy", "Leave it out: use quorum queues to replicate", ignored_from=(3, 0), in_policies=False
    ),
    Setting("max-in-memory-length", "Leave it out", ignored_from=(3, 10)),
    Setting("max-in-memory-bytes", "Leave it out", ignored_from=(3, 10)),
)


def release_findings(topology: Topology, release: Release | None) -> Iterator[Finding]:
    """Settings that a release refuses (errors) or ignores (warnings); without a release, warnings for the newest."""
    for policy in topology.policies:
        for setting in SETTINGS:
            if setting.in_policies and setting.name in policy.definition:
                yield from _finding(setting, setting.name, f"policy {policy.name!r}", release)
        yield from _older_policy(policy, release)
    for queue in topology.queues:
        for setting in SETTINGS:
            if setting.in_arguments and _applies(setting, queue):
                yield from _finding(setting, f"x-{setting.name}", f"queue {queue.name!r}", release)
        yield from _release_queue(queue, release)


def release_refusals(wanted: Topology, there: Topology, release: Release) -> list[str]:
    """The reasons why a release would refuse the plan; objects that exist unchanged are not checked."""
    changed = Topology(
        policies=tuple(each for each in wanted.policies if each not in there.policies),
        queues=tuple(each for each in wanted.queues if there.queue(each.name) is None),
    )
    findings = release_findings(changed, release)
    return [f"{each.where}: {each.message}" for each in findings if each.severity == "error"]


def _applies(setting: Setting, queue: Queue) -> bool:
    name = f"x-{setting.name}"
    return (
        name in queue.arguments
        and setting.queue_type in (None, queue.type)
        and setting.value in (None, queue.arguments[name])
    )


def _finding(setting: Setting, name: str, where: str, release: Release | None) -> Iterator[Finding]:
    version = _version(release) if release else None
    for verb, since in (("refuse", setting.refused_from), ("ignore", setting.ignored_from)):
        if since and (version is None or version >= since):
            message = f"RabbitMQ {since[0]}.{since[1]} and later {verb} {name}. {setting.hint}"
            is_error = version is not None and verb == "refuse"
            yield Finding("error" if is_error else "warning", f"{verb}d-setting", where, message)


def _older_policy(policy: Policy, release: Release | None) -> Iterator[Finding]:
    if release and policy.apply_to in POLICIES_OF.values() and _version(release) < (3, 12):
        message = f"RabbitMQ before 3.12 refuses apply-to: {policy.apply_to}. Use queues"
        yield Finding("error", "refused-setting", f"policy {policy.name!r}", message)

    limit = policy.definition.get("delivery-limit")
    if release and not release._has_default_delivery_limit and isinstance(limit, int) and limit < 0:
        message = (
            f"RabbitMQ before 4.0 refuses delivery-limit: {limit}. Leave it out: there is no limit by default"
        )
        yield Finding("error", "refused-setting", f"policy {policy.name!r}", message)


def _release_queue(queue: Queue, release: Release | None) -> Iterator[Finding]:
    where = f"queue {queue.name!r}"
    is_classic = queue.type == "classic"
    has_locator = is_classic and "x-queue-leader-locator" in queue.arguments
    if release and has_locator and _version(release) < (4, 0):
        message = "RabbitMQ before 4.0 refuses x-queue-leader-locator on classic queues. Leave it out"
        yield Finding("error", "refused-setting", where, message)
    is_transient = is_classic and not queue.durable and not queue.exclusive
    if release and is_transient and _version(release) >= (4, 3):
        message = (
            "most releases from RabbitMQ 4.3 on refuse transient queues, unless "
            "deprecated_features.permit.transient_nonexcl_queues is true. Declare it durable, with x-expires if it should go "
            "when unused"
        )
        yield Finding("warning", "transient-queue", where, message)


def _version(release: Release) -> tuple[int, int]:
    return (release.major, release.minor)
