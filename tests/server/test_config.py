from collections.abc import Iterable

import pytest

from transom.config import (
    CACHE_POLICIES,
    KV_DTYPES,
    SCHEDULE_POLICIES,
    EngineConfig,
    LogConfig,
    ServerConfig,
    parse_bytes,
)
from transom.errors import ConfigError
from transom.kv.eviction_policy import CachePolicy
from transom.ops.store import KVType
from transom.sched.policy import SchedulePolicy


@pytest.mark.parametrize(
    ("choices", "members"),
    [(CACHE_POLICIES, CachePolicy), (SCHEDULE_POLICIES, SchedulePolicy), (KV_DTYPES, KVType)],
)
def test_the_choices_of_a_flag_are_the_members_of_its_enum(choices: tuple[str, ...], members: type) -> None:
    assert isinstance(members, Iterable)
    assert set(choices) == {member.value for member in members}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512M", 512 << 20),
        ("1G", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("64 kb", 64 << 10),
    ],
)
def test_sizes_are_read_in_powers_of_1024(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1G", "1X", "1 G G", "nan", "1e9"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="512M"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"page_size": 0}, "--page-size"),
        ({"chunked_prefill_size": 0}, "--chunked-prefill-size"),
        ({"max_total_tokens": 0}, "--max-total-tokens"),
        ({"kv_bytes": 0}, "--kv-bytes"),
        ({"max_running_requests": 0}, "--max-running-requests"),
        ({"threads": 0}, "--threads"),
        ({"swa_full_tokens_ratio": 0.0}, "--swa-full-tokens-ratio"),
        ({"swa_full_tokens_ratio": 1.5}, "--swa-full-tokens-ratio"),
        ({"swa_full_tokens_ratio": float("nan")}, "--swa-full-tokens-ratio"),
        ({"kv_dtype": "int3"}, "--kv-dtype"),
        ({"kv_bytes": 1 << 30, "max_total_tokens": 4096}, "--max-total-tokens"),
    ],
)
def test_an_impossible_engine_configuration_names_its_flag(changes: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        EngineConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"port": 65536}, "--port"),
        ({"port": -1}, "--port"),
        ({"served_model_name": ""}, "--served-model-name"),
    ],
)
def test_an_impossible_server_configuration_names_its_flag(changes: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        ServerConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "flag"), [({"level": "loud"}, "--log-level"), ({"format": "xml"}, "--log-format")]
)
def test_an_impossible_log_configuration_names_its_flag(changes: dict[str, str], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        LogConfig(**changes)
