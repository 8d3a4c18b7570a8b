"""docs/limits.md is what the table of limits says."""

from dataclasses import fields, replace

import pytest
from tests.docs.pages import DOCS, text_of
from tools.limits_page import page

from transom.errors import ConfigError
from transom.limits import LIMITS, RULES, Limits


def test_the_page_is_the_table() -> None:
    assert text_of(DOCS / "limits.md") == page(), "run `make limits`"


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.flag])
def test_a_limit_outside_its_range_names_its_flag(name: str) -> None:
    rule = RULES[name]
    for value in (rule.low - 1, rule.high + 1, float("nan")):
        with pytest.raises(ConfigError, match=rule.flag):
            replace(LIMITS, **{name: value})
    replace(LIMITS, **{name: type(getattr(LIMITS, name))(rule.high)})


def test_every_limit_has_a_rule() -> None:
    assert [field.name for field in fields(Limits)] == list(RULES)
