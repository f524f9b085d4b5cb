"""The consumers of a group on streams, as a node knows them: an Erlang expression, and the parser of its output.

The node is asked for ``rabbit_stream_sac_coordinator:group_consumers/4``, which is behind ``rabbitmq-streams
list_stream_group_consumers``. The expression prints a line for each consumer, the state first and each text as base64::

    YWN0aXZl b3JkZXJzLTA= MTI3LjAuMC4xOjEyMzQ=
    done

Releases name the states differently: "active" and "inactive" in 4.0, "active (connected)" and "waiting (connected)" in 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rabbit_chx.broker.management_rows import StreamConsumer
from rabbit_chx.broker.reading.erlang_rings import decoded_name, erlang_binary
from rabbit_chx.broker.reading.node import NodeAccess
from rabbit_chx.errors import BrokerUnavailable

_EXPRESSION: Final = """
[case rabbit_stream_sac_coordinator:group_consumers({vhost}, Stream, {group}, [connection_name, state]) of
     {{ok, Consumers}} ->
         [io:put_chars([base64:encode(iolist_to_binary(io_lib:format("~s", [State]))), " ",
                        base64:encode(Stream), " ", base64:encode(Name), "\\n"])
          || [{{connection_name, Name}}, {{state, State}}] <- Consumers];
     {{error, not_found}} -> []
 end
 || Stream <- [{streams}]],
done.
"""


def read_stream_consumers(
    node: NodeAccess, vhost: str, group: str, streams: Iterable[str]
) -> list[StreamConsumer]:
    """Return the consumers of a group on these streams.

    Raises:
        BrokerUnavailable: the command failed, or its output is not what a node prints.
    """
    names = ",".join(map(erlang_binary, streams))
    expression = _EXPRESSION.format(vhost=erlang_binary(vhost), group=erlang_binary(group), streams=names)
    *lines, end = node.eval(" ".join(expression.split())).split("\n")
    try:
        found = [_consumer(line) for line in lines]
    except ValueError:
        end = ""
    if end != "done":
        raise BrokerUnavailable("the node command did not print the consumers of the group to their end")
    return found


def _consumer(line: str) -> StreamConsumer:
    state, stream, connection = map(decoded_name, line.split(" "))
    return StreamConsumer(stream, connection, active=state.startswith("active"))
