#!/usr/bin/env escript
%% How fast the broker itself hashes: its own jump_consistent_hash/2 on the BEAM, in one process.
%%
%%   escript routing_beam.escript FOLDER BUCKETS
%%
%% benchmarks/routing.py starts it, and leaves NAME.offsets and NAME.keys in the folder (the keys end to
%% end, and where each starts, as 32-bit little-endian numbers). For each NAME that comes as a line on
%% standard input, its keys are hashed and one line of JSON answers. The checksum is the sum over all rows,
%% counted from 1, of row * (bucket + 1), modulo 2^64.
-mode(compile).

main([Folder, Buckets]) ->
    io:format("{\"otp\":\"~s\",\"rabbitmq\":\"~s\"}~n", [erlang:system_info(otp_release), load_plugin()]),
    serve(maps:from_list([{filename:basename(File, ".keys"), read(filename:rootname(File))}
                          || File <- filelib:wildcard(filename:join(Folder, "*.keys"))]), list_to_integer(Buckets)).

serve(Columns, Buckets) ->
    case io:get_line("") of
        eof  -> ok;
        Line -> measure(maps:get(string:trim(Line), Columns), Buckets), serve(Columns, Buckets)
    end.

%% The plugin does not export the function. Its debug information holds the code that the broker runs,
%% which is compiled again with everything exported; loading it compiles it to machine code, as in the broker.
load_plugin() ->
    Name = "/plugins/rabbitmq_consistent_hash_exchange-*/ebin/rabbit_exchange_type_consistent_hash.beam",
    [Beam | _] = lists:append([filelib:wildcard(Root ++ Name)
                               || Root <- ["/opt/rabbitmq", "/usr/lib/rabbitmq/lib/*"]]),
    {ok, {Module, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    {ok, Module, Code} = compile:forms(Forms, [export_all, nowarn_export_all]),
    {module, Module} = code:load_binary(Module, Beam, Code),
    Plugin = filename:basename(filename:dirname(filename:dirname(Beam))),
    lists:last(string:split(Plugin, "-")).

read(Path) ->
    {ok, Data} = file:read_file(Path ++ ".keys"),
    {ok, Offsets} = file:read_file(Path ++ ".offsets"),
    slice(Data, [O || <<O:32/little>> <= Offsets]).

slice(Data, [From | [To | _] = Rest]) -> [binary:part(Data, From, To - From) | slice(Data, Rest)];
slice(_, [_]) -> [].

measure(Keys, Buckets) ->
    garbage_collect(),
    Start = erlang:monotonic_time(),
    Placed = place(Keys, Buckets),
    Took = erlang:convert_time_unit(erlang:monotonic_time() - Start, native, nanosecond),
    io:format("{\"rows\":~b,\"ns\":~b,\"checksum\":~b}~n", [length(Keys), Took, checksum(Placed, 1, 0)]).

%% As route/3 calls it: with the list of routing keys; the function hashes the first one.
place([Key | Keys], Buckets) ->
    [rabbit_exchange_type_consistent_hash:jump_consistent_hash([Key], Buckets) | place(Keys, Buckets)];
place([], _) -> [].

checksum([Bucket | Buckets], Row, Sum) ->
    checksum(Buckets, Row + 1, (Sum + Row * (Bucket + 1)) band 16#FFFFFFFFFFFFFFFF);
checksum([], _, Sum) -> Sum.
