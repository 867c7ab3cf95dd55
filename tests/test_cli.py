"""The `leaner` command, as its users run it."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import sysconfig
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, sleep

import huggingface_hub
import pytest
import transformers
from command import invoked
from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError
from modeling_leaner.training.running import evaluation
from typer.main import get_command

import modeling_leaner
from modeling_leaner import __version__, names
from modeling_leaner.cli.app import app
from modeling_leaner.names import shape_names
from modeling_leaner.shapes import load_shape


def test_shapes():
    rows = json.loads(invoked("shapes", "--json").output)
    assert [row["shape"] for row in rows] == shape_names()
    base = next(row for row in rows if row["shape"] == "gpt/base")
    assert (base["parameters"], base["heads"], base["head_dim"], base["length"]) == (124_439_808, 12, 64, 1024)
    assert base["flops_per_token"] == load_shape("gpt/base").count_flops(1024).forward / 1024
    assert base["kv_bytes_per_token"] == 2 * 12 * 768 * 2
    table = invoked("shapes", "--family", "vit").output
    assert "vit/lean-base" in table and "24×32" in table and "gpt/" not in table


LIGHT = f"""
import sys, types
sys.modules["modeling_leaner"] = package = types.ModuleType("modeling_leaner")
package.__path__ = [{str(Path(modeling_leaner.__file__).parent)!r}]
"""  # the package without what it imports
GRID = "{recipe: digits, shapes: [vit/nano], baseline: vit/nano, seeds: [1], learning_rates: [1e-3]}"
CONFIGS = {  # of folders that `leaner slim` refuses
    "roberta": {"model_type": "roberta"},
    "sixth": {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": 6},
}
SCRIPT = Path(sysconfig.get_path("scripts")) / "leaner"
SEES = """
import atexit, os, sys
def report():
    heavy = [name for name in ("torch", "transformers", "datasets") if name in sys.modules]
    print("imported:", *heavy, file=sys.stderr)
atexit.register(report)
"""


@pytest.fixture
def watched(tmp_path):
    """Runs the installed script and says which libraries it imported."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(SEES)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "watch")}

    def run(*words):
        command = [SCRIPT, *map(str, words)]
        process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        errors, _, imported = process.stderr.rpartition("imported:")
        return process.returncode, process.stdout + errors, imported.split()

    return run


