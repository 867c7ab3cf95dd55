"""Known weaknesses of the pinned dependencies, by pip-audit; where its database does not answer, it is skipped."""

import json
import subprocess
import sys


PIP_AUDIT = [".venv-audit/bin/pip-audit", "--requirement", "constraints.txt", "--no-deps", "--disable-pip"]


def summary(dependencies: list[dict]) -> tuple[str, bool]:
    """A line for each weakness and one for all of it, and whether there is none."""
    known = [each for each in dependencies if "vulns" in each]
    if not known:
        return f"audit: skipped, the database has none of the {len(dependencies)} versions, or does not answer", True
    lines = []
    for each in known:
        for weakness in each["vulns"]:
            mended = ", ".join(weakness["fix_versions"]) or "no version"
            lines.append(f"{each['name']} {each['version']}: {weakness['id']}, mended in {mended}")
    total = f"audit: {len(lines)} known weaknesses in {len(known)} of {len(dependencies)} versions that were looked up"
    return "\n".join([*lines, total]), not lines


def main() -> None:
    command = [*PIP_AUDIT, "--progress-spinner", "off", "--format", "json"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    dependencies = []
    if answer:  # nothing where it could not ask
        dependencies = json.loads(answer)["dependencies"]
    said, passes = summary(dependencies)
    print(said)
    sys.exit(not passes)


if __name__ == "__main__":
    main()
