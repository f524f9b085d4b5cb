"""A cluster of three RabbitMQ nodes in containers, and the ways to break it.

Each container is on two networks: a private one, over which alone the nodes reach each other, and Docker's default, which
has the published ports. So a node can be cut off from the other two while clients still reach it, or from everybody. The
nodes are started one after the other, and each is told of those before it only: nodes that are started at once, or wait
for others, can form a cluster in several ways.

Everything is removed by its id when the cluster stops, whatever state it is in.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from ipaddress import IPv4Network

from docker.errors import NotFound
from docker.types import EndpointConfig, IPAMConfig, IPAMPool
from testcontainers.core.docker_client import DockerClient

from rabbit_chx.errors import BrokerUnavailable, RabbitChxError
from rabbit_chx.testing import Broker, cleanup
from rabbit_chx.testing.docker_node import LOOPBACK, NETWORK, DockerNode, find
from rabbit_chx.testing.node import READY, START_SECONDS, STOP_SECONDS, NodeSettings
from tests.canary import of_broker
from tests.patience import wait_until

NAMES = ("rabbit-1", "rabbit-2", "rabbit-3")
PLUGINS = (
    *("rabbitmq_management", "rabbitmq_consistent_hash_exchange", "rabbitmq_sharding"),
    "rabbitmq_stream",
)
LABEL = "rabbit-chx.cluster"
"""The label of each container, with the name of its network."""
MEMORY = "1g"
"""Of one container; more than these few messages need."""

CONFIG = {
    "cluster_formation.peer_discovery_backend": "classic_config",
    # Otherwise each node returns another name for the cluster.
    "cluster_name": "rabbit-chx tests",
    # One worker restores the rings of Mnesia, so their order is known.
    "default_worker_pool_size": "1",
    # Recommended by RabbitMQ's manual for an odd number of nodes. Khepri ignores it.
    "cluster_partition_handling": "pause_minority",
}
STARTS = 5
"""How often a node may be started until it is up."""
# A node that falls silent counts as gone after this many seconds; the default is 60.
TICKS = "-kernel net_ticktime 8"


class PrivateNetwork:
    """A network of the nodes, on which each has a fixed address."""

    def __init__(self) -> None:
        self._client = None
        self._network = None

    def create(self) -> None:
        """Create the network twice: Docker chooses a subnet, and fixed addresses need a subnet that is given."""
        self._client = DockerClient().client
        draft = self._client.networks.create(f"rabbit-chx-{secrets.token_hex(4)}", internal=True)
        self._network = draft
        subnet = draft.attrs["IPAM"]["Config"][0]["Subnet"]
        draft.remove()
        pool = IPAMConfig(pool_configs=[IPAMPool(subnet=subnet)])
        self._network = self._client.networks.create(draft.name, internal=True, ipam=pool)
        hosts = IPv4Network(subnet).hosts()
        next(hosts)  # the bridge itself
        self._addresses = {name: str(address) for name, address in zip(NAMES, hosts, strict=False)}

    def remove(self) -> None:
        """Remove the network, and first containers that were left behind, for example by Ctrl-C."""
        if self._client is None:
            return
        if self._network is not None:
            for left in self._client.containers.list(
                all=True, filters={"label": f"{LABEL}={self._network.name}"}
            ):
                left.remove(force=True, v=True)
            with suppress(NotFound):
                self._network.remove()
        self._client.close()
        self._client = self._network = None

    def born_on(self, name: str) -> dict:
        """The options of a container on this network that knows the names of all nodes."""
        # A node that is cut off must still find itself, and no name server may be asked: it takes half a minute to reply
        # that it does not know a node that is down.
        hosts = {**self._addresses, name: LOOPBACK}
        endpoint = EndpointConfig(self._client.api._version, ipv4_address=self._addresses[name])
        return {
            "network": self._network.name,
            "networking_config": {self._network.name: endpoint},
            "extra_hosts": hosts,
            "labels": {LABEL: self._network.name},
        }

    def connect(self, container, name: str) -> None:
        self._network.connect(container, ipv4_address=self._addresses[name])

    def disconnect(self, container) -> None:
        self._network.disconnect(container)


class Container(DockerNode):
    def __init__(
        self, image: str, settings: NodeSettings, name: str, private: PrivateNetwork, cookie: str
    ) -> None:
        super().__init__(image, settings)
        self.name = name
        self._private = private
        self._cookie = cookie
        self._addresses: dict[int, tuple[str, int]] = {}
        self._boots = 0

    def halt(self) -> None:
        """Stop the node gracefully; its data remain."""
        self._docker.stop(timeout=STOP_SECONDS)

    def boot(self) -> None:
        """Start a node that was halted or killed without waiting for it: it may wait for the others."""
        self._boots = self.logs().count(READY)
        self._docker.start()

    def up(self) -> None:
        """Wait until a started node is up; if it gives up on its peers, start it again."""
        for _ in range(STARTS):
            try:
                return self._wait(boots=self._boots + 1)
            except BrokerUnavailable:
                if self._running():
                    raise
                self._docker.start()
        raise BrokerUnavailable(f"{self.name} gave up {STARTS} times")

    def cut(self, *, clients: bool = False) -> None:
        """Disconnect the node from the private network, and from its clients if they are to lose it, too."""
        self._private.disconnect(self._docker)
        if clients:
            self._bridge().disconnect(self._docker)

    def heal(self, *, clients: bool = False) -> None:
        """Connect the node again."""
        self._private.connect(self._docker, self.name)
        if clients:
            self._bridge().connect(self._docker)

    def mend(self) -> bool:
        """Unpause the node and connect its networks; return whether it runs."""
        self._docker.reload()
        if self._docker.status == "paused":
            self.unpause()
        there = self._docker.attrs["NetworkSettings"]["Networks"]
        if len(there) < 2:
            self.heal(clients=NETWORK not in there)
        return bool(self._docker.status != "exited")

    def _bridge(self):
        return self._docker.client.networks.get(NETWORK)

    def _new_container(self):
        container = super()._new_container()
        container.with_kwargs(hostname=self.name, mem_limit=MEMORY, **self._private.born_on(self.name))
        container.with_env("RABBITMQ_NODENAME", f"rabbit@{self.name}")
        container.with_env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", TICKS)
        cookie = "/var/lib/rabbitmq/.erlang.cookie"
        return container.with_copy_into_container(self._cookie.encode(), cookie, 0o400)

    def _wait(self, *, boots: int) -> None:
        self._docker.reload()
        if NETWORK not in self._docker.attrs["NetworkSettings"]["Networks"]:
            self._bridge().connect(self._docker)
        super()._wait(boots=boots)

    def _address(self, port: int) -> tuple[str, int]:
        if port not in self._addresses:  # Docker does not know it while the node is disconnected
            self._addresses[port] = super()._address(port)
        return self._addresses[port]


class Member(Broker):
    """A node of the cluster as a `Broker`."""

    def __init__(self, release: str, node: Container) -> None:
        super().__init__(release)
        self.node = node
        self.name = node.name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def start(self) -> None:
        self._running, self._source = self.node, find(self.release)
        self.node.start()


class Cluster:
    def __init__(self, release: str) -> None:
        self.release = release
        self.network = PrivateNetwork()
        self.compared: list[tuple[int, int, int, float]] = []
        """For each comparison of rings with the mirror: rings, wrong, noticed without a bucket, seconds."""
        image, password, cookie = (
            f"rabbitmq:{release}-management",
            of_broker(secrets.token_hex(12)),
            secrets.token_hex(16),
        )
        self.members = []
        for number, name in enumerate(NAMES, 1):
            peers = {
                f"cluster_formation.classic_config.nodes.{n}": f"rabbit@{peer}"
                for n, peer in enumerate(NAMES[:number], 1)
            }
            settings = NodeSettings(PLUGINS, tuple({**CONFIG, **peers}.items()), "rabbit_chx", password)
            self.members.append(Member(release, Container(image, settings, name, self.network, cookie)))

    def __repr__(self) -> str:
        return f"<cluster of RabbitMQ {self.release}>"

    # -- life cycle ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Form the cluster; raises `CannotSupply` where Docker or the image is missing."""
        find(self.release)
        cleanup.stop_at_exit(self.stop)
        try:
            self.network.create()
            for member in self.members:
                member.start()
            self.run()
            self.version, self.store = self.members[0].version, self.members[0].store
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the containers with their data, and the network, even if one of them fails."""
        with ExitStack() as last:
            last.callback(cleanup.forget, self.stop)
            last.callback(self.network.remove)
            for member in self.members:
                last.callback(member.stop)

    def boot(self, *members: Member) -> None:
        """Start stopped nodes at the same time, and return when all nodes run."""
        for member in members:
            member.node.boot()
        for member in members:
            member.node.up()
        self.run()

    def mend(self) -> None:
        """Repair what a failed test has left stopped, paused or cut off."""
        down = [member for member in self.members if not member.node.mend()]
        self.boot(*down)
        self.reunite(trusted=self.members[0])

    # -- state ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Return when each node knows that all three run."""
        self.ask(self.members[0], _ON_EACH.format(_RUNS), "true", "all three nodes run, and know it")

    def whole(self) -> None:
        """Return when, in addition, every replicated queue could do without any one node."""
        self.run()
        self.ask(self.members[0], _ON_EACH.format(_TO_SPARE), "true", "all replicas are up to date")

    def alone(self, *members: Member) -> None:
        """Return when these nodes have noticed that they are cut off from all others."""
        for member in members:
            self.ask(member, "nodes().", "[]", "it has given up the others")

    def reunite(self, *, trusted: Member) -> bool:
        """Repair a partition of Mnesia as RabbitMQ's manual says; return whether there was one.

        The nodes are connected again, but each continues with its own tables until those that are not trusted restart and
        copy everything, rings included; a restart of the trusted one clears the warning.
        """
        if self.store != "mnesia" or trusted.eval(_PARTED) == "[]":
            return False
        others = self.others(trusted)
        for command in ("stop_app", "start_app"):
            for member in others:
                member.ctl(command)
        trusted.restart_app()
        self.run()
        assert trusted.eval(_PARTED) == "[]"
        return True

    def ask(self, member: Member, expression: str, wanted: str, what: str) -> None:
        """Evaluate an expression on a node until the result is the wanted one."""
        answer = ""

        def is_wanted() -> bool:
            nonlocal answer
            try:
                answer = member.eval(expression)
            except RabbitChxError as error:  # its application is starting
                answer = str(error)
            return answer == wanted

        wait_until(is_wanted, lambda: f"{what}, but {member} says {answer!r}", START_SECONDS)

    def others(self, *members: Member) -> list[Member]:
        return [member for member in self.members if member not in members]

    def in_turn(self, first: Member) -> list[Member]:
        """All nodes in their order, from this one on."""
        place = self.members.index(first)
        return [*self.members[place:], *self.members[:place]]

    def on_each(self, work):
        """Call something with each node at the same time; return the results in their order."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(work, self.members))

    def leader(self, queue: str, vhost: str, *, ask: Member) -> Member:
        """The node of a quorum queue's leader, according to another node."""
        queue, vhost = (f'<<"{name}">>' for name in (queue, vhost))
        found = f"rabbit_amqqueue:lookup(rabbit_misc:r({vhost}, queue, {queue}))"
        leader = (
            "{ok, Q} = F, {Name, _} = amqqueue:get_pid(Q), element(2, ra_leaderboard:lookup_leader(Name))."
        )
        node = ask.eval(leader.replace("F", found))
        return next(member for member in self.members if f"rabbit@{member.name}" in node)


_NODES = f"[{', '.join(repr(f'rabbit@{name}') for name in NAMES)}]"
_ON_EACH = f"lists:all(fun(Node) -> {{}} end, {_NODES})."
_RUNS = f"lists:sort(erpc:call(Node, rabbit_nodes, list_running, [], 10000)) =:= {_NODES}"
_PARTED = f"lists:append([erpc:call(Node, rabbit_node_monitor, partitions, []) || Node <- {_NODES}])."
_TO_SPARE = "erpc:call(Node, rabbit_upgrade_preparation, await_online_quorum_plus_one, [10000], 20000)"
