"""The one table of sampling parameters, compared with the types that name them."""

import dataclasses

from transom.llm import Options
from transom.sampling import PARAMETERS, SamplingOptions, sampling_arguments
from transom.server import protocol
from transom.values import Sampling


def test_the_table_the_sampler_the_api_and_the_keywords_name_the_same_parameters() -> None:
    names = set(PARAMETERS)
    assert names == {field.name for field in dataclasses.fields(Sampling)}
    assert names == set(SamplingOptions.__annotations__)
    assert names <= set(Options.__annotations__)
    assert names <= set(protocol.CompletionRequest.__struct_fields__)
    assert names <= set(protocol.ChatRequest.__struct_fields__)


def test_the_defaults_are_those_of_the_sampler_and_in_range() -> None:
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    # Calls draw a seed where none is given; the sampler itself is never without one.
    assert {**defaults, "seed": 0} == dataclasses.asdict(Sampling())
    assert sampling_arguments(defaults) == defaults
