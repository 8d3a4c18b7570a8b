"""The caller of each request: the name of its API key, and what the key may do.

`ApiKeys` authenticates a request and puts its `Caller` into the ASGI scope. Every later decision that depends
on the client reads it there: commands, aborts, priorities, the cache's namespace, shares and the log.
"""

import hashlib
import hmac
import logging
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.types import Scope

from transom.config import ServerConfig, check_key
from transom.errors import ConfigError
from transom.server.errors import Problem, Refused, forbidden
from transom.values import Request

log = logging.getLogger("transom.server")

CALLER = "transom.caller"
"""Key of the ASGI scope, set for every request behind `ApiKeys`."""

FILE_BYTES_MAX = 1 << 20
KEYS_MAX = 1000
"""Each request is compared with all keys: a thousand take a quarter of a millisecond."""
ADMIN = "admin"
"""Name of the key of --admin-api-key."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SETTINGS = frozenset({"key", "admin", "priority"})


@dataclass(frozen=True, slots=True)
class Caller:
    """A client as the server knows it.

    key              the name of its API key; empty for all clients of a server without keys
    may_command      pause, flush, load weights, abort requests of others
    may_prioritize   `priority` above 0
    shares_prefixes  whether cached prefixes are found by other keys, and theirs by this one
    """

    key: str = ""
    may_command: bool = False
    may_prioritize: bool = False
    shares_prefixes: bool = False

    def require_command(self) -> None:
        """Refused if the caller may not command."""
        if not self.may_command:
            raise forbidden(
                "this is a command: it needs the server's admin key, --admin-api-key. Without one, commands "
                "work on loopback for a server with at most one API key, and elsewhere with --allow-commands",
                code="commands_not_allowed",
            )

    def require_priority(self, priority: int | None) -> None:
        """Refused if the caller may not use this priority."""
        if priority is not None and priority > 0 and not self.may_prioritize:
            raise forbidden(
                f"priority is {priority}; with this API key it can be at most 0",
                "priority_not_allowed",
                "priority",
            )

    def claim(self, request: Request) -> Request:
        """The request, accounted to a user of this caller's key, in the key's namespace of the cache."""
        salt = request.salt
        # A name has no slash, so that no salt reaches into the namespace of another key.
        if not self.shares_prefixes and (self.key or salt):
            salt = f"{self.key}/{salt}"
        # Users of different keys may have the same name.
        tenant = f"{self.key}/{request.tenant}" if self.key or request.tenant else ""
        return replace(request, key=self.key, tenant=tenant, salt=salt)


def caller_of(scope: Scope) -> Caller:
    caller = scope[CALLER]
    assert isinstance(caller, Caller), caller
    return caller


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the server, under its name. Only the digest of the secret is kept."""

    name: str
    digest: bytes
    is_admin: bool = False
    may_prioritize: bool = False

    @classmethod
    def of(cls, name: str, secret: str, *, is_admin: bool = False, may_prioritize: bool = False) -> "Key":
        return cls(name, _digest(secret.encode("ascii")), is_admin, may_prioritize)


class KeyRing:
    """Owns the server's keys. Mutable: `reload` reads the key file again.

    `is_local`: only clients of this machine can connect.
    """

    def __init__(self, config: ServerConfig, *, is_local: bool) -> None:
        """ConfigError if the key file cannot be used."""
        self._config = config
        self._is_local = is_local
        self._keys = self._read()

    def reload(self) -> None:
        """ConfigError if the key file cannot be used; then the old keys stay."""
        self._keys = self._read()
        log.info("the API keys are now those of %s", ", ".join(sorted(self.names)))

    @property
    def names(self) -> frozenset[str]:
        """Names of the keys of clients, without those of admins."""
        return frozenset(key.name for key in self._keys if not key.is_admin)

    @property
    def has_open_commands(self) -> bool:
        """Whether every client may command."""
        if any(key.is_admin for key in self._keys):
            return False
        # With several keys, clients do not trust each other, on the same machine too.
        return self._config.allow_commands or (self._is_local and len(self.names) <= 1)

    def caller(self, secret: str | None) -> Caller:
        """The caller that sent this secret. Refused with 401 if it must have a key and has none of ours."""
        key = None if secret is None else self._find(secret)
        if key is None:
            if self._config.requires_key:
                raise Refused(_unauthorized(_MISSING if secret is None else _UNKNOWN))
            # OpenAI's clients insist on a key and send any text: a server without keys serves them.
            name, is_admin, may_prioritize = "", False, not self._keys
        else:
            name, is_admin = key.name, key.is_admin
            may_prioritize = is_admin or key.may_prioritize or len(self.names) == 1
        return Caller(name, is_admin or self.has_open_commands, may_prioritize, self._config.share_prefixes)

    def _find(self, secret: str) -> Key | None:
        digest = _digest(secret.encode("latin-1"))  # starlette decodes headers as latin-1
        # A list, not a generator: all keys are compared, or the time would tell which one matched.
        found = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        return found[0] if found else None

    def _read(self) -> tuple[Key, ...]:
        config = self._config
        keys = [Key.of(f"key-{number}", secret) for number, secret in enumerate(config.api_keys, 1)]
        if config.admin_api_key is not None:
            keys.append(Key.of(ADMIN, config.admin_api_key, is_admin=True))
        if config.api_key_file is not None:
            named = read_keys(Path(config.api_key_file))
            taken = {key.name for key in keys} & {key.name for key in named}
            if taken:
                raise ConfigError(f"--api-key-file: {min(taken)} is the name of a key of the command line")
            keys += named
        _check_distinct(keys)
        if config.allow_commands and any(key.is_admin for key in keys):
            raise ConfigError(
                "--allow-commands lets every client command, an admin key only its owner; give one of them"
            )
        return tuple(keys)