class TestStart:
    """Help and mistakes are answered before torch is imported; a mistake in one line that names it."""

    @pytest.mark.parametrize(
        ("words", "status", "answer"),
        [
            ("--version", 0, f"leaner {__version__}"),
            ("--help", 0, "verify"),
            ("evaluate runs/x --max_eval_rows 3 --help", 0, "Usage: leaner evaluate [OPTIONS] {MODEL}..."),
            ("plna", 2, "leaner: No such command 'plna'. Did you mean 'plan'?"),
            ("plan --parms 3M", 2, "leaner plan: No such option: --parms (Possible options:"),
            ("convert", 2, "leaner convert: Missing argument 'MODEL'."),
            ("shapes --family gtp", 2, "leaner shapes: Invalid value for '--family'"),
            (
                "train sst2 --shape=bert/nanoo",
                1,
                "leaner train: bert/nanoo: unknown shape (`leaner shapes` lists all); did you mean bert/nano?",
            ),
            ("train sst3 --shape bert/nano", 1, "leaner train: sst3: no such recipe; did you mean sst2?"),
            ("sweep grid.yaml --jobs 2", 2, "leaner sweep: Invalid value for 'GRID.yaml': file 'grid.yaml' does not"),
            ("sweep misspelt.yaml", 1, "leaner sweep: misspelt.yaml: seed: unknown key"),
            ("sweep notes.md", 1, "leaner sweep: notes.md: no YAML file of keys and values: "),
            ("sweep misspelt.yaml --data_files --summary", 2, "Option '--data-files' requires an argument."),
            ("bench --phases training decoding", 2, "leaner bench: Invalid value for '--phases': "),
            ("train sst2 --shape bert/nano sst2", 2, "leaner train: Got unexpected extra argument(s) (sst2)"),
            ("push thre someone/model", 2, "leaner push: Invalid value for 'folder': dir 'thre' does not"),
            ("evaluate vit/nano --dataset digit", 1, "leaner evaluate: vit/nano: a named shape"),
            ("convert nowhere out", 1, "leaner convert: nowhere: no such file or folder"),
            ("convert ./sixth sixth", 1, "leaner convert: sixth exists already"),
            (
                "plan --like gpt/bsae",
                1,
                "leaner plan: gpt/bsae: unknown shape (`leaner shapes` lists all); did you mean gpt/base?",
            ),
            ("slim sixth out --data there --speedup 1", 2, "leaner slim: Invalid value for '--speedup': "),
            ("slim there out --data there --layers 2", 1, "leaner slim: there: no model: "),
            ("slim sixth out --data there", 1, "leaner slim: nothing to remove: give --speedup, --layers"),
            ("slim sixth out --data x.csv --speedup 2", 1, "leaner slim: x.csv: no such file or folder"),
            ("slim roberta out --data . --speedup 2", 1, "leaner slim: roberta: model_type 'roberta' is not"),
            ("plan --family grt", 2, "leaner plan: Invalid value for '--family': 'grt' is not one of 'vit', "),
        ],
    )
    def test_light(self, watched, tmp_path, words, status, answer):
        (tmp_path / "misspelt.yaml").write_text(GRID.replace("seeds", "seed"))
        (tmp_path / "notes.md").write_text("# Notes: of mine\n\ta: b: c")
        (tmp_path / "there").mkdir()
        for name, fields in CONFIGS.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").write_text(json.dumps(fields))
        returned, output, imported = watched(*words.split())
        assert returned == status, output
        assert imported == [], output
        assert answer in " ".join(output.replace("│", " ").split())
        assert status == 0 or output.count("\n") == 1, output

    @pytest.mark.parametrize("name", get_command(app).commands)
    def test_every_help_has_an_example_whose_options_exist(self, name):
        command = get_command(app).commands[name]
        (example,) = re.findall(rf"^ *Example: leaner {name} (.*)$", command.help, flags=re.MULTILINE)
        names = {option.replace("_", "-") for parameter in command.params for option in parameter.opts}
        given = {word.replace("_", "-") for word in example.split() if word.startswith("--")}
        assert given <= names | {"--max-steps"}


REGISTERED = """
import modeling_leaner
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
assert AutoModelForCausalLM.from_pretrained({folder!r}).config.model_type == "lean_gpt"
from modeling_leaner import LeanBERTConfig, LeanGPTForCausalLM
import pickle
assert pickle.loads(pickle.dumps(LeanBERTConfig(num_hidden_layers=1))).num_hidden_layers == 1
assert pickle.loads({pickled!r}).num_hidden_layers == 2
"""


class TestRegistration:
    """Only the installed script leaves the models out when it imports the package."""

    @pytest.fixture
    def folder(self, tmp_path):
        config = modeling_leaner.LeanGPTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20, bos_token_id=1, eos_token_id=1
        )
        modeling_leaner.LeanGPTForCausalLM(config).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    def python(self, *command, cwd):
        process = subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, cwd=cwd, check=False
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    @pytest.mark.full
    def test_importing_the_package_registers(self, folder, tmp_path):
        pickled = pickle.dumps(modeling_leaner.LeanGPTConfig(num_hidden_layers=2))
        self.python("-c", REGISTERED.format(folder=folder, pickled=pickled), cwd=tmp_path)

    @pytest.mark.full
    def test_the_script_converts(self, watched, folder):
        returned, output, _ = watched("convert", folder, Path(folder).parent / "gpt2")
        assert returned == 0 and "GPT2LMHeadModel" in output, output
        assert "shards" not in output and "%|" not in output  # no bars over the weights


