#!/usr/bin/env escript
%% Writes the golden vectors beside this file, from Erlang itself and from the broker's own plugin.
%%
%%   docker run --rm -v "$PWD/tests/vectors:/vectors" --entrypoint escript \
%%       rabbitmq:4.3-management /vectors/make_vectors.escript /vectors
%%
%% The same seed gives the same terms, so two releases can be compared with `diff` (the first line of
%% each file names the release that wrote it). Nothing here knows how a hash is computed: the answers
%% come from erlang:phash2, rand and the plugin's jump_consistent_hash.
-mode(compile).

main([Dir]) ->
    rand:seed(exsss, {1, 2, 3}),
    Plugin = load_plugin(),
    write(Dir, "phash2.jsonl", Plugin, [phash2(T) || T <- terms()]),
    write(Dir, "exs1024.jsonl", Plugin, [uniforms(T) || T <- triples()]),
    write(Dir, "jump.jsonl", Plugin, [jump(Plugin, K, N) || {K, N} <- jumps()]).

%% ---- the oracles

phash2(Term) ->
    ["[", term(Term), [[",", integer_to_list(H)] || H <-
        [erlang:phash2(Term), erlang:phash2(Term, 1 bsl 32), erlang:phash2(Term, 1000)]], "]"].

uniforms(Triple) ->
    {Floats, _} = lists:mapfoldl(fun(_, S) -> rand:uniform_s(S) end,
                                 rand:seed_s(exs1024, Triple), lists:seq(1, 40)),
    ["[", json_list([quoted(integer_to_list(I)) || I <- tuple_to_list(Triple)]), ",",
     json_list([bits(F) || F <- Floats]), "]"].

jump({Module, _}, Key, Buckets) ->
    Bucket = Module:jump_consistent_hash(Key, Buckets),
    ["[", quoted(integer_to_list(Key)), io_lib:format(",~b,~b]", [Buckets, Bucket])].

%% The plugin does not export its jump_consistent_hash/2. Its debug information holds the code the
%% broker runs; compiled again with everything exported, the very same function answers here.
load_plugin() ->
    Name = "/plugins/rabbitmq_consistent_hash_exchange-*/ebin/rabbit_exchange_type_consistent_hash.beam",
    [Beam | _] = lists:append([filelib:wildcard(Root ++ Name)
                               || Root <- ["/opt/rabbitmq", "/usr/lib/rabbitmq/lib/*"]]),
    {ok, {Module, [{abstract_code, {_, Forms}}]}} = beam_lib:chunks(Beam, [abstract_code]),
    {ok, Module, Code} = compile:forms(Forms, [export_all, nowarn_export_all]),
    {module, Module} = code:load_binary(Module, Beam, Code),
    {Module, lists:last(string:split(filename:basename(filename:dirname(filename:dirname(Beam))), "-"))}.

%% ---- what is asked

terms() ->
    lists:append([
        [<<>>, [], {}, 0.0, -0.0, undefined, true, false],
        [list_to_atom(A) || A <- ["", "a", "void", "longstr", "a b", "Q", [233], [228, 8364], [955, 955],
                                  lists:duplicate(255, $x), [255, 256, 194, 169]]],
        [binary(L) || L <- lists:seq(0, 300), _ <- [1, 2, 3]],
        [ascii(L) || L <- lists:seq(0, 300), _ <- [1, 2]],
        [binary(L) || L <- [1023, 1024, 4095, 4097]],
        [unicode:characters_to_binary(S) || S <- [[233], [8364], [128512], [1087, 1088, 1080]]],
        integers(), floats(),
        [list_to_tuple([scalar() || _ <- lists:seq(1, N)]) || N <- lists:seq(0, 12), _ <- lists:seq(1, 20)],
        [[byte() || _ <- lists:seq(1, N)] || N <- lists:seq(0, 40), _ <- [1, 2, 3]],
        [[byte() || _ <- lists:seq(1, N)] ++ [scalar()] ++ [byte() || _ <- lists:seq(1, M)]
         || N <- lists:seq(0, 9), M <- lists:seq(0, 9)],
        [[scalar() || _ <- lists:seq(1, N)] || N <- lists:seq(0, 12), _ <- lists:seq(1, 20)],
        [[ascii(N), ascii(N + 3)] || N <- lists:seq(0, 40)],
        [nested(4) || _ <- lists:seq(1, 1200)],
        [{longstr, ascii(N)} || N <- lists:seq(0, 40)],
        [{array, [{longstr, ascii(5)}, {signedint, I}]} || I <- lists:seq(-20, 20)],
        [{table, [{ascii(4), bool, B}, {ascii(9), double, rand:uniform()}]} || B <- [true, false]],
        [{decimal, {S, rand:uniform(100000)}} || S <- lists:seq(0, 20)]
    ]).

