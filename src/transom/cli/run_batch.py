"""`transom run-batch`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from transom import logs
from transom.cli.model import MODEL_HELP, add_engine_flags, engine_config, find_model
from transom.cli.parser import Parser, add_command
from transom.config import LOG_LEVELS, LogConfig

HELP = """\
Answer a file of requests in OpenAI's batch format, without a server.

  transom run-batch questions.jsonl answers.jsonl
  transom run-batch questions.jsonl answers.jsonl --model smollm2-135m-instruct

A line of the input is {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}. A
line of the output has the same custom_id and the response, in the order in which answers finish. Requests
that the output file already answers are skipped, so an interrupted run resumes where it stopped.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "run-batch",
        _run,
        help="answer a file of requests",
        usage="transom run-batch IN.jsonl OUT.jsonl [flags]",
        description=HELP,
    )
    parser.add_argument("input", metavar="IN.jsonl", help="requests, one per line")
    parser.add_argument(
        "output", metavar="OUT.jsonl", help="answers, one per line; an existing file is continued"
    )
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    add_engine_flags(parser)
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="warning",
        help="least severe messages to log on standard error; default %(default)s",
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    from transom.cli.batch.files import Answers, read_requests

    # Files are checked before the model is loaded.
    engine = engine_config(options)
    log_config = LogConfig(options.log_level)
    logs.configure(log_config)
    requests = read_requests(Path(options.input))
    answers = Answers(Path(options.output))
    unanswered = answers.unanswered(requests)
    if len(unanswered) < len(requests):
        done = len(requests) - len(unanswered)
        print(f"{done} of {len(requests)} requests are already answered", file=sys.stderr)
    if not unanswered:
        return
    find_model(engine.model)
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from transom.cli.batch.run import rate, run
    from transom.engine.supervisor import EngineLaunch
    from transom.server.launch import default_name
    from transom.weights.tokenizer import load_text

    started_at, tokens = time.monotonic(), 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=len(unanswered))

        def progress(output_tokens: int) -> None:
            nonlocal tokens
            tokens += output_tokens
            bar.update(task, advance=1, description=rate(tokens, started_at))

        launch, text = EngineLaunch(engine, log_config), load_text(engine.model)
        try:
            asyncio.run(run(launch, default_name(engine.model), text, unanswered, answers, progress))
        finally:
            answers.close()
    print(f"{len(unanswered)} answers in {options.output}, {rate(tokens, started_at)}", file=sys.stderr)
