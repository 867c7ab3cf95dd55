"""Training runs that stop themselves at a chosen point and wait there to be killed from outside.

Each line of stdin is one run, [POINT, READY, OUTPUT, [ARGUMENTS-OF-TRAIN ...]] in JSON, in a process of its own (a
fork: importing everything takes longer than the run); its number is answered at once, its status when it has ended.
POINT: `none`; `step:N` in the middle of step N; `evaluate:N` in the first evaluation batch at step N; `save:N` while
checkpoint N is half written; `finish` after the last checkpoint, before the results; `lose-rng` trains to the end, but
forgets the generators' state on continuing.
"""

import json
import os
import sys
import time
from pathlib import Path

from modeling_leaner.training import train
from modeling_leaner.training.running import trainer


def run(point: str, ready: Path, words: list[str]) -> None:
    point, _, number = point.partition(":")
    base = trainer.LeanTrainer

    def wait() -> None:
        ready.touch()
        time.sleep(600)

    class Stopping(base):
        def compute_loss(self, *args, **kwargs):
            if point == "step" and self.state.global_step == int(number):
                wait()
            return super().compute_loss(*args, **kwargs)

        def prediction_step(self, *args, **kwargs):
            if point == "evaluate" and self.state.global_step == int(number):
                wait()
            return super().prediction_step(*args, **kwargs)

        def _save_optimizer_and_scheduler(self, output_dir):
            if point == "save" and self.state.global_step == int(number):
                (Path(output_dir) / "optimizer.pt").write_bytes(b"half")
                wait()
            super()._save_optimizer_and_scheduler(output_dir)

        def finish_weights(self):
            if point == "finish":
                wait()
            super().finish_weights()

        def _load_rng_state(self, checkpoint):
            if point != "lose-rng":
                super()._load_rng_state(checkpoint)

    train.LeanTrainer = Stopping
    train.main(words)


def main() -> None:
    for line in sys.stdin:
        point, ready, output, words = json.loads(line)
        child = os.fork()
        if child == 0:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1), os.dup2(file, 2)
            status = 1
            try:
                run(point, Path(ready), words)
                status = 0
            except SystemExit as end:
                status = end.code or 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
