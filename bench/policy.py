"""The gate's policy file: thresholds, directions, required cases and waivers, by suite, metric and parameter.

A key that is not known is refused by name, and every value is checked against its range, so that a
slip of the pen never loosens a gate silently.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_args

from bench.bounded_file import read_bounded
from bench.errors import UsageError
from bench.report.formatting import parameter
from bench.shown_value import shown_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from bench.suite import Value

SCHEMA_VERSION = 1
"""Version of the policy file that this program reads and writes."""

Direction = Literal["lower", "higher"]
Confirmation = Literal["when_possible", "required"]
Outcome = Literal["skipped", "failure"]
Waivable = Literal["regressed", "inconclusive"]

SLIP_LIKENESS = 0.85
"""From which likeness on one name is another misspelt."""
MOST_EFFECT = 10.0
MOST_SIGNIFICANCE = 0.2
LEAST_SIGNIFICANCE = 1e-6
LEAST_NOISE = 0.001


@dataclass(frozen=True)
class Match:
    """Which metrics of which cases an entry is for.

    Attributes:
        suite, metric: patterns of the shell (``*``, ``?``, ``[ab]``), case sensitive.
        where: patterns by parameter; each must match the parameter's value, as rows hold it (``1048576``,
            ``true``) or as tables show it (``1MiB``). A case without the parameter does not match.
    """

    suite: str = "*"
    metric: str = "*"
    where: Mapping[str, str] = field(default_factory=dict)

    def covers(self, suite: str, metric: str, params: Mapping[str, Value]) -> bool:
        """Whether the entry is for this metric of this case."""
        if not fnmatchcase(suite, self.suite) or not fnmatchcase(metric, self.metric):
            return False
        return all(name in params and _fits(name, params[name], pattern) for name, pattern in self.where.items())

    def means_one_of(self, suites: Collection[str]) -> bool:
        """Whether the entry is for one of these suites, or for a name so near that it is a slip of the pen."""
        if any(fnmatchcase(suite, self.suite) for suite in suites):
            return True
        return bool(difflib.get_close_matches(self.suite, suites, n=1, cutoff=SLIP_LIKENESS))

    def __str__(self) -> str:
        """``suite=memory metric=* bytes=1MiB``, as messages name the entry."""
        return " ".join([f"suite={self.suite}", f"metric={self.metric}", *(f"{k}={v}" for k, v in self.where.items())])


@dataclass(frozen=True)
class Settings:
    """How one metric of one case is judged.

    Attributes:
        minimum_effect: the least change that counts, as a share of the baseline (0.02 is 2 %).
        better: direction of improvement; None takes the row's own.
        judge: False leaves the metric out of the gate (it is counted, never judged).
    """

    minimum_effect: float = 0.02
    better: Direction | None = None
    judge: bool = True


@dataclass(frozen=True)
class Rule:
    """Settings for what it matches; those left out (None) stay as earlier rules and defaults have them."""

    match: Match
    minimum_effect: float | None = None
    better: Direction | None = None
    judge: bool | None = None


@dataclass(frozen=True)
class Required:
    """A case and metric that must be measured by the candidate, whatever the baseline has."""

    match: Match


@dataclass(frozen=True)
class Waiver:
    """A change that is let through until a day.

    Attributes:
        match: what it is for.
        expires: the last day (UTC) on which it holds.
        reason: why, shown in every output.
        verdicts: which verdicts it lets through.
    """

    match: Match
    expires: date
    reason: str
    verdicts: tuple[Waivable, ...] = ("regressed",)

    def expired(self, today: date) -> bool:
        return today > self.expires


@dataclass(frozen=True)
class Policy:
    """A whole policy.

    Attributes:
        source: where it was read, for messages.
        defaults: settings where no rule says otherwise.
        significance: most share of false ones among the changes that a gate reports (false discovery rate).
        confirmation: ``when_possible``: a slowdown is confirmed by a second measurement where there is one;
            ``required``: without one it is inconclusive, never regressed.
        inconclusive: how JUnit shows inconclusive cases.
        maximum_noise: where measured A/A noise is above this, a pass would say nothing and is inconclusive.
        rules: in the order of the file; of two that say the same, the later wins.
        required, waivers: in the order of the file.
    """

    source: str = "built-in"
    defaults: Settings = field(default_factory=Settings)
    significance: float = 0.01
    confirmation: Confirmation = "when_possible"
    inconclusive: Outcome = "skipped"
    maximum_noise: float = 0.25
    rules: tuple[Rule, ...] = ()
    required: tuple[Required, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    def settings(self, suite: str, metric: str, params: Mapping[str, Value]) -> Settings:
        """How a metric of a case is judged: defaults, then each rule that matches, the last word wins."""
        result = self.defaults
        for rule in self.rules:
            if rule.match.covers(suite, metric, params):
                said = {name: getattr(rule, name) for name in _RULE_VALUES}
                result = replace(result, **{name: value for name, value in said.items() if value is not None})
        return result

    def entries(self) -> list[tuple[str, Match]]:
        """Every entry that has a match, by its place in the file: ``rule 2``."""
        groups: list[tuple[str, tuple[Rule | Required | Waiver, ...]]]
        groups = [("rule", self.rules), ("required", self.required), ("waiver", self.waivers)]
        return [(f"{name} {place}", entry.match) for name, found in groups for place, entry in enumerate(found, 1)]

    def to_toml(self) -> str:
        """The policy as a file that reads back as the same policy, defaults written out."""
        lines = [
            f"schema_version = {SCHEMA_VERSION}",
            f"significance = {self.significance!r}",
            f"confirmation = {_toml(self.confirmation)}",
            f"inconclusive = {_toml(self.inconclusive)}",
            f"maximum_noise = {self.maximum_noise!r}",
            "",
            "[defaults]",
            *_assignments({name: getattr(self.defaults, name) for name in _RULE_VALUES}),
        ]
        for rule in self.rules:
            lines += _table("rule", rule.match, {name: getattr(rule, name) for name in _RULE_VALUES})
        for required in self.required:
            lines += _table("required", required.match, {})
        for waiver in self.waivers:
            said = {"expires": waiver.expires, "reason": waiver.reason, "verdicts": list(waiver.verdicts)}
            lines += _table("waiver", waiver.match, said)
        return "\n".join(lines) + "\n"


def read_policy(path: Path) -> Policy:
    """The policy of a file.

    Raises:
        UsageError: it cannot be read, is no TOML, or says something unknown or out of range; the message
            names the file, the table and the key.
    """
    try:
        text = read_bounded(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the policy {path}: {getattr(error, 'strerror', None) or error}") from None
    return parse_policy(text, str(path))


def parse_policy(text: str, source: str) -> Policy:
    """The policy of a TOML text; ``source`` names it in errors.

    Raises:
        UsageError: as ``read_policy``.
    """
    try:
        record = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from None
    except ValueError:  # Python's own refusal, which names no place.
        raise UsageError(f"{source}: a whole number has thousands of digits; write one that fits its key") from None
    top = _Table(source, "", record)
    top.only(*_TOP_KEYS)
    version = top.get("schema_version", int)
    if version is None:
        raise UsageError(f"{source}: schema_version is missing; write schema_version = {SCHEMA_VERSION}")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{source}: schema_version {shown_value(version)} is not known; this program reads {SCHEMA_VERSION}. "
            "Update the program or the file"
        )
    defaults = top.table("defaults")
    defaults.only(*_RULE_VALUES)
    plain = Policy()
    said = {name: value for name, value in defaults.settings().items() if value is not None}
    return Policy(
        source=source,
        defaults=replace(plain.defaults, **said),
        significance=top.number("significance", LEAST_SIGNIFICANCE, MOST_SIGNIFICANCE) or plain.significance,
        confirmation=top.choice("confirmation", get_args(Confirmation)) or plain.confirmation,
        inconclusive=top.choice("inconclusive", get_args(Outcome)) or plain.inconclusive,
        maximum_noise=top.number("maximum_noise", LEAST_NOISE, MOST_EFFECT) or plain.maximum_noise,
        rules=tuple(_rule(table) for table in top.tables("rule")),
        required=tuple(_required(table) for table in top.tables("required")),
        waivers=tuple(_waiver(table) for table in top.tables("waiver")),
    )


_RULE_VALUES = tuple(f.name for f in fields(Settings))
_TOP_KEYS = (
    "schema_version",
    "significance",
    "confirmation",
    "inconclusive",
    "maximum_noise",
    "defaults",
    "rule",
    "required",
    "waiver",
)
_MATCH_KEYS = ("suite", "metric", "where")


class _Table:
    """A table of the file, which knows its place for errors."""

    def __init__(self, source: str, name: str, values: Any) -> None:
        self._source = source
        self._name = name
        if not isinstance(values, dict):
            raise UsageError(f"{source}: {name} must be a table, not {shown_value(values)}")
        self._values: dict[str, Any] = values

    def only(self, *known: str) -> None:
        """Refuse any other key by name, with the nearest known one."""
        for key in self._values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise UsageError(f"{self._source}: unknown key {shown_value(key)}{self._place()}; {hint}")

    def get(self, key: str, kind: type) -> Any:
        """The value of a key, or None; a value of another type is refused."""
        value = self._values.get(key)
        # True is an int to Python, and 20 o'clock a day: neither was meant.
        mixed_up = (kind is int and isinstance(value, bool)) or (kind is date and isinstance(value, datetime))
        if value is not None and (mixed_up or not isinstance(value, kind)):
            raise self.wrong(key, f"needs {_KINDS[kind]}")
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise self.wrong(key, f"needs a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, key: str, known: tuple[str, ...]) -> Any:
        value = self._values.get(key)
        if value is not None and value not in known:
            raise self.wrong(key, f"needs {' or '.join(map(repr, known))}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(self._source, key, self._values.get(key, {}))

    def tables(self, key: str) -> list[_Table]:
        found = self._values.get(key, [])
        if not isinstance(found, list):
            raise self.wrong(key, f"needs tables; write [[{key}]]")
        return [_Table(self._source, f"{key} {place}", values) for place, values in enumerate(found, 1)]

    def settings(self) -> dict[str, Any]:
        return {
            "minimum_effect": self.number("minimum_effect", 0.0, MOST_EFFECT),
            "better": self.choice("better", get_args(Direction)),
            "judge": self.get("judge", bool),
        }

    def match(self) -> Match:
        where = self.table("where") if "where" in self._values else None
        patterns = {name: _pattern(where, name, value) for name, value in where._values.items()} if where else {}
        named = {key: self.get(key, str) for key in ("suite", "metric")}
        if not patterns and not any(named.values()):
            raise UsageError(f"{self._source}: {self._name} matches everything; name a suite, a metric or a parameter")
        return Match(named["suite"] or "*", named["metric"] or "*", patterns)

    def wrong(self, key: str, need: str) -> UsageError:
        return UsageError(f"{self._source}: {key}{self._place()} {need}, not {shown_value(self._values[key])}")

    def missing(self, key: str, example: str) -> UsageError:
        return UsageError(f"{self._source}: {key}{self._place()} is missing; write {example}")

    def _place(self) -> str:
        return f" in {self._name}" if self._name else ""


_KINDS: dict[type, str] = {int: "a whole number", str: "a text", bool: "true or false", date: "a day (2027-01-31)"}


def _rule(table: _Table) -> Rule:
    table.only(*_MATCH_KEYS, *_RULE_VALUES)
    said = table.settings()
    if all(value is None for value in said.values()):
        raise table.missing("what the rule says", "minimum_effect = 0.1")
    return Rule(table.match(), **said)


def _required(table: _Table) -> Required:
    table.only(*_MATCH_KEYS)
    return Required(table.match())


def _waiver(table: _Table) -> Waiver:
    table.only(*_MATCH_KEYS, "expires", "reason", "verdicts")
    expires = table.get("expires", date)
    if expires is None:
        raise table.missing("expires", "expires = 2027-01-31, the last day on which it holds")
    reason = (table.get("reason", str) or "").strip()
    if not reason:
        raise table.missing("reason", 'reason = "why the change is let through"')
    verdicts = table.get("verdicts", list)
    if verdicts is None:
        verdicts = ["regressed"]
    if not verdicts or any(verdict not in get_args(Waivable) for verdict in verdicts):
        raise table.wrong("verdicts", f"needs some of {', '.join(get_args(Waivable))}")
    return Waiver(table.match(), expires, reason, tuple(verdicts))


_KINDS[list] = "a list"


def _pattern(table: _Table, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        if isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
            return str(value)
    except OverflowError:
        pass  # A whole number beyond any that a row can have.
    raise table.wrong(name, "needs a pattern or a value")


def _fits(name: str, value: Value, pattern: str) -> bool:
    shown = parameter(name, value)
    return any(fnmatchcase(text, pattern) for text in (shown, shown if isinstance(value, bool) else str(value)))


def _table(name: str, match: Match, said: Mapping[str, Any]) -> list[str]:
    """An entry as lines of TOML."""
    lines = ["", f"[[{name}]]", *_assignments({"suite": match.suite, "metric": match.metric, **said})]
    if match.where:
        where = ", ".join(f"{_toml(parameter)} = {_toml(pattern)}" for parameter, pattern in match.where.items())
        lines.append(f"where = {{ {where} }}")
    return lines


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    """A value as TOML; texts as basic strings with everything unusual escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_toml_character(character) for character in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return value.isoformat() if isinstance(value, date) else repr(value)


def _toml_character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
