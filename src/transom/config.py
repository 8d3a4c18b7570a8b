"""Configuration of engine, server and logging: frozen dataclasses, validated when they are built."""

import ipaddress
import os
import re
from dataclasses import dataclass, field

from transom.errors import ConfigError
from transom.limits import LIMITS, Limits

# The names of enums in higher layers, which this module may not import. A test compares them.
KV_DTYPES = ("float16", "float32")
CACHE_POLICIES = ("value", "lru", "lfu", "fifo", "priority")
SCHEDULE_POLICIES = ("lpm", "fcfs", "srpt", "priority")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
DEFAULT_ADDRESS = ("127.0.0.1", 8000)

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|[0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(text: str) -> int:
    """The bytes of a size such as `512M`, `1G`, `1.5GiB` or `4096`. Units are powers of 1024. ConfigError."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512M or 1G")
    number, unit = match.groups()
    return int(float(number) * (1 << _UNITS[unit.lower()]))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine. `None` means that the engine chooses a value at start and prints it."""

    model: str | None = None
    """A GGUF file or the name of a built-in model; None: the default model."""
    page_size: int = 16
    """Tokens."""
    chunked_prefill_size: int = 512
    """Token budget of a step: decodes and prefill chunks together."""
    max_total_tokens: int | None = None
    """Size of the KV cache in full-attention tokens, plus 24 windows. An alternative to `kv_bytes`."""
    kv_bytes: int | None = None
    """Size of the KV cache in bytes, all components together."""
    swa_full_tokens_ratio: float | None = None
    """Tokens of the window pool per token of the full pool; None: the pools share one budget of bytes."""
    max_running_requests: int = 32
    disable_radix_cache: bool = False
    """Whether prefixes are dropped as soon as their request has ended."""
    threads: int | None = None
    paranoid: bool = False
    """Check all invariants after every step."""
    kv_dtype: str = "float16"
    """Type of stored keys and values. The only setting that changes the generated bits."""
    cache_policy: str = "value"
    schedule_policy: str = "lpm"
    target_itl_ms: float | None = None
    """Target duration of a step with decodes; prefill chunks shrink to meet it. None: always full chunks."""

    def __post_init__(self) -> None:
        _within("--page-size", self.page_size, 1, 4096)
        _within("--chunked-prefill-size", self.chunked_prefill_size, 1, 1 << 20)
        _within("--max-total-tokens", self.max_total_tokens, 1, 1 << 31)
        _within("--kv-bytes", self.kv_bytes, 1, 1 << 50)
        _within("--max-running-requests", self.max_running_requests, 1, 4096)
        _within("--threads", self.threads, 1, 1024)
        ratio = self.swa_full_tokens_ratio
        if ratio is not None and not 0 < ratio <= 1:
            raise ConfigError(f"--swa-full-tokens-ratio is {ratio:g}; it must be above 0 and at most 1")
        _one_of("--kv-dtype", self.kv_dtype, KV_DTYPES)
        _one_of("--cache-policy", self.cache_policy, CACHE_POLICIES)
        _one_of("--schedule-policy", self.schedule_policy, SCHEDULE_POLICIES)
        if self.target_itl_ms is not None and not 0 < self.target_itl_ms <= 3_600_000:
            raise ConfigError(
                f"--target-itl-ms is {self.target_itl_ms:g}; it must be above 0 and at most 3600000"
            )
        if self.kv_bytes is not None and self.max_total_tokens is not None:
            raise ConfigError("--kv-bytes and --max-total-tokens both size the KV pools; give one of them")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Level and format of the log, for server and engine."""

    level: str = "info"
    format: str = "text"

    def __post_init__(self) -> None:
        _one_of("--log-level", self.level, LOG_LEVELS)
        _one_of("--log-format", self.format, LOG_FORMATS)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of the HTTP server."""

    host: str = DEFAULT_ADDRESS[0]
    port: int = DEFAULT_ADDRESS[1]
    """0: the operating system chooses one."""
    uds: str | None = None
    """The path of a Unix socket, in place of host and port."""
    ssl_certfile: str | None = None
    """A PEM file: with it the server speaks TLS."""
    ssl_keyfile: str | None = None
    """The private key of the certificate; None: it is in the certificate's file."""
    root_path: str = ""
    """A prefix that a proxy leaves on the paths of requests, such as `/llm`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-For is believed; `unix`: a Unix socket's peers."""
    served_model_name: str | None = None
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Each request must carry one of them. Empty, and no file: no authentication."""
    api_key_file: str | None = None
    """A TOML file of named keys, see `server/callers.py`."""
    admin_api_key: str | None = field(default=None, repr=False)
    """The key for commands."""
    allow_commands: bool = False
    """Whether every client may command, on any address."""
    weights_dir: str | None = None
    """The folder whose files may replace the weights; None: weights cannot be updated over HTTP."""
    share_prefixes: bool = False
    """Whether a key finds the cached prefixes of other keys."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the server answers, beside those of loopback, in lower case."""
    cors_origins: tuple[str, ...] = ()
    """Sites whose pages may send requests, such as `https://chat.example`; `*`: all."""
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        _within("--port", self.port, 0, 65535)
        if not self.host:
            raise ConfigError("--host must not be empty; 0.0.0.0 listens on all networks")
        if self.uds is not None and (self.host, self.port) != DEFAULT_ADDRESS:
            raise ConfigError("--uds takes the place of --host and --port; give only one of them")
        if self.uds == "":
            raise ConfigError("--uds must not be empty; give the path of a socket")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile is the key of a certificate; give --ssl-certfile too")
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                f"--root-path is {self.root_path!r}; it must begin with / and not end with it, "
                "and have letters, digits and -._~ between, such as /llm or /models/llm"
            )
        for proxy in self.trusted_proxies:
            _require_network("--trusted-proxy", proxy)
        for key in self.api_keys:
            check_key(key, "an API key (--api-key, TRANSOM_API_KEY)")
        if self.admin_api_key is not None:
            check_key(self.admin_api_key, "--admin-api-key, TRANSOM_ADMIN_API_KEY")
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ConfigError(
                    f"--allowed-host is {name!r}; it must be a name or an address in lower case, without "
                    "scheme and port, such as llm.example"
                )
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"--cors-origin is {origin!r}; it must be * or a scheme and a host in lower case, "
                    "without a path, such as https://chat.example"
                )
        if self.served_model_name == "":
            raise ConfigError("--served-model-name must not be empty")

    @property
    def requires_key(self) -> bool:
        """Whether a request without a key is refused. A server with nothing but an admin key is open."""
        return bool(self.api_keys) or self.api_key_file is not None


def check_key(key: str, where: str) -> None:
    """ConfigError if no header could carry the key, or if it is empty. The message does not repeat it."""
    if not key.isascii() or not key.isprintable() or not key.strip() or key != key.strip():
        raise ConfigError(
            f"{where} must be printable ASCII, not empty, and must not begin or end with a space"
        )


def cores_available() -> int:
    """Cores that this process may use. In a container these can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _within(flag: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{flag} is {value}; it must be between {low} and {high}")


def _require_network(flag: str, text: str) -> None:
    try:
        if text != "unix":
            ipaddress.ip_network(text)
    except ValueError:
        raise ConfigError(
            f"{flag} is {text!r}; it must be an address such as 10.0.0.7, a network such as 10.0.0.0/8, or "
            "unix"
        ) from None


def _one_of(flag: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ConfigError(f"{flag} is {value!r}; it must be one of {', '.join(words)}")
