"""The JSON Schema that is shipped for editors is that of the code."""

from __future__ import annotations

import json

from rabbit_chx.topology.file.schema import SCHEMA_FILE, json_schema


def test_the_shipped_schema_is_the_one_of_the_code():
    # Where it is not: python -m rabbit_chx.topology.file.schema > rabbit_chx/topology/file/topology.schema.json
    assert SCHEMA_FILE.read_text() == json_schema()


def test_every_key_is_explained_and_no_other_is_allowed():
    schema = json.loads(SCHEMA_FILE.read_text())
    for each in [schema, *schema["$defs"].values()]:
        assert each["additionalProperties"] is False
        for name, key in each["properties"].items():
            assert key["description"].endswith("."), name


def test_the_type_of_an_exchange_is_required_except_of_the_brokers_own():
    schema = json.loads(SCHEMA_FILE.read_text())
    assert schema["$defs"]["FileExchange"]["required"] == ["type"]
    predeclared = schema["properties"]["exchanges"]["patternProperties"][r"^amq\."]
    assert list(predeclared["properties"]) == ["bindings"]
