"""`transom export-tokenizer`."""

import argparse
from pathlib import Path
from typing import Any

from transom.cli.model import MODEL_HELP, find_model
from transom.cli.parser import Parser, add_command

HELP = """\
Write the tokenizer of a model as tokenizer.json, tokenizer_config.json (with the chat template) and
config.json, for benchmarks and clients that need a tokenizer folder and have no network.

  transom export-tokenizer tok
  transom export-tokenizer tok --model smollm2-135m-instruct

Pass the folder to the other tool as its tokenizer, for example with --tokenizer tok.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "export-tokenizer",
        _run,
        help="write a model's tokenizer for other tools",
        usage="transom export-tokenizer DIR [flags]",
        description=HELP,
    )
    parser.add_argument(
        "folder", metavar="DIR", help="output folder; created if missing, and its files are overwritten"
    )
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    return parser


def _run(options: argparse.Namespace) -> None:
    find_model(options.model)
    from transom.weights.builtin import resolve_model
    from transom.weights.export import export_tokenizer
    from transom.weights.gguf import read_gguf

    for path in export_tokenizer(read_gguf(resolve_model(options.model)), Path(options.folder)):
        print(path)
