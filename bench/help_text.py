"""Help of a group of verbs: what each does in whole, where Typer cuts it to what is left of the line."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperGroup


class WholeSummaries(TyperGroup):
    """A group whose ``--help`` gives each verb's first paragraph, wrapped over as many lines as it takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the section of verbs; the types are those of the copy of click that Typer brings."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _summary(command.help or "")) for name, command in commands if command and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _summary(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
