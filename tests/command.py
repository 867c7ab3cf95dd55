"""The `leaner` command, run in the process of a test."""

import re
import sys

from typer.testing import CliRunner, Result

from modeling_leaner.cli.app import app


def invoked(*words: object) -> Result:
    """`leaner WORDS` with its status and what it printed; what is no user's mistake is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def leaner(*words: object) -> None:
    """`leaner WORDS`; what it prints goes to stdout and stderr.

    Raises:
        SystemExit: where its status is not 0, as Python itself ends: with the line that says why where a command was
            refused with status 1, else with the status.
    """
    result = invoked(*words)
    if result.exit_code == 0:
        return
    last = result.stderr.rpartition("\n")[0].rpartition("\n")[2]
    if result.exit_code == 1 and last.startswith(f"leaner {words[0]}: "):
        raise SystemExit(last)
    raise SystemExit(result.exit_code)


def refused(said: str, *words: object) -> None:
    """`leaner WORDS` ends with status 1 and one line that `said`, a regular expression, finds; bars do not count."""
    result = invoked(*words)
    lines = [line for line in result.stderr.splitlines() if line and "%|" not in line and "/s]" not in line]
    assert result.exit_code == 1 and len(lines) == 1, result.output + result.stderr
    assert lines[0].startswith(f"leaner {words[0]}: ") and re.search(said, lines[0]), lines[0]
