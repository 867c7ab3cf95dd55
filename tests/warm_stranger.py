"""The stranger of `leaner verify` in a fork of a process that has torch and transformers already.

To import them takes ten times as long as the rest. The package was never imported there, and what the stranger runs is
its own file, reevaluate.py; test_published.py verifies a folder by a process of its own.

As a program: each line of stdin is [MODULES, FOLDER, OUTPUT, [FILE, ARGUMENT ...]] in JSON, a Python file that runs in
a folder with a cache of remote code; its status is answered by a line, what it printed is in the file OUTPUT.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from types import SimpleNamespace


class WarmStranger:
    """In place of `subprocess` in publishing/verify.py."""

    def __init__(self):
        command = [sys.executable, "-I", __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, command, env, cwd, **captured) -> SimpleNamespace:
        """`python -I FILE ARGUMENT ...`, as far as the stranger asks for it."""
        python, isolated, *words = map(str, command)
        assert (python, isolated) == (sys.executable, "-I"), command
        with tempfile.NamedTemporaryFile("r") as output:
            question = [env["HF_MODULES_CACHE"], str(cwd), output.name, words]
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            return SimpleNamespace(returncode=status, stderr=output.read())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def answer(modules: str, folder: str, output: str, words: list[str]) -> int:
    """The status of the file, in this process."""
    from transformers import dynamic_module_utils

    file = os.open(output, os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    dynamic_module_utils.HF_MODULES_CACHE = modules
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    from safetensors.torch import load_file  # noqa: F401
    from transformers import AutoModel, GPT2LMHeadModel  # noqa: F401  # a model brings most of the library

    assert "modeling_leaner" not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = answer(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
