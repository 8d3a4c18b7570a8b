"""The one table of sampling parameters, compared with the types that name them."""

import dataclasses

import numpy as np

from transom.llm import Options
from transom.sampling import PARAMETERS, RULE_PARAMETERS, SamplingOptions, sampling_arguments
from transom.server import protocol
from transom.text.logit_rules import FIELDS, logit_rules
from transom.values import LogitRules, Sampling


def test_the_table_the_sampler_the_api_and_the_keywords_name_the_same_parameters() -> None:
    names = set(PARAMETERS)
    assert names == {field.name for field in dataclasses.fields(Sampling)}
    names |= set(FIELDS)
    assert names - set(FIELDS) | set(RULE_PARAMETERS) == set(SamplingOptions.__annotations__)
    assert names <= set(Options.__annotations__)
    assert names <= set(protocol.CompletionRequest.__struct_fields__)
    assert names <= set(protocol.ChatRequest.__struct_fields__)


def test_the_defaults_are_those_of_the_sampler_and_in_range() -> None:
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    # Calls draw a seed where none is given; the sampler itself is never without one.
    assert {**defaults, "seed": 0} == dataclasses.asdict(Sampling())
    assert sampling_arguments(defaults) == defaults


def test_the_defaults_of_the_rules_are_those_of_the_engine_and_ask_for_nothing() -> None:
    defaults = {name: parameter.default for name, parameter in RULE_PARAMETERS.items()}
    assert list(defaults.values()) == [1.0, 0.0, 0.0, 0]
    none = LogitRules()
    assert [none.repetition, none.frequency, none.presence, none.min_tokens] == list(defaults.values())
    for asked in ({}, defaults, dict.fromkeys(FIELDS), {"logit_bias": {}, "bad_words": []}):
        assert logit_rules(asked, 10, lambda text: np.zeros(1, np.int32)) is None
