"""The `leaner` command, run in the process of a test."""

import re
import sys

import pytest
from typer.testing import CliRunner

from modeling_leaner.cli.app import app


def leaner(*words: object) -> None:
    """`leaner WORDS`; what it prints goes to stdout and stderr.

    Raises:
        SystemExit: where its status is not 0, as Python itself ends: with the line that says why where a command was
            refused with status 1, else with the status.
    """
    result = CliRunner().invoke(app, [str(word) for word in words])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == 0:
        return
    last = result.stderr.rpartition("\n")[0].rpartition("\n")[2]
    if result.exit_code == 1 and last.startswith(f"leaner {words[0]}: "):
        raise SystemExit(last)
    raise SystemExit(result.exit_code)


def refused(said: str, *words: object) -> str:
    """`leaner WORDS` ends with status 1 and one line that `said`, a regular expression, finds; returns the line."""
    with pytest.raises(SystemExit) as end:
        leaner(*words)
    line = end.value.code
    assert isinstance(line, str) and re.search(said, line), line
    return line