def _check_distinct(keys: Iterable[Key]) -> None:
    """ConfigError if two names have one key."""
    names: dict[bytes, str] = {}
    for key in keys:
        other = names.setdefault(key.digest, key.name)
        if other != key.name:
            raise ConfigError(f"the API keys {other} and {key.name} are the same key; each needs its own")


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


# ---------------------------------------------------------------- the key file


def read_keys(path: Path) -> list[Key]:
    """The keys of --api-key-file, in TOML: `name = "key"`, or a table with `key`, `priority` and `admin`.

    ConfigError, naming file and entry, if it cannot be used. No message has a key in it.
    """
    where = f"--api-key-file {path}"
    try:
        table = tomllib.loads(_read_file(path).decode())
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"{where}: values are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        # The message has a position, and never more than one character of the file.
        raise ConfigError(f"{where}: is not valid TOML: {error}") from None
    except ValueError:
        raise ConfigError(f"{where}: is not a text file in UTF-8") from None
    keys = [key for name, entry in table.items() for key in _entry(name, entry, where)]
    if not 0 < len(keys) <= KEYS_MAX:
        raise ConfigError(f"{where}: has {len(keys)} keys; it must have between 1 and {KEYS_MAX}")
    return keys


def _read_file(path: Path) -> bytes:
    # A pipe would stop the event loop at a reload until its other end is opened.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        if found.st_mode & stat.S_IROTH:
            log.warning("--api-key-file %s can be read by every user of this machine", path)
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data


def _entry(name: str, entry: object, where: str) -> list[Key]:
    """The keys of one name: several while an old one is replaced by a new one."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {name[:64]!r} is not a name; it has 1 to 64 letters, digits and ._- and begins with a "
            "letter or digit"
        )
    settings: dict[str, Any] = entry if isinstance(entry, dict) else {"key": entry}
    unknown = [setting for setting in settings if setting not in _SETTINGS]
    if unknown:
        raise ConfigError(f"{where}: {name} has {unknown[0][:64]!r}; it can have key, priority and admin")
    rights = {right: settings.get(right, False) for right in ("admin", "priority")}
    wrong = [right for right, value in rights.items() if not isinstance(value, bool)]
    if wrong:
        raise ConfigError(f"{where}: {name}.{wrong[0]} must be true or false")
    secrets = settings.get("key")
    secrets = secrets if isinstance(secrets, list) else [secrets]
    if not secrets or not all(isinstance(secret, str) for secret in secrets):
        raise ConfigError(f"{where}: {name}.key must be a string, or a list of strings")
    for secret in secrets:
        check_key(secret, f"{where}: {name}")
    return [
        Key.of(name, secret, is_admin=rights["admin"], may_prioritize=rights["priority"])
        for secret in secrets
    ]


# ---------------------------------------------------------------- refusals

_MISSING = "this server requires an API key: send the header Authorization: Bearer KEY, or x-api-key: KEY"
_UNKNOWN = "the API key is not one of this server's keys"


def _unauthorized(message: str) -> Problem:
    headers = {"www-authenticate": "Bearer"}
    return Problem(401, message, "invalid_request_error", None, "invalid_api_key", headers)
