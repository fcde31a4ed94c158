"""Sphinx settings, and the reference of the command line out of the commands themselves."""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from typer.main import get_command
from typer.testing import CliRunner

from inlay.cli.commands import app
from inlay.installed import __version__

project = "Inlay"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"  # light and dark, and readable on a phone
highlight_language = "none"  # of blocks that name none: what a terminal shows
html_title = f"Inlay {version}"
html_static_path = html_css_files = ["tables.css"]
html_copy_source = html_show_sourcelink = False
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # several classes have an attribute of the same name


def command_names() -> list[str]:
    """Every command of the program, in its order; those of a group with the group's name."""
    found: list[str] = []
    group: Any = get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        found += [f"{name} {each}" for each in getattr(command, "commands", ())] or [name]
    return found


class Commands(Directive):
    """One section for each command, with what `--help` prints."""

    def run(self) -> list[nodes.Node]:
        return [self._section(command) for command in command_names()]

    def _section(self, command: str) -> nodes.section:
        said = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"}, prog_name="inlay")
        if said.exit_code:
            raise self.error(f"inlay {command} --help failed: {said.output}")
        section = nodes.section(ids=[f"inlay-{command.replace(' ', '-')}"])
        section += nodes.title(text=f"inlay {command}")
        section += nodes.literal_block(said.output, said.output, language="none")
        return section


def write_llms_txt(application: Any, failed: Exception | None) -> None:
    """``llms.txt``: each page with its first sentence, for programs that read the documentation."""
    if failed is not None:
        return
    lines = ["# Inlay", "", "> Sets QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.", ""]
    documents = application.env.found_docs
    order = [name for name in application.env.toctree_includes.get("index", ()) if name in documents]
    for part in order:
        lines += [_line(application, part)]
        lines += [f"  {_line(application, page)}" for page in application.env.toctree_includes.get(part, ())]
    Path(application.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf8")


def _line(application: Any, page: str) -> str:
    tree = application.env.get_doctree(page)
    title = application.env.titles[page].astext()
    first = next((each.astext() for each in tree.findall(nodes.paragraph)), "")
    sentence = " ".join(re.split(r"(?<=[.])\s", first, maxsplit=1)[0].split())
    return f"- [{title}]({page}.html): {sentence}"


def setup(application: Any) -> None:
    application.add_directive("inlay-commands", Commands)
    application.connect("build-finished", write_llms_txt)
