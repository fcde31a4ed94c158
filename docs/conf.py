"""Sphinx settings, and the reference of the command line out of the commands themselves."""

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from typer.testing import CliRunner

from inlay.cli.commands import app
from inlay.version import __version__

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

COMMANDS = (
    "tune", "quantize", "explain", "inspect", "report", "select", "export", "bench", "calibrate-machine", "regions",
    "lower", "targets", "cache show", "cache merge",
)  # fmt: skip


class Commands(Directive):
    """One section for each command, with what `--help` prints."""

    def run(self) -> list[nodes.Node]:
        return [self._section(command) for command in COMMANDS]

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
