"""Values of flags from a file and from the environment.

The command line wins over the environment, the environment over the file, and the file over the defaults:

    --port 9000   >   TRANSOM_PORT=9000   >   port = 9000 in --config FILE   >   8000

A key of the file is the name of a flag without its dashes, and a variable is that name in capitals. Both are
derived from the parser, so a flag cannot exist without them.
"""

import argparse
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from transom.errors import ConfigError

PREFIX = "TRANSOM_"
CONFIG = "config"
"""The flag that names the file. The file itself cannot have it."""
SECRETS = frozenset({"api-key", "admin-api-key"})
"""Keys whose values no message repeats."""
OTHER_VARIABLES = frozenset({"TRANSOM_CACHE", "TRANSOM_NATIVE", "TRANSOM_ISA"})
"""Variables that belong to no flag."""
CONFIG_BYTES_MAX = 1 << 20
SHOWN_CHARACTERS_MAX = 100

_BOOLEANS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
# Kubernetes gives every container the addresses of its services. For a service called "transom", TRANSOM_PORT
# is then "tcp://10.0.0.1:8000": a variable of the cluster, and not a setting of this program.
_CLUSTER_NAME = re.compile(r"TRANSOM_(SERVICE_|(\w+_)?PORT_\d|\w+_SERVICE_(HOST|PORT))")
_CLUSTER_VALUE = re.compile(r"(tcp|udp|sctp)://")


@dataclass(slots=True)
class Settings:
    """The values found, and where each came from. Filled once, by `load`."""

    values: dict[str, Any] = field(default_factory=dict)
    """By the name that argparse uses for the flag."""
    origins: dict[str, str] = field(default_factory=dict)
    """By flag: a text such as `port in server.toml`, or the name of a variable."""
    unknown: tuple[str, ...] = ()
    """Variables with our prefix that mean nothing, probably misspelt."""

    def add(self, action: argparse.Action, value: object, origin: str) -> None:
        self.values[action.dest] = value
        self.origins[_flag(action)] = origin

    def drop(self, action: argparse.Action) -> None:
        self.values.pop(action.dest, None)
        self.origins.pop(_flag(action), None)

    def explained(self, error: ConfigError) -> ConfigError:
        """The error, with the origin of every flag that it names and that the user did not type."""
        text = str(error)
        named = [flag for flag in self.origins if re.search(rf"{re.escape(flag)}(?![\w-])", text)]
        return ConfigError("; ".join((text, *(f"{flag} comes from {self.origins[flag]}" for flag in named))))


def load(
    parser: argparse.ArgumentParser, options: argparse.Namespace, environment: Mapping[str, str]
) -> Settings:
    """Completes `options`, which `parser` has filled, from the file and the environment. ConfigError.

    `options.given` has the names of the flags on the command line.
    """
    actions = {one.dest: one for one in parser._actions if not isinstance(one, argparse._HelpAction)}
    settings = Settings(unknown=_unknown(environment, actions.values()))
    config = actions.pop(CONFIG)
    file = options.config or environment.get(variable(config))
    if file:
        _add_file(settings, Path(file), actions.values())
    _add_variables(settings, environment, actions.values())
    for name, action in actions.items():
        if name in options.given:
            settings.drop(action)
    vars(options).update(settings.values)
    return settings


def key(action: argparse.Action) -> str:
    """The name of a flag in a file."""
    return _flag(action).removeprefix("--")


def variable(action: argparse.Action) -> str:
    """The name of a flag in the environment."""
    return PREFIX + key(action).replace("-", "_").upper()


