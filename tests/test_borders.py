"""What a checkpoint of somebody else may hold: code, weights apart, options that nothing here has."""

import ast
import json
import re
from pathlib import Path

import pytest
import transformers
from modeling_leaner.training.publishing import push
from training_data import save_encoder
from typer.testing import CliRunner

import modeling_leaner
from modeling_leaner.cli.app import app
from modeling_leaner.conversion import RELATIVES, SHARED


TRAIN = "train --task sequence-classification --shape bert/lean-mini --tokenizer words --max_steps 1".split()
ROOMS = [Path(modeling_leaner.__file__).parent, *map(Path, modeling_leaner.training.__path__)]


def calls_of_auto_classes():
    """Every call in the package that loads by an Auto class, as (file, line, its keywords)."""
    for room in ROOMS:
        for file in room.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                is_load = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
                if is_load and "auto" in ast.unparse(node.func.value).lower():
                    yield file, node.lineno, {keyword.arg: keyword.value for keyword in node.keywords}


def test_no_loading_call_runs_code_of_a_folder():
    calls = list(calls_of_auto_classes())
    assert len(calls) > 8
    for file, line, keywords in calls:
        if file.name == "reevaluate.py":  # runs in a process of its own, which has no other code than the folder's
            continue
        value = keywords.get("trust_remote_code")
        assert isinstance(value, ast.Constant) and value.value is False, f"{file}:{line}"


@pytest.mark.parametrize("file", ["preprocessor_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("command", [["convert"], ["slim", "--layers", "1"], ["inspect"]], ids=lambda words: words[0])
def test_code_beside_a_model_is_not_run(tmp_path, command, file):
    """Not even if somebody answers yes. A tokenizer.json is read by transformers' own class, whatever is beside it."""
    key = "AutoImageProcessor" if file == "preprocessor_config.json" else "AutoTokenizer"
    folder = save_encoder(tmp_path / "evil")
    document = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    name = "image_processor_type" if "Image" in key else "tokenizer_class"
    target = "evil.Evil" if "Image" in key else ["evil.Evil", None]
    (folder / file).write_text(json.dumps({**document, name: "Evil", "auto_map": {key: target}}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "rows.txt").write_text("\n\n".join(f"a text of some words {n}" for n in range(40)))
    data = [] if command[0] == "convert" else ["--data", str(tmp_path / "rows.txt")]
    paths = [str(folder)] if command[0] == "inspect" else [str(folder), str(tmp_path / "out")]
    result = CliRunner().invoke(app, [command[0], *paths, *command[1:], *data], input="y\n" * 5)
    assert not (tmp_path / "ran").exists()
    if key == "AutoImageProcessor" and command[0] != "inspect":
        assert result.exit_code != 0 and "trust_remote_code" in result.output and not (tmp_path / "out").exists()


# What transformers' modelling files and mask functions read from a config, as of 5.23, beside what is converted.
READ_ELSEWHERE = {
    "_attn_implementation", "chunk_size_feed_forward", "is_encoder_decoder", "return_dict", "use_return_dict",
    "output_attentions", "output_hidden_states", "num_labels", "loss_type", "get_text_config", "sliding_window",
    "attention_chunk_size", "layer_types", "encoder_stride", "hidden_act", "summary_type", "summary_use_proj",
    "summary_proj_to_labels", "summary_activation", "summary_first_dropout", "n_inner", "cross_attention_hidden_size",
    "cross_attention_dim", "problem_type", "pad_token_id", "max_position_embeddings", "num_hidden_layers",
    "tie_word_embeddings", "hidden_dropout", "classifier_dropout", "embd_pdrop", "n_layer", "n_head", "n_embd",
    "n_positions", "use_cache", "summary_last_dropout", "head_dim",
}  # fmt: skip


@pytest.mark.parametrize("relative", RELATIVES, ids=lambda relative: relative.model_type)
def test_every_key_that_a_model_reads_is_known(relative):
    """A key that a new transformers reads has to be converted, restricted, or put on the list above."""
    name = relative.model_type
    modeling = Path(transformers.__file__).parent / "models" / name / f"modeling_{name}.py"
    masks = Path(transformers.__file__).parent / "masking_utils.py"
    read = set()
    for file in (modeling, masks):
        text = file.read_text()
        read |= set(re.findall(r"\bconfig\.([a-z_]\w*)", text))
        read |= set(re.findall(r"getattr\((?:self\.)?config, \"(\w+)\"", text))
    known = {*relative.fields, *relative.only, *SHARED, *READ_ELSEWHERE}
    assert read - known == set()


def test_a_tokenizer_with_more_ids_than_the_model_is_not_pushed(tmp_path):
    folder = save_encoder(tmp_path / "encoder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"new{n}" for n in range(2000)])
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n")
    with pytest.raises(ValueError, match="vocab_size"):
        push.checked_contents(folder, "someone/encoder")


def test_correlations_with_constant_labels_are_undefined(tmp_path):
    """A training with such held-out rows ends as any other; its evaluation calls the correlation undefined."""
    for name, labels in (("train", [0.5, 1.5, 2.5, 3.5]), ("validation", [1.5])):
        lines = [f"some text number {n % 7},{labels[n % len(labels)]}" for n in range(20)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines]))
    data = [f"{name}={tmp_path / name}.csv" for name in ("train", "validation")]
    result = CliRunner().invoke(app, [*TRAIN, "--data", *data, "--output_dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]["eval_pearson"] is None
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["metrics"]["eval_pearson"] is None
