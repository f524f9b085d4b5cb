"""Where keys and values stand in TOML and JSON: every value that the parser finds, and at its own line and column."""

from __future__ import annotations

import json
import tomllib

import pytest

from rabbit_chx.topology.file.places import Place, places_in_json, places_in_toml

TOML = '''\
# "not" = [a, value]
title = "a # b \\" ]" # comment
literal = 'C:\\no = escape'
long = """
x = 1 ""quoted"" ] \\""" """""
longer = \'\'\'it's "#" \'\'\'
numbers = [ 1_000, 0x1F, # one
  1979-05-27 07:32:00, -inf,
]
"quoted.key" . 'and more' = { a.b = [[], {}], c = 07:32:00 }

[ table . "x.y" ]
deep.er = true
[[list]]
n = 1
[[list]]
n = 2
[list.inner]
m = [{ o = 1 }, { o = 2 }]
'''
JSON = '{\n\t"a" : [1, {"b": "\\"]},"}, [], -1.5e3],\n "\\u0063" :null}\n'


def ways(loc, value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {loc}.union(*(ways((*loc, key), item) for key, item in items))


def test_every_value_of_toml_has_a_place():
    places = places_in_toml(TOML)
    assert set(places.values) == ways((), tomllib.loads(TOML))
    lines = TOML.splitlines()
    for way, start in {
        ("title",): '"a # b',
        ("longer",): "'''it's",
        ("numbers", 2): "1979-05-27",
        ("numbers", 3): "-inf",
        ("quoted.key", "and more", "a", "b", 1): "{}]",
        ("quoted.key", "and more", "c"): "07:32",
        ("table", "x.y", "deep", "er"): "true",
        ("list", 1, "n"): "2",
        ("list", 1, "inner", "m", 1, "o"): "2 }]",
    }.items():
        line, column = places.values[way]
        assert lines[line - 1][column - 1 :].startswith(start), way


def test_every_value_of_json_has_a_place():
    places = places_in_json(JSON)
    assert set(places.values) == ways((), json.loads(JSON))
    assert places.keys[("a",)] == Place(2, 2)
    assert places.values[("a", 1, "b")] == Place(2, 18)
    assert places.keys[("c",)] == Place(3, 2)
    assert places.values[("c",)] == Place(3, 12)


def test_keys_that_stand_twice_in_json_are_found_in_their_own_object_only():
    places = places_in_json('[{"a": {"b": 1}, "a": {"b": 2}}, {"a": 3}]')
    assert places.doubles == [((0, "a"), Place(1, 18))]


@pytest.mark.parametrize("text", ["", "\n\n", "# only this", "a = 1", "a = 1\r\n[b]\r\nc = 2\r\n"])
def test_short_texts_of_toml(text):
    assert set(places_in_toml(text).values) == ways((), tomllib.loads(text))
