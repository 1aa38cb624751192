"""The errors a user can meet and the exit code that each one ends the program with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_REGRESSION = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOT_MEASURED = 4


class BenchError(Exception):
    """An error that ends a verb with one line for the user, never a traceback.

    The message says what is wrong, where, and what to do next.
    """

    exit_code = EXIT_NOT_MEASURED


class UsageError(BenchError):
    """The call itself is wrong: an unknown name, a bad value, an impossible request."""

    exit_code = EXIT_USAGE


class StoreError(BenchError):
    """The store cannot be read or written."""


class LaunchError(BenchError):
    """A group of ranks could not be started or kept alive."""


def unknown_name(kind: str, name: str, known: list[str], of: str = "") -> UsageError:
    """The error for a name that is not one of ``known``; it lists the near ones first.

    Args:
        kind: what the name should be of, ``parameter``. of: whose, ``suite 'memory'``; may be empty.
    """
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}"
    whose = f" of {of}" if of else ""
    return UsageError(f"unknown {kind} {name!r}{whose}; {hint}")
