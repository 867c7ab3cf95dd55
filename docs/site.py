"""What mkdocs adds to the pages: the command line, the results page, the diary, links to files of the repository."""

import re
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File


ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/OWNER/modeling_leaner/blob/main"
COPIES = {"results.md": "model_cards/README.md", "log.md": "model_cards/LOG.md"}  # page → file of the repository
PAGES = {source: page for page, source in COPIES.items()}


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
        path = (ROOT / folder / target).resolve().relative_to(ROOT)
        if path.parts[0] == "docs":
            name = path.relative_to("docs").as_posix()
        else:
            name = PAGES.get(path.as_posix(), path.name if path.suffix == ".svg" else "")
        is_here = bool(name) and files.get_file_from_path(name) is not None
        return f"]({name}{anchor})" if is_here else f"]({REPOSITORY}/{path.as_posix()}{anchor})"

    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)
