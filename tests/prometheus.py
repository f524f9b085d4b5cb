"""Run a real Prometheus with the configuration and the alerts of examples/monitoring, and query it."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import yaml

from rabbit_chx.testing.node import free_ports
from tests.patience import PATIENCE
from tests.programs import needed

FOLDER: Final = Path(__file__).parents[1] / "examples" / "monitoring"
TOKEN: Final = "correct-horse-battery"


@contextmanager
def prometheus(folder, target: str):
    """Run Prometheus with the configuration of the example, this target and an interval of a second; yields its URL."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (folder / "token").write_text(TOKEN)
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "alerts.yml")]
    config["scrape_configs"][0] |= {"static_configs": [{"targets": [target]}]}
    config["scrape_configs"][0]["authorization"]["credentials_file"] = str(folder / "token")
    (folder / "prometheus.yml").write_text(json.dumps(config))
    (port,) = free_ports(1)
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [needed("prometheus"), *options, f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def firing(url: str) -> set[tuple[str, str]]:
    """The alerts that fire, with their queues."""
    try:
        with urlopen(f"{url}/api/v1/alerts", timeout=10) as answer:
            found = json.load(answer)["data"]["alerts"]
    except OSError:  # Prometheus is still starting
        return set()
    return {
        (each["labels"]["alertname"], each["labels"].get("queue", ""))
        for each in found
        if each["state"] == "firing"
    }
