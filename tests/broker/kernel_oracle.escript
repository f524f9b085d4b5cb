#!/usr/bin/env escript
%%! -noinput
%% Answers what Erlang and the broker's own plugin make of terms and keys, one packet for each packet.
%% Nothing here knows how a hash is computed: the answers come from erlang:phash2, rand and the plugin.
%%
%%   $v                                   {OTP release, version of the plugin}, as text
%%   $b, Shape, Buckets, Rows, lengths, bytes    of each binary, in that shape: phash2/2 over 2^32, and its bucket
%%   $t, Buckets, a list of terms         the same of each term
%%   $k, Buckets, a list of integers      of each key: its bucket, and the first four uniform floats of exs1024
-mode(compile).

main([]) ->
    Plugin = load_plugin(),
    answer(open_port({fd, 0, 1}, [binary, {packet, 4}, eof]), Plugin).

answer(Port, Plugin) ->
    receive
        {Port, {data, Packet}} ->
            Port ! {self(), {command, reply(Packet, Plugin)}},
            answer(Port, Plugin);
        {Port, eof} ->
            ok
    end.

reply(<<$v>>, {_, Version}) ->
    [erlang:system_info(otp_release), " ", Version];
reply(<<$b, Shape, Buckets:32, Rows:32, Rest/binary>>, Plugin) ->
    <<Lengths:(Rows * 2)/binary, Bytes/binary>> = Rest,
    binaries(Lengths, Bytes, Shape, Buckets, Plugin, []);
reply(<<$t, Buckets:32, Terms/binary>>, Plugin) ->
    [hashed(Term, Buckets, Plugin) || Term <- binary_to_term(Terms)];
reply(<<$k, Buckets:32, Keys/binary>>, Plugin) ->
    [[bucket(Key, Buckets, Plugin), uniforms(Key)] || Key <- binary_to_term(Keys)].

binaries(<<>>, <<>>, _, _, _, Done) ->
    lists:reverse(Done);
binaries(<<Length:16, Lengths/binary>>, Bytes, Shape, Buckets, Plugin, Done) ->
    <<Binary:Length/binary, Rest/binary>> = Bytes,
    Answer = hashed(shape(Shape, Binary), Buckets, Plugin),
    binaries(Lengths, Rest, Shape, Buckets, Plugin, [Answer | Done]).

shape($., Binary) -> Binary;
shape($[, Binary) -> [Binary];
shape(${, Binary) -> {longstr, Binary}.

hashed(Term, Buckets, Plugin) ->
    [<<(erlang:phash2(Term, 1 bsl 32)):32/little>>, bucket(erlang:phash2(Term), Buckets, Plugin)].

bucket(Key, Buckets, {Module, _}) ->
    <<(Module:jump_consistent_hash(Key, Buckets)):32/little>>.

uniforms(Key) ->
    {Floats, _} = lists:mapfoldl(fun(_, S) -> rand:uniform_s(S) end,
                                 rand:seed_s(exs1024, {Key, Key, Key}), [1, 2, 3, 4]),
    [<<F/little-float>> || F <- Floats].

%% The plugin does not export its jump_consistent_hash/2: see tests/vectors/make_vectors.escript.
load_plugin() ->
    Name = "/plugins/rabbitmq_consistent_hash_exchange-*/ebin/rabbit_exchange_type_consistent_hash.beam",
    [Beam | _] = lists:append([filelib:wildcard(Root ++ Name)
                               || Root <- ["/opt/rabbitmq", "/usr/lib/rabbitmq/lib/*"]]),
    {ok, {Module, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    {ok, Module, Code} = compile:forms(Forms, [export_all, nowarn_export_all]),
    {module, Module} = code:load_binary(Module, Beam, Code),
    {Module, lists:last(string:split(filename:basename(filename:dirname(filename:dirname(Beam))), "-"))}.
