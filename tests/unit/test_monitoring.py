"""The alerts and the dashboard of examples/monitoring use metrics that exist, and promtool accepts them.

tests/broker/test_watch_faults.py runs the alerts in a real Prometheus.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml

from rabbit_chx.watch.metrics import Metrics
from rabbit_chx.watch.observer import PROBLEMS
from tests.programs import needed, ran
from tests.prometheus import FOLDER
from tests.watching import HOSTILE, interval

RULES = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def metrics() -> Metrics:
    found = Metrics()
    shown = interval([*HOSTILE, "q0"], now=["q0", *HOSTILE], states={"q0": {"consumers": 0, "oldest": 1.0}})
    found.show(shown)
    return found


def named(text: str) -> set[str]:
    return set(re.findall(r"rabbit_chx_watch_\w+", text))


# --- the files agree with the metrics -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alerts.yml", "alerts.test.yml", "dashboard.json"])
def test_every_metric_that_a_file_names_exists(name: str) -> None:
    found = named((FOLDER / name).read_text())
    assert found
    assert found <= named(metrics().text().decode())


def test_every_problem_has_an_alert() -> None:
    expressions = " ".join(rule["expr"] for rule in RULES)
    chosen = {name for names in re.findall(r'problem=~?"([^"]*)"', expressions) for name in names.split("|")}
    own = {
        "broker-unreachable": "broker_reachable",
        "ring-drifted": "ring_drifted",
        "ring-unknown": "ring_unknown",
    }
    assert all(f"rabbit_chx_watch_{metric}" in expressions for metric in own.values())
    assert chosen | set(own) == set(PROBLEMS)


def test_every_alert_has_a_test_and_a_line_in_the_table() -> None:
    names = {rule["alert"] for rule in RULES}
    tests = yaml.safe_load((FOLDER / "alerts.test.yml").read_text())["tests"]
    firing = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case["exp_alerts"]
    }
    assert firing == names
    assert set(re.findall(r"`(RabbitChx\w+)`", (FOLDER / "README.md").read_text())) == names


def test_the_dashboard_has_panels_that_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_compose_file_opens_ports_on_this_machine_only_and_uses_the_files() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert all(port.startswith("127.0.0.1:") for each in services.values() for port in each.get("ports", ()))
    mounted = [volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())]
    assert all((FOLDER / path).is_file() for path in mounted)
    (scrape,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["watch:8080"]}]
    assert scrape["authorization"]["credentials_file"] == "/run/secrets/watch-token"
    assert services["prometheus"]["secrets"] == ["watch-token"]


# --- a real Prometheus ----------------------------------------------------------------------------------------


def promtool(*arguments: object, text: str | None = None) -> str:
    done = ran([needed("promtool"), *map(str, arguments)], input=text)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_promtool_accepts_the_files_and_the_alerts_pass_their_tests(tmp_path) -> None:
    promtool("check", "rules", FOLDER / "alerts.yml")
    promtool("check", "config", "--syntax-only", FOLDER / "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", FOLDER / "alerts.test.yml")
    records = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(EXPRESSIONS)
    ]
    rules = tmp_path / "dashboard.yml"
    rules.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", rules)


@pytest.mark.long
def test_promtool_finds_nothing_to_improve_in_the_metrics() -> None:
    assert promtool("check", "metrics", text=metrics().text().decode()) == ""
