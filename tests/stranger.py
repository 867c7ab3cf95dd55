"""A stranger's process: loads models from a Hub or a folder with remote code; the package itself cannot be imported.

Each line of stdin is a question in JSON, answered by a line of JSON: {"load": AUTO-CLASS, "repository": ID or FOLDER,
"options": {of from_pretrained}, "inputs": FILE, "save": FOLDER}. What fails is answered with "error".
"""

import json
import subprocess
import sys
import traceback
from pathlib import Path


def answers(questions: list[dict], folder: Path, environment: dict[str, str]) -> list[dict]:
    """What a new process that runs this file in a folder says to the questions."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    options = {"capture_output": True, "text": True, "cwd": folder, "env": environment}
    process = subprocess.run([sys.executable, __file__], input=lines, **options)
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


def logits(output):
    """The first tensor that says something, whatever the head."""
    keys = ("logits", "start_logits", "last_hidden_state", "feature_maps")
    value = next(output[key] for key in keys if output.get(key) is not None)
    return value[0] if isinstance(value, tuple) else value


def load(question: dict) -> dict:
    """How far the outputs of a model are from those in the file, where its code is, and what it saves."""
    import torch
    import transformers
    from safetensors.torch import load_file

    auto_class, source = getattr(transformers, question["load"]), question["repository"]
    options = question.get("options", {})
    if question["load"] == "AutoBackbone":  # which cannot read local folders
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=True)
        model = type(auto_class.from_config(config, trust_remote_code=True)).from_pretrained(source)
    else:
        model = auto_class.from_pretrained(source, trust_remote_code=True, **options)
    answer = {"module": type(model).__module__, "class": type(model).__name__}
    if "inputs" in question:
        tensors = load_file(question["inputs"])
        expected = tensors.pop("expected")
        with torch.no_grad():
            answer["difference"] = (logits(model.eval()(**tensors)) - expected).abs().max().item()
    if "save" in question:
        model.save_pretrained(question["save"])
        answer["code"] = sorted(path.name for path in Path(question["save"]).glob("*.py"))
        answer["auto_map"] = json.loads(Path(question["save"], "config.json").read_text())["auto_map"]
    return answer


def main() -> None:
    sys.modules["modeling_leaner"] = None  # its import fails
    for line in sys.stdin:
        try:
            answer = load(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
