"""`leaner train RECIPE --shape NAME`: one run of one recipe, from data to a folder that loads on the Hub.

reading.py reads the recipe, settings.py merges it with the command line; running/ locks the folder (run_folder),
prepares rows, task and model (loading), trains (trainer), and decides what results.json (results) and README.md
(run_card) say; `finish` writes them.

In a clone also `python -m training.train` and `torchrun -m training.train`; installed,
`torchrun -m modeling_leaner.training.train`.
"""

import shlex
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers.trainer_utils import IntervalStrategy

from modeling_leaner.conversion import convert
from modeling_leaner.files import naming, read_json, write_json
from modeling_leaner.hub import commit, contents, copy_into, sentence_transformers_files
from modeling_leaner.process import keep_freed_memory
from modeling_leaner.terminal import quiet_libraries, visible

from .records import RESULTS, RunResults, checked
from .running.loading import PreparedRun, build_model, has_weights, prepare
from .running.results import code_commit, results_of_run
from .running.run_card import TRAINING_FIGURE, plot, write_run_card
from .running.run_folder import alone_in, compare_start, find_checkpoint, finished_results, open_folder
from .running.trainer import METRICS_FILE, SECONDS, LeanTrainer
from .settings import RecipeArguments, parse


def train(recipe: str | None, options: list[str]) -> None:
    """Trains a shape by a recipe, or continues a run, and prints how it ended; leaves with 130 if it was interrupted.

    `options`, such as `["--shape", "vit/nano", "--seed", "2"]`, win over the recipe, a name or file.
    """
    arguments = parse(recipe, options, needed=("task", "shape"))
    try:
        with naming("stopped", (RuntimeError, SafetensorError)):  # by too little memory, or damaged weights
            results = run(arguments, recipe)
        was_interrupted = results is None and arguments.process_index == 0
    except KeyboardInterrupt:
        print("leaner train: interrupted; nothing of the step under way is kept", file=sys.stderr)
        was_interrupted = True
    if was_interrupted:
        sys.exit(130)
    if results is None:
        return

    quality = "not evaluated"
    if f"eval_{results.main_metric}" in results.metrics:
        value = results.metrics[f"eval_{results.main_metric}"]
        quality = f"{results.main_metric} {'undefined' if value is None else f'{value:.4f}'} on {results.rows:,} rows"
    if results.chance is not None:
        quality += f" ({results.chance.name} {results.chance.value:.4f})"
    print(quality)
    took = results.train
    speed = f", {took.items_per_second:.1f} rows/s" if took.items_per_second else ""
    memory = f"{took.peak_memory_bytes / 2**30:.2f} GiB of memory"
    print(f"{took.steps} steps in {took.seconds:.0f} s ({took.process_seconds:.0f} s with start-up){speed}, {memory}")
    print(f"Saved to {arguments.output_dir}. Next: {shlex.join(['leaner', 'evaluate', arguments.output_dir])}")


def run(arguments: RecipeArguments, recipe: str | None) -> RunResults | None:
    """One run to its end, or to where it was interrupted (None); other processes than the main one get None, too."""
    quiet_libraries()
    code_commit()  # files may change while it trains
    _ = arguments.device  # sets up the processes, if there are several
    folder = Path(arguments.output_dir)
    is_main = arguments.process_index == 0
    with alone_in(arguments):
        checkpoint = find_checkpoint(arguments)
        prepared = prepare(arguments)
        start = compare_start(prepared)
        finished = finished_results(folder)
        if finished is not None:
            if is_main:
                print(f"{folder}: already finished; nothing is changed")
            return checked(RunResults, finished, folder / RESULTS) if is_main else None

        # What of the settings follows from the task.
        task, held_out = prepared.task, prepared.held_out and prepared.held_out.rows
        if held_out is None:
            arguments.eval_strategy = IntervalStrategy.NO
        metric = (arguments.settings.get("metric_for_best_model") or task.metric).removeprefix("eval_")
        arguments.metric_for_best_model = metric
        arguments.greater_is_better = metric not in task.lower_is_better

        model = build_model(arguments, task)
        trainer = LeanTrainer(model, arguments, task, train_dataset=prepared.train, eval_dataset=held_out)
        if is_main:
            open_folder(arguments, recipe, start)
            rows = f"{len(prepared.train):,}" if hasattr(prepared.train, "__len__") else "streamed"
            count = f"{type(model).__name__}, {model.num_parameters():,} parameters"
            print(f"{arguments.shape}: {count}; {rows} rows to train on")
            if arguments.resume:
                print(f"continuing from {checkpoint}" if checkpoint else "no whole checkpoint yet: from the beginning")

        if checkpoint is not None:
            trainer.average.load(trainer.model, checkpoint, arguments.device)
            trainer.clock.seconds_before = read_json(checkpoint / SECONDS)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        step, last = trainer.state.global_step, trainer.state.max_steps
        if trainer.interruption.pressed and step < last:
            if is_main:
                print(f"stopped at step {step} of {last}; the same command with --resume continues")
            return None
        return finish(trainer, prepared)


def finish(trainer: LeanTrainer, prepared: PreparedRun) -> RunResults | None:
    """Evaluates the final weights and writes weights, figure, results and card; None on all but the main process."""
    arguments = prepared.arguments
    folder = Path(arguments.output_dir)
    trainer.finish_weights()
    metrics = {}
    if prepared.held_out is not None:
        last = next((entry for entry in reversed(trainer.state.log_history) if "eval_loss" in entry), {})
        is_of_these_weights = not arguments.load_best_model_at_end and last.get("step") == trainer.state.global_step
        metrics = last if trainer.rows_evaluated and is_of_these_weights else trainer.evaluate()
    if arguments.implementation == "transformers":
        trainer.model = convert(trainer.model)  # the folder is like any other; what was evaluated is not
    if arguments.loss_chunk_size is not None:
        trainer.model.config.loss_chunk_size = None  # which is of the run alone
    trainer.save_model(_internal_call=True)  # else Trainer would push a folder without a card
    if not trainer.is_world_process_zero():
        return None
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing reads
    if not trainer.task.head and has_weights(str(arguments.shape)):
        copy_into(folder, sentence_transformers_files(str(arguments.shape)))
    results = results_of_run(trainer, prepared, metrics)
    plot(folder / METRICS_FILE, folder / TRAINING_FIGURE, trainer.task.metric)
    write_json(folder / RESULTS, results.document())
    write_run_card(folder)
    if arguments.push_to_hub:
        command = shlex.join(["leaner", "push", arguments.output_dir, trainer.hub_model_id])
        with naming(f"the run itself is whole, and {command} sends it"):
            files = contents(folder, trainer.hub_model_id)  # as `leaner push` chooses and writes them
            print(commit(files, trainer.hub_model_id, "End of training", revision=arguments.hub_revision).commit_url)
    return results


def main(command_line: list[str]) -> None:
    """`python -m modeling_leaner.training.train RECIPE --key value ...`: one process of `leaner train`."""
    keep_freed_memory()
    recipe = command_line[0] if command_line and not command_line[0].startswith("--") else None
    try:
        train(recipe, command_line if recipe is None else command_line[1:])
    except (ValueError, OSError) as error:
        print(f"leaner train: {visible(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # its threads, left alone, may abort the process as it ends


if __name__ == "__main__":
    main(sys.argv[1:])