integers() ->
    Borders = [1 bsl B + D || B <- [0, 7, 8, 16, 26, 27, 28, 31, 32, 59, 60, 63, 64, 65, 127, 128, 192, 256, 300],
                              D <- [-2, -1, 0, 1, 2]],
    Random = [rand:uniform(1 bsl B) || B <- lists:seq(1, 140), _ <- [1, 2, 3]],
    lists:append([[I, -I] || I <- Borders ++ Random]).

floats() ->
    Special = [1.0, 0.1, 0.5, 1.0e300, 1.0e-300, 5.0e-324, 1.7976931348623157e308, 3.0e10, 1/3],
    Random = [(rand:uniform() - 0.5) * math:pow(10, rand:uniform(60) - 30) || _ <- lists:seq(1, 300)],
    lists:append([[F, -F] || F <- Special ++ Random]).

triples() ->
    [{0, 0, 0}, {1, 2, 3}, {-1, -1, -1}, {1 bsl 21, 1 bsl 22, 1 bsl 80}, {-(1 bsl 21), 5, -(1 bsl 70)}]
        ++ [{K, K, K} || K <- [1, 2097130, 2097150, 2097151] ++ random_keys(200)].

jumps() ->
    [{K, N} || K <- [0, 1, -1, 2097151, 1 bsl 90], N <- [1, 2, 3, 10, 1000]]
        ++ [{K, N} || N <- lists:seq(1, 64), K <- random_keys(30)]
        ++ [{K, N} || N <- [100, 255, 256, 257, 1000, 4096, 10000, 65535, 65536, 65537, 100000], K <- random_keys(60)].

random_keys(Count) -> [rand:uniform(1 bsl 27) - 1 || _ <- lists:seq(1, Count)].

scalar() -> scalar(rand:uniform(6)).
scalar(1) -> binary(rand:uniform(30) - 1);
scalar(2) -> byte();
scalar(3) -> rand:uniform(1 bsl 70) - (1 bsl 69);
scalar(4) -> rand:uniform() * 1000 - 500;
scalar(5) -> lists:nth(rand:uniform(4), [undefined, true, longstr, table]);
scalar(6) -> [].

nested(0) -> scalar();
nested(Depth) ->
    Items = [nested(Depth - rand:uniform(Depth)) || _ <- lists:seq(1, rand:uniform(5) - 1)],
    case rand:uniform(3) of 1 -> list_to_tuple(Items); 2 -> Items; 3 -> scalar() end.

byte() -> rand:uniform(256) - 1.
binary(Length) -> list_to_binary([byte() || _ <- lists:seq(1, Length)]).
ascii(Length) -> list_to_binary([31 + rand:uniform(95) || _ <- lists:seq(1, Length)]).

%% ---- how it is written: one JSON value a line; integers of any size and floats bit by bit, as text

write(Dir, Name, {_, PluginVersion}, Lines) ->
    Origin = io_lib:format("{\"otp\":\"~s\",\"rabbitmq\":\"~s\",\"vectors\":~b}",
                           [erlang:system_info(otp_release), PluginVersion, length(Lines)]),
    ok = file:write_file(filename:join(Dir, Name), [[L, $\n] || L <- [Origin | Lines]]),
    io:format("~s: ~b vectors~n", [Name, length(Lines)]).

term(T) when is_atom(T)    -> tagged("atom", json_list([integer_to_list(C) || C <- atom_to_list(T)]));
term(T) when is_binary(T)  -> tagged("binary", quoted(binary_to_list(binary:encode_hex(T))));
term(T) when is_integer(T) -> tagged("integer", quoted(integer_to_list(T)));
term(T) when is_float(T)   -> tagged("float", bits(T));
term(T) when is_tuple(T)   -> tagged("tuple", json_list([term(E) || E <- tuple_to_list(T)]));
term(T) when is_list(T)    -> tagged("list", json_list([term(E) || E <- T])).

tagged(Kind, Json) -> ["{\"", Kind, "\":", Json, "}"].
json_list(Items)   -> ["[", lists:join(",", Items), "]"].
quoted(Text)       -> ["\"", Text, "\""].
bits(Float)        -> quoted(binary_to_list(binary:encode_hex(<<Float/float>>))).
