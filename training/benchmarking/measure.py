"""One workload measured: every contestant built, warmed up and timed in turns, one step each a round."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from modeling_leaner.support.turns import seconds_of, take_turns

from .contestants import Contestant
from .decoding import generation
from .machine import free_memory
from .measured_shapes import peak_memory
from .workload import Workload


WARM_UP = 3
MOST_COMPILATIONS = 1000  # of one function
GIGABYTE = 1e9


@dataclass(frozen=True)
class Limits:
    """A workload ends after `rounds`, or once its slowest contestant was timed for `seconds`."""

    rounds: int = 20
    seconds: float = 30.0


class Step:
    """A contestant at a workload. Its constructor raises what building, compiling or running it raises.

    note: why a later step failed, such as memory that became too small; None while none has.
    """

    def __init__(self, contestant: Contestant, workload: Workload):
        self.workload = workload
        self.note: str | None = None
        torch.manual_seed(0)
        model = contestant.build(workload.config).to(workload.device, workload.weights).train(workload.trains)
        self.weights = list(model.parameters())
        self.batch = workload.make_up_batch()
        self.optimizer = None
        if workload.trains:
            self.optimizer = torch.optim.AdamW(self.weights, lr=1e-4, fused=True)  # Trainer's default
        compiled = contestant.mode == "compile"
        self.call = model
        if workload.decodes:
            model.generation_config = generation(workload.new_tokens, compiled)
            self.call = model.generate
        elif compiled:
            self.call = torch.compile(model)
        for _ in range(WARM_UP):
            self.run()

    def run(self) -> None:
        """One step."""
        if self.optimizer is None:
            with torch.inference_mode():
                self.call(**self.batch)
            return
        with self.workload.autocast():
            loss = self.call(**self.batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self) -> float:
        """Time of one step, the device's queue emptied before and after; 0 from the first step on that fails."""
        if self.note is not None:
            return 0.0
        try:
            return seconds_of(self.run)
        except Exception as error:  # as in `begin`
            self.fail(error)
            return 0.0

    def fail(self, error: Exception) -> None:
        """Keeps why a step failed, and lets go of the model: the others may need its memory."""
        self.note = one_line(error)
        self.call = None
        self.weights = []
        self.optimizer = None

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights)

    def peak_memory(self) -> int | None:
        """Bytes of tensors at the peak of a step; None where that step fails, or one has failed before."""
        if self.note is not None:
            return None
        inputs = [tensor for tensor in self.batch.values() if isinstance(tensor, torch.Tensor)]
        try:
            return peak_memory(self.run, [*self.weights, *inputs], self.optimizer, self.workload.device)
        except Exception as error:  # as in `begin`
            self.fail(error)
            return None


@dataclass
class Measured:
    """What one contestant gave: its rounds' seconds, or why it could not run."""

    contestant: Contestant
    seconds: np.ndarray | None = None
    peak_memory: int | None = None
    parameters: int | None = None
    note: str | None = None


def refusal(contestant: Contestant, workload: Workload) -> str | None:
    """Why a contestant cannot even begin: the device's memory is too small."""
    needed = workload.needed_memory(contestant.attention)
    free = free_memory(workload.device)
    if free is not None and needed > free:
        return f"needs about {needed / GIGABYTE:.1f} GB of memory, {free / GIGABYTE:.1f} GB are free"
    return None


def one_line(error: Exception, longest: int = 200) -> str:
    """An error's message as a cell holds it."""
    message = " ".join(str(error).split())
    if not message:
        return type(error).__name__
    return message[:longest]


def begin(contestant: Contestant, workload: Workload) -> Step | str:
    """A contestant that is warmed up, or why it cannot run."""
    note = refusal(contestant, workload)
    if note is not None:
        return note
    try:
        return Step(contestant, workload)
    except Exception as error:  # of any library and its compiler: the suite goes on
        return one_line(error)


def measure(workload: Workload, contestants: Sequence[Contestant], limits: Limits) -> list[Measured]:
    """Every contestant at a workload, in their order; those that cannot run with a note."""
    torch.compiler.reset()
    # Contestants share functions of transformers, each of which is compiled for every one of them; beyond the limit
    # torch would go on uncompiled, and not say so in the cell.
    with torch._dynamo.config.patch(recompile_limit=MOST_COMPILATIONS, fail_on_recompile_limit_hit=True):
        begun = {contestant: begin(contestant, workload) for contestant in contestants}
        steps = {contestant: step for contestant, step in begun.items() if isinstance(step, Step)}
        calls = [step.seconds for step in steps.values()]
        taken = take_turns(calls, limits.rounds, warm_up=0, limit=limits.seconds)  # a Step has warmed up
    seconds = dict(zip(steps, taken))
    measured = []
    for contestant, step in begun.items():
        if isinstance(step, str):
            measured.append(Measured(contestant, note=step))
        else:
            measured.append(result_of(contestant, step, seconds[contestant]))
    return measured


def result_of(contestant: Contestant, step: Step, seconds: np.ndarray) -> Measured:
    """What a contestant gave that was timed; its note alone where a step failed."""
    parameters = step.parameters  # which a step that fails lets go of
    peak = step.peak_memory()
    if step.note is not None:
        return Measured(contestant, note=step.note)
    return Measured(contestant, seconds, peak, parameters)
