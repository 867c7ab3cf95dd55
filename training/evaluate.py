"""`leaner evaluate MODEL`: a task's metrics of a run folder, a published folder or a Hub id; one JSON line last."""

import json
import sys

from modeling_leaner.support.quiet import quiet_libraries

from .running.evaluation import evaluate
from .settings.help import HELP


def main(argv: list[str] | None = None) -> None:
    """The command; status 1 after one line on stderr where something is wrong."""
    words = sys.argv[1:] if argv is None else list(argv)
    words = ["--data_files" if word == "--data" else word for word in words]
    if not words or words[0] in ("-h", "--help") or words[0].startswith("--"):
        print(HELP["evaluate"])
        raise SystemExit(0 if words and words[0] in ("-h", "--help") else 2)
    quiet_libraries()
    try:
        results = evaluate(words[0], words[1:])
    except (ValueError, OSError, RuntimeError) as error:
        print(f"leaner evaluate: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(1) from None
    for key, value in sorted(results["metrics"].items()):
        print(f"{key}: {value:.4f}")
    print(json.dumps(results, allow_nan=False))


if __name__ == "__main__":
    main()
