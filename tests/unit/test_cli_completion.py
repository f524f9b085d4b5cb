"""Completion in real shells: the script that the command prints is sourced, and asked."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.programs import ran
from tests.verbs import ORDERS

HERE = Path(sys.executable).parent

# What each shell does when a user presses the tab key, and then prints what it would offer.
BASH = """
source <(rabbit-chx completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { echo "files"; }
$(complete -p rabbit-chx | sed 's/.*-F \\([^ ]*\\).*/\\1/') rabbit-chx
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compdef() { :; }; _path_files() { print files; }
_describe() { print -l -- ${${(P)3}%%:*}; }; compadd() { print -l -- ${(P)5}; }
source <(rabbit-chx completion zsh)
words=("$@"); CURRENT=$#
_rabbit_chx_completion
true
"""
FISH = """
rabbit-chx completion fish | source
complete --do-complete "$argv" | string split --fields 1 \\t
true
"""


def offered(shell: str, *words: str, folder: Path) -> set[str]:
    """What a shell offers for the last word of a command line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here: its completion is not tried")
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", *words],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", *words],
        "fish": ["fish", "--no-config", "-c", FISH, " ".join(words)],
    }
    environment = os.environ | {"PATH": f"{HERE}:{os.environ['PATH']}"}
    done = ran(command[shell], cwd=folder, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "topology.yaml").write_text(ORDERS + "  other: {}\n")
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rabbit-chx", "pl"], {"plan"}),
        (["rabbit-chx", "r"], {"route", "ring", "report", "rebalance", "replay"}),
        (["rabbit-chx", "ring", "--wor"], {"--worker-pool-size"}),
        (["rabbit-chx", "parity", "--store", ""], {"mnesia", "khepri"}),
        (["rabbit-chx", "ring", "--release", "3.1"], {"3.10", "3.11", "3.12", "3.13"}),
        (["rabbit-chx", "route", "k", "--file", "topology.yaml", "--exchange", "o"], {"orders"}),
        (["rabbit-chx", "plan", "topology.yaml", "--remove", "v"], {"vip"}),
        (["rabbit-chx", "route", "k", "--file", "missing.yaml", "--exchange", "o"], set()),
    ],
)
def test_a_shell_offers_what_there_is(shell, words, expected, folder) -> None:
    assert offered(shell, *words, folder=folder) == expected


@pytest.mark.parametrize("option", [["lint"], ["ring", "--file"], ["check", "t.yaml", "--tls-ca-cert-file"]])
def test_bash_is_left_to_complete_files_itself(option, folder) -> None:
    assert offered("bash", "rabbit-chx", *option, "", folder=folder) == {"files"}
