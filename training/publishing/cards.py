"""README.md of a published folder, from its config.json and results.json; the text is that of `templates/`."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import FileSystemLoader
from transformers import AutoConfig

from modeling_leaner.files import read_json, write_bytes, write_json
from modeling_leaner.hub import HUB_OWNER
from modeling_leaner.shapes import heads_of, is_plain

from ..experiments.grid_results import gain
from ..experiments.statistics import row_error
from ..records import LOCAL_FILES, RESULTS, PublishedResults, checked
from ..running import encoder_evaluation, run_card
from ..running.trainer import METRICS_FILE
from ..tasks import TASKS
from .folders import README, check_folder, is_encoder, renew_code, results_in


TEMPLATES = run_card.TEMPLATES.overlay(loader=FileSystemLoader(Path(__file__).parent / "templates"))
RIVALS = Path("docs/encoders.csv")


def render(folder: Path) -> str:
    """The card that is made of a published folder's config.json and results.json; and of `RIVALS`, for an encoder."""
    if is_encoder(folder):
        return encoder_card(folder)
    results = checked(PublishedResults, read_json(folder / RESULTS), folder / RESULTS)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    evidence = results.evidence
    task = TASKS[results.task]
    scores = [
        (name, value, None if task.is_scored_by_token else row_error(name, value, results.rows))
        for name, value in run_card.named_metrics(results).items()
    ]
    best = evidence.best_guess
    is_local = results.dataset == LOCAL_FILES or ("/" in results.dataset and not evidence.hub)
    role = "baseline" if results.cell == evidence.baseline else "variant"
    heads = heads_of(config)
    text = TEMPLATES.get_template("model_card.md").render(
        metadata=run_card.metadata(results, config.model_type, hub=evidence.hub),
        results=results,
        evidence=evidence,
        config=config,
        heads=heads if isinstance(heads, int) else "/".join(map(str, heads)),
        role="pruned model" if results.cut_parent else role,
        dataset=results.dataset_name,
        task=task,
        family=type(config).__name__.removesuffix("Config"),
        parent=f"{HUB_OWNER}/{results.parent}" if results.parent else None,
        snippet=run_card.snippet(results, config, f"{HUB_OWNER}/{results.name}"),
        scores=scores,
        best=best,
        ahead=gain(scores[0][1] - best.value, evidence.higher_is_better) if best else None,
        clear_lead=3 * (scores[0][2] or 0),
        data=evidence.data or f"The training data are {results.dataset}.",
        project=run_card.PROJECT,
        slim_options=shlex.join(results.cut_parent.slim_options) if results.cut_parent else "",
        files=f" --data_files {evidence.data_files or 'FOLDER'}" if is_local else "",
        copies=f" --data_files {results.dataset_name}=FOLDER" if is_local else "",
    )
    return str(ModelCard(text))


def encoder_card(folder: Path) -> str:
    """The text of a sentence encoder's card."""
    results = read_json(folder / RESULTS)
    parent, own, parent_int8, own_int8 = results["benchmark"]["models"]
    tests = [name for name in encoder_evaluation.STS_TESTS if name in own["scores"]]
    mean_sts = encoder_evaluation.mean_sts
    shares = [{"name": name, "kept": own["scores"][name] / parent["scores"][name]} for name in tests]
    evaluations = [
        EvalResult(
            task_type="sentence-similarity",
            metric_type="cosine_spearman",
            metric_name="Spearman correlation of the cosine",
            metric_value=float(f"{own['scores'][name]:.4g}"),
            dataset_type=source.dataset,
            dataset_name=source.title,
            dataset_split=source.split,
        )
        for name, source in encoder_evaluation.STS.items()
        if name in own["scores"]
    ]
    tags = ["sentence-transformers", "feature-extraction", "transformers", "transformers.js", "onnx", "pruned"]
    shown = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        language="en",
        license=results["license"],
        base_model=results["base_model"],
        base_model_relation="finetune",  # the Hub knows no cut
        model_name=results["name"],
        eval_results=evaluations,
        tags=tags if results["architecture"] == "BertModel" else [*tags, "custom_code"],
    ).to_yaml()
    lengths = re.findall(r"^leaner train .*--max_length[ =](\d+)", "\n".join(results["commands"]), re.MULTILINE)
    text = TEMPLATES.get_template("encoder_card.md").render(
        metadata=shown,
        results=results,
        parent=parent,
        own=own,
        parent_int8=parent_int8,
        own_int8=own_int8,
        titles=encoder_evaluation.TITLES,
        sts_tests=tests,
        kept=lambda model: mean_sts(model["scores"]) / mean_sts(parent["scores"]),
        mean_sts=mean_sts,
        worst=min(shares, key=lambda share: share["kept"]),
        rivals=rivals(len(results["heads_per_layer"]), results["base_model"]),
        is_plain=is_plain(folder),
        trained_length=lengths[-1] if lengths else results["max_length"],
        repository=f"{HUB_OWNER}/{results['name']}",
        project=run_card.PROJECT,
    )
    return str(ModelCard(text))


def rivals(layers: int, parent: str) -> list[dict]:
    """The parent, encoders of so many layers or one more, the fastest, and the best that is as fast as the parent."""
    if not RIVALS.is_file():
        return []  # in another project
    table = pd.read_csv(RIVALS, comment="#").dropna(subset="stsb_test")
    as_fast = table[table["relative_speed"] >= 1]
    ends = table.loc[[table["relative_speed"].idxmax(), as_fast["stsb_test"].idxmax()]]
    alike = table[(table["model"] == parent) | table["layers"].between(layers, layers + 1)]
    chosen = pd.concat([alike, ends]).drop_duplicates("model").astype(object)
    return chosen.where(chosen.notna(), None).to_dict("records")


def write_published(folder: Path, results: Mapping[str, object]) -> None:
    """Writes what stands beside a published model, which is checked: code, results.json, card, figure of its log."""
    renew_code(folder)
    write_json(folder / RESULTS, results)
    check_folder(folder)
    write_bytes(folder / README, render(folder).encode())
    log = folder / METRICS_FILE
    if log.is_file():
        run_card.plot(log, folder / run_card.TRAINING_FIGURE, results_in(folder / RESULTS).main_metric)
