"""The one table of sampling parameters, compared with the types that name them."""

import dataclasses

from transom.llm import Options
from transom.sampling import PARAMETERS, SamplingOptions
from transom.server import protocol
from transom.values import Sampling


def test_the_table_the_sampler_the_api_and_the_keywords_name_the_same_parameters() -> None:
    names = set(PARAMETERS)
    assert names == {field.name for field in dataclasses.fields(Sampling)}
    assert names == set(SamplingOptions.__annotations__)
    assert names <= set(Options.__annotations__)
    assert names <= set(protocol.CompletionRequest.__struct_fields__)
    assert names <= set(protocol.ChatRequest.__struct_fields__)


def test_every_default_is_in_its_range() -> None:
    for name, value in dataclasses.asdict(Sampling()).items():
        assert PARAMETERS[name].low <= value <= PARAMETERS[name].high
