"""HTML that cannot be built unescaped: elements take text, which they escape, or other elements."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

VOID_ELEMENTS = ("br", "hr", "img", "input", "meta")


class Markup(str):
    """Text that is HTML already. Only ``element`` and ``joined`` make it, from parts that they escape."""

    __slots__ = ()


Child = str | None
"""A Markup as it is, any other text escaped, None nothing."""


def element(name: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """``<name attribute="...">children</name>``.

    Attribute names have ``_`` for ``-``, and a trailing ``_`` is dropped (``class_``). True gives a bare
    attribute; False and None leave it out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        parts.append(label if value is True else f'{label}="{escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if name in VOID_ELEMENTS else f"{opening}{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """The children one after the other."""
    return Markup("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(child)
