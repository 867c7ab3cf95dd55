"""A stranger's process: loads saved folders by Auto class with remote code; the package itself cannot be imported.

stdin: JSON list of [folder, auto class, inputs file]; stdout: one JSON object per folder.
"""

import json
import sys
from pathlib import Path


class NoPackage:
    """An import hook by which `modeling_leaner` does not exist."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "modeling_leaner":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def logits(output):
    """The first tensor that says something, whatever the head."""
    keys = ("logits", "start_logits", "last_hidden_state", "feature_maps")
    value = next(output[key] for key in keys if output.get(key) is not None)
    return value[0] if isinstance(value, tuple) else value


def main():
    sys.meta_path.insert(0, NoPackage())
    import torch
    import transformers
    from safetensors.torch import load_file
    from torch.utils.data import Dataset

    class Rows(Dataset):
        def __init__(self, inputs):
            self.inputs = inputs

        def __len__(self):
            return len(next(iter(self.inputs.values())))

        def __getitem__(self, index):
            return {name: tensor[index] for name, tensor in self.inputs.items()}

    try:
        import modeling_leaner  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("the package can be imported: this process proves nothing")

    answers = ("labels", "start_positions", "end_positions")
    for folder, auto_name, inputs_file in json.load(sys.stdin):
        tensors = load_file(inputs_file)
        expected = tensors.pop("expected")
        targets = {name: tensors.pop(name) for name in answers if name in tensors}
        if auto_name == "Backbone":  # AutoBackbone cannot read local folders
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
            model = transformers.AutoBackbone.from_config(config, trust_remote_code=True)
            model = type(model).from_pretrained(folder)
        else:
            model = getattr(transformers, auto_name).from_pretrained(folder, trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules"), type(model).__module__
        with torch.no_grad():
            difference = (logits(model.eval()(**tensors)) - expected).abs().max().item()

        again = Path(folder + "-again")
        model.save_pretrained(again)
        checkpoint = None
        if targets:
            arguments = transformers.TrainingArguments(
                output_dir=folder + "-runs",
                max_steps=1,
                save_steps=1,
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            )
            transformers.Trainer(model, arguments, train_dataset=Rows({**tensors, **targets})).train()
            checkpoint = Path(folder + "-runs") / "checkpoint-1"
        contents = {}
        for name, saved in (("again", again), ("checkpoint", checkpoint)):
            if saved is not None:
                code = sorted(path.name for path in saved.glob("*.py"))
                contents[name] = {"code": code, **json.loads((saved / "config.json").read_text())}
                if auto_name != "Backbone":
                    getattr(transformers, auto_name).from_pretrained(saved, trust_remote_code=True)
        print(json.dumps({"folder": folder, "class": type(model).__name__, "difference": difference, **contents}))


if __name__ == "__main__":
    main()
