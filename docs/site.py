"""What mkdocs adds to the pages: the command line, the results page, the diary, links to files of the repository."""

import re
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File


ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/OWNER/modeling_leaner/blob/main"
COPIES = {"results.md": "model_cards/README.md", "log.md": "model_cards/LOG.md"}


def on_files(files, config):
    typer = [sys.executable, "-m", "typer", "modeling_leaner.cli.app", "utils", "docs", "--name", "leaner"]
    commands = subprocess.run(typer, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    commands = commands.replace("# `leaner`", "# Command line", 1)
    files.append(File.generated(config, "command-line.md", content=commands))
    for name, source in COPIES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for figure in (ROOT / "model_cards").glob("*.svg"):
        files.append(File.generated(config, figure.name, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links to what is not a page of the site lead to the repository."""
    folder = Path(COPIES.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def link(match):
        target, anchor = match.groups(default="")
        path = (ROOT / folder / target).resolve().relative_to(ROOT).as_posix()
        pages = {source: name for name, source in COPIES.items()}
        name = pages.get(path) or path.removeprefix("docs/").removeprefix("model_cards/")
        if files.get_file_from_path(name) and (path in pages or path.startswith("docs/") or path.endswith(".svg")):
            return f"]({name}{anchor})"
        return f"]({REPOSITORY}/{path}{anchor})"

    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)