def _flag(action: argparse.Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


# ---------------------------------------------------------------- the two sources


def _add_file(settings: Settings, path: Path, actions: Iterable[argparse.Action]) -> None:
    known = {key(action): action for action in actions}
    for name, value in _table(path).items():
        if name not in known:
            hint = _hint(name, known)
            raise ConfigError(f"{path}: {name[:SHOWN_CHARACTERS_MAX]!r} is not the name of a flag{hint}")
        given = Given(known[name], value, f"{path}: {name}")
        settings.add(known[name], given.from_toml(), f"{name} in {path}")


def _table(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        with path.open("rb") as file:
            # Never to the end of the file: a device has none.
            data = file.read(CONFIG_BYTES_MAX + 1)
        if len(data) > CONFIG_BYTES_MAX:
            raise ConfigError(
                f"{path}: has more than {CONFIG_BYTES_MAX} bytes, the maximum of a --config file"
            )
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: is not valid TOML: values are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, or a null byte in the path
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _add_variables(
    settings: Settings, environment: Mapping[str, str], actions: Iterable[argparse.Action]
) -> None:
    for action in actions:
        text = environment.get(variable(action))
        if text is not None and not _CLUSTER_VALUE.match(text):
            given = Given(action, text, variable(action))
            settings.add(action, given.from_text(), given.place)


def _unknown(environment: Mapping[str, str], actions: Iterable[argparse.Action]) -> tuple[str, ...]:
    known = {*map(variable, actions), *OTHER_VARIABLES}
    found = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return tuple(name + _hint(name, known) for name in found if not _CLUSTER_NAME.match(name))


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


# ---------------------------------------------------------------- one value


@dataclass(frozen=True, slots=True)
class Given:
    """A value for a flag that was not typed on the command line, and the place that it was read from."""

    action: argparse.Action
    value: Any
    place: str

    def from_toml(self) -> object:
        """The value as the command line would yield it. Its TOML type must be the flag's own. ConfigError."""
        if self._is_switch:
            return self.value if isinstance(self.value, bool) else self._refuse("true or false")
        if not self._is_repeatable:
            return self._one_from_toml()
        items = self.value if isinstance(self.value, list) else [self.value]
        return [Given(self.action, item, self.place)._one_from_toml() for item in items]

    def from_text(self) -> object:
        """The value of an environment variable, as the command line would yield it. ConfigError."""
        if self._is_switch:
            word = self.value.strip().lower()
            return _BOOLEANS[word] if word in _BOOLEANS else self._refuse(f"one of {', '.join(_BOOLEANS)}")
        if not self.value:
            raise ConfigError(f"{self.place} is empty; give it a value, or unset it")
        if not self._is_repeatable:
            return self._typed(self.value)
        # A key may contain a comma: split, it would be two shorter keys.
        parts = [self.value] if self._is_secret else self.value.split(",")
        return [self._typed(part.strip() if len(parts) > 1 else part) for part in parts]

    @property
    def _is_switch(self) -> bool:
        return self.action.nargs == 0

    @property
    def _is_repeatable(self) -> bool:
        return isinstance(self.action, argparse._AppendAction)

    @property
    def _is_secret(self) -> bool:
        return key(self.action) in SECRETS

    def _one_from_toml(self) -> object:
        # bool is a subclass of int, so that isinstance would take true for 1.
        kind = type(self.value)
        if self.action.type is int:
            return self.value if kind is int else self._refuse("an integer")
        if self.action.type is float:
            is_number = kind in (int, float) and math.isfinite(self.value)
            return float(self.value) if is_number else self._refuse("a number")
        if self.action.type is not None and kind is int:  # a size: 1073741824 means the same as "1G"
            return self._typed(str(self.value))
        return self._typed(self.value) if kind is str else self._refuse("a string")

    def _typed(self, text: str) -> object:
        """The text converted by the flag's own type, and checked against its choices."""
        convert: Any = self.action.type or str
        try:
            value: object = convert(text)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{self.place}: {error}") from None
        except ValueError:
            self._refuse({int: "an integer", float: "a number"}.get(convert, "valid"))
        if self.action.choices is not None and value not in self.action.choices:
            self._refuse(f"one of {', '.join(map(str, self.action.choices))}")
        return value

    def _refuse(self, rule: str) -> NoReturn:
        # Secrets would end up in logs and on screens.
        shown = "not" if self._is_secret else f"{self.value!r}"[:SHOWN_CHARACTERS_MAX] + "; it must be"
        raise ConfigError(f"{self.place} is {shown} {rule}")
