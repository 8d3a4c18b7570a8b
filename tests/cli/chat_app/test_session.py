"""A conversation's commands, with a backend that only repeats."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from transom.cli.chat_app.backend import AnswerUsage, Message, Settings
from transom.cli.chat_app.session import Quit, Say, Session, Show


class Echo:
    name = "echo"

    def answer(self, messages: Sequence[Message], settings: Settings) -> Iterator[str | AnswerUsage]:
        yield messages[-1]["content"]
        yield AnswerUsage(3, 1, 1)

    def interrupt(self) -> None: ...

    def explain(self, messages: Sequence[Message]) -> list[str]:
        return [f"{len(messages)} messages"]


@pytest.fixture
def session() -> Session:
    return Session(Echo())


def exchange(session: Session, user: str, assistant: str) -> None:
    assert session.take(user) == Say()
    session.add_answer(assistant)


def roles(session: Session) -> list[str]:
    return [message["role"] for message in session.messages]


def test_messages_and_answers_alternate(session: Session) -> None:
    exchange(session, "a", "b")
    exchange(session, "c", "d")
    assert [message["content"] for message in session.messages] == ["a", "b", "c", "d"]
    assert roles(session) == ["user", "assistant"] * 2


def test_a_message_without_an_answer_is_removed(session: Session) -> None:
    exchange(session, "a", "b")
    session.take("c")
    session.drop_unanswered()
    assert roles(session) == ["user", "assistant"]


def test_empty_input_is_ignored(session: Session) -> None:
    assert session.take("  ") == Show(()) and not session.messages


def test_reset_forgets_all_but_the_system_message(session: Session) -> None:
    session.take("/system be brief")
    exchange(session, "a", "b")
    assert roles(session) == ["system", "user", "assistant"]
    session.take("/reset")
    assert session.messages == [{"role": "system", "content": "be brief"}]
    session.take("/system")
    assert session.messages == []


def test_an_unknown_command_is_not_sent_to_the_model(session: Session) -> None:
    outcome = session.take("/nonesuch x")
    assert isinstance(outcome, Show) and "/help" in outcome.lines[0] and not session.messages


def test_help_names_every_command(session: Session) -> None:
    outcome = session.take("/help")
    assert isinstance(outcome, Show)
    for command in ("/reset", "/system", "/explain", "/save", "/quit"):
        assert any(line.startswith(command) for line in outcome.lines)


def test_quit_leaves(session: Session) -> None:
    assert session.take("/quit") == Quit()


def test_explain_needs_a_message(session: Session) -> None:
    assert session.take("/explain") == Show(("the conversation is empty",))
    exchange(session, "a", "b")
    assert session.take("/explain") == Show(("2 messages",))


def test_save_writes_json_or_markdown(session: Session, tmp_path: Path) -> None:
    exchange(session, "ä", "b")
    session.take(f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text())["messages"] == session.messages
    session.take(f"/save {tmp_path / 'talk.md'}")
    assert (tmp_path / "talk.md").read_text() == "**user**\n\nä\n\n**assistant**\n\nb\n\n"


def test_save_reports_errors(session: Session, tmp_path: Path) -> None:
    assert session.take("/save") == Show(("/save FILE",))
    outcome = session.take(f"/save {tmp_path / 'none' / 'talk.md'}")
    assert isinstance(outcome, Show) and "no such file or directory" in outcome.lines[0]
