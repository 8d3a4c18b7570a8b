"""`transom bench serve` against small servers."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.bench.fakes import Fake, running, words_back
from tests.over_http import DEADLINE_SECONDS, Json
from tests.serving import Serving, serving
from tests.tiny import write_tiny_gguf

from transom.bench.http import address_of
from transom.bench.serve import ServeOptions, bench_serve
from transom.bench.server import Access
from transom.bench.sheet import ResultFiles
from transom.bench.workloads import WORKLOADS, Workload
from transom.errors import TransomError

SMALL = {
    "w2c8": replace(WORKLOADS["w2c8"], words=12, conversations=6, output_tokens=4, clients=3),
    "w3": replace(
        WORKLOADS["w3"], shared_characters=400, words=6, conversations=6, output_tokens=4, clients=3
    ),
    "w4s": replace(
        WORKLOADS["w4s"],
        shared_characters=300,
        words=4,
        conversations=3,
        turns=3,
        output_tokens=20,
        clients=2,
    ),
}
"""The tiny model has about one token per character."""


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    model = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with serving("--threads", "1", "--kv-bytes", "32M", model=model) as server:
        yield server


def measured(
    *urls: str,
    workloads: str = "w2c8",
    known: dict[str, Workload] = SMALL,
    seed: int = 0,
    repeats: int = 1,
    same_prompts: bool = False,
    files: ResultFiles = ResultFiles(),  # noqa: B008
    **access: str,
) -> None:
    servers = [Access(address_of(url)) for url in urls]
    servers[0] = replace(servers[0], **access)
    bench_serve(
        ServeOptions(tuple(servers), tuple(workloads.split(",")), seed, repeats, same_prompts, files), known
    )


def figures_in(file: Path) -> Json:
    found: Json = json.loads(file.read_text())
    return found


def test_our_server_is_measured_and_finds_shared_prefixes(
    tiny_server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = tmp_path / "figures.json", tmp_path / "pictures"
    measured(tiny_server.url, workloads="w2c8,w3,w4s", files=ResultFiles(file, folder))
    figures = figures_in(file)
    assert figures["servers"][0]["owner"] == "transom" and figures["wrong"] == figures["pairs"] == []
    assert {"processor", "cores", "system", "python"} == set(figures["machine"])
    runs = {run["workload"]: run for run in figures["runs"]}
    assert {name: (run["requests"], run["failed"]) for name, run in runs.items()} == {
        "w2c8": (6, 0),
        "w3": (6, 0),
        "w4s": (9, 0),
    }
    assert runs["w3"]["output_tokens"] == 6 * 4 and runs["w4s"]["output_tokens"] == 9 * 20
    assert runs["w2c8"]["hits"]["least"] == 0
    for name in ("w3", "w4s"):
        hits = runs[name]["hits"]
        assert runs[name]["prompt_tokens"] / 2 < hits["least"] <= hits["found"] <= hits["most"]
    assert runs["w3"]["ttft_ms_p95"] >= runs["w3"]["ttft_ms_p50"] > 0
    assert runs["w3"]["itl_ms_max"] >= runs["w3"]["itl_ms_p50"] >= 0  # several pieces may be read at once
    shown = capsys.readouterr().out
    assert "w4s" in shown and "WRONG" not in shown and "A / B" not in shown
    for name in ("output", "first-token", "between-tokens"):
        assert ElementTree.parse(folder / f"serve-{name}.svg").getroot().tag.endswith("svg")


def test_a_cache_that_already_has_the_prompts_fails_a_check(
    tiny_server: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(tiny_server.url, seed=77)
    with pytest.raises(TransomError, match="checks failed: 1"):
        measured(tiny_server.url, seed=77)
    assert "WRONG: w2c8 on A, repeat 1" in capsys.readouterr().out
    measured(tiny_server.url, seed=78)


def test_repeats_have_new_prompts_or_the_same_prompts_with_compared_answers(
    tiny_server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    measured(tiny_server.url, seed=20, repeats=2, files=ResultFiles(file))
    assert [run["seed"] for run in figures_in(file)["runs"]] == [20, 21]
    measured(tiny_server.url, seed=30, repeats=2, same_prompts=True, files=ResultFiles(file))
    assert [run["seed"] for run in figures_in(file)["runs"]] == [30, 30]
    assert figures_in(file)["again"] == [
        {"workload": "w2c8", "server": "A", "repeat": 1, "same": 6, "answers": 6}
    ]
    assert "w2c8 on A, repeat 2: 6 of 6 answers are the same as in repeat 1" in capsys.readouterr().out


def test_answers_that_changed_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    seen: set[str] = set()

    def answer(body: Json) -> Sequence[Json]:
        """Every second prompt gets a different answer in the second repeat."""
        again, prompt = body["prompt"] in seen, body["prompt"]
        seen.add(prompt)
        changes = again and sorted(p for p in seen).index(prompt) % 2 == 0
        return words_back({**body, "prompt": f"{prompt} changed"} if changes else body)

    with running(Fake(answer)) as fake:
        measured(fake.url, repeats=2, same_prompts=True)
    shown = capsys.readouterr().out
    assert "w2c8 on A, repeat 2: 3 of 6 answers are the same as in repeat 1" in shown


def test_two_servers_get_the_same_prompts_in_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def saying(name: str) -> Fake:
        def answer(body: Json) -> Sequence[Json]:
            if body["max_tokens"] == 4 and order[-1:] != [name]:
                order.append(name)
            return words_back({**body, "max_tokens": 4 if name == "first" else 2})

        return Fake(answer)

    file = tmp_path / "figures.json"
    with running(saying("first")) as first, running(saying("second")) as second:
        measured(first.url, second.url, repeats=3, files=ResultFiles(file))
    assert order == ["first", "second"] * 3
    asked = [sorted(body["prompt"] for body in fake.asked) for fake in (first, second)]
    assert asked[0] == asked[1] and len(set(asked[0])) == 1 + 3 * 6
    figures = figures_in(file)
    runs = {(run["server"], run["repeat"]): run["output_tokens_per_s"] for run in figures["runs"]}
    for pair in figures["pairs"]:
        expected = runs["A", pair["repeat"]] / runs["B", pair["repeat"]]
        assert pair["ratios"]["output_tokens_per_s"] == pytest.approx(expected)
        assert pair["answers"] == 6
    shown = capsys.readouterr().out
    assert "A / B pair by pair" in shown and "answers are the same from A and B" in shown


def test_a_conversation_continues_with_the_answer_of_the_server() -> None:
    with running(Fake(words_back)) as fake:
        measured(fake.url, workloads="w4s")
    turns = [prompt for prompt in fake.prompts if prompt.count("User: ") == 3]
    assert len(turns) == 3
    for prompt in turns:
        first, rest = prompt.split("\nModel:", 1)
        (said,) = [p for p in fake.prompts if p.startswith(first) and p.count("User: ") == 1]
        answer = " " + " ".join(said.split()[-20:])
        assert rest.startswith(f"{answer}\n\nUser: ")


def test_as_many_requests_are_in_flight_as_the_workload_has_clients() -> None:
    lock, now, most = threading.Lock(), 0, 0
    all_there = threading.Barrier(SMALL["w2c8"].clients)

    def answer(body: Json) -> Sequence[Json]:
        nonlocal now, most
        if body["max_tokens"] == SMALL["w2c8"].output_tokens:
            with lock:
                now += 1
                most = max(most, now)
            all_there.wait(DEADLINE_SECONDS)
            with lock:
                now -= 1
        return words_back(body)

    with running(Fake(answer)) as fake:
        measured(fake.url)
    assert most == SMALL["w2c8"].clients