@pytest.mark.parametrize(
    ("words", "later"),
    [
        ("plan --family gpt --params 30M", (0, 1)),
        pytest.param("train digits --shape vit/nano", (0.5, 1.5), marks=pytest.mark.full),
    ],
)
def test_interrupted_while_libraries_are_imported(words, later, tmp_path):
    """A real SIGINT, at the earliest when the command's own code runs: status 130, at most a line, no traceback."""
    start = perf_counter()
    subprocess.run([SCRIPT, "--version"], capture_output=True, check=True)
    begun = perf_counter() - start
    for seconds in later:
        process = subprocess.Popen(
            [SCRIPT, *words.split()],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        sleep(2 * begun + seconds)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, (seconds, errors)
        assert "Traceback" not in errors and errors.count("\n") <= 1, errors
    assert not (tmp_path / "out").exists()


TERMINATED = """
import os, signal, sys, time, types
from pathlib import Path
from modeling_leaner.files import whole_folder

def app():
    begun, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(begin, b".")
        time.sleep(60)
    os.read(begun, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    leave_in_order()
    with whole_folder(Path("out")) as folder:
        folder.mkdir()
        print("ready", flush=True)
        time.sleep(60)

sys.modules["modeling_leaner.cli.app"] = types.SimpleNamespace(app=app)
from modeling_leaner.__main__ import main
from modeling_leaner.process import leave_in_order
main()
"""


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_terminated_while_a_folder_is_written(handler, tmp_path):
    """As Ctrl-C, also where that is ignored: nothing is left. Processes that were forked end at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIGHT + TERMINATED],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )
    assert process.stdout.readline() == "ready\n"
    assert [path.name[:12] for path in tmp_path.iterdir()] == [".unfinished-"]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors, list(tmp_path.iterdir())) == (130, "", [])


class TestHub:
    """A name that is nowhere is refused in seconds, whether or not the Hub can be reached."""

    COMMANDS = ["plan --like some/vit-nanoo", "convert google/vit-bsae out"]

    @pytest.mark.full
    @pytest.mark.parametrize("words", COMMANDS)
    def test_no_network(self, words, tmp_path):
        environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
        environment["HF_HOME"] = str(tmp_path / "cache")
        before = perf_counter()
        process = subprocess.run(
            [SCRIPT, *words.split()], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )
        assert process.returncode == 1 and process.stderr.count("\n") == 1, process.stderr
        assert perf_counter() - before < 25  # imports included; transformers alone tries for 28 s

    @pytest.mark.parametrize("words", COMMANDS)
    def test_nothing_else_asks_the_hub_first(self, monkeypatch, words):
        """One question, which says no; then nothing is downloaded."""
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fails_with(RepositoryNotFoundError))
        monkeypatch.setattr(evaluation, "local_folder", lambda *_: pytest.fail("asked again"))
        monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_: pytest.fail("asked again"))
        result = invoked(*words.split())
        assert result.exit_code == 1, result.output
        assert "no such repository on the Hub" in result.stderr and result.stderr.count("\n") == 1
        assert ("did you mean vit/nano?" in result.stderr) == ("nanoo" in words)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (HfHubHTTPError, None),  # busy or guarded: loading it says more
            (RepositoryNotFoundError, "gpt2-base: .* did you mean gpt/base"),
            (HTTPError, "does not answer"),
        ],
    )
    def test_what_the_hub_answers(self, monkeypatch, error, message):
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fails_with(error))
        with nullcontext() if message is None else pytest.raises(ValueError, match=message):
            names.require_source("gpt2-base", or_shape=True)
        monkeypatch.setattr(names, "try_to_load_from_cache", lambda name, file: "/cache/config.json")
        names.require_source("gpt2-base")


def test_the_nearest_name_beside_a_model_that_is_not_there(tmp_path):
    (tmp_path / "minilm-3-layers").mkdir()
    with pytest.raises(ValueError, match="no such file or folder; did you mean .*/minilm-3-layers[?]"):
        names.require_source(str(tmp_path / "minilm-3-layer"))


def fails_with(kind):
    """A question to the Hub that fails with an error of this kind, made without a response."""

    def model_info(self, name, timeout):
        assert timeout == names.HUB_TIMEOUT <= 10
        error = kind.__new__(kind)
        Exception.__init__(error, "said by the Hub")
        raise error

    return model_info
