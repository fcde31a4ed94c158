"""Sphinx settings, and the reference of the command line out of the commands themselves."""

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
html_theme = "alabaster"
html_theme_options = {"description": "Q/DQ nodes exactly where they pay"}
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
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


def setup(application: Any) -> None:
    application.add_directive("inlay-commands", Commands)
